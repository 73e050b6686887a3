//! `Idempotency-Key`: a request that is retried with its key is not executed again; it gets the stored first response.
//!
//! The key is extracted after the caller and before the body. Without one, a request costs one header look-up.

use axum::extract::FromRequestParts;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use sha2::{Digest, Sha256};

use super::error::{ApiError, IDEMPOTENCY_REPLAYED};
use super::state::Api;
use plantstore_model::user::UserId;
use plantstore_store::{IdempotencyKey, PlantWrite, StoredError, WriteContext, WriteOutcome};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum length of a key, in characters.
const KEY_MAX: usize = 255;

/// The optional key of a request, and the fingerprint of the parts that were read so far. Boxed, so that futures stay small.
pub(crate) struct RequestKey(Option<Box<KeyFingerprint>>);

struct KeyFingerprint {
    hash: [u8; 32],
    fingerprint: Sha256,
}

impl<App: Send + Sync> FromRequestParts<App> for RequestKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next() else {
            return Ok(Self(None));
        };
        let key = parse(value).filter(|_| values.next().is_none()).ok_or(ApiError::BadRequest(
            "send one `Idempotency-Key` of 1 to 255 printable ASCII characters, bare or as a quoted string of RFC 8941",
        ))?;
        let mut key = Box::new(KeyFingerprint { hash: Sha256::digest(key).into(), fingerprint: Sha256::new() });
        key.add(parts.method.as_str().as_bytes());
        // Unparsed, with the id and the query.
        key.add(parts.uri.path_and_query().map_or("", |target| target.as_str()).as_bytes());
        key.add_all(&parts.headers, CONTENT_TYPE);
        key.add_all(&parts.headers, CONTENT_ENCODING);
        Ok(Self(Some(key)))
    }
}

/// Proof that a request has no key, for operations whose response cannot be sent again.
pub(crate) struct NoKey;

impl<App: Send + Sync> FromRequestParts<App> for NoKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        if parts.headers.contains_key(IDEMPOTENCY_KEY) {
            return Err(ApiError::BadRequest(
                "send no `Idempotency-Key` here: the secret of a token is shown once and cannot be sent again",
            ));
        }
        Ok(Self)
    }
}

impl KeyFingerprint {
    /// Adds a part, preceded by its length, so that different parts never concatenate to the same bytes.
    fn add(&mut self, part: &[u8]) {
        self.fingerprint.update((part.len() as u64).to_be_bytes());
        self.fingerprint.update(part);
    }

    fn add_all(&mut self, headers: &HeaderMap, name: HeaderName) {
        let values = headers.get_all(name);
        self.fingerprint.update((values.iter().count() as u64).to_be_bytes());
        values.iter().for_each(|value| self.add(value.as_bytes()));
    }
}

impl RequestKey {
    /// Adds the owner of the plants by id, because an owner who is deleted and created again under the same name is another
    /// user. Nothing is added for a caller's own plants: keys belong to one user anyway, and so keys that earlier releases
    /// stored stay valid.
    pub(crate) fn with_owner(mut self, context: WriteContext) -> Self {
        if let Some(key) = self.0.as_mut().filter(|_| context.owner != context.user) {
            key.add(&context.owner.get().to_be_bytes());
        }
        self
    }

    pub(crate) fn with_body(mut self, body: &[u8]) -> Self {
        if let Some(key) = &mut self.0 {
            key.add(body);
        }
        self
    }

    /// Returns the key with the outcomes that the store may have to record under it.
    fn with_outcomes(self, success: StatusCode, rejection: &ApiError) -> Option<IdempotencyKey> {
        self.0.map(|key| IdempotencyKey {
            hash: key.hash,
            fingerprint: key.fingerprint.finalize().into(),
            success_status: success.as_u16().into(),
            rejection: StoredError { code: rejection.code(), message: rejection.to_string() },
        })
    }

    /// Executes a write, and returns its response: `success`, or `rejection` if there was nothing to change.
    pub(crate) async fn write(
        self,
        api: &Api,
        context: WriteContext,
        write: PlantWrite,
        mut success: Response,
        rejection: ApiError,
    ) -> Result<Response, ApiError> {
        let key = self.with_outcomes(success.status(), &rejection);
        match api.store.write(context, write, key).await.map_err(|error| api.write_error(error))? {
            WriteOutcome::Done => Ok(success),
            WriteOutcome::Rejected => Err(rejection),
            WriteOutcome::NoUser => Err(ApiError::InvalidToken),
            WriteOutcome::NoOwner => Err(ApiError::NoCollection),
            WriteOutcome::Replayed(None) => {
                success.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
                Ok(success)
            }
            WriteOutcome::Replayed(Some(error)) => Err(ApiError::Replayed(error)),
            WriteOutcome::KeyReused => Err(ApiError::KeyReused),
        }
    }

    /// Returns the error of a request that is rejected before a write. With a key, it is stored like any other outcome.
    pub(crate) async fn reject(self, api: &Api, user: UserId, error: ApiError) -> ApiError {
        match self.with_outcomes(StatusCode::OK, &error) {
            Some(key) if error.is_permanent() => store_rejection(api, user, key).await.err().unwrap_or(error),
            _ => error,
        }
    }
}

async fn store_rejection(api: &Api, user: UserId, key: IdempotencyKey) -> Result<(), ApiError> {
    match api.store.record_rejection(user, key).await.map_err(|error| api.write_error(error))? {
        WriteOutcome::Rejected | WriteOutcome::NoUser | WriteOutcome::NoOwner => Ok(()),
        WriteOutcome::Replayed(Some(error)) => Err(ApiError::Replayed(error)),
        WriteOutcome::KeyReused => Err(ApiError::KeyReused),
        // Possible after an upgrade to a release with stricter rules.
        WriteOutcome::Replayed(None) | WriteOutcome::Done => {
            Err(ApiError::Internal("an invalid request has the key of a request that has succeeded".to_owned()))
        }
    }
}

/// Parses a key, which is bare or a quoted string of RFC 8941.
fn parse(value: &HeaderValue) -> Option<Vec<u8>> {
    let bytes = value.as_bytes();
    let key = match bytes.strip_prefix(b"\"") {
        Some(quoted) => unquote(quoted.strip_suffix(b"\"")?)?,
        None => bytes.to_vec(),
    };
    let printable = key.iter().all(|byte| matches!(byte, b' '..=b'~'));
    (printable && (1..=KEY_MAX).contains(&key.len())).then_some(key)
}

fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = text.iter().copied();
    let mut key = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        key.push(match byte {
            b'"' => return None,
            b'\\' => bytes.next().filter(|escaped| matches!(escaped, b'"' | b'\\'))?,
            plain => plain,
        });
    }
    Some(key)
}

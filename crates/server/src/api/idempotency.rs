//! `Idempotency-Key`: a request that is retried with its key is not executed again, and gets its first response again.
//!
//! The key is extracted after the caller and before the body. Without one, a request costs one header look-up.

use axum::extract::FromRequestParts;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use sha2::{Digest, Sha256};

use super::error::ApiError;
use super::header_names::{IDEMPOTENCY_KEY, IDEMPOTENCY_REPLAYED};
use super::state::Api;
use plantstore_model::user::UserId;
use plantstore_store::{Actor, IdempotencyKey, KnownKey, StoredError, StoredOutcome, WriteResult};

/// Longest key, in characters.
const KEY_MAX: usize = 255;

/// The key of a request, if it has one, and the fingerprint of what has been read of the request.
pub(crate) struct RequestKey(Option<Keyed>);

struct Keyed {
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
        let mut keyed = Keyed { hash: Sha256::digest(key).into(), fingerprint: Sha256::new() };
        keyed.add(parts.method.as_str().as_bytes());
        // As it was sent: the id and the query.
        keyed.add(parts.uri.path_and_query().map_or("", |target| target.as_str()).as_bytes());
        keyed.add_all(&parts.headers, CONTENT_TYPE);
        keyed.add_all(&parts.headers, CONTENT_ENCODING);
        Ok(Self(Some(keyed)))
    }
}

impl Keyed {
    /// Adds a part, behind its length: no other parts run together to the same bytes.
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
    /// Adds the owner of the plants, by id: an owner who is deleted and created again under the same name is another one. For
    /// callers among their own plants nothing is added: a key belongs to one user id anyway, and keys that earlier releases
    /// stored stay valid.
    pub(crate) fn with_owner(mut self, actor: Actor) -> Self {
        if let Some(keyed) = self.0.as_mut().filter(|_| actor.owner != actor.user) {
            keyed.add(&actor.owner.get().to_be_bytes());
        }
        self
    }

    /// Adds the body of the request.
    pub(crate) fn with_body(mut self, body: &[u8]) -> Self {
        if let Some(keyed) = &mut self.0 {
            keyed.add(body);
        }
        self
    }

    /// Returns the key with what is to be stored under it: this status, or else this error.
    pub(crate) fn storing(self, done: StatusCode, refused: &ApiError) -> Option<IdempotencyKey> {
        self.0.map(|Keyed { hash, fingerprint }| {
            let refused = StoredError { code: refused.code().0, message: refused.to_string() };
            IdempotencyKey {
                hash,
                fingerprint: fingerprint.finalize().into(),
                success_status: done.as_u16().into(),
                rejection: refused,
            }
        })
    }

    /// Returns the error for a request that is rejected before a write. With a key, it is stored like any other outcome.
    pub(crate) async fn reject(self, api: &Api, user: UserId, error: ApiError) -> ApiError {
        match self.storing(StatusCode::OK, &error) {
            Some(key) if error.is_lasting() => store_rejection(api, user, key).await.err().unwrap_or(error),
            _ => error,
        }
    }
}

async fn store_rejection(api: &Api, user: UserId, key: IdempotencyKey) -> Result<(), ApiError> {
    match api.store.record_rejection(user, key).await.map_err(|error| api.write_error(error))? {
        WriteResult::Executed(()) => Ok(()),
        WriteResult::KnownKey(known) => {
            stored_outcome(known)?;
            // By a release whose rules were others.
            Err(ApiError::Internal("what is refused now was done under the same key before".to_owned()))
        }
    }
}

/// Returns the response to a request whose key is known, given the response to its success.
pub(crate) fn replay(known: KnownKey, mut success: Response) -> Result<Response, ApiError> {
    stored_outcome(known)?;
    success.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    Ok(success)
}

fn stored_outcome(known: KnownKey) -> Result<(), ApiError> {
    match known {
        KnownKey::Replayed(StoredOutcome::Success(_)) => Ok(()),
        KnownKey::Replayed(StoredOutcome::Error(refusal)) => Err(ApiError::Replayed(refusal)),
        KnownKey::Reused => Err(ApiError::KeyReused),
    }
}

/// Returns the text of a key, which is bare or a string of RFC 8941.
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

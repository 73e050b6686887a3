//! The issuer's URL, which is also its identifier (`iss`), and its documents.

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::Value;

use plantstore_client::{Cleartext, Client, ClientError, HttpUrl, UrlError, UrlTarget};

/// Path of the issuer's configuration, relative to its URL.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Characters beside letters and digits in a host and port. No others, because the origin is part of a content security policy.
const AUTHORITY_SIGNS: &[u8] = b"-._:[]";

/// URL of an issuer, exactly as configured, because tokens name the issuer by it.
#[derive(Clone, Debug)]
pub struct IssuerUrl {
    text: String,
    pub(crate) discovery: HttpUrl,
}

/// The reason why a text is not the URL of an issuer. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssuerUrlError {
    #[error("write it as https://HOST/PATH, without user name and password, for example https://login.example.com")]
    Malformed,
    #[error("an issuer's URL has neither a query nor a fragment: leave out `?` or `#` and what follows")]
    QueryOrFragment,
    #[error(
        "over plain HTTP the issuer's keys could be replaced on the way: use https:// (http:// only for 127.0.0.1, [::1] and \
         localhost)"
    )]
    Cleartext,
}

impl From<UrlError> for IssuerUrlError {
    fn from(error: UrlError) -> Self {
        match error {
            UrlError::Malformed | UrlError::Credentials => Self::Malformed,
            UrlError::Target => Self::QueryOrFragment,
            UrlError::Cleartext => Self::Cleartext,
        }
    }
}

impl IssuerUrl {
    pub fn parse(text: &str) -> Result<Self, IssuerUrlError> {
        let address = HttpUrl::parse(text, Cleartext::Loopback, UrlTarget::Path)?;
        if !address.authority().bytes().all(|byte| byte.is_ascii_alphanumeric() || AUTHORITY_SIGNS.contains(&byte)) {
            return Err(IssuerUrlError::Malformed);
        }
        let base = text.strip_suffix('/').unwrap_or(text);
        let discovery = HttpUrl::parse(&format!("{base}{DISCOVERY}"), Cleartext::Loopback, UrlTarget::Path)?;
        Ok(Self { text: text.to_owned(), discovery })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// The reason why the issuer's keys could not be fetched. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("the issuer did not respond in time")]
    TimedOut,
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0} responds with {1} instead of 200")]
    Status(String, StatusCode),
    #[error("the issuer's {DISCOVERY} has no `issuer` or no `jwks_uri`")]
    NoDiscovery,
    #[error(
        "--oidc-issuer is {configured}, but the issuer's {DISCOVERY} says {found}: set --oidc-issuer to exactly that, with or \
         without a slash at the end"
    )]
    AnotherIssuer { configured: String, found: String },
    #[error("the issuer's `jwks_uri` cannot be used: {0}")]
    BadKeysAddress(IssuerUrlError),
    #[error("the document at the issuer's `jwks_uri` is not a key set (JWKS)")]
    NoKeySet,
}

pub(super) async fn fetch_document(client: &Client, address: &HttpUrl) -> Result<Bytes, FetchError> {
    let response = client.get(address).await?;
    match response.status {
        StatusCode::OK => Ok(response.body),
        status => Err(FetchError::Status(address.authority().to_owned(), status)),
    }
}

const QUOTED_CHARS_MAX: usize = 200;

/// Quotes a value of the issuer or of a client for a log message: escaped and shortened.
pub(super) fn quoted(text: &str) -> String {
    quoted_json(&Value::from(text))
}

/// Returns the value as JSON. Line breaks and invisible characters are escaped.
pub(super) fn quoted_json(value: &Value) -> String {
    let text = value.to_string();
    let mut characters = text.chars();
    let mut quoted = String::new();
    for character in characters.by_ref().take(QUOTED_CHARS_MAX) {
        match character {
            // Already escaped by JSON where needed.
            '"' | '\'' | '\\' => quoted.push(character),
            _ => quoted.extend(character.escape_debug()),
        }
    }
    if characters.next().is_some() {
        quoted.push('…');
    }
    quoted
}

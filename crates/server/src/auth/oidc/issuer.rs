//! The issuer's URL, which is also its name, and its documents.

use bytes::Bytes;
use hyper::StatusCode;

use super::quote::quoted;
use plantstore_client::{Address, AddressFault, Cleartext, Client, ClientError};

/// Path of the issuer's configuration, relative to its URL.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// URL of an issuer, exactly as it was written, because it is also the issuer's name.
#[derive(Clone, Debug)]
pub struct IssuerUrl {
    text: String,
    discovery: Address,
}

/// The reason why a text is not the URL of an issuer. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssuerUrlFault {
    #[error("write it as https://HOST/PATH, without user name and password, for example https://login.example.com")]
    Malformed,
    #[error("an issuer's address has neither a query nor a fragment: leave out what follows `?` or `#`")]
    TooLong,
    #[error(
        "without encryption anybody on the way could put his own keys in place of the issuer's: use https:// (http:// is for \
         127.0.0.1, [::1] and localhost alone)"
    )]
    Cleartext,
}

impl From<AddressFault> for IssuerUrlFault {
    fn from(fault: AddressFault) -> Self {
        match fault {
            AddressFault::Malformed | AddressFault::Credentials => Self::Malformed,
            AddressFault::Fragment => Self::TooLong,
            AddressFault::Cleartext => Self::Cleartext,
        }
    }
}

impl IssuerUrl {
    pub fn parse(text: &str) -> Result<Self, IssuerUrlFault> {
        if text.contains(['?', '#']) {
            return Err(IssuerUrlFault::TooLong);
        }
        Address::parse(text, Cleartext::Loopback)?;
        let below = text.strip_suffix('/').unwrap_or(text);
        let discovery = Address::parse(&format!("{below}{DISCOVERY}"), Cleartext::Loopback)?;
        Ok(Self { text: text.to_owned(), discovery })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn discovery(&self) -> &Address {
        &self.discovery
    }
}

/// The reason why the issuer's keys could not be fetched. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchFault {
    #[error("the issuer did not answer in time")]
    Silent,
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0} answers {1}, not 200")]
    Status(String, StatusCode),
    #[error("the issuer's {DISCOVERY} holds no `issuer` or no `jwks_uri`")]
    NoDiscovery,
    #[error(
        "--oidc-issuer is {configured}, but the issuer's {DISCOVERY} says {found}: set --oidc-issuer to exactly that, a slash at \
         the end included"
    )]
    AnotherIssuer { configured: String, found: String },
    #[error("the issuer's `jwks_uri` cannot be used: {0}")]
    BadKeysAddress(IssuerUrlFault),
    #[error("what is at the issuer's `jwks_uri` is no set of keys")]
    NoKeySet,
}

impl FetchFault {
    pub(super) fn another_issuer(configured: &IssuerUrl, found: &str) -> Self {
        Self::AnotherIssuer { configured: quoted(configured.as_str()), found: quoted(found) }
    }
}

/// Fetches a document of the issuer.
pub(super) async fn fetch_document(client: &Client, address: &Address) -> Result<Bytes, FetchFault> {
    let response = client.get(address).await?;
    match response.status {
        StatusCode::OK => Ok(response.body),
        status => Err(FetchFault::Status(address.authority().to_owned(), status)),
    }
}

//! Where an issuer is, what it is called, and what is asked of it.

use bytes::Bytes;
use hyper::StatusCode;

use super::report::quoted;
use plantstore_client::https::{Address, AddressFault, Clear, Client, ClientFault};

/// Where an issuer tells of itself, below its own address.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// The issuer's own address, which is also its name: kept exactly as it was written.
#[derive(Clone, Debug)]
pub struct IssuerUrl {
    text: String,
    discovery: Address,
}

/// Why a text is not the address of an issuer. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssuerUrlFault {
    /// Not a URL with a host.
    #[error("write it as https://HOST/PATH, without user name and password, for example https://login.example.com")]
    Malformed,
    /// Something after the path.
    #[error("an issuer's address has neither a query nor a fragment: leave out what follows `?` or `#`")]
    TooLong,
    /// Not encrypted.
    #[error(
        "without encryption anybody on the way could put his own keys in place of the issuer's: use https:// (http:// is for \
         127.0.0.1, [::1] and localhost alone)"
    )]
    Clear,
}

impl From<AddressFault> for IssuerUrlFault {
    fn from(fault: AddressFault) -> Self {
        match fault {
            AddressFault::Malformed => Self::Malformed,
            AddressFault::Fragment => Self::TooLong,
            AddressFault::Clear => Self::Clear,
        }
    }
}

impl IssuerUrl {
    /// Reads an issuer's address as operators write it.
    pub fn parse(text: &str) -> Result<Self, IssuerUrlFault> {
        if text.contains(['?', '#']) {
            return Err(IssuerUrlFault::TooLong);
        }
        Address::parse(text, Clear::Here)?;
        let below = text.strip_suffix('/').unwrap_or(text);
        Ok(Self { text: text.to_owned(), discovery: Address::parse(&format!("{below}{DISCOVERY}"), Clear::Here)? })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn discovery(&self) -> &Address {
        &self.discovery
    }
}

/// Why the issuer's keys could not be fetched. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchFault {
    #[error("the issuer did not answer in time")]
    Silent,
    #[error(transparent)]
    Client(#[from] ClientFault),
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

/// A document of the issuer's.
pub(super) async fn fetch_document(client: &Client, address: &Address) -> Result<Bytes, FetchFault> {
    let answer = client.get(address).await?;
    match answer.status {
        StatusCode::OK => Ok(answer.body),
        status => Err(FetchFault::Status(address.authority().to_owned(), status)),
    }
}

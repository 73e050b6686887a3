//! URLs of outgoing requests.

use std::net::IpAddr;

use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};

/// URL of a resource: `https://` to any host, `http://` to the hosts that [`Cleartext`] allows, and after them what [`UrlTarget`]
/// allows. It has no user name, password or fragment.
#[derive(Clone, Debug)]
pub struct HttpUrl(Uri);

/// Hosts that may be reached over plain HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleartext {
    Loopback,
    Anywhere,
}

/// Parts that a URL may have after host and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlTarget {
    None,
    Path,
    PathAndQuery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    Malformed,
    Credentials,
    /// The URL has a fragment, or a part that [`UrlTarget`] does not allow.
    Target,
    Cleartext,
}

impl HttpUrl {
    pub fn parse(text: &str, cleartext: Cleartext, target: UrlTarget) -> Result<Self, UrlError> {
        let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
        if uri.scheme() != Some(&Scheme::HTTPS) && uri.scheme() != Some(&Scheme::HTTP) {
            return Err(UrlError::Malformed);
        }
        let authority = uri.authority().ok_or(UrlError::Malformed)?;
        // Proxies would log the password.
        if authority.as_str().contains('@') {
            return Err(UrlError::Credentials);
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(UrlError::Malformed)?;
        if authority.as_str() != host && authority.port_u16().is_none() {
            return Err(UrlError::Malformed);
        }
        let is_allowed = match target {
            UrlTarget::None => matches!(uri.path(), "" | "/") && uri.query().is_none(),
            UrlTarget::Path => uri.query().is_none(),
            UrlTarget::PathAndQuery => true,
        };
        // The URI parser drops fragments.
        if !is_allowed || text.contains('#') {
            return Err(UrlError::Target);
        }
        let address = Self(uri);
        if cleartext == Cleartext::Loopback && address.is_exposed() {
            return Err(UrlError::Cleartext);
        }
        Ok(address)
    }

    /// Returns host and port as they were written.
    pub fn authority(&self) -> &str {
        self.0.authority().map_or("", Authority::as_str)
    }

    pub fn origin(&self) -> String {
        format!("{}://{}", if self.is_encrypted() { "https" } else { "http" }, self.authority())
    }

    pub fn is_encrypted(&self) -> bool {
        is_encrypted(&self.0)
    }

    /// Returns true if others can read what is sent: plain HTTP to another machine.
    pub fn is_exposed(&self) -> bool {
        !self.is_encrypted() && !self.is_loopback()
    }

    /// Returns true for `localhost` and addresses of the loopback interface.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.0)
    }

    pub fn uri(&self) -> &Uri {
        &self.0
    }

    pub(crate) fn target(&self) -> Uri {
        self.0.path_and_query().cloned().map_or_else(Uri::default, Uri::from)
    }
}

pub(crate) fn is_encrypted(uri: &Uri) -> bool {
    uri.scheme() == Some(&Scheme::HTTPS)
}

pub(crate) fn is_loopback(uri: &Uri) -> bool {
    let (host, _) = host_and_port(uri);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns the host, an IPv6 address without its brackets, and the port or the default of the scheme.
pub(crate) fn host_and_port(uri: &Uri) -> (&str, u16) {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    (host, uri.port_u16().unwrap_or(if is_encrypted(uri) { 443 } else { 80 }))
}

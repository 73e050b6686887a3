//! The URL of the server under test.

use std::str::FromStr;

use plantstore_client::{Cleartext, HttpUrl, UrlError};

/// Scheme, host and port. The interface names its paths from the root, so there is no path.
#[derive(Clone, Debug)]
pub struct ServerUrl(HttpUrl);

/// Error of a text that is not the URL of a server. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    #[error("write the server's address as http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:8080")]
    Malformed,
    #[error("remove user name and password from the URL; put the token into PLANTSTORE_TOKEN or into --token-file")]
    Credentials,
    #[error("the interface names its paths from the root: leave out everything after host and port")]
    Path,
}

impl From<UrlError> for ServerUrlError {
    fn from(fault: UrlError) -> Self {
        match fault {
            UrlError::Malformed | UrlError::Cleartext => Self::Malformed,
            UrlError::Credentials => Self::Credentials,
            UrlError::Fragment => Self::Path,
        }
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        let address = HttpUrl::parse(text, Cleartext::Anywhere)?;
        if address.target() == "/" { Ok(Self(address)) } else { Err(ServerUrlError::Path) }
    }
}

impl std::fmt::Display for ServerUrl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}://{}", if self.0.is_encrypted() { "https" } else { "http" }, self.0.authority())
    }
}

impl ServerUrl {
    /// Returns true if others can read what is sent to the server: plain HTTP to another machine.
    pub fn is_exposed(&self) -> bool {
        !self.0.is_encrypted() && !self.is_loopback()
    }

    pub fn is_loopback(&self) -> bool {
        self.0.is_loopback()
    }

    pub(crate) fn address(&self) -> &HttpUrl {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_shown_without_trailing_slash() {
        for text in ["http://127.0.0.1:8080", "http://plants.example/", "https://[::1]", "https://plants.example:8443"]
        {
            let url: ServerUrl = text.parse().expect("a URL");
            assert_eq!(url.to_string(), text.trim_end_matches('/'));
        }
    }

    #[test]
    fn unusable_url_is_rejected_with_its_reason() {
        for text in ["", "plants.example", "ftp://plants.example", "http://", "http://x:99999", "http://x:y"] {
            assert_eq!(text.parse::<ServerUrl>().err(), Some(ServerUrlError::Malformed), "{text}");
        }
        for text in ["http://x/plants", "http://x/?a=b", "http://x/#a"] {
            assert_eq!(text.parse::<ServerUrl>().err(), Some(ServerUrlError::Path), "{text}");
        }
        assert_eq!("http://ada:secret@x".parse::<ServerUrl>().err(), Some(ServerUrlError::Credentials));
    }

    #[test]
    fn plain_http_to_another_machine_is_exposed() {
        for (text, exposed) in [
            ("http://127.0.0.1:8080", false),
            ("http://[::1]:8080", false),
            ("http://LocalHost", false),
            ("https://plants.example", false),
            ("http://plants.example", true),
            ("http://10.0.0.1", true),
        ] {
            let url: ServerUrl = text.parse().expect("a URL");
            assert_eq!(url.is_exposed(), exposed, "{text}");
        }
    }
}

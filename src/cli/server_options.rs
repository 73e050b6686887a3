//! Options of commands that send requests to a server with a token: `check`, and `import` and `export` with `--server`.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use super::environment::{TOKEN_VARIABLE, UsageError, is_typed, proxies, variable};
use super::terminal::{is_dash, print_warning};
use plantstore_client::{Cleartext, HttpUrl, Proxies, Server, UrlError, UrlTarget};

pub(super) const TOKEN_ARGUMENT_MESSAGE: &str = "a token does not belong on the command line, where every user of this \
                                                 machine can see it: put it into PLANTSTORE_TOKEN or a file named by --token-file";
/// Maximum size of a token file in bytes; JWTs are long.
const TOKEN_FILE_BYTES_MAX: u64 = 16 * 1024;

#[derive(Args)]
pub(super) struct AccessOptions {
    /// A file with the token; `-` is standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file of certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct ServerOption {
    /// A server to use over HTTP, instead of a store: http://HOST:PORT or https://HOST:PORT. The token is read from the variable
    /// `PLANTSTORE_TOKEN` or from the file that --token-file names
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    #[command(flatten)]
    access: AccessOptions,
}

/// A server and the token for requests to it.
pub(super) struct ServerAccess {
    pub(super) server: Server,
    pub(super) token: String,
}

impl ServerOption {
    pub(super) fn is_given(&self) -> bool {
        self.server.is_some()
    }

    pub(super) fn reads_standard_input(&self) -> bool {
        self.access.token_file.as_deref().is_some_and(is_dash)
    }

    /// Returns the access to the server; `None` if the command is for a store.
    pub(super) fn open(&self) -> anyhow::Result<Option<ServerAccess>> {
        let (excluded, reason): (&[&str], _) = match &self.server {
            Some(_) => (&["--store", "--create"], "is for stores, not for a server: leave it out"),
            None => (&["--token-file", "--ca"], "is for a server: name one with --server"),
        };
        if let Some(option) = excluded.iter().find(|option| is_typed(option)) {
            return Err(UsageError(format!("{option} {reason}")).into());
        }
        self.server.as_ref().map(|url| self.access.open(url)).transpose()
    }
}

impl AccessOptions {
    /// Reads the token for the server at `url`. Prints a warning if others can read it on the way.
    pub(super) fn open(&self, url: &str) -> anyhow::Result<ServerAccess> {
        let url = parse_server_url(url)?;
        let token = self.token()?;
        if url.is_exposed() {
            print_warning(&format!("without https:// the token can be read on the way to {}", url.origin()));
        }
        Ok(ServerAccess { token, server: Server { authorities: self.ca.clone(), proxies: proxies_to(&url)?, url } })
    }

    fn token(&self) -> anyhow::Result<String> {
        let text = match &self.token_file {
            Some(file) => read_token(file)?,
            // An option of this name would invite a token onto the command line.
            None => variable(TOKEN_VARIABLE).and_then(|token| token.into_string().ok()).ok_or_else(|| {
                UsageError(format!("no token: put it into {TOKEN_VARIABLE} or a file named by --token-file"))
            })?,
        };
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UsageError("not a token: a token is one word of printable characters".to_owned()).into());
        }
        Ok(token.to_owned())
    }
}

fn read_token(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if is_dash(file) {
        io::stdin().lock().take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read the token from {}", file.display()))?;
    Ok(text)
}

/// Parses the URL of a server: scheme, host and port.
pub(super) fn parse_server_url(text: &str) -> Result<HttpUrl, UsageError> {
    HttpUrl::parse(text, Cleartext::Anywhere, UrlTarget::None).map_err(|error| {
        let message = match error {
            UrlError::Malformed | UrlError::Cleartext => {
                "write the server's address as http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:8080"
            }
            UrlError::Credentials => {
                "remove user name and password from the URL; put the token into PLANTSTORE_TOKEN or into --token-file"
            }
            UrlError::Target => "the interface names its paths from the root: leave out everything after host and port",
        };
        UsageError(message.to_owned())
    })
}

pub(super) fn proxies_to(url: &HttpUrl) -> Result<Proxies, UsageError> {
    if url.is_loopback() { Ok(Proxies::default()) } else { proxies() }
}

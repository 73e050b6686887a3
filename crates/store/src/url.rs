//! URLs of stores, and password files of PostgreSQL.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host};

/// Characters of an unknown scheme that the error message shows.
const SCHEME_SHOWN_CHARS: usize = 20;
const EXAMPLE: &str = "postgres://user@host:5432/database?sslmode=verify-full";
const PORT: u16 = 5432;
/// Value of `sslrootcert` for the system's authorities.
const SYSTEM: &str = "system";

/// URL of a store: `sqlite:PATH` or `postgres://…`. Displayed without the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    Sqlite(PathBuf),
    Postgres(Box<PostgresUrl>),
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(StoreUrlError::NoScheme);
        };
        if scheme == "postgres" || scheme == "postgresql" {
            return Ok(Self::Postgres(Box::new(text.parse()?)));
        }
        if scheme != "sqlite" {
            // The rest may contain a password.
            return Err(StoreUrlError::UnknownScheme(scheme.chars().take(SCHEME_SHOWN_CHARS).collect()));
        }
        match rest.strip_prefix("//").unwrap_or(rest) {
            "" => Err(StoreUrlError::NoPath),
            ":memory:" => Err(StoreUrlError::InMemory),
            path => Ok(Self::Sqlite(path.into())),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(formatter, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(formatter),
        }
    }
}

/// Errors of parsing a [`StoreUrl`]. The messages never quote the URL, because any part of a malformed URL may be a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    #[error("a store is written as sqlite:PATH or postgres://user@host/database, for example sqlite:plantstore.db")]
    NoScheme,
    #[error("unknown store scheme `{0}`: use sqlite:PATH or postgres://user@host/database")]
    UnknownScheme(String),
    #[error("the path is missing: use sqlite:PATH, for example sqlite:plantstore.db")]
    NoPath,
    #[error("a store in memory would forget everything: use sqlite:PATH, for example sqlite:plantstore.db")]
    InMemory,
    #[error(
        "not a URL of a database: write it as {EXAMPLE} (with characters such as @ : / ? # % in a password percent-encoded)"
    )]
    Malformed,
    #[error("the host is missing: write it as {EXAMPLE}")]
    NoHost,
    #[error("give every host its port, or all of them one: host1:5432,host2:5432")]
    Ports,
    #[error(
        "unknown parameter: known are sslmode, sslrootcert, target_session_attrs, host, port, user, password, dbname, options, application_name, channel_binding"
    )]
    Parameter,
    #[error("{0}")]
    Value(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsMode {
    Disable,
    /// TLS if the server supports it, without verification.
    Prefer,
    /// TLS without verification.
    Require,
    /// The certificate must be signed by a trusted authority.
    VerifyCa,
    /// The certificate must also match the host name.
    VerifyFull,
}

impl TlsMode {
    fn parse(value: &str) -> Result<Self, StoreUrlError> {
        match value {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            _ => Err(StoreUrlError::Value("sslmode must be disable, prefer, require, verify-ca or verify-full")),
        }
    }

    /// Returns the mode with which certificates are verified if the URL names authorities to trust.
    fn with_authorities(given: Option<Self>, authorities: &str) -> Result<Self, StoreUrlError> {
        match given {
            None | Some(Self::VerifyFull) => Ok(Self::VerifyFull),
            // As in libpq: the system's authorities sign certificates for any host, so the name must be verified, too.
            Some(_) if authorities == SYSTEM => {
                Err(StoreUrlError::Value("sslrootcert=system needs sslmode=verify-full"))
            }
            Some(Self::Require | Self::VerifyCa) => Ok(Self::VerifyCa),
            Some(Self::Disable | Self::Prefer) => {
                Err(StoreUrlError::Value("sslrootcert needs sslmode=verify-full, verify-ca or require"))
            }
        }
    }
}

/// URL of a PostgreSQL database, with one or more hosts of a cluster. Displayed without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    pub(crate) config: Config,
    pub(crate) tls_mode: TlsMode,
    /// File of authorities to trust instead of the system's.
    pub(crate) authorities: Option<PathBuf>,
}

impl FromStr for PostgresUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let (address, parameters) = text.split_once('?').unwrap_or((text, ""));
        let config: Config = address.parse().map_err(|_| StoreUrlError::Malformed)?;
        let mut url = Self { config, tls_mode: TlsMode::Prefer, authorities: None };
        let mut tls_mode = None;
        let mut authorities = None;
        for (name, value) in form_urlencoded::parse(parameters.as_bytes()) {
            match &*name {
                "sslmode" => tls_mode = Some(TlsMode::parse(&value)?),
                "sslrootcert" => authorities = Some(value),
                name => url.set(name, &value)?,
            }
        }
        url.tls_mode = match &authorities {
            Some(authorities) => TlsMode::with_authorities(tls_mode, authorities)?,
            None => tls_mode.unwrap_or(TlsMode::Prefer),
        };
        url.authorities = authorities.filter(|file| file != SYSTEM).map(|file| file.into_owned().into());
        match (url.config.get_hosts().len(), url.config.get_ports().len()) {
            (0, _) => Err(StoreUrlError::NoHost),
            (hosts, ports) if ports > 1 && ports != hosts => Err(StoreUrlError::Ports),
            _ => Ok(url),
        }
    }
}

impl PostgresUrl {
    fn set(&mut self, name: &str, value: &str) -> Result<(), StoreUrlError> {
        let config = &mut self.config;
        match name {
            // The connector always requires a primary.
            "target_session_attrs" if matches!(value, "read-write" | "primary" | "any") => config,
            "target_session_attrs" => {
                return Err(StoreUrlError::Value("target_session_attrs must be read-write: only the primary will do"));
            }
            "host" => value.split(',').fold(config, Config::host),
            "port" => {
                let ports = value.split(',').map(str::parse).collect::<Result<Vec<u16>, _>>();
                let ports = ports.map_err(|_| StoreUrlError::Value("port must be a number up to 65535"))?;
                ports.into_iter().fold(config, Config::port)
            }
            "user" => config.user(value),
            "password" => config.password(value),
            "dbname" => config.dbname(value),
            "options" => config.options(value),
            "application_name" => config.application_name(value),
            "channel_binding" => config.channel_binding(match value {
                "disable" => ChannelBinding::Disable,
                "prefer" => ChannelBinding::Prefer,
                "require" => ChannelBinding::Require,
                _ => return Err(StoreUrlError::Value("channel_binding must be disable, prefer or require")),
            }),
            _ => return Err(StoreUrlError::Parameter),
        };
        Ok(())
    }

    /// Returns the first host on another machine, unless its name and certificate are verified.
    pub fn unverified_host(&self) -> Option<&str> {
        let is_loopback =
            |name: &str| name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        self.config.get_hosts().iter().find_map(|host| match host {
            Host::Tcp(name) if self.tls_mode != TlsMode::VerifyFull && !is_loopback(name) => Some(name.as_str()),
            Host::Tcp(_) | Host::Unix(_) => None,
        })
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&Host, u16)> {
        let ports = self.config.get_ports();
        let port = move |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(PORT);
        self.config.get_hosts().iter().enumerate().map(move |(index, host)| (host, port(index)))
    }

    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    pub fn set_password(&mut self, password: &str) {
        self.config.password(password);
    }

    /// Sets the password to the first match in a PostgreSQL password file, whose lines are
    /// `host:port:database:user:password` with `*` as wildcard.
    pub fn set_password_from(&mut self, file: &Path) -> Result<(), PasswordFileError> {
        let unreadable = |error: std::io::Error| PasswordFileError::Unreadable {
            path: file.display().to_string(),
            reason: error.to_string(),
        };
        let mode = fs::metadata(file).map_err(unreadable)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(PasswordFileError::Open(file.display().to_string()));
        }
        let text = fs::read_to_string(file).map_err(unreadable)?;
        let user = self.config.get_user().unwrap_or_default().to_owned();
        let database = self.config.get_dbname().unwrap_or(&user).to_owned();
        let found = self.hosts().find_map(|(host, port)| {
            let host = match host {
                Host::Tcp(host) => host.as_str(),
                Host::Unix(_) => "localhost",
            };
            find_password(&text, &[host, &port.to_string(), &database, &user])
        });
        if let Some(password) = found {
            self.config.password(password);
        }
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PasswordFileError {
    #[error("cannot read the password file {path}: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("others can read the password file {0}: make it private with chmod 600")]
    Open(String),
}

fn find_password(text: &str, wanted: &[&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let password = fields.get(4)?;
        let matches = fields.iter().zip(wanted).all(|(pattern, wanted)| pattern == "*" || pattern == wanted);
        matches.then(|| password.clone())
    })
}

/// Splits a line at its colons. A backslash escapes the next character.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            character => {
                let taken = if character == '\\' { characters.next().unwrap_or('\\') } else { character };
                fields.last_mut().expect("there is always a last field").push(taken);
            }
        }
    }
    fields
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("postgres://")?;
        if let Some(user) = self.config.get_user() {
            write!(formatter, "{user}@")?;
        }
        for (index, (host, port)) in self.hosts().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match host {
                Host::Tcp(host) => write!(formatter, "{comma}{host}:{port}")?,
                Host::Unix(path) => write!(formatter, "{comma}{}:{port}", path.display())?,
            }
        }
        write!(formatter, "/{}", self.config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

//! Options of `plantstore serve`: the log, limits, OpenID Connect, and the origins whose pages may call the service.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueEnum};
use tracing::Level;

use crate::cli::environment::{UsageError, origin, proxies};
use crate::cli::terminal::Styler;
use plantstore_server::value_parser::{duration, number};
use plantstore_server::{ApiLimits, AuthLimits, Cors, Issuer, IssuerUrl, SignIn, TransportLimits};
use plantstore_telemetry::logging;

#[derive(Args, Clone, Copy, Debug)]
pub(super) struct LogOptions {
    /// The lowest level of events that are logged. Changes of tokens and shares are logged at every level
    #[arg(
        long,
        value_name = "LEVEL",
        env = "PLANTSTORE_LOG_LEVEL",
        default_value = "info",
        value_parser = PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]).try_map(|name| name.parse::<Level>())
    )]
    log_level: Level,
    /// The format of the log; `auto` is `human` on a terminal and `json` otherwise
    #[arg(long, value_name = "FORMAT", env = "PLANTSTORE_LOG_FORMAT", default_value = "auto")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Auto,
    Human,
    Json,
}

impl LogOptions {
    pub(super) fn start_log(self) -> logging::Guard {
        let format = match self.log_format {
            LogFormat::Auto | LogFormat::Human if io::stderr().is_terminal() => {
                logging::Format::Terminal { colours: Styler::new(&io::stderr()).enabled }
            }
            LogFormat::Human => logging::Format::Human,
            LogFormat::Auto | LogFormat::Json => logging::Format::Json,
        };
        logging::start(format, self.log_level)
    }
}

#[derive(Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitOptions {
    #[command(flatten)]
    pub(super) transport: TransportLimits,
    #[command(flatten)]
    pub(super) api: ApiLimits,
    /// Maximum number of writes of plants that wait for their commit; beyond it the status is 503
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_WRITE_QUEUE", default_value_t = 1_024, value_parser = number::<usize>(1..=1_000_000))]
    pub(super) write_queue: usize,
    /// Time limit for a response of the database server, or for the write lock of a file; after it the status is 503
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_STORE_TIMEOUT", default_value = "2s", value_parser = duration)]
    pub(super) store_timeout: Duration,
    #[command(flatten)]
    pub(super) auth: AuthLimits,
}

impl LimitOptions {
    pub(super) fn check(&self) -> Result<(), UsageError> {
        match (self.auth.rate_limit, self.auth.rate_burst) {
            (None, Some(_)) => {
                Err(UsageError(format!("{} needs a --rate-limit, for example 100/s", origin("--rate-burst"))))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Args)]
#[command(next_help_heading = "OpenID Connect")]
pub(super) struct OidcOptions {
    /// Accept tokens of this issuer, too; an https URL, or http for this machine
    #[arg(long = "oidc-issuer", value_name = "URL", env = "PLANTSTORE_OIDC_ISSUER", value_parser = IssuerUrl::parse, requires = "audience")]
    issuer: Option<IssuerUrl>,
    /// The audience that the issuer's tokens must have (`aud`)
    #[arg(long = "oidc-audience", value_name = "NAME", env = "PLANTSTORE_OIDC_AUDIENCE", value_parser = NonEmptyStringValueParser::new(), requires = "issuer")]
    audience: Option<String>,
    /// The claim with the name of the user
    #[arg(long = "oidc-user-claim", value_name = "CLAIM", env = "PLANTSTORE_OIDC_USER_CLAIM", default_value = "sub", value_parser = NonEmptyStringValueParser::new(), requires = "issuer")]
    user_claim: String,
    /// A file of certificate authorities to trust instead of the system's
    #[arg(long = "oidc-ca", value_name = "FILE", env = "PLANTSTORE_OIDC_CA", requires = "issuer")]
    ca: Option<PathBuf>,
    /// Client id of the console at the issuer. Lets users sign in there (public client, authorization code with PKCE)
    #[arg(long = "oidc-client-id", value_name = "ID", env = "PLANTSTORE_OIDC_CLIENT_ID", value_parser = NonEmptyStringValueParser::new(), requires = "issuer")]
    client_id: Option<String>,
    /// The name of the issuer on the console's sign-in button; its host unless given
    #[arg(long = "oidc-name", value_name = "NAME", env = "PLANTSTORE_OIDC_NAME", value_parser = NonEmptyStringValueParser::new(), requires = "client_id")]
    name: Option<String>,
}

impl OidcOptions {
    pub(super) fn issuer(&self) -> anyhow::Result<Option<Issuer>> {
        let (Some(url), Some(audience)) = (&self.issuer, &self.audience) else {
            return Ok(None);
        };
        let issuer =
            Issuer::new(url.clone(), audience.clone(), self.user_claim.clone(), self.ca.as_deref(), proxies()?);
        Ok(Some(issuer.map_err(|error| UsageError(format!("{}: {error}", origin("--oidc-ca"))))?))
    }

    pub(super) fn sign_in(&self) -> Option<SignIn> {
        Some(SignIn::new(self.issuer.clone()?, self.client_id.clone()?, self.audience.as_ref()?, self.name.clone()))
    }
}

#[derive(Args)]
#[command(next_help_heading = "Browsers")]
pub(super) struct CorsOptions {
    /// An origin whose pages may call the service, such as `https://app.example`, or `*` for all. Repeat the option, or separate
    /// several origins with commas
    // Parsed together, because `*` excludes others.
    #[arg(long, value_name = "ORIGIN", env = "PLANTSTORE_CORS_ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,
}

impl CorsOptions {
    pub(super) fn cors(&self) -> Result<Option<Cors>, UsageError> {
        if self.cors_origin.is_empty() {
            return Ok(None);
        }
        Cors::parse(&self.cors_origin)
            .map(Some)
            .map_err(|error| UsageError(format!("{}: {error}", origin("--cors-origin"))))
    }
}

//! Options of `plantstore serve`: OpenID Connect.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use crate::cli::environment::origin;
use crate::cli::exit::UsageError;
use crate::cli::proxies::proxies;
use plantstore_server::{Issuer, IssuerUrl, SignIn};

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

    /// Returns the settings of the console's sign-in, if it is configured.
    pub(super) fn sign_in(&self) -> Option<SignIn> {
        let (issuer, audience) = (self.issuer.as_ref()?, self.audience.as_ref()?);
        Some(SignIn::new(issuer.clone(), self.client_id.clone()?, audience, self.name.clone()))
    }
}

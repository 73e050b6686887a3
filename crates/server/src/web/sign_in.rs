//! Settings of the console's sign-in with OpenID Connect.

use crate::auth::IssuerUrl;

/// The client that the console is at the issuer: public, so it has no secret.
pub struct SignIn {
    pub(super) issuer: IssuerUrl,
    pub(super) client_id: String,
    /// The resource (RFC 8707) that the access token is requested for.
    pub(super) resource: Option<String>,
    /// The name of the issuer for people.
    pub(super) name: Option<String>,
}

impl SignIn {
    /// Creates the settings for tokens of this audience. An audience that is a URL is also the resource that the console asks
    /// for; with any other, the issuer itself must issue tokens of this audience to the client.
    pub fn new(issuer: IssuerUrl, client_id: String, audience: &str, name: Option<String>) -> Self {
        let resource = audience.contains("://").then(|| audience.to_owned());
        Self { issuer, client_id, resource, name }
    }
}

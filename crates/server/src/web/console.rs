//! The web console: a page at `/` that is an ordinary client of the API. Its files are part of the binary.

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use hyper::Method;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;

use super::static_files::{HTML, PageFile, SCRIPT, STYLE, StaticFile, add_policy};
use crate::api::{ApiError, accepts_html};
use crate::auth::IssuerUrl;

/// Content security policy: scripts and styles only from this server and never inline, and no text is parsed as HTML.
/// [`files`] adds the origins that scripts may connect to.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'; connect-src 'self'";

const MISSING: &str = include_str!("console/missing.html");

/// Embeds modules of the console, in this order.
macro_rules! modules {
    ($($file:literal)*) => { [$(include_str!(concat!("console/", $file))),*] };
}

/// The modules of the console. Each imports only from those before it, and from the settings.
const MODULES: [&str; 27] = modules![
    "dom.js" "text.js" "storage.js" "json.js" "rules.js" "scopes.js" "token.js" "drawing.js" "garden.js" "rest.js"
    "api.js" "events.js" "permissions.js" "drafts.js" "oidc.js" "dialogs.js" "toasts.js" "address.js" "controls.js"
    "selection.js" "list.js" "overview.js" "writes.js" "access-dialogs.js" "access.js" "sign-in.js" "app.js"
];

/// Settings of the console's sign-in with OpenID Connect: the client that it is at the issuer, public, so it has no secret.
pub struct SignIn {
    issuer: IssuerUrl,
    client_id: String,
    /// The resource (RFC 8707) that the access token is requested for.
    resource: Option<String>,
    /// The name of the issuer for people.
    name: Option<String>,
}

impl SignIn {
    /// Creates the settings for tokens of this audience. An audience that is a URL is also the resource that the console asks
    /// for; with any other, the issuer itself must issue tokens of this audience to the client.
    pub fn new(issuer: IssuerUrl, client_id: String, audience: &str, name: Option<String>) -> Self {
        let resource = audience.contains("://").then(|| audience.to_owned());
        Self { issuer, client_id, resource, name }
    }
}

/// Returns the console's files. With `sign_in`, the console offers to sign in with that issuer and may connect to it.
pub(crate) fn files(sign_in: Option<&SignIn>) -> impl Iterator<Item = PageFile> + use<> {
    let files = [
        ("/", StaticFile::new(include_str!("console/index.html"), HTML)),
        ("/console/style.css", StaticFile::new(include_str!("console/style.css"), STYLE)),
        ("/console/icon.svg", StaticFile::new(include_str!("console/icon.svg"), "image/svg+xml")),
        ("/favicon.ico", StaticFile::new(include_bytes!("console/favicon.ico").as_slice(), "image/x-icon")),
        ("/console/theme.js", StaticFile::new(include_str!("console/theme.js"), SCRIPT)),
        ("/console/app.js", StaticFile::new(join_modules(&settings_module(sign_in), &MODULES), SCRIPT)),
    ];
    let issuer = sign_in.map_or(String::new(), |SignIn { issuer, .. }| format!(" {}", issuer.discovery.origin()));
    let policy = HeaderValue::try_from(format!("{POLICY}{issuer}"));
    let policy = policy.expect("an origin has only visible ASCII characters");
    files.into_iter().map(move |(path, file)| PageFile { path, file, policy: policy.clone() })
}

/// Joins the modules into one, so that a browser loads them with one request. They share its scope, so imports are left out.
fn join_modules(settings: &str, modules: &[&str]) -> String {
    let lines = settings.lines().chain(modules.iter().flat_map(|module| module.lines()));
    let statements = lines.filter(|line| !line.starts_with("import "));
    statements.flat_map(|line| [line.strip_prefix("export ").unwrap_or(line), "\n"]).collect()
}

/// Returns a script module with the settings of the server that the console needs. None of them is secret.
fn settings_module(sign_in: Option<&SignIn>) -> String {
    let sign_in = sign_in.map(|SignIn { issuer, client_id, resource, name }| {
        serde_json::json!({ "issuer": issuer.as_str(), "clientId": client_id, "resource": resource, "name": name })
    });
    format!("// The settings of this server.\n\nexport const settings = {};\n", serde_json::json!(sign_in))
}

/// Checks that a person opens a URL in a browser, without a token. Programs and the console's own scripts do not ask for HTML.
pub(crate) fn is_navigation(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD)
        && !parts.headers.contains_key(AUTHORIZATION)
        && accepts_html(&parts.headers)
}

/// Returns the response to a navigation without a token or to no page: always the same, so that it reveals no path.
pub(crate) fn not_found() -> Response {
    let mut response = ApiError::NoRoute.into_response();
    *response.body_mut() = Body::from(MISSING);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(HTML));
    add_policy(headers, HeaderValue::from_static(POLICY));
    response
}

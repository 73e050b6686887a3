//! The environment variables for proxies of outgoing requests.

use super::exit::UsageError;
use plantstore_client::Proxies;

/// Reads `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`. As in curl, the lower-case names take precedence.
pub(super) fn proxies() -> Result<Proxies, UsageError> {
    let [http, https, none_for] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"].map(variable);
    Proxies::new(&http, &https, &none_for).map_err(|error| UsageError(format!("HTTP_PROXY or HTTPS_PROXY: {error}")))
}

#[expect(clippy::disallowed_methods, reason = "these are variables of the system, not options of this program")]
fn variable(name: &str) -> String {
    [name.to_lowercase().as_str(), name].into_iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default()
}

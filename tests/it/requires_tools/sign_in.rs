//! Signing in to the console with a third-party OpenID provider, `oidc-provider` of npm, and its own login page.

use rstest::rstest;

use crate::support::provider::{GARDEN, Provider};
use crate::support::{BrowserScript, Engine, Store};

/// Runs one part of the script on a server whose console is registered at the provider.
#[rstest]
#[case::console_signs_in_and_out_with_a_provider("success")]
#[case::cancelled_login_leads_back_to_the_console("cancelled")]
#[case::console_rejects_a_response_with_a_wrong_state_or_nonce("forged")]
#[case::console_user_signs_in_again_after_a_key_rotation("rotated")]
#[case::expired_login_leads_back_to_sign_in("expired")]
#[case::console_explains_a_provider_whose_tokens_the_service_rejects("opaque")]
fn the_console(#[case] part: &str) {
    let store = Store::new(Engine::Sqlite);
    let mut provider = Provider::start();
    let issuer = provider.issuer().to_owned();
    let options = ["--oidc-issuer", &issuer, "--oidc-audience", GARDEN, "--oidc-client-id", "console"];
    let server = store.serve(&options);
    provider.register(&format!("http://{}/", server.address()));
    let token = store.token("ada", &[]);
    let script = BrowserScript::new("console-oidc", &format!("console-oidc-{part}"), &server, &token);
    let script = script.with("PART", part).with("ISSUER", &issuer);
    script.run_with_commands(|command| provider.ask(command));
    let log = server.log();
    assert!(!log.contains("code=") && !log.contains("eyJ"), "the log has a code or a token: {log}");
}

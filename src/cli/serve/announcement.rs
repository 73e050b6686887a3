//! The messages at the start of the service.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;

use super::Options;
use super::first_token::FirstToken;
use super::listener::is_free_port;
use super::monitoring::MetricsListener;
use super::tls::TlsOptions;
use crate::cli::terminal::{Style, Styler};
use plantstore_store::StoreUrl;

impl Options {
    /// Prints and logs the addresses of the service and the location of the first token. The token itself is printed only on a
    /// terminal and never logged.
    pub(super) fn announce(
        &self,
        socket: SocketAddr,
        url: &StoreUrl,
        first: Option<&FirstToken>,
        metrics: Option<&MetricsListener>,
    ) -> anyhow::Result<()> {
        let address = format!("{}://{socket}", if self.tls.is_enabled() { "https" } else { "http" });
        let terminal = io::stderr().is_terminal();
        if terminal {
            let styler = Styler::new(&io::stderr());
            let name = styler.apply(Style::STRONG, concat!("plantstore ", env!("CARGO_PKG_VERSION")));
            writeln!(io::stderr(), "{name} keeps its plants in {}", styler.apply(Style::ADDRESS, &url.to_string()))?;
            if !self.no_console {
                let page = styler.apply(Style::ADDRESS, &format!("{address}/"));
                writeln!(io::stderr(), "and shows them in a browser at {page}")?;
            }
            if first.is_none() {
                writeln!(io::stderr(), "`plantstore token create --user NAME` issues tokens")?;
            }
        }
        let mut file_note = String::new();
        match first {
            Some(first) if terminal => io::stderr().write_all(banner(&address, &self.tls, first).as_bytes())?,
            Some(FirstToken { user, validity, file: Some(file), .. }) => {
                let file = file.display().to_string();
                file_note = format!("\nThe first token, for the user {user} and {validity}, is in {file}");
                tracing::info!(user = user.as_str(), file, "new store created; its first token is in this file");
            }
            Some(FirstToken { file: None, .. }) | None => {}
        }
        // For people, and for programs that need the free port. For others the log has it all. Printed last: a process that waits for
        // this line may use all of the above. A closed standard output is not an error.
        if io::stdout().is_terminal() || is_free_port(&self.listen) || metrics.is_some_and(|metrics| metrics.free_port)
        {
            let metrics_note = metrics.map(|metrics| format!("\nMetrics on http://{}/metrics", metrics.address));
            let metrics_note = metrics_note.unwrap_or_default();
            let _ = writeln!(io::stdout(), "Listening on {address}{metrics_note}{file_note}");
        }
        tracing::info!(address, store = %url, "listening");
        if !socket.ip().is_loopback() && !self.tls.is_enabled() {
            tracing::warn!(
                "listening on a non-loopback address without encryption: give --tls-cert and --tls-key, or put a proxy that speaks \
             TLS in front"
            );
        }
        if let Some(metrics) = metrics {
            tracing::info!(address = %format_args!("http://{}/metrics", metrics.address), "serving metrics");
            if !metrics.address.ip().is_loopback() {
                tracing::warn!(
                    "metrics are served on a non-loopback address: any client that can connect to it can read them"
                );
            }
        }
        Ok(())
    }
}

fn banner(address: &str, tls: &TlsOptions, first: &FirstToken) -> String {
    let file_note = first.file.as_ref().map_or_else(String::new, |file| {
        format!(
            "It is also in the file {}, which only its owner can read.\n\
             Delete the file once the token is stored elsewhere.\n",
            file.display()
        )
    });
    format!(
        r#"
A new store was created, with the user {user} and this token, shown only this once:

  export TOKEN={token}

It is {validity}.
{file_note}
Create, list and delete a plant:

  curl {address}/plants -H "Authorization: Bearer $TOKEN" \
    -H 'Content-Type: application/json' -d '{{"id": 1, "name": "Monstera", "tag": "indoor"}}' -w '\n'
  curl '{address}/plants?include=id' -H "Authorization: Bearer $TOKEN" -w '\n'
  curl -X DELETE {address}/plants/1 -H "Authorization: Bearer $TOKEN"
{hint}
"#,
        user = first.user,
        validity = first.validity,
        token = first.token.reveal(),
        hint = tls.trust_hint(),
    )
}

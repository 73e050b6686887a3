//! Options of `plantstore serve`: the TLS certificate, and reloading it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::cli::environment::{UsageError, origin, switch};
use plantstore_server::Tls;

const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsOptions {
    /// The certificate of the service with its chain, in PEM; it is reloaded when the file changes, and on SIGHUP
    #[arg(long, value_name = "FILE", env = "PLANTSTORE_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", env = "PLANTSTORE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Do not tell browsers to use TLS only (`Strict-Transport-Security`), which they remember for a year
    #[arg(long, env = "PLANTSTORE_NO_HSTS", value_parser = switch)]
    pub(super) no_hsts: bool,
}

impl TlsOptions {
    pub(super) fn tls(&self) -> Result<Option<Arc<Tls>>, UsageError> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let options = || format!("{}, {}", origin("--tls-cert"), origin("--tls-key"));
        let tls = Tls::new(certificate.clone(), key.clone());
        let tls = tls.map_err(|error| UsageError(format!("{}: {error}", options())))?;
        Ok(Some(Arc::new(tls)))
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.tls_cert.is_some()
    }

    /// Returns a hint for clients about a certificate that no authority has signed.
    pub(super) fn trust_hint(&self) -> String {
        let hint = "\nIf this machine does not trust the certificate, add: --cacert";
        self.tls_cert.as_ref().map(|file| format!("{hint} {}\n", file.display())).unwrap_or_default()
    }
}

/// Logs which certificate is used, and reloads it when it changes and on SIGHUP, until the process ends. Without a certificate,
/// SIGHUP is only logged; without a handler, it would end the process.
pub(super) fn start_reloading(tls: Option<Arc<Tls>>) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    if let Some(tls) = &tls {
        tracing::info!(sha256 = tls.fingerprint(), "certificate loaded");
        if tls.key_is_readable_by_all() {
            tracing::warn!(
                "all users of this machine can read the file of --tls-key: make it readable by its owner alone"
            );
        }
    }
    tokio::spawn(async move {
        // The error of the last reload, which is logged once as long as it stays the same.
        let mut logged_error = None;
        loop {
            // A reload that an operator requested is always logged.
            let is_requested = tokio::select! {
                _ = hangup.recv() => true,
                () = sleep(RELOAD_INTERVAL), if tls.is_some() => false,
            };
            let Some(tls) = &tls else {
                tracing::info!("no certificate to reload");
                continue;
            };
            let reloaded = tls.reload();
            match &reloaded {
                Ok(true) => tracing::info!(sha256 = tls.fingerprint(), "new certificate loaded"),
                Ok(false) if is_requested || logged_error.is_some() => {
                    tracing::info!(sha256 = tls.fingerprint(), "certificate unchanged");
                }
                Err(error) if is_requested || logged_error.as_ref() != Some(error) => {
                    tracing::warn!(%error, "certificate not reloaded: the previous one stays in use");
                }
                Ok(false) | Err(_) => {}
            }
            logged_error = reloaded.err();
        }
    });
    Ok(())
}

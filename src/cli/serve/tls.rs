//! Options of `plantstore serve`: the certificate that it shows, and keeping it up to date.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::cli::WrongUse;
use crate::cli::environment::origin;
use plantstore_server::{Renewal, Tls, TlsFault};

/// How often the files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsOptions {
    /// The certificate to show to clients, with its chain, in PEM; it is read again when it changes, and on SIGHUP
    #[arg(long, value_name = "FILE", env = "PLANTSTORE_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", env = "PLANTSTORE_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl TlsOptions {
    pub(super) fn tls(&self) -> Result<Option<Arc<Tls>>, WrongUse> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(None);
        };
        let tls = Tls::new(certificate.clone(), key.clone()).map_err(|fault| WrongUse(wrong(&fault)))?;
        Ok(Some(Arc::new(tls)))
    }

    /// Whether connections are encrypted.
    pub(super) fn given(&self) -> bool {
        self.tls_cert.is_some()
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.given() { "https" } else { "http" }
    }

    /// How a client comes to trust a certificate that no authority has signed.
    pub(super) fn trust_hint(&self) -> String {
        let hint = "\nIf nobody that this machine trusts has signed the certificate, add: --cacert";
        self.tls_cert.as_ref().map(|file| format!("{hint} {}\n", file.display())).unwrap_or_default()
    }
}

/// The fault, and the option it is about.
fn wrong(fault: &TlsFault) -> String {
    format!("{}, {}: {fault}", origin("--tls-cert"), origin("--tls-key"))
}

/// Says what is shown, and keeps it up to date for as long as the process lives.
pub(super) fn keep(tls: Option<&Arc<Tls>>) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    let Some(tls) = tls else {
        // It would end the process, and whoever sends it means no harm.
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                tracing::info!("there is no certificate to read again");
            }
        });
        return Ok(());
    };
    tracing::info!(sha256 = tls.fingerprint(), "showing this certificate");
    if tls.key_is_readable_by_all() {
        tracing::warn!("everybody on this machine can read the file of --tls-key: make it readable by its owner alone");
    }
    let mut keeper = Keeper { tls: Arc::clone(tls), told: None };
    tokio::spawn(async move {
        loop {
            let asked = tokio::select! {
                _ = hangup.recv() => true,
                () = sleep_until(Instant::now() + LOOK_INTERVAL) => false,
            };
            keeper.look(asked);
        }
    });
    Ok(())
}

struct Keeper {
    tls: Arc<Tls>,
    /// The fault that was told of last: once is enough, as long as it stays the same.
    told: Option<TlsFault>,
}

impl Keeper {
    /// Looks at the files again; `asked` is whether somebody waits to hear of it.
    fn look(&mut self, asked: bool) {
        match self.tls.renew() {
            Ok(Renewal::Renewed) => tracing::info!(sha256 = self.tls.fingerprint(), "showing a new certificate"),
            Ok(Renewal::Unchanged) if asked || self.told.is_some() => {
                tracing::info!(sha256 = self.tls.fingerprint(), "the certificate is the same as before");
            }
            Ok(Renewal::Unchanged) => {}
            Err(fault) => {
                if asked || self.told.as_ref() != Some(&fault) {
                    tracing::warn!(error = %fault, "the certificate is not renewed, and the one before goes on");
                }
                self.told = Some(fault);
                return;
            }
        }
        self.told = None;
    }
}

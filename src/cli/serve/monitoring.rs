//! Options of `plantstore serve`: metrics and traces.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::listener::{bind, is_free_port, listen_address};
use super::otel::{self, share};
use crate::cli::environment::{UsageError, origin, proxies};
use plantstore_server::{Collector, CollectorSettings, Endpoint, Server, Tls, serve_metrics};
use plantstore_telemetry::metrics::{Exposition, Process};

#[derive(Args)]
#[command(next_help_heading = "Monitoring")]
pub(super) struct MonitoringOptions {
    /// Serve metrics for Prometheus at `http://HOST:PORT/metrics`. PORT alone means 127.0.0.1:PORT, and port 0 a free port. Not
    /// served unless given
    #[arg(long, value_name = "[HOST:]PORT", env = "PLANTSTORE_METRICS_LISTEN", value_parser = listen_address)]
    metrics_listen: Option<String>,
    /// Export traces to this OpenTelemetry collector (OTLP, http/protobuf), for example `http://127.0.0.1:4318`. Not exported
    /// unless given here or by `OTEL_EXPORTER_OTLP_ENDPOINT`; the other `OTEL_` variables are in docs/reference/traces.md
    #[arg(long, value_name = "URL", env = "PLANTSTORE_OTLP_ENDPOINT")]
    otlp_endpoint: Option<Endpoint>,
    /// Sampling ratio of requests without a trace context, from 0 (none) to 1 (all, the default)
    #[arg(long, value_name = "SHARE", env = "PLANTSTORE_OTLP_SAMPLE", value_parser = share)]
    otlp_sample: Option<f64>,
    /// A file of certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE", env = "PLANTSTORE_OTLP_CA")]
    otlp_ca: Option<PathBuf>,
}

impl MonitoringOptions {
    /// Returns the collector of traces, if one is configured. If the option does not name its endpoint, the `OTEL_` variables
    /// may do so. Their errors are logged, because the process may have inherited them.
    pub(super) fn collector(&self) -> Result<Option<Collector>, UsageError> {
        let collector = match &self.otlp_endpoint {
            Some(endpoint) => Some(self.collector_at(endpoint.clone())?),
            None => self.collector_of_variables().unwrap_or_else(|error| {
                tracing::warn!(%error, "traces are not exported");
                None
            }),
        };
        if collector.is_some() {
            for warning in otel::warnings() {
                tracing::warn!("{warning}");
            }
        } else if let (Ok(false), Ok(None)) = (otel::is_disabled(), otel::endpoint()) {
            self.reject_options_without_endpoint()?;
        }
        Ok(collector)
    }

    fn collector_of_variables(&self) -> Result<Option<Collector>, UsageError> {
        let endpoint = if otel::is_disabled()? { None } else { otel::endpoint()? };
        endpoint.map(|endpoint| self.collector_at(endpoint)).transpose()
    }

    fn collector_at(&self, endpoint: Endpoint) -> Result<Collector, UsageError> {
        otel::check()?;
        let certificate = if self.otlp_ca.is_none() { otel::certificate()? } else { None };
        let (authorities, named_by) = match certificate {
            Some(variable) => (Some(PathBuf::from(variable.value)), variable.name),
            None => (self.otlp_ca.clone(), origin("--otlp-ca")),
        };
        let settings = CollectorSettings {
            endpoint,
            gzip: otel::gzip()?,
            timeout: otel::timeout()?,
            service_name: otel::service_name()?,
            sample_ratio: self.otlp_sample,
        };
        let collector = Collector::new(settings, authorities.as_deref(), proxies()?);
        collector.map_err(|fault| UsageError(format!("{named_by}: {fault}")))
    }

    fn reject_options_without_endpoint(&self) -> Result<(), UsageError> {
        let given = [("--otlp-sample", self.otlp_sample.is_some()), ("--otlp-ca", self.otlp_ca.is_some())];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(UsageError(format!(
                "{} needs an --otlp-endpoint, for example http://127.0.0.1:4318",
                origin(option)
            ))),
            None => Ok(()),
        }
    }

    pub(super) async fn listen(&self) -> anyhow::Result<Option<MetricsListener>> {
        let Some(listen) = &self.metrics_listen else {
            return Ok(None);
        };
        let listener = bind(listen, "--metrics-listen").await?;
        let address = listener.local_addr().context("cannot tell the address in use")?;
        Ok(Some(MetricsListener { listener, address, free_port: is_free_port(listen) }))
    }
}

/// Bound address for metrics that is not yet served.
pub(super) struct MetricsListener {
    listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) free_port: bool,
}

impl MetricsListener {
    /// Serves metrics until the returned task is aborted.
    pub(super) fn serve(
        self,
        server: Server,
        tls: Option<Arc<Tls>>,
        lines_dropped: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> JoinHandle<()> {
        let process = Process::this();
        let more = move |exposition: &mut Exposition| {
            let version = [("version", env!("CARGO_PKG_VERSION").into())];
            exposition.info("plantstore_build_info", "Version of this program; the value is always 1.", &version);
            process.write_metrics(exposition);
            if let Some(tls) = &tls {
                tls.write_metrics(exposition);
            }
            let help = "Log lines dropped because standard error was not read fast enough.";
            exposition.counter("plantstore_log_lines_dropped_total", help).sample(&[], lines_dropped());
        };
        tokio::spawn(serve_metrics(self.listener, server, Arc::new(more)))
    }
}

//! Failover campaign: injects faults into the leader of a PostgreSQL cluster under load and checks that no acknowledged write is
//! lost. Run it with `scripts/failover ROUNDS [--async] [--seed N]`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the campaign prints a report")]

mod cluster;
mod journal;
mod load;
mod machine;
mod report;
mod service;
mod settings;
mod support;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum as _};
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::{ClusterFault, FailoverCluster};
use crate::load::Load;
use crate::machine::pause;
use crate::report::{CampaignReport, RoundResult};
use crate::settings::Replication;
use crate::support::Random;

#[derive(Parser)]
struct Options {
    /// Number of faults to inject
    rounds: usize,
    /// Use asynchronous replication, as a control: the campaign must find lost plants
    #[arg(long = "async")]
    asynchronous: bool,
    /// Inject only these faults, instead of all in turn
    #[arg(long = "fault", value_enum)]
    faults: Vec<ClusterFault>,
    /// Seed of the moments at which faults are injected
    #[arg(long, default_value_t)]
    seed: u64,
    /// Directory of the campaign; set by the process that creates the namespaces
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match &options.inside {
        Some(directory) => campaign(&options, directory),
        None => supervise(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("failover: {error:#}");
        ExitCode::FAILURE
    })
}

const PREFIX: &str = "plantstore-failover-";
/// Name of a file that marks a directory with logs of a failure, which is not removed.
const FAILED: &str = "failed";

/// Runs the campaign in new namespaces and a temporary directory, which stays only after a failure.
fn supervise(options: &Options) -> Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "run this as root: it creates network namespaces");
    remove_stale_directories()?;
    let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
    let path = directory.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    let lock = File::open(path)?;
    lock.try_lock()?;

    let mut command = machine::isolated("exec 2>&1\n\"$@\" & wait $!");
    command.stderr(File::create(path.join("campaign.log"))?);
    command.arg(std::env::current_exe()?).arg("--inside").arg(path).arg(options.rounds.to_string());
    command.args(["--seed", &options.seed.to_string()]);
    command.args(options.asynchronous.then_some("--async"));
    for fault in &options.faults {
        command.arg("--fault").arg(fault.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned()));
    }
    let mut child = command.spawn().context("setpriv runs")?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        loop {
            if let Some(status) = child.try_wait()? {
                return anyhow::Ok(Some(status));
            }
            tokio::select! {
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        machine::kill_namespaces(&child)?;
        child.wait()?;
        Ok(None)
    })?;
    let Some(status) = status else {
        eprintln!("failover: interrupted");
        return Ok(ExitCode::from(130));
    };
    if !status.success() {
        File::create(path.join(FAILED))?;
        eprintln!("failover: the logs are in {}", directory.keep().display());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the directories of killed campaigns.
fn remove_stale_directories() -> Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())? {
        let path = entry?.path();
        let ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
        // A running campaign holds a lock on its directory.
        if ours && !path.join(FAILED).exists() && File::open(&path)?.try_lock().is_ok() {
            println!("removing {}, left by a campaign that was killed", path.display());
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// Starts the cluster and runs the rounds.
fn campaign(options: &Options, directory: &Path) -> Result<ExitCode> {
    let replication = if options.asynchronous { Replication::Asynchronous } else { Replication::Synchronous };
    let start = Instant::now();
    let mut cluster = FailoverCluster::start(directory, replication)?;
    let mut load = Load::prepare(directory, options.seed)?;
    println!("the cluster is ready after {:.0} s", start.elapsed().as_secs_f64());
    let faults = if options.faults.is_empty() { ClusterFault::value_variants() } else { &options.faults };
    let mut report = CampaignReport::default();
    let mut random = Random::new(options.seed);
    for (number, fault) in (1..=options.rounds).zip(faults.iter().cycle()) {
        let delay = DELAY_MAX * u32::try_from(random.below(1000))? / 1000;
        let result =
            round(&mut cluster, &mut load, *fault, delay, replication).with_context(|| format!("round {number}"))?;
        report.add(number, *fault, &result);
    }
    Ok(report.conclude(replication, options.seed, load.violations()))
}

/// Minimum duration of the load before the fault, after the failover, and after the repair.
const LOAD_MIN: Duration = Duration::from_secs(2);
/// Maximum random delay of the fault.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Time for which the control blocks replication before the fault.
const BLOCKED: Duration = Duration::from_secs(1);

/// Time after which no write is in flight any more; longer than the timeout of the service.
const SETTLE: Duration = Duration::from_secs(5);

/// Injects one fault under load into a healthy cluster, after the minimum duration of the load and this delay, and waits until it is healthy again.
fn round(
    cluster: &mut FailoverCluster,
    load: &mut Load,
    fault: ClusterFault,
    delay: Duration,
    replication: Replication,
) -> Result<RoundResult> {
    let leader = cluster.wait_until_healthy()?;
    let report = load.run(|| {
        load.wait_for_write()?;
        pause(LOAD_MIN + delay);
        if replication == Replication::Asynchronous {
            cluster.block_replication(leader)?;
            pause(BLOCKED);
        }
        let injected = Instant::now();
        cluster.inject(fault, leader)?;
        cluster::wait_for_successor(leader)?;
        load.wait_for_write()?;
        pause(LOAD_MIN.max(fault.min_duration().saturating_sub(injected.elapsed())));
        if replication == Replication::Asynchronous {
            cluster.unblock_replication(leader)?;
        }
        cluster.heal(fault, leader)?;
        // The old leader returns under load, and must not accept writes.
        pause(LOAD_MIN);
        Ok(())
    })?;
    pause(SETTLE);
    cluster.wait_until_healthy()?;
    load.evaluate(report)
}

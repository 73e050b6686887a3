//! The failover campaign: `scripts/failover ROUNDS [--async]`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a report is what a campaign is for")]

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

use crate::cluster::{Cluster, Fault};
use crate::load::Load;
use crate::machine::pause;
use crate::report::{Report, Tally};
use crate::settings::Replication;

#[derive(Parser)]
struct Options {
    /// How many times the leader is struck
    rounds: usize,
    /// The control: with asynchronous replication the campaign must find lost plants
    #[arg(long = "async")]
    asynchronous: bool,
    /// Only these faults, and not all in turn
    #[arg(long = "fault", value_enum)]
    faults: Vec<Fault>,
    /// Where the campaign that runs in namespaces of its own keeps everything
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    /// What cargo adds
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
/// In a directory that was left on purpose.
const KEPT: &str = "kept";

/// Runs the campaign in namespaces of its own, in a directory of its own, and leaves nothing but the logs of a failure.
fn supervise(options: &Options) -> Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "run this as root: it makes networks and machines of its own");
    sweep()?;
    let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
    let path = directory.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    let lock = File::open(path)?;
    lock.try_lock()?;

    let mut command = machine::isolated("exec 2>&1\n\"$@\" & wait $!");
    command.stderr(File::create(path.join("campaign.log"))?);
    command.arg(std::env::current_exe()?).arg("--inside").arg(path).arg(options.rounds.to_string());
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
        machine::end(&child)?;
        child.wait()?;
        Ok(None)
    })?;
    let Some(status) = status else {
        eprintln!("failover: interrupted");
        return Ok(ExitCode::from(130));
    };
    if !status.success() {
        File::create(path.join(KEPT))?;
        eprintln!("failover: the logs are in {}", directory.keep().display());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the directories of campaigns that were killed; their processes and networks went with them.
fn sweep() -> Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())? {
        let path = entry?.path();
        let ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX));
        // Whoever uses it holds a lock on it.
        if ours && !path.join(KEPT).exists() && File::open(&path)?.try_lock().is_ok() {
            println!("removing {}, left by a campaign that was killed", path.display());
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// Sets up the cluster and strikes its leader, round after round.
fn campaign(options: &Options, directory: &Path) -> Result<ExitCode> {
    let replication = if options.asynchronous { Replication::Asynchronous } else { Replication::Synchronous };
    let start = Instant::now();
    let mut cluster = Cluster::start(directory, replication)?;
    let mut load = Load::prepare(directory)?;
    println!("the cluster is ready after {:.0} s", start.elapsed().as_secs_f64());
    let faults = if options.faults.is_empty() { Fault::value_variants() } else { &options.faults };
    let mut report = Report::default();
    for (number, fault) in (1..=options.rounds).zip(faults.iter().cycle()) {
        let tally = round(&mut cluster, &mut load, *fault, replication).with_context(|| format!("round {number}"))?;
        report.add(number, *fault, &tally);
    }
    Ok(report.conclude(replication, load.violations()))
}

/// How long the load runs before the fault at the least, after it, and after it is healed.
const CALM: Duration = Duration::from_secs(2);
/// How much later than `CALM` the fault may strike.
const CHANCE: Duration = Duration::from_secs(2);
/// How long the control writes what no standby gets.
const HELD_BACK: Duration = Duration::from_secs(1);

/// What outlasts any write that the service has under way: it gives up sooner.
const SETTLING: Duration = Duration::from_secs(5);

/// One fault under load, from a whole cluster to a whole one.
fn round(cluster: &mut Cluster, load: &mut Load, fault: Fault, replication: Replication) -> Result<Tally> {
    let leader = cluster.wait_until_whole()?;
    let report = load.run(|| {
        load.wait_for_write()?;
        pause(CALM + CHANCE.mul_f64(f64::from(getrandom::u32()?) / f64::from(u32::MAX)));
        if replication == Replication::Asynchronous {
            cluster.hold_back_replication(leader)?;
            pause(HELD_BACK);
        }
        let struck = Instant::now();
        cluster.strike(fault, leader)?;
        cluster::wait_for_successor(leader)?;
        load.wait_for_write()?;
        pause(CALM.max(fault.lasts().saturating_sub(struck.elapsed())));
        if replication == Replication::Asynchronous {
            cluster.let_replication_go_on(leader)?;
        }
        cluster.heal(fault, leader)?;
        // The old leader comes back while others write: it must not be taken for the leader.
        pause(CALM);
        Ok(())
    })?;
    pause(SETTLING);
    cluster.wait_until_whole()?;
    load.settle(report)
}

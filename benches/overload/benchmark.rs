//! Options, sequence of measurements and table of the benchmark.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::generator::{Generator, LoadReport, RequestMix};
use crate::polite::run_beside;
use crate::server::ServerProcess;
use crate::steal::ProcessorTime;

/// Connections of the closed loop that finds the peak.
const PEAK_CONNECTIONS: usize = 64;
/// A rate that no server reaches: the closed loop sends as soon as a connection is free.
const UNLIMITED: f64 = 1e9;
/// Duration of the warm-up before a measurement.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Parser)]
struct Options {
    /// Program to measure
    #[arg(long)]
    program: PathBuf,
    /// Another build of the program, measured in the same run
    #[arg(long)]
    control: Option<PathBuf>,
    /// Connections of the open loop
    #[arg(long, default_value_t = 4_000)]
    connections: usize,
    /// Users who share these connections
    #[arg(long, default_value_t = 20)]
    users: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Multiples of the peak to offer
    #[arg(long, value_delimiter = ',', default_value = "0.75,1,2,5")]
    loads: Vec<f64>,
    /// Workloads to run
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lists,creates,mixed")]
    workloads: Vec<RequestMix>,
    /// Repetitions; the programs alternate
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Run the server on this core alone
    #[arg(long)]
    pin: Option<usize>,
    /// Percentage of processor time that the host may take during a measurement; with more, it is repeated
    #[arg(long, default_value_t = 10.0)]
    max_steal: f64,
    /// Repetitions of a measurement that had too much steal
    #[arg(long, default_value_t = 5)]
    retries: usize,
    /// Further options of `serve`, each as one argument
    #[arg(long, allow_hyphen_values = true)]
    serve: Vec<String>,
}

pub(crate) fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let control = options.control.iter().map(|program| ("control", program));
    let programs: Vec<_> = control.chain([("program", &options.program)]).collect();
    println!(
        "| build | users | workload | offered | sent | served | of peak | of carried | rejected | failed | p50 ms | p99 ms | max ms | memory MB | steal | polite: sent | rejected | failed | p99 ms | max ms |"
    );
    println!(
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for _ in 0..options.rounds {
        for workload in &options.workloads {
            for (name, program) in &programs {
                measure(options, name, program, *workload)?;
            }
        }
    }
    Ok(())
}

/// Measures one program under one workload, on a new store.
fn measure(options: &Options, name: &str, program: &Path, workload: RequestMix) -> Result<()> {
    let server = ServerProcess::start(program, options.users, options.pin, &options.serve)?;
    let time = Duration::from_secs(options.seconds);
    let mut closed = Generator::connect(server.address, &server.tokens, PEAK_CONNECTIONS)?;
    let warm = closed.run(workload, UNLIMITED, WARM_UP)?;
    let mut open = Generator::connect(server.address, &server.tokens, options.connections)?;
    // Establishes all connections before the first measurement.
    open.run(workload, warm.goodput() / 2.0, WARM_UP)?;
    // The most that these connections have carried at no more than the peak.
    let mut carried = 0.0_f64;
    for load in &options.loads {
        for _ in 0..=options.retries {
            let begin = ProcessorTime::now()?;
            let peak = closed.run(workload, UNLIMITED, time)?;
            let middle = ProcessorTime::now()?;
            let (report, polite) = run_beside(server.address, &server.polite_token, workload, || {
                open.run(workload, load * peak.goodput(), time)
            })?;
            let end = ProcessorTime::now()?;
            let steal = [middle.steal_since(&begin), end.steal_since(&middle)];
            let is_valid = steal.iter().all(|steal| *steal <= options.max_steal);
            let mark = |steal: f64| format!("{steal:.0} %{}", if is_valid { "" } else { ", discarded" });
            let label = |offered: &str| format!("{name} | {} | {workload:?} | {offered}", options.users);
            if is_valid && *load <= 1.0 {
                carried = carried.max(report.goodput());
            }
            let yardsticks = [peak.goodput(), carried];
            print(&label("peak"), workload, &peak, None, yardsticks, &server, &mark(steal[0]));
            let offered = label(&format!("{load}×"));
            print(&offered, workload, &report, Some(&polite), yardsticks, &server, &mark(steal[1]));
            if is_valid {
                break;
            }
        }
    }
    Ok(())
}

fn print(
    label: &str,
    workload: RequestMix,
    report: &LoadReport,
    polite: Option<&LoadReport>,
    [peak, carried]: [f64; 2],
    server: &ServerProcess,
    steal: &str,
) {
    let of_carried = match polite {
        Some(_) if carried > 0.0 => format!("{:.2}", report.goodput() / carried),
        _ => String::new(),
    };
    let polite = polite.map_or_else(
        || "|  |  |  |  |".to_owned(),
        |polite| {
            format!(
                "{} | {} | {} | {:.1} | {:.1} |",
                polite.sent,
                polite.rejected,
                polite.failed,
                polite.percentile(99),
                polite.percentile(100)
            )
        },
    );
    println!(
        "| {label} | {:.0}/s | {:.0}/s | {:.2} | {of_carried} | {:.0}/s | {} | {:.1} | {:.1} | {:.1} | {} | {steal} | {polite}",
        report.per_second(report.sent),
        report.goodput(),
        report.goodput() / peak,
        report.per_second(report.rejected),
        report.failed,
        report.percentile(50),
        report.percentile(99),
        report.percentile(100),
        server.memory_peak_mb(),
    );
    if let RequestMix::Mixed = workload {
        println!(
            "|  |  | of which lists, creates |  |  | {:.0}/s, {:.0}/s |  |  |  |  |  |  |  |  |  |  |  |  |  |  |",
            report.per_second(report.lists),
            report.per_second(report.creates)
        );
    }
}

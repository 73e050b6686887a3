//! Open-loop overload benchmark: `scripts/bench overload [--control PROGRAM]`.
//!
//! For each workload (lists, creates, and both in equal parts) it measures the peak with a few connections in a closed
//! loop, and right after it offers a multiple of that peak over many connections in an open loop: requests are due by the
//! clock, whether or not earlier ones have been served. The result is the goodput (successful responses per second) as a
//! share of the peak, which stays near 1 on a server that sheds load well and collapses on one that does not. Many connections alone
//! cost a part of the peak, so the table also has the share of what they have carried at no more than the peak.
//!
//! Beside the load, a polite user sends one request at a time on one connection. None of them should be rejected, and their 99th
//! percentile should be at most 100 ms, whether the load comes from many users or from one (`--users 1`).
//!
//! On a virtual machine the host may take processor time away (steal). A pair of measurements with more steal time than
//! `--max-steal` is printed, marked as discarded and repeated.
//!
//! It runs on Linux only: it needs `epoll` and `/proc`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the benchmark prints a report")]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod benchmark;
#[cfg(target_os = "linux")]
mod generator;
#[cfg(target_os = "linux")]
mod polite;
#[cfg(target_os = "linux")]
mod server;
#[cfg(target_os = "linux")]
mod steal;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    benchmark::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("overload: this benchmark needs epoll and /proc: run it on Linux");
    ExitCode::FAILURE
}

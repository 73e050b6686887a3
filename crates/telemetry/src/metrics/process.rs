//! Metrics of the process, under the names that Prometheus client libraries use.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::exposition::{Exposition, float};

#[derive(Debug)]
pub struct Process {
    started: f64,
}

impl Process {
    /// Returns the current process. On a system that does not report the start time, it is the current time.
    pub fn this() -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        Self { started: started().unwrap_or_else(now) }
    }

    pub fn write_metrics(&self, exposition: &mut Exposition) {
        exposition
            .gauge("process_start_time_seconds", "Start time of the process, as Unix time.")
            .sample(&[], self.started);
        if let Some([user, system]) = ticks(14) {
            exposition
                .counter("process_cpu_seconds_total", "User and system CPU time spent.")
                .sample(&[], user + system);
        }
        if let Some((virtual_bytes, resident_bytes)) = memory() {
            exposition.gauge("process_virtual_memory_bytes", "Virtual memory size.").sample(&[], virtual_bytes);
            exposition.gauge("process_resident_memory_bytes", "Resident memory size.").sample(&[], resident_bytes);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            exposition.gauge("process_open_fds", "Number of open file descriptors.").sample(&[], open.count());
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            exposition.gauge("process_max_fds", "Maximum number of open file descriptors.").sample(&[], most);
        }
    }
}

fn started() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok())?;
    let [after_boot] = ticks(22)?;
    Some(float(boot) + after_boot)
}

/// Reads fields of `/proc/self/stat` from this one on, numbered as in proc(5), and converts them from clock ticks to seconds.
fn ticks<const N: usize>(first: usize) -> Option<[f64; N]> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the name of the program, may hold any characters.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: Vec<u64> = fields.split(' ').skip(first - 3).take(N).map_while(|field| field.parse().ok()).collect();
    let seconds: Vec<f64> = ticks.into_iter().map(|ticks| float(ticks) / float(clock_ticks_per_second())).collect();
    seconds.try_into().ok()
}

fn memory() -> Option<(u64, u64)> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut bytes = statm.split(' ').map_while(|pages| Some(pages.parse::<u64>().ok()? * page_size() as u64));
    Some((bytes.next()?, bytes.next()?))
}

//! What the system tells of the process, under the names that dashboards know.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::{Page, float};

/// This process.
#[derive(Debug)]
pub struct Process {
    started: f64,
}

impl Process {
    /// To be called when the process has started.
    pub fn started_now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { started: since.map_or(0.0, |since| since.as_secs_f64()) }
    }

    /// Writes what is known; what the system does not tell is left out.
    pub fn write_metrics(&self, page: &mut Page) {
        page.gauge("process_start_time_seconds", "When the process started, in seconds since 1970.")
            .sample(&[], self.started);
        if let Some(seconds) = cpu_seconds() {
            page.counter("process_cpu_seconds_total", "Processor time used.").sample(&[], seconds);
        }
        if let Some((virtual_bytes, resident_bytes)) = memory() {
            page.gauge("process_virtual_memory_bytes", "Memory addressed.").sample(&[], virtual_bytes);
            page.gauge("process_resident_memory_bytes", "Memory in use.").sample(&[], resident_bytes);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            page.gauge("process_open_fds", "Open file descriptors.").sample(&[], open.count());
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            page.gauge("process_max_fds", "File descriptors that may be open.").sample(&[], most);
        }
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name of the program, which may hold anything: fields 14 and 15 of proc(5), counted from the third.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map_while(|field| field.parse::<u64>().ok());
    Some(float(ticks.next()? + ticks.next()?) / float(clock_ticks_per_second()))
}

fn memory() -> Option<(u64, u64)> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut bytes = statm.split(' ').map_while(|pages| Some(pages.parse::<u64>().ok()? * page_size() as u64));
    Some((bytes.next()?, bytes.next()?))
}

//! CPU time that the host of a virtual machine gave to other guests (steal).

use std::fs;

use anyhow::{Context as _, Result};

/// CPU time of all cores since boot, in ticks.
pub(crate) struct ProcessorTime {
    total: f64,
    steal: f64,
}

impl ProcessorTime {
    pub(crate) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let line =
            text.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("the line of all processors")?;
        let ticks = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        // user nice system idle iowait irq softirq steal; guest time is part of user time.
        let total = ticks.iter().take(8).sum();
        Ok(Self { total, steal: *ticks.get(7).context("the steal time")? })
    }

    /// Returns the percentage of steal time since `earlier`.
    pub(crate) fn steal_since(&self, earlier: &Self) -> f64 {
        100.0 * (self.steal - earlier.steal) / (self.total - earlier.total).max(1.0)
    }
}

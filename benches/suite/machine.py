"""Facts about the machine, and the memory and CPU time of processes, from /proc."""

import os
import platform
from pathlib import Path

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def facts():
    """Describes the machine."""
    model = next((line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    kilobytes = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal:"))
    return {"cores": os.cpu_count(), "cpu": model, "memory_mb": kilobytes // 1024, "kernel": f"{platform.system()} {platform.release()}"}


def cpu_times():
    """Returns the CPU time of all cores since boot: total and steal, in ticks."""
    # user nice system idle iowait irq softirq steal; guest time is part of user time.
    ticks = [int(word) for word in _lines("/proc/stat")[0].split()[1:9]]
    return sum(ticks), ticks[7]


def steal_since(before):
    """Returns the percentage of CPU time that the host of a virtual machine gave to others."""
    total, steal = cpu_times()
    return 100 * (steal - before[1]) / max(1, total - before[0])


def tree(pid):
    """Returns the ids of a process and of all processes that it has started."""
    children = {}
    for process in os.listdir("/proc"):
        if process.isdigit() and (fields := _stat(int(process))):
            children.setdefault(int(fields[1]), []).append(int(process))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def peak_memory_mb(pid):
    """Returns the peak resident memory of a process and its children; pages that they share count for each."""
    return sum(_status_kilobytes(process, "VmHWM:") for process in tree(pid)) / 1024


def resident_memory_mb(pid):
    """Returns the resident memory of one process; cheap enough to be called during a measurement."""
    return _status_kilobytes(pid, "VmRSS:") / 1024


def cpu_seconds(pid):
    """Returns the CPU time of a process and its children, including those that have ended."""
    used = 0
    for process in tree(pid):
        if fields := _stat(process):
            # utime, stime; and cutime, cstime of children that were waited for.
            used += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return used * TICK_SECONDS


def _stat(pid):
    """Returns the fields of /proc/PID/stat after the name, which may contain spaces; None if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _status_kilobytes(pid, name):
    try:
        return next((int(line.split()[1]) for line in _lines(f"/proc/{pid}/status") if line.startswith(name)), 0)
    except OSError:
        return 0


def _lines(path):
    return Path(path).read_text().splitlines()

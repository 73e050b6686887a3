"""Load by wrk: a closed loop over a number of connections, with one request in flight on each."""

import itertools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import machine

SCRIPT = Path(__file__).with_name("load.lua")
# Connections of every measurement that is not about the number of connections.
CONNECTIONS = 64
# The first of the ascending ids of the first load; random ids and those of stored plants are lower.
FIRST_ASCENDING = 900_000_000_000_000
# Ascending ids that one load may use.
ASCENDING_STEP = 10_000_000_000

_loads = itertools.count()


class LoadFailed(Exception):
    """The load generator ended with an error, or a request did not succeed."""


@dataclass(frozen=True)
class Target:
    """Requests to one server: its address, the path of each operation, and the values of Authorization."""

    address: str
    list_path: str
    create_path: str
    # Body of a create, with `%s` in the place of the id.
    body: str
    # File with one value of the header field `Authorization` per line; None without authentication.
    authorizations: Path | None
    # The process whose CPU time is measured.
    pid: int | None = None


def threads():
    """Returns the number of threads of wrk: half of the cores, because the server runs on the same machine."""
    return max(1, (os.cpu_count() or 1) // 2)


def lists(target, seconds, connections=CONNECTIONS, header=None):
    """Measures lists of 20, of the next user each time; `header` is another field as (name, value)."""
    return _run("list", target, target.list_path, seconds, connections, list(header or ()))


def creates(target, seconds, connections=CONNECTIONS, ascending=False):
    """Measures creates with random or ascending ids, of the next user each time."""
    return _run("create", target, target.create_path, seconds, connections, [None if ascending else "random", target.body])


def _run(kind, target, path, seconds, connections, arguments):
    # Each load has other ids, also when two of them run concurrently.
    number = next(_loads)
    arguments = [str(FIRST_ASCENDING + number * ASCENDING_STEP) if value is None else value for value in arguments]
    file = str(target.authorizations) if target.authorizations else "-"
    count = min(threads(), connections)
    command = ["wrk", f"-t{count}", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(SCRIPT)]
    command += [target.address, "--", kind, file, path, str(number + 1), *arguments]
    before, used = machine.cpu_times(), target.pid and machine.cpu_seconds(target.pid)
    finished = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    steal = machine.steal_since(before)
    lines = [line for line in finished.stdout.splitlines() if line.startswith("result ")]
    if finished.returncode != 0 or not lines:
        raise LoadFailed(f"wrk failed: {finished.stdout}{finished.stderr}")
    measurement = parse(json.loads(lines[-1].removeprefix("result ")), steal)
    if target.pid:
        measurement["cpu_us"] = (machine.cpu_seconds(target.pid) - used) * 1e6 / measurement["requests"]
    return measurement


def parse(counts, steal):
    """Converts the counts of one load to a measurement: requests per second, latencies in milliseconds."""
    if counts["requests"] == 0:
        raise LoadFailed("no request got a response")
    if counts["failed"] > 0:
        raise LoadFailed(f"{counts['failed']} of {counts['requests']} requests failed")
    latencies = {name: counts[name] / 1_000 for name in ("p50", "p75", "p90", "p99", "p99.9", "max")}
    return {"rate": counts["requests"] * 1e6 / counts["duration"], "requests": counts["requests"], **latencies, "steal": steal}

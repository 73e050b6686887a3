"""A PostgreSQL server of the benchmark's own, and pgbench with the statements of a create and of a list."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import machine
from plants import LIST_LENGTH, NAME, TAG
from process import CommandFailed, free_port, run

CLIENTS = 32
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
# PostgreSQL does not run as root.
ACCOUNT = {"user": "nobody", "group": "nogroup", "extra_groups": []}


class Cluster:
    """A server with a new data directory, which ends with the block."""

    def __init__(self, directory, settings=None):
        self.settings = SETTINGS | (settings or {})
        self.directory = Path(tempfile.mkdtemp(prefix="postgresql-", dir=directory))
        self.programs = programs()
        self.port = free_port()
        self.account = ACCOUNT if os.geteuid() == 0 else {}
        if self.account:
            shutil.chown(self.directory, ACCOUNT["user"], ACCOUNT["group"])
            # Temporary directories are private to their owner; this one must be reachable.
            directory.chmod(0o755)

    def __enter__(self):
        data = self.directory / "data"
        self._control("initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale", "C.UTF-8")
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self.directory}"
        options += "".join(f" -c {name}={value}" for name, value in self.settings.items())
        # A session of its own: Ctrl-C reaches the benchmark, which ends the server.
        self._control("pg_ctl", "-D", data, "-l", self.directory / "log", "-w", "start", "-o", options, start_new_session=True)
        self.pid = int((data / "postmaster.pid").read_text().split()[0])
        return self

    def __exit__(self, *_):
        self._control("pg_ctl", "-D", self.directory / "data", "-m", "immediate", "-w", "stop")

    def _control(self, program, *arguments, **options):
        # The server inherits the output of pg_ctl, so that must not be a pipe.
        with open(self.directory.parent / "postgresql-control.log", "ab") as log:
            command = [self.programs / program, *arguments]
            finished = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=120, check=False, **self.account, **options)
        if finished.returncode != 0:
            raise CommandFailed(f"{program} failed: {Path(log.name).read_text()[-500:]}")

    def version(self):
        return run([self.programs / "postgres", "--version"]).split()[2]

    def create_database(self, name):
        self.sql("postgres", f"CREATE DATABASE {name}")
        return f"postgres://postgres@127.0.0.1:{self.port}/{name}"

    def sql(self, database, *statements):
        commands = [word for statement in statements for word in ("-c", statement)]
        return run([self.programs / "psql", "-X", "-q", "-A", "-t", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", database, *commands])

    def cpu_seconds(self):
        """Returns the CPU time of the server and all its processes."""
        return machine.cpu_seconds(self.pid)

    def per_operation(self, measure):
        """Measures a load and adds the server's CPU time per request, in microseconds."""
        before = self.cpu_seconds()
        measurement = measure()
        used = self.cpu_seconds() - before
        return measurement | {"database_us": used * 1e6 / measurement["requests"]}


class Bench:
    """pgbench on a database of the service, with one statement per transaction."""

    def __init__(self, cluster, database, users):
        self.cluster, self.database = cluster, database
        self.scripts = {
            "insert": f"\\set user random(1, {users})\n\\set id random(100000000000000, 899999999999999)\n"
            f"INSERT INTO plantstore.plants (user_id, plant_id, name, tag, version) VALUES (:user, :id, '{NAME}', '{TAG}', 1) ON CONFLICT DO NOTHING;\n",
            "select": f"\\set user random(1, {users})\n"
            "SELECT plant_id, name, tag FROM plantstore.plants WHERE user_id = :user AND plant_id >= -9223372036854775807 "
            f"ORDER BY plant_id LIMIT {LIST_LENGTH + 1};\n",
        }

    def measure(self, statement, seconds):
        file = self.cluster.directory / f"{statement}.sql"
        file.write_text(self.scripts[statement])
        command = [self.cluster.programs / "pgbench", "-n", "-M", "prepared", f"-c{CLIENTS}", "-j2", "-f", file]
        command += ["-h", "127.0.0.1", "-p", str(self.cluster.port), "-U", "postgres", self.database]

        def load(*duration):
            cpu, before = self.cluster.cpu_seconds(), machine.cpu_times()
            output = run([*command, *duration], timeout=seconds + 60)
            steal = machine.steal_since(before)
            # The last backends end, and their CPU time is known, after pgbench has ended.
            time.sleep(0.1)
            return parse(output) | {"steal": steal}, self.cluster.cpu_seconds() - cpu

        # The CPU time of connecting and preparing is not that of the statements: nodes keep their connections.
        connecting, connecting_cpu = load("-t", "1")
        measurement, cpu = load("-T", str(seconds))
        database_us = (cpu - connecting_cpu) * 1e6 / (measurement["requests"] - connecting["requests"])
        return measurement | {"database_us": database_us}


def parse(output):
    """Reads the throughput and the mean latency that pgbench prints."""
    rate = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    count = re.search(r"^number of transactions actually processed: (\d+)", output, re.MULTILINE)
    latency = re.search(r"^latency average = ([0-9.]+) ms", output, re.MULTILINE)
    if not (rate and count and latency):
        raise CommandFailed(f"pgbench printed no throughput: {output}")
    return {"rate": float(rate[1]), "requests": int(count[1]), "mean": float(latency[1])}


def programs():
    """Returns the directory of PostgreSQL's programs: $PG_BIN, or the newest version where Debian installs it."""
    if os.environ.get("PG_BIN"):
        return Path(os.environ["PG_BIN"])
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    if not versions:
        raise CommandFailed("PostgreSQL is not installed")
    return versions[-1]

"""The targets of the project, each stated once, and their evaluation against a result."""

from collections.abc import Callable
from dataclasses import dataclass

from figures import Figure, Result

MET = "met"
# The median misses the bound, but at least one round meets it.
WITHIN_SPREAD = "within spread"
MISSED = "missed"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Target:
    name: str
    figure: Callable[[Result], Figure | None]
    # One of the two is None.
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    def bound(self):
        sign, value = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {value:g}{self.unit}" if value < 1_000 else f"{sign} {value:,}{self.unit}"

    def verdict(self, figure):
        if figure is None:
            return NOT_MEASURED
        if self._is_met(figure.median):
            return MET
        return WITHIN_SPREAD if any(map(self._is_met, figure.rounds)) else MISSED

    def _is_met(self, value):
        return value >= self.at_least if self.at_least is not None else value <= self.at_most


def ratio(name, other, field="rate"):
    return lambda result: result.ratio(name, other, field)


def value(name, field):
    return lambda result: result.figure(name, field)


def cost(name, without):
    """The part of the throughput that a feature costs, in percent."""

    def percent(result):
        found = result.ratio(name, without)
        return found and Figure(tuple(100 * (1 - entry) for entry in found.rounds))

    return percent


def largest_store(operation):
    """The throughput of the largest store of the run against that of the store with 100,000 plants."""

    def compare(result):
        sizes = result.facts.get("settings", {}).get("sizes", [])
        return result.ratio(f"plantstore/{operation}/plants={max(sizes)}", f"plantstore/{operation}/plants=100000") if sizes else None

    return compare


def overload(workload, column, worst, polite=False):
    """The worst value of a column over all measurements at two and five times the capacity; of all workloads if none is given."""

    def compare(result):
        rows = [[cell.strip() for cell in line.split("|")] for line in result.facts.get("overload", [])]
        if not rows:
            return None
        index = rows[0].index(column, rows[0].index("polite: sent") if polite else 0)
        build, offered, kind = map(rows[0].index, ("build", "offered", "workload"))
        values = [float(row[index]) for row in rows if row[build] == "program" and row[offered] in ("2×", "5×") and workload in (None, row[kind])]
        return Figure((worst(values),)) if values else None

    return compare


TARGETS = (
    Target("list of 20, unchanged ÷ bare with the same duties", ratio("plantstore/list", "bare/list, same duties"), at_least=0.95),
    Target("list of 20, unchanged ÷ bare", ratio("plantstore/list", "bare/list"), at_least=0.70),
    Target("list of 20, another user each time ÷ bare with the same duties", ratio("plantstore/list, other users", "bare/list, same duties"), at_least=0.90),
    Target("the same with no list cache ÷ bare", ratio("plantstore/list, no cache", "bare/list"), at_least=0.35),
    Target("cost of the access log", cost("plantstore/list", "plantstore/list, no log"), at_most=3, unit=" %"),
    Target("instructions of a list of 20 from the list cache", value("instructions/cached", "instructions"), at_most=18_000),
    Target("instructions of a 304 ÷ of the list", ratio("instructions/not-modified", "instructions/cached", "instructions"), at_most=1),
    Target("instructions of a create, threads of the runtime", value("instructions/create", "instructions"), at_most=32_000),
    Target("instructions of a create, the writer's thread", value("instructions/create-writer", "instructions"), at_most=14_000),
    Target("CPU time of a create", value("plantstore/create", "cpu_us"), at_most=34, unit=" µs"),
    Target("durable create, random ids ÷ SQLite alone, same batches", ratio("plantstore/create", "sqlite/create"), at_least=1.0),
    Target("durable create, ascending ids ÷ SQLite alone, same batches", ratio("plantstore/create, ascending", "sqlite/create, ascending"), at_least=1.0),
    Target("create p99 ÷ bare p99", ratio("plantstore/create", "bare/create", "p99"), at_most=4),
    Target("slowest create of a round", value("plantstore/create", "max"), at_most=50, unit=" ms"),
    Target("list ÷ PocketBase", ratio("plantstore/list, other users", "pocketbase/list"), at_least=50),
    Target("create ÷ PocketBase", ratio("plantstore/create", "pocketbase/create"), at_least=15),
    Target("list ÷ Fastify + better-sqlite3", ratio("plantstore/list, other users", "fastify/list"), at_least=12),
    Target("create ÷ Fastify + better-sqlite3", ratio("plantstore/create", "fastify/create"), at_least=7),
    Target("list, largest store ÷ 100,000 plants", largest_store("list"), at_least=0.95),
    Target("create, largest store ÷ 100,000 plants", largest_store("create"), at_least=0.75),
    Target("peak memory, largest store, under load", value("plantstore/memory", "peak_mb"), at_most=60, unit=" MB"),
    Target("whole list, streamed", value("plantstore/stream", "mb_per_second"), at_least=300, unit=" MB/s"),
    Target("memory that a whole list adds", value("plantstore/stream", "added_mb"), at_most=16, unit=" MB"),
    Target("start to ready, largest store", value("plantstore/start", "ms"), at_most=50, unit=" ms"),
    Target("PostgreSQL: database CPU per create ÷ per single-row insert", ratio("postgresql/create", "pgbench/insert", "database_us"), at_most=0.25),
    Target("PostgreSQL: database CPU per unchanged list ÷ per select of 20", ratio("postgresql/list", "pgbench/select", "database_us"), at_most=0.09),
    Target("PostgreSQL: list of 20 ÷ pgbench with the same select", ratio("postgresql/list", "pgbench/select"), at_least=0.6),
    Target("PostgreSQL: creates over two nodes ÷ over one", ratio("postgresql/create, two nodes", "postgresql/create"), at_least=1.0),
    Target("Citus, two workers: database CPU per create ÷ PostgreSQL", ratio("citus, 2 workers, 1 shard each/create", "citus, plain PostgreSQL/create", "database_us"), at_most=3.0),
    Target("Citus, two workers: the same, 512 connections", ratio("citus, 2 workers, 1 shard each/create, many", "citus, plain PostgreSQL/create, many", "database_us"), at_most=2.2),
    Target("Citus, two workers: database CPU per unchanged list ÷ PostgreSQL", ratio("citus, 2 workers, 1 shard each/list", "citus, plain PostgreSQL/list", "database_us"), at_most=3.0),
    Target("Citus, two workers: per list read from the database ÷ PostgreSQL", ratio("citus, 2 workers, 1 shard each/list, no cache", "citus, plain PostgreSQL/list, no cache", "database_us"), at_most=1.5),
    Target("Citus: database CPU per create, four workers ÷ one", ratio("citus, 4 workers, 1 shard each/create", "citus, 1 worker, 1 shard each/create", "database_us"), at_most=1.2),
    Target("the same, 64 connections for each worker", ratio("citus, 4 workers, 1 shard each/create, per server", "citus, 1 worker, 1 shard each/create", "database_us"), at_most=1.2),
    Target("Citus, two workers: CPU of the coordinator per create", value("citus, 2 workers, 1 shard each/create", "coordinator_us"), at_most=1.0, unit=" µs"),
    Target("Citus, two workers: CPU of the coordinator per list", value("citus, 2 workers, 1 shard each/list", "coordinator_us"), at_most=1.0, unit=" µs"),
    Target("overload, 2× and 5×, lists: least goodput ÷ what the same connections carry", overload("Lists", "of carried", min), at_least=0.90),
    Target("overload, 2× and 5×, lists: highest p99", overload("Lists", "p99 ms", max), at_most=100, unit=" ms"),
    Target("overload, 2× and 5×, creates: least goodput ÷ what the same connections carry", overload("Creates", "of carried", min), at_least=0.90),
    Target("overload, 2× and 5×, creates: highest p99", overload("Creates", "p99 ms", max), at_most=100, unit=" ms"),
    Target("overload, 2× and 5×, lists and creates: least goodput ÷ what the same connections carry", overload("Mixed", "of carried", min), at_least=0.90),
    Target("overload, 2× and 5×, lists and creates: highest p99", overload("Mixed", "p99 ms", max), at_most=100, unit=" ms"),
    Target("overload, 2× and 5×: most requests of the polite user that are rejected", overload(None, "rejected", max, polite=True), at_most=0),
    Target("overload, 2× and 5×: highest p99 of the polite user", overload(None, "p99 ms", max, polite=True), at_most=100, unit=" ms"),
)


def evaluate(result):
    """Returns the outcome of every target as plain data for the result file."""
    outcomes = []
    for target in TARGETS:
        figure = target.figure(result)
        outcome = {"name": target.name, "bound": target.bound(), "unit": target.unit, "verdict": target.verdict(figure)}
        if figure is not None:
            outcome |= {"median": figure.median, "spread": figure.spread, "rounds": list(figure.rounds)}
        outcomes.append(outcome)
    return outcomes

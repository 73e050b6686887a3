"""CPU time of the database servers per operation on Citus with one, two and four workers, and on one PostgreSQL in the same run.

Citus is software that the operator installs. Without it this part is left out."""

import datetime
from pathlib import Path

import load
import plantstore
import process
from context import progress
from plants import Collection
from references.postgresql import Cluster, programs

TITLE = "nodes on Citus"
DATABASE = "plants"
USERS = 100
PLANTS_PER_USER = 200
WORKERS = (1, 2, 4)
# Shards per worker of the set-ups with two workers; the others have one.
SHARDS = (1, 4)
MANY_CONNECTIONS = 512
# The load of one server if four share the other loads.
FEW_CONNECTIONS = load.CONNECTIONS // 4
# The load of every server is that of the first case, whatever their number, in the cases with `per server`.
CASES = (
    ("create, 64 connections", "create"), ("create, 64 connections for each worker", "create, per server"), ("create, 512 connections", "create, many"),
    ("create, 16 connections", "create, few"), ("unchanged list, 64 connections", "list"), ("unchanged list, 64 connections for each worker", "list, per server"),
    ("unchanged list, 16 connections", "list, few"), ("list read from the database, 64 connections", "list, no cache"),
)
SETTINGS = {
    "shared_preload_libraries": "citus", "ssl": "off", "citus.node_conninfo": "sslmode=disable", "wal_level": "logical",
    "max_prepared_transactions": "100", "max_worker_processes": "50",
}


class Servers:
    """The servers of one database: PostgreSQL alone, or a coordinator and workers."""

    def __init__(self, context, name, workers=0, shards=1):
        self.context, self.name = context, name
        settings = SETTINGS if workers else {}
        self.servers = [context.enter(Cluster(context.directory, settings)) for _ in range(workers + 1)]
        coordinator = self.servers[0]
        url = [server.create_database(DATABASE) for server in self.servers][0]
        if workers:
            for server in self.servers:
                server.sql(DATABASE, "CREATE EXTENSION citus")
            coordinator.sql(DATABASE, f"SELECT citus_set_coordinator_host('127.0.0.1', {coordinator.port})")
            for server in self.servers[1:]:
                coordinator.sql(DATABASE, f"SELECT citus_add_node('127.0.0.1', {server.port})")
            process.run([context.program, "migrate", "--distribute", "citus", "--shards-per-worker", str(shards), "--store", url])
        collection = Collection(USERS, USERS * PLANTS_PER_USER)
        tokens = plantstore.create_tokens(context, url, collection.user_names())
        authorizations = plantstore.write_authorizations(context.directory / f"{name}.tokens", tokens)
        plantstore.import_plants(context, url, collection)
        self.nodes = {
            options: context.enter(plantstore.Node(context, url, "--metrics-listen", "127.0.0.1:0", *options, name=f"{name} {len(options)}"))
            for options in ((), ("--list-cache-bytes", "0"))
        }
        self.targets = {options: node.target(authorizations) for options, node in self.nodes.items()}

    def cases(self):
        cached, uncached = self.targets.values()
        workers = len(self.servers) - 1
        creates = lambda seconds, connections=load.CONNECTIONS: self.nodes[()].with_batch(lambda: load.creates(cached, seconds, connections))
        loads = {
            "create": creates,
            "create, many": lambda seconds: creates(seconds, MANY_CONNECTIONS),
            "list": lambda seconds: load.lists(cached, seconds),
            "list, no cache": lambda seconds: load.lists(uncached, seconds),
        }
        if workers <= 1:
            loads["create, few"] = lambda seconds: creates(seconds, FEW_CONNECTIONS)
            loads["list, few"] = lambda seconds: load.lists(cached, seconds, FEW_CONNECTIONS)
        if workers > 1:
            loads["create, per server"] = lambda seconds: creates(seconds, load.CONNECTIONS * workers)
            loads["list, per server"] = lambda seconds: load.lists(cached, seconds, load.CONNECTIONS * workers)
        return [(f"citus, {self.name}/{case}", lambda seconds, case=case: self.measured(lambda: loads[case](seconds))) for case in loads]

    def measured(self, measure):
        before = [server.cpu_seconds() for server in self.servers]
        measurement = measure()
        used = [(server.cpu_seconds() - start) * 1e6 / measurement["requests"] for server, start in zip(self.servers, before)]
        for node in self.nodes.values():
            node.server.empty_log()
        return measurement | {"database_us": sum(used), "coordinator_us": used[0] if len(used) > 1 else 0.0}


def run(context):
    if not (extensions() / "citus.control").exists():
        progress("  left out: PostgreSQL has no extension Citus")
        return
    databases = [Servers(context, "plain PostgreSQL")]
    for workers in WORKERS:
        for shards in SHARDS if workers == 2 else SHARDS[:1]:
            title = f"{workers} worker{'s' if workers > 1 else ''}, {shards} shard{'s' if shards > 1 else ''} each"
            databases.append(Servers(context, title, workers, shards))
    context.result.facts["citus_databases"] = [database.name for database in databases]
    context.result.facts["citus_date"] = datetime.date.today().isoformat()
    version = "SELECT extversion FROM pg_extension WHERE extname = 'citus'"
    context.result.facts["citus"] = databases[1].servers[0].sql(DATABASE, version).strip()
    context.rounds([case for database in databases for case in database.cases()], context.settings.curve_rounds)


def extensions():
    """Returns the directory of PostgreSQL's extensions."""
    control = programs() / "pg_config"
    share = process.run([control, "--sharedir"]).strip() if control.exists() else f"/usr/share/postgresql/{programs().parent.name}"
    return Path(share, "extension")

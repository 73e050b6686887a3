"""Creates and lists of nodes on PostgreSQL against pgbench on the same server, and the CPU time of the database."""

from concurrent.futures import ThreadPoolExecutor

import load
import plantstore
from plants import Collection
from references.postgresql import CLIENTS, Bench, Cluster

TITLE = "nodes on PostgreSQL"
DATABASE = "plants"
USERS = 100
PLANTS_PER_USER = 2_000


def run(context):
    cluster = context.enter(Cluster(context.directory))
    url = cluster.create_database(DATABASE)
    context.result.facts["postgresql"] = cluster.version()
    collection = Collection(USERS, USERS * PLANTS_PER_USER)
    tokens = plantstore.create_tokens(context, url, collection.user_names())
    authorizations = plantstore.write_authorizations(context.directory / "postgresql.tokens", tokens)
    plantstore.import_plants(context, url, collection)
    cluster.sql(DATABASE, "VACUUM ANALYZE", "CHECKPOINT")
    nodes = [context.enter(plantstore.Node(context, url, name=f"node-{number}")) for number in (1, 2)]
    targets = [node.target(authorizations) for node in nodes]
    bench = Bench(cluster, DATABASE, USERS)

    def measured(load_nodes):
        measurement = cluster.per_operation(load_nodes)
        for node in nodes:
            node.server.empty_log()
        return measurement

    def over_two_nodes(seconds):
        with ThreadPoolExecutor(2) as workers:
            loads = [workers.submit(load.creates, target, seconds, load.CONNECTIONS // 2) for target in targets]
            first, second = (future.result() for future in loads)
        return {"rate": first["rate"] + second["rate"], "requests": first["requests"] + second["requests"], "steal": first["steal"]}

    context.result.facts["pgbench_clients"] = CLIENTS
    context.rounds([
        ("pgbench/insert", lambda seconds: bench.measure("insert", seconds)),
        ("postgresql/create", lambda seconds: measured(lambda: load.creates(targets[0], seconds))),
        ("postgresql/create, two nodes", lambda seconds: measured(lambda: over_two_nodes(seconds))),
        ("pgbench/select", lambda seconds: bench.measure("select", seconds)),
        ("postgresql/list", lambda seconds: measured(lambda: load.lists(targets[0], seconds))),
    ])

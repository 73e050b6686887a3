"""Throughput against the number of connections."""

import load
import plantstore
from references import bare

from parts.embedded import fetch_list

TITLE = "throughput against connections"


def run(context):
    store = context.stores.largest()
    # With the default, some creates of 1,024 connections are rejected as overload when all of them wait for one commit.
    node = context.enter(plantstore.Node(context, store.url, "--write-queue", "2048", name="connections"))
    target = node.target(store.all)
    _, bare_target = bare.start(context, fetch_list(node.target(store.one))[0], store.all)
    cases = []
    for count in context.settings.connections:
        cases += [
            (f"bare/list/connections={count}", lambda seconds, count=count: load.lists(bare_target, seconds, count)),
            (f"plantstore/list/connections={count}", lambda seconds, count=count: node.logged(lambda: load.lists(target, seconds, count))),
            (f"bare/create/connections={count}", lambda seconds, count=count: load.creates(bare_target, seconds, count)),
            (f"plantstore/create/connections={count}", lambda seconds, count=count: node.logged(lambda: load.creates(target, seconds, count))),
        ]
    # The same servers at every number of connections, so that one of the numbers warms them up.
    context.rounds(cases, context.settings.curve_rounds, warm_up=cases[-4:])

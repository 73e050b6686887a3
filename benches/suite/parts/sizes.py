"""Throughput against the number of plants in the store."""

import load
import plantstore

TITLE = "throughput against the size of the store"


def run(context):
    cases = []
    for plants in context.settings.sizes:
        store = context.stores.of_size(plants)
        node = context.enter(plantstore.Node(context, store.url, name=f"size-{plants}"))
        target = node.target(store.all)
        cases += [
            (f"plantstore/list/plants={plants}", lambda seconds, node=node, target=target: node.logged(lambda: load.lists(target, seconds))),
            (f"plantstore/create/plants={plants}", lambda seconds, store=store: create(context, store, seconds)),
        ]
    # Creates are measured on servers that have just been started, which the first round cannot warm up.
    context.rounds(cases, context.settings.curve_rounds, warm_up=cases[::2])


def create(context, store, seconds):
    """Measures creates on a copy, because a small store would not stay small."""
    file = context.stores.copy(store.file, "copy.db")
    try:
        with plantstore.Node(context, f"sqlite:{file}", name="copy") as node:
            return load.creates(node.target(store.all), seconds)
    finally:
        for path in context.directory.glob("copy.db*"):
            path.unlink()

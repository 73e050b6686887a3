"""Lists and creates of one node on an embedded store, against the references and the peers; memory, start, a whole list."""

import dataclasses
import socket
import time
import urllib.request
from urllib.parse import urlsplit

import load
import machine
import peers
import plantstore
from context import progress
from plants import Collection
from process import CommandFailed
from references import bare, sqlite

TITLE = "lists and creates on an embedded store"
# Starts of the server that are measured.
STARTS = 5
# Duration of the first load of a peer, which decides whether it is measured.
TRIAL_SECONDS = 2
# Seconds between readings of memory while a whole list is streamed.
MEMORY_INTERVAL = 0.02


def run(context):
    store = context.stores.largest()
    measure_starts(context, store)
    cases = plantstore_cases(context, store)
    for module in peers.ALL if context.settings.all_peers else peers.WITH_TARGET:
        cases += peer_cases(context, module)
    context.rounds(cases, optional=[module.NAME for module in peers.ALL])
    for name, server in context.servers.items():
        context.result.add(f"{name}/memory", {"peak_mb": machine.peak_memory_mb(server.pid)})
    context.servers.clear()
    measure_stream(context)


def measure_starts(context, store):
    """Measures the time from the start of the process to the first response that it is ready."""
    for _ in range(STARTS):
        with plantstore.Node(context, store.url, name="start") as node:
            node.server.wait_for_response(f"{node.address}/readyz", 200)
            context.result.add("plantstore/start", {"ms": 1_000 * (time.monotonic() - node.began)})


def plantstore_cases(context, store):
    node = context.enter(plantstore.Node(context, store.url, "--metrics-listen", "127.0.0.1:0"))
    silent = context.enter(plantstore.Node(context, store.url, "--log-level", "warn", name="silent"))
    uncached = context.enter(plantstore.Node(context, store.url, "--list-cache-bytes", "0", name="uncached"))
    one, everyone = node.target(store.one), node.target(store.all)
    body, entity_tag = fetch_list(one)
    reference, bare_target = bare.start(context, body, store.all)
    duties, duties_target = bare.start(context, body, store.all, with_duties=True)
    insert = sqlite.Insert(context, store.file)
    context.servers |= {plantstore.NAME: node.server, bare.NAME: reference}
    plants = max(context.settings.sizes)
    describe(context, plantstore, plants, context.version)
    describe(context, bare, 0, "")
    describe(context, sqlite, plants, "")
    matching = ("If-None-Match", entity_tag)
    logged = lambda server, measure: lambda seconds: server.logged(lambda: measure(seconds))

    def create(seconds, ascending=False):
        measurement = node.logged(lambda: node.with_batch(lambda: load.creates(everyone, seconds, ascending=ascending)))
        insert.batch = max(1, round(measurement["batch"]))
        return measurement

    def with_duties(seconds):
        measurement = load.lists(duties_target, seconds)
        duties.empty_log()
        return measurement

    return [
        ("bare/list", lambda seconds: load.lists(bare_target, seconds)),
        ("bare/list, same duties", with_duties),
        ("plantstore/list", logged(node, lambda seconds: load.lists(one, seconds))),
        ("plantstore/list, no log", lambda seconds: load.lists(silent.target(store.one), seconds)),
        ("plantstore/list, 304", logged(node, lambda seconds: load.lists(one, seconds, header=matching))),
        ("plantstore/list, other users", logged(node, lambda seconds: load.lists(everyone, seconds))),
        ("plantstore/list, no cache", logged(uncached, lambda seconds: load.lists(uncached.target(store.all), seconds))),
        ("bare/create", lambda seconds: load.creates(bare_target, seconds)),
        # SQLite alone has the batches of the creates before it.
        ("plantstore/create", create),
        ("sqlite/create", insert.measure),
        ("plantstore/create, ascending", lambda seconds: create(seconds, ascending=True)),
        ("sqlite/create, ascending", lambda seconds: insert.measure(seconds, ascending=True)),
    ]


def peer_cases(context, module):
    """Starts a peer. One that cannot be installed or started is reported in the result, and the others are measured."""
    collection = Collection(context.settings.peer_users, context.settings.peer_plants)
    progress(f"  starting {module.TITLE}")
    try:
        version = module.version(context)
        server, target = module.start(context, collection)
        target = dataclasses.replace(target, pid=server.pid)
        for attempt in (load.lists, load.creates):
            attempt(target, TRIAL_SECONDS)
    except (CommandFailed, load.LoadFailed, OSError) as error:
        describe(context, module, 0, "", failure=str(error).splitlines()[0])
        progress(f"  {module.TITLE} is left out: {error}")
        return []
    describe(context, module, collection.plants, version)
    context.servers[module.NAME] = server
    return [
        (f"{module.NAME}/list", lambda seconds: load.lists(target, seconds)),
        (f"{module.NAME}/create", lambda seconds: load.creates(target, seconds)),
    ]


def describe(context, module, plants, version, failure=None):
    facts = {"title": module.TITLE, "version": version, "durability": module.DURABILITY, "authentication": module.AUTHENTICATION, "plants": plants}
    context.describe(module.NAME, **facts, **({"failure": failure} if failure else {}))


def fetch_list(target):
    """Returns the bytes of the first user's list and its entity tag."""
    authorization = target.authorizations.read_text().strip()
    request = urllib.request.Request(target.address + target.list_path, headers={"Authorization": authorization})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read(), response.headers["ETag"]


def measure_stream(context):
    """Measures the whole list of one user, and the memory that it adds."""
    plants = context.settings.streamed
    progress(f"  storing {plants:,} plants of one user")
    file = context.stores.copy(context.stores.empty, "streamed.db")
    plantstore.import_plants(context, f"sqlite:{file}", Collection(1, plants))
    with plantstore.Node(context, f"sqlite:{file}", name="streamed") as node:
        for _ in range(context.settings.rounds):
            before = machine.resident_memory_mb(node.server.pid)
            seconds, size, peak = read_whole_list(node, context.stores.tokens[0])
            measurement = {"rate": plants / seconds, "mb_per_second": size / 1e6 / seconds, "added_mb": max(0.0, peak - before)}
            context.result.add("plantstore/stream", measurement)


def read_whole_list(node, token):
    """Reads a list to its end and returns the seconds, its bytes and the peak memory of the server in MB."""
    address = urlsplit(node.address)
    request = f"GET /plants HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    buffer = bytearray(1 << 18)
    peak = due = 0.0
    began = time.monotonic()
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(request.encode())
        head = connection.recv_into(buffer)
        if not buffer.startswith(b"HTTP/1.1 200 "):
            raise load.LoadFailed(f"a whole list: {bytes(buffer[:head])!r}")
        size = head
        while received := connection.recv_into(buffer):
            size += received
            if (now := time.monotonic()) >= due:
                peak, due = max(peak, machine.resident_memory_mb(node.server.pid)), now + MEMORY_INTERVAL
    return time.monotonic() - began, size, peak

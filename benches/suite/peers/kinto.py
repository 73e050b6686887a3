"""Kinto with its backend in memory, and the default bucket of each user."""

import base64
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from load import Target
from peers import installed
from plants import NAME as PLANT, TAG
from process import CommandFailed, Server, free_port, run

NAME = "kinto"
TITLE = "Kinto (memory)"
DURABILITY = "memory only"
AUTHENTICATION = "accounts with passwords, checked once and then cached"
RECORDS = "/buckets/default/collections/plants/records"
# Default of `kinto.batch_max_requests`.
BATCH = 25
# Kinto caches a checked password for 30 seconds. The check takes a quarter of a second of processor time by design, which
# would be all that a load over many users measures.
CACHE_SETTING = "kinto.account_cache_ttl_seconds = 86400"


def version(_context):
    installed.python_program("kinto")
    return installed.python_version("kinto")


def start(context, collection):
    program = installed.python_program("kinto")
    settings = context.directory / "kinto.ini"
    run([program, "init", "--ini", settings, "--backend", "memory", "--cache-backend", "memory", "--host", "127.0.0.1"])
    settings.write_text(settings.read_text().replace("[app:main]\n", f"[app:main]\n{CACHE_SETTING}\n", 1))
    port = free_port()
    server = context.enter(Server([program, "start", "--ini", settings, "--port", str(port)], context.directory / "kinto.log"))
    address = f"http://127.0.0.1:{port}/v1"
    server.wait_for_response(f"{address}/__heartbeat__")
    authorizations = [_authorization(name) for name in collection.user_names()]
    batches = {}
    for user, plant in collection.rows():
        batches.setdefault(user, []).append(plant)
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(lambda name: _create_account(address, name), collection.user_names()))
        list(workers.map(lambda user: _store(address, authorizations[user - 1], batches[user]), batches))
    file = context.directory / "kinto.authorizations"
    file.write_text("".join(f"{value}\n" for value in authorizations))
    body = f'{{"data":{{"plant":%s,"name":"{PLANT}","tag":"{TAG}"}}}}'
    query = f"/v1{RECORDS}?_limit=20&_sort=plant&_fields=name,tag"
    return server, Target(f"http://127.0.0.1:{port}", query, f"/v1{RECORDS}", body, file)


def _authorization(name):
    return "Basic " + base64.b64encode(f"{name}:password".encode()).decode()


def _create_account(address, name):
    body = json.dumps({"data": {"password": "password"}}).encode()
    request = urllib.request.Request(f"{address}/accounts/{name}", body, {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=60):
        pass


def _store(address, authorization, plants):
    for first in range(0, len(plants), BATCH):
        batch = plants[first : first + BATCH]
        requests = [{"body": {"data": {"plant": plant, "name": PLANT, "tag": TAG}}} for plant in batch]
        body = {"defaults": {"method": "POST", "path": RECORDS}, "requests": requests}
        headers = {"Content-Type": "application/json", "Authorization": authorization}
        with urllib.request.urlopen(urllib.request.Request(f"{address}/batch", json.dumps(body).encode(), headers), timeout=60) as response:
            rejected = [entry for entry in json.load(response)["responses"] if entry["status"] != 201]
        if rejected:
            raise CommandFailed(f"Kinto did not store a plant: {rejected[0]}")

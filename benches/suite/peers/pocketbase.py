"""PocketBase with a collection of plants, whose rules let each user see only their own."""

import json
import secrets
import sqlite3
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from load import Target
from peers import installed
from plants import NAME as PLANT, TAG
from process import Server, free_port, run

NAME = "pocketbase"
TITLE = "PocketBase"
DURABILITY = "synced at checkpoints (`synchronous=NORMAL`)"
AUTHENTICATION = "JWTs and collection rules"


def version(_context):
    return run([installed.python_program("pocketbase"), "--version"]).split()[-1]


def start(context, collection):
    program = installed.python_program("pocketbase")
    directory = context.directory / "pocketbase"
    options = ["--dir", directory, "--migrationsDir", installed.SOURCES / "pocketbase"]
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [program, "serve", "--http", f"127.0.0.1:{port}", *options]
    log = context.directory / "pocketbase.log"
    with Server(command, log) as server:
        server.wait_for_response(f"{address}/api/health")
        users = _create_users(address, collection)
    # Stored while it is stopped, because its own creates are slow.
    connection = sqlite3.connect(directory / "data.db")
    rows = ((secrets.token_hex(8)[:15], users[user - 1]["record"]["id"], plant, PLANT, TAG) for user, plant in collection.rows())
    connection.executemany("INSERT INTO plants (id, owner, plant, name, tag) VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    server = context.enter(Server(command, log))
    server.wait_for_response(f"{address}/api/health")
    authorizations = context.directory / "pocketbase.tokens"
    authorizations.write_text("".join(f"{user['token']}\t{user['record']['id']}\n" for user in users))
    records = "/api/collections/plants/records"
    # `skipTotal` and `fields` are what its documentation recommends for speed.
    query = f"{records}?perPage=20&skipTotal=1&sort=plant&fields=name,tag"
    body = f'{{"owner":"%u","plant":%s,"name":"{PLANT}","tag":"{TAG}"}}'
    return server, Target(address, query, records, body, authorizations)


def _create_users(address, collection):
    """Creates users and returns the response to the authentication of each: a token and the record of the user."""

    def create(name):
        email, password = f"{name}@example.org", f"password of {name}"
        user = {"email": email, "password": password, "passwordConfirm": password}
        _post(f"{address}/api/collections/users/records", user)
        return _post(f"{address}/api/collections/users/auth-with-password", {"identity": email, "password": password})

    with ThreadPoolExecutor(4) as workers:
        return list(workers.map(create, collection.user_names()))


def _post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)

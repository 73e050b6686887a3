"""json-server: its own program with a file of plants. It has no users, so the owner is a filter."""

import json

from load import Target
from peers import installed
from plants import NAME as PLANT, TAG
from process import Server, free_port

NAME = "json-server"
TITLE = "json-server"
DURABILITY = "rewrites its file, without a sync"
AUTHENTICATION = "none"


def version(_context):
    installed.node_directory()
    return installed.node_version("json-server")


def start(context, collection):
    file = context.directory / "json-server.json"
    plants = [{"id": number, "owner": user, "plant": plant, "name": PLANT, "tag": TAG} for number, (user, plant) in enumerate(collection.rows(), 1)]
    file.write_text(json.dumps({"plants": plants}))
    port = free_port()
    command = [installed.node_directory() / "node_modules/.bin/json-server", "--host", "127.0.0.1", "--port", str(port), "--quiet", str(file)]
    server = context.enter(Server(command, context.directory / "json-server.log", cwd=context.directory))
    server.wait_for_response(f"http://127.0.0.1:{port}/plants?_limit=1")
    body = f'{{"plant":%s,"owner":1,"name":"{PLANT}","tag":"{TAG}"}}'
    return server, Target(f"http://127.0.0.1:{port}", "/plants?owner=1&_sort=plant&_limit=20", "/plants", body, None)

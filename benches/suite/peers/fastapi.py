"""FastAPI with SQLModel and SQLite: benches/peers/fastapi_app.py, with one uvicorn worker per core."""

import os

import plantstore
from load import Target
from peers import installed, tables
from plants import BODY
from process import Server, free_port

NAME = "fastapi"
TITLE = "FastAPI + SQLite"
DURABILITY = "every commit is synced"
AUTHENTICATION = "bearer tokens"


def version(_context):
    installed.python_program("uvicorn")
    return f"FastAPI {installed.python_version('fastapi')}, SQLModel {installed.python_version('sqlmodel')}"


def start(context, collection):
    file = context.directory / "fastapi.db"
    tokens = tables.create(file, collection)
    port = free_port()
    command = [installed.python_program("uvicorn"), "fastapi_app:app", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", str(os.cpu_count()), "--app-dir", str(installed.SOURCES)]
    environment = os.environ | {"PLANTS_FILE": str(file), "PYTHONDONTWRITEBYTECODE": "1"}
    server = context.enter(Server(command, context.directory / "fastapi.log", env=environment))
    server.wait_for_response(f"http://127.0.0.1:{port}/plants")
    authorizations = plantstore.write_authorizations(context.directory / "fastapi.tokens", tokens)
    return server, Target(f"http://127.0.0.1:{port}", "/plants?limit=20", "/plants", BODY, authorizations)

"""Fastify with better-sqlite3: benches/peers/fastify.mjs."""

import plantstore
from load import Target
from peers import installed, tables
from plants import BODY
from process import Server, free_port

NAME = "fastify"
TITLE = "Fastify + better-sqlite3"
DURABILITY = "every commit is synced"
AUTHENTICATION = "bearer tokens"


def version(_context):
    installed.node_directory()
    return f"Fastify {installed.node_version('fastify')}, better-sqlite3 {installed.node_version('better-sqlite3')}"


def start(context, collection):
    file = context.directory / "fastify.db"
    tokens = tables.create(file, collection)
    port = free_port()
    command = ["node", "fastify.mjs", file, str(port)]
    server = context.enter(Server(command, context.directory / "fastify.log", cwd=installed.node_directory()))
    server.wait_for_port(port)
    authorizations = plantstore.write_authorizations(context.directory / "fastify.tokens", tokens)
    return server, Target(f"http://127.0.0.1:{port}", "/plants?limit=20", "/plants", BODY, authorizations)

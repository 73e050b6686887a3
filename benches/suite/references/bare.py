"""A server on the same HTTP library that sends the bytes of a list and parses a create, without a store; and the same server with
the duties of the service: header fields, tokens, the access log, the deadline of a head, the read that validates a list."""

from load import Target
from plants import BODY
from process import Server

NAME = "bare"
TITLE = "bare axum server"
DURABILITY = "stores nothing"
AUTHENTICATION = "none"


def start(context, list_body, authorizations, with_duties=False):
    """Starts the server, which responds to every list with these bytes."""
    body = context.directory / "bare.json"
    body.write_bytes(list_body)
    log = context.directory / ("duties.log" if with_duties else "bare.log")
    server = context.enter(Server([context.example("bare"), body, *([authorizations] if with_duties else [])], log))
    address = server.wait_for_line("Listening on ")
    return server, Target(address, "/plants?limit=20", "/plants", BODY, authorizations, server.pid)

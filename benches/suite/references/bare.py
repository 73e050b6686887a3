"""A server on the same HTTP library that sends the bytes of a list and parses a create, without tokens and without a store."""

from load import Target
from plants import BODY
from process import Server

NAME = "bare"
TITLE = "bare axum server"
DURABILITY = "stores nothing"
AUTHENTICATION = "none"


def start(context, list_body, authorizations):
    """Starts the server, which responds to every list with these bytes."""
    body = context.directory / "bare.json"
    body.write_bytes(list_body)
    log = context.directory / "bare.log"
    server = context.enter(Server([context.example("bare"), body], log))
    address = server.wait_for_line("Listening on ")
    return server, Target(address, "/plants?limit=20", "/plants", BODY, authorizations)

"""Parts of the benchmark. Each module has a TITLE and a function `run(context)` that adds measurements to the result."""

from parts import citus, connections, embedded, instructions, micro, overload, postgresql, sizes, transfer

ALL = {
    "embedded": embedded,
    "connections": connections,
    "sizes": sizes,
    "postgresql": postgresql,
    "citus": citus,
    "transfer": transfer,
    "overload": overload,
    "micro": micro,
    "instructions": instructions,
}
# Parts of a quick run: those with targets, and the connections.
QUICK = ("embedded", "connections", "sizes", "postgresql", "instructions")

"""What the document cannot say in JSON Schema, for Schemathesis to send what is valid and to know what is not."""

import itertools
import zlib

import schemathesis
from hypothesis import strategies as st

KEYS = itertools.count()


def cursor(plant_id: int) -> str:
    """A place in a list, as the `Link` of a page has it."""
    body = f"01{plant_id % 2**64:016x}"
    return body + f"{zlib.crc32(body.encode()):08x}"


schemathesis.openapi.format("cursor", st.integers(-(2**63), 2**63 - 1).map(cursor))
# A new one for every new request.
schemathesis.openapi.format("idempotency-key", st.builds(lambda: f"key-{next(KEYS)}"))


@schemathesis.hook
def map_body(context, body):
    """An integer is written without a fraction: to JSON Schema, 1.0 is one, too."""
    if isinstance(body, dict) and isinstance(body.get("id"), float) and body["id"].is_integer():
        return body | {"id": int(body["id"])}
    return body

"""What the document cannot say in JSON Schema: what is valid beyond its looks. Nothing that is invalid is held back."""

import itertools
import zlib

import schemathesis
from hypothesis import strategies as st

KEY = "Idempotency-Key"
KEYS = itertools.count()


def cursor(plant_id: int) -> str:
    """A place in a list, as the `Link` of a page has it."""
    body = f"01{plant_id % 2**64:016x}"
    return body + f"{zlib.crc32(body.encode()):08x}"


schemathesis.openapi.format("cursor", st.integers(-(2**63), 2**63 - 1).map(cursor))
# Herself, one whose plants she may edit, and one whose plants she may read.
schemathesis.openapi.format("user-name", st.sampled_from(["ada", "bob", "eve"]))


@schemathesis.hook
def before_call(context, case, kwargs):
    """A valid key is a new one: no two requests share theirs. What is no key is sent as it is."""
    header = case.meta.components.get("header")
    if header is not None and header.mode.is_positive and KEY in case.headers:
        case.headers[KEY] = f"key-{next(KEYS)}"


@schemathesis.hook
def map_body(context, body):
    """An integer is written without a fraction: to JSON Schema, 1.0 is one, too."""
    if isinstance(body, dict) and isinstance(body.get("id"), float) and body["id"].is_integer():
        return body | {"id": int(body["id"])}
    return body

"""Hooks that make Schemathesis generate valid values where JSON Schema cannot describe them. Invalid values are not
filtered."""

import itertools
import re
import zlib

import schemathesis
from hypothesis import strategies as st

KEY = "Idempotency-Key"
KEYS = itertools.count()
CALLER = "ada"
# The id that the test gives to the caller's token.
OWN_TOKEN = 6917529027641081857


def cursor(plant_id: int) -> str:
    """Returns a cursor as in the `Link` header of a page."""
    body = f"01{plant_id % 2**64:016x}"
    return body + f"{zlib.crc32(body.encode()):08x}"


schemathesis.openapi.format("cursor", st.integers(-(2**63), 2**63 - 1).map(cursor))
# The caller, an owner whose plants she may edit, and an owner whose plants she may read.
schemathesis.openapi.format("user-name", st.sampled_from([CALLER, "bob", "eve"]))


@schemathesis.hook
def before_call(context, case, kwargs):
    """Replaces a valid key by a new one, so that no two requests have the same, and values that are invalid for reasons
    beyond the schema. Invalid keys are sent unchanged."""
    header = case.meta.components.get("header")
    if header is not None and header.mode.is_positive and KEY in case.headers:
        case.headers[KEY] = f"key-{next(KEYS)}"
    # Users do not share plants with themselves.
    if (case.path_parameters or {}).get("user") == CALLER:
        case.path_parameters["user"] = "bob"
    # A token that revokes itself would end the run.
    if (case.path_parameters or {}).get("id") == OWN_TOKEN:
        case.path_parameters["id"] = 1
    # Tokens expire in the future.
    expiry = case.body.get("expires_at") if isinstance(case.body, dict) else None
    if isinstance(expiry, str) and re.match(r"\d{4}-\d\d-\d\dT", expiry):
        case.body["expires_at"] = "2196" + expiry[4:]


@schemathesis.hook
def map_body(context, body):
    """Writes integers without a fraction: 1.0 is an integer for JSON Schema, but not for the service."""
    if isinstance(body, dict) and isinstance(body.get("id"), float) and body["id"].is_integer():
        return body | {"id": int(body["id"])}
    return body

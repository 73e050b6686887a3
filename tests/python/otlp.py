"""Decodes OTLP requests with the published schema. Reads the length of each in a line and then its bytes, and writes it
as a line of JSON."""

import base64
import json
import sys

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = {"traceId", "spanId", "parentSpanId"}


def with_hexadecimal_ids(value):
    """Writes ids as OTLP does in JSON: hexadecimal, not base64."""
    if isinstance(value, list):
        return [with_hexadecimal_ids(item) for item in value]
    if isinstance(value, dict):
        return {
            key: base64.b64decode(item).hex() if key in IDS else with_hexadecimal_ids(item)
            for key, item in value.items()
        }
    return value


while length := sys.stdin.buffer.readline():
    body = sys.stdin.buffer.read(int(length))
    request = ExportTraceServiceRequest.FromString(body)
    # The request must have no unknown fields, and the same encoding as that of the library.
    request.DiscardUnknownFields()
    if request.SerializeToString(deterministic=True) != body:
        raise SystemExit(f"unknown fields or another encoding: {body!r}")
    print(json.dumps(with_hexadecimal_ids(MessageToDict(request, use_integers_for_enums=True))), flush=True)

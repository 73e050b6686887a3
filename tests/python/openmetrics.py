"""Parses a page of OpenMetrics strictly, and writes its exemplars as lines of JSON."""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

for family in text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        if sample.exemplar is not None:
            exemplar = sample.exemplar
            found = {"name": sample.name, "labels": sample.labels, "exemplar": exemplar.labels, "value": exemplar.value}
            print(json.dumps(found | {"timestamp": float(exemplar.timestamp)}))

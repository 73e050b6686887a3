"""The result of a run: measurements by id, and figures derived from them.

A measurement has an id such as `plantstore/list` and one entry per round. Ratios are taken between measurements of the same
round, because the speed of a machine changes from minute to minute; the figure is the median, its spread the distance
between the smallest and the largest."""

import json
import statistics
from dataclasses import dataclass

# Increased when the meaning of a field changes.
FORMAT = 1


@dataclass(frozen=True)
class Figure:
    rounds: tuple[float, ...]

    @property
    def median(self):
        return statistics.median(self.rounds)

    @property
    def spread(self):
        return max(self.rounds) - min(self.rounds)


class Result:
    """Measurements of a run, and the facts that describe it."""

    def __init__(self, facts=None):
        self.facts = facts or {"format": FORMAT, "contestants": {}, "measurements": {}}

    @classmethod
    def read(cls, path):
        facts = json.loads(path.read_text())
        if facts.get("format") != FORMAT:
            raise ValueError(f"{path} has format {facts.get('format')}, not {FORMAT}: run the benchmark again")
        return cls(facts)

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rounded(self.facts), indent=1, ensure_ascii=False) + "\n")

    def add(self, name, measurement):
        self.facts["measurements"].setdefault(name, []).append(measurement)

    def remove(self, contestant):
        """Removes all measurements of a contestant."""
        measurements = self.facts["measurements"]
        for name in [name for name in measurements if name.split("/")[0] == contestant]:
            del measurements[name]

    def has(self, name, field="rate"):
        return bool(self._values(name, field))

    def figure(self, name, field="rate"):
        """Returns a field of a measurement; None if it was not measured."""
        values = self._values(name, field)
        return Figure(tuple(values)) if values else None

    def ratio(self, name, other, field="rate"):
        """Returns the ratio of two measurements, round by round; None if one was not measured."""
        pairs = list(zip(self._values(name, field), self._values(other, field)))
        return Figure(tuple(ours / theirs for ours, theirs in pairs if theirs)) if pairs and all(pair[1] for pair in pairs) else None

    def _values(self, name, field):
        return [entry[field] for entry in self.facts["measurements"].get(name, []) if field in entry]


def rounded(value):
    """Rounds all numbers to six significant digits, which is more than any of them means."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return value

"""A run of the benchmark: its settings, its temporary directory, and everything that must end with it."""

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from figures import Result
from load import LoadFailed

ROOT = Path(__file__).resolve().parents[2]
# Installed peers and the result of a quick run; `cargo clean` removes them.
OUTPUT = ROOT / "target" / "bench"


@dataclass(frozen=True)
class Settings:
    rounds: int
    # Rounds of the parts that measure many points of a curve.
    curve_rounds: int
    # Seconds of one measurement, and of the first round, which is not counted.
    seconds: int
    warm_up_seconds: int
    users: int
    # Plants in the stores of the part about size; the largest is used for everything else.
    sizes: tuple[int, ...]
    connections: tuple[int, ...]
    # Plants of the one user whose whole list is streamed.
    streamed: int
    # Peers store fewer plants, because most of them store slowly.
    peer_users: int
    peer_plants: int
    # All peers, or only those with a target.
    all_peers: bool
    transferred: int


FULL = Settings(
    rounds=7, curve_rounds=3, seconds=4, warm_up_seconds=2, users=1_000, sizes=(1_000, 10_000, 100_000, 1_000_000, 5_000_000),
    connections=(1, 4, 16, 64, 256, 1_024), streamed=1_000_000, peer_users=100, peer_plants=10_000, all_peers=True, transferred=1_000_000,
)
QUICK = Settings(
    rounds=3, curve_rounds=2, seconds=1, warm_up_seconds=1, users=200, sizes=(1_000, 100_000, 1_000_000),
    connections=(1, 64, 256), streamed=200_000, peer_users=50, peer_plants=1_000, all_peers=False, transferred=200_000,
)


class Context:
    def __init__(self, settings, program, examples, control=None):
        self.control = control
        self.settings = settings
        self.program = program
        self.examples = examples
        self.result = Result()
        # Running servers whose memory is measured, by contestant.
        self.servers = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="plantstore-bench-"))
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def enter(self, resource):
        """Enters a resource that ends with the current part."""
        return self._stack.enter_context(resource)

    @contextlib.contextmanager
    def part(self):
        """Ends what is started within, in the reverse order."""
        outer, self._stack = self._stack, contextlib.ExitStack()
        try:
            with self._stack:
                yield
        finally:
            self._stack = outer

    def example(self, name):
        return self.examples / name

    def describe(self, contestant, **facts):
        self.result.facts["contestants"].setdefault(contestant, {}).update(facts)

    def rounds(self, cases, count=None, warm_up=None, optional=()):
        """Measures cases in turn, round by round. A case is the id of a measurement and a function of seconds. Before the first
        round, all of them run once without being counted, or only those in `warm_up`. A contestant in `optional` whose load fails
        is left out, the reason is reported, and the others go on."""
        count = count or self.settings.rounds
        progress("  warming up")
        for name, measure in cases if warm_up is None else warm_up:
            self._attempt(name, measure, self.settings.warm_up_seconds, optional)
        for number in range(1, count + 1):
            for name, measure in cases:
                measurement = self._attempt(name, measure, self.settings.seconds, optional)
                if measurement is not None:
                    self.result.add(name, measurement)
            progress(f"  round {number} of {count}")

    def _attempt(self, name, measure, seconds, optional):
        """Returns a measurement; None for a contestant that is left out."""
        contestant = name.split("/")[0]
        if "failure" in self.result.facts["contestants"].get(contestant, {}):
            return None
        try:
            return measure(seconds)
        except LoadFailed as error:
            if contestant not in optional:
                raise LoadFailed(f"{name}: {error}") from error
            progress(f"  {name} failed, so {contestant} is left out: {error}")
            self.describe(contestant, failure=f"{name.split('/')[1]} failed under load: {error}")
            self.result.remove(contestant)
            return None


def progress(message):
    print(message, flush=True)

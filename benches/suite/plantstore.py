"""The service under test: its stores, tokens and servers."""

import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from load import Target
from plants import BODY
from process import CommandFailed, Server, run

NAME = "plantstore"
TITLE = "plantstore"
DURABILITY = "every commit is synced"
AUTHENTICATION = "bearer tokens"


def create_tokens(context, store, users):
    """Creates users and returns one token of each, in the order of the users."""
    options = {"env": {"PLANTSTORE_STORE": store}}
    first = [run([context.program, "token", "create", "--create", "--user", users[0]], **options)]
    create = lambda user: run([context.program, "token", "create", "--user", user], **options)
    with ThreadPoolExecutor(4) as workers:
        return [token.strip() for token in first + list(workers.map(create, users[1:]))]


def write_authorizations(path, tokens):
    path.write_text("".join(f"Bearer {token}\n" for token in tokens))
    return path


def import_plants(context, store, collection):
    """Stores plants with `plantstore import`, without a file in between."""
    command = [context.program, "import", "--store", store]
    log = context.directory / "import.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True)
        try:
            process.stdin.writelines(collection.lines())
            process.stdin.close()
        except BrokenPipeError:
            pass
    if process.wait() != 0:
        raise CommandFailed(f"the import failed: {log.read_text()}")


class Node:
    """A running server with its default options, but for those given."""

    def __init__(self, context, store, *options, name="node", prefix=()):
        log = Path(context.directory, f"{name}.log")
        self.began = time.monotonic()
        self.server = Server([*prefix, context.program, "serve", "--listen", "127.0.0.1:0", *options], log, env={"PLANTSTORE_STORE": store})
        self.address = self.server.wait_for_line("Listening on ")
        self.metrics = self.server.wait_for_line("Metrics on ") if "--metrics-listen" in options else None

    def target(self, authorizations):
        return Target(self.address, "/plants?limit=20", "/plants", BODY, authorizations, self.server.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    def with_batch(self, measure):
        """Measures creates of a node that serves metrics, and adds the mean number of creates in a commit."""
        before = self._commits()
        measurement = measure()
        commits, creates = (after - earlier for earlier, after in zip(before, self._commits()))
        return measurement | {"batch": creates / commits}

    def _commits(self):
        """Returns the number of commits, and that of their writes."""
        with urllib.request.urlopen(self.metrics, timeout=10) as response:
            values = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines())
        return [float(values[f"plantstore_write_batch_size_{field}"]) for field in ("count", "sum")]

    def logged(self, measure):
        """Measures, then empties the log, which would fill the disk."""
        measurement = measure()
        self.server.empty_log()
        return measurement

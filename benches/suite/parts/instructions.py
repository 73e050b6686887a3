"""User instructions of single requests, counted by callgrind. They hardly depend on what else the machine does."""

import contextlib
import re
import socket
from pathlib import Path

import plantstore
from load import LoadFailed
from plants import BODY, LIST_LENGTH, Collection
from process import run as run_command

TITLE = "instructions per request"
CASES = {
    "cached": f"list of {LIST_LENGTH} from the list cache",
    "not-modified": "the same with `If-None-Match`: 304",
    "uncached": f"list of {LIST_LENGTH} without the list cache",
    "page-row": "one plant of a page of 1,000 without the list cache",
    "row": "one plant of a whole list of 100,000",
    "create": "create, 16 at a time: threads of the runtime",
    "create-writer": "create: the writer's thread",
}
REQUESTS = 2_000
PAGE = 1_000
WHOLE = 100_000
# Creates in flight at a time, which share a commit.
CREATES = 16


def run(context):
    store = f"sqlite://{context.directory / 'instructions.db'}"
    users = [f"user-{number}" for number in range(1, CREATES + 1)]
    tokens = plantstore.create_tokens(context, store, users)
    small, large = tokens[:2]
    plantstore.import_plants(context, store, Collection(1, LIST_LENGTH))
    plantstore.import_plants(context, store, OfSecondUser(1, WHOLE))
    count = lambda case, instructions: context.result.add(f"instructions/{case}", {"instructions": instructions})

    with Profile(context, store) as server:
        request = head("GET /plants?limit=20", small)
        tag = re.search(rb"\r\netag: (.*?)\r\n", server.send([request])[0]).group(1).decode()
        count("cached", server.measure([request] * REQUESTS))
        count("not-modified", server.measure([head("GET /plants?limit=20", small, f"If-None-Match: {tag}")] * REQUESTS))
        body = lambda number: BODY % (10**14 + number * 7_919 % 10**14)
        creates = [create(tokens[number % CREATES], body(number)) for number in range(REQUESTS)]
        by_thread = server.measure_threads(creates, CREATES)
        count("create", by_thread["tokio"])
        count("create-writer", by_thread["writer"])
    with Profile(context, store, "--list-cache-bytes", "0") as server:
        count("uncached", server.measure([head("GET /plants?limit=20", small)] * REQUESTS))
        count("page-row", server.measure([head(f"GET /plants?limit={PAGE}", large)] * 20) / PAGE)
        count("row", server.measure([head("GET /plants", large)] * 2) / WHOLE)


class OfSecondUser(Collection):
    def lines(self):
        return (line.replace("user-1", "user-2", 1) for line in super().lines())


def head(line, token, *fields):
    lines = [f"{line} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def create(token, body):
    return head("POST /plants", token, "Content-Type: application/json", f"Content-Length: {len(body)}") + body.encode()


class Profile(plantstore.Node):
    """A server under callgrind."""

    def __init__(self, context, store, *options):
        self.directory = Path(context.directory, "callgrind")
        self.directory.mkdir(exist_ok=True)
        command = ["valgrind", "-q", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={self.directory}/%p"]
        super().__init__(context, store, *options, name="callgrind", prefix=command)

    def send(self, requests, concurrent=1):
        """Sends requests on as many connections, and returns the responses."""
        responses = []
        with contextlib.ExitStack() as stack:
            host, port = self.address.removeprefix("http://").split(":")
            connections = [stack.enter_context(socket.create_connection((host, port))) for _ in range(concurrent)]
            for first in range(0, len(requests), concurrent):
                pairs = list(zip(connections, requests[first : first + concurrent]))
                for connection, request in pairs:
                    connection.sendall(request)
                responses += [receive(connection) for connection, _ in pairs]
        return responses

    def measure(self, requests):
        return sum(self.measure_threads(requests).values())

    def measure_threads(self, requests, concurrent=1):
        """Returns the instructions of a request by the name of the thread."""
        self.send(requests[:1])
        self.dump()
        self.send(requests[1:], concurrent)
        return {thread: instructions / (len(requests) - 1) for thread, instructions in self.dump().items()}

    def dump(self):
        """Returns the instructions since the last dump by the name of the thread."""
        for file in self.directory.glob(f"{self.server.pid}.*"):
            file.unlink()
        run_command(["callgrind_control", "--dump", str(self.server.pid)])
        # Threads are numbered in the order of their start, and none of these ends before the others.
        tasks = sorted(Path(f"/proc/{self.server.pid}/task").iterdir(), key=lambda task: int(task.name))
        found = {}
        for file in self.directory.glob(f"{self.server.pid}.*-*"):
            number = int(file.name.rpartition("-")[2])
            name = (tasks[number - 1] / "comm").read_text().strip().split("-")[0]
            total = re.search(r"^(?:totals|summary): (\d+)", file.read_text(), re.MULTILINE)
            found[name] = found.get(name, 0) + int(total.group(1))
        return found


def receive(connection):
    """Returns a whole response."""
    response = b""
    while not is_whole(response):
        received = connection.recv(1 << 20)
        if not received:
            raise LoadFailed(f"the server closed the connection: {response[:200]}")
        response += received
    return response


def is_whole(response):
    head, separator, body = response.partition(b"\r\n\r\n")
    if not separator or head[9:12] == b"304":
        return bool(separator)
    if head[9:12] != b"200":
        raise LoadFailed(f"a request failed: {response[:200]}")
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    return len(body) == int(length.group(1)) if length else body.endswith(b"\r\n0\r\n\r\n")

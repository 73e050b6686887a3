"""Processes that the benchmark starts; all of them end with it."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

START_TIMEOUT = 60
STOP_TIMEOUT = 15


class CommandFailed(Exception):
    """A command ended with an error, or a server did not start."""


def run(command, timeout=600, stderr_too=False, **options):
    """Runs a command that must succeed and returns its standard output, and its standard error if asked for."""
    words = " ".join(str(word) for word in command)
    try:
        finished = subprocess.run(command, capture_output=True, timeout=timeout, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{words}: {error}") from error
    if finished.returncode != 0:
        raise CommandFailed(f"{words}: {last_lines(finished.stdout + finished.stderr)}")
    return (finished.stdout + (finished.stderr if stderr_too else b"")).decode(errors="replace")


def last_lines(output, count=5):
    return "\n".join(output.decode(errors="replace").strip().splitlines()[-count:])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server process in a process group of its own. Its output goes to a log file."""

    def __init__(self, command, log, **options):
        self.log = log
        log.write_bytes(b"")
        # Appended to, so that the file can be emptied while the process writes to it.
        with open(log, "ab") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options)
        self.pid = self.process.pid

    def wait_for_port(self, port):
        self.wait_for(lambda: _accepts(port))

    def wait_for_response(self, url, status=None):
        """Waits for a response with this status, or with any."""
        self.wait_for(lambda: (found := _status(url)) is not None and status in (None, found))

    def wait_for_line(self, prefix):
        """Waits for a line of the output and returns it without the prefix."""
        found = []

        def is_there():
            found[:] = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith(prefix)]
            return bool(found)

        self.wait_for(is_there)
        return found[0].removeprefix(prefix).strip()

    def wait_for(self, condition):
        deadline = time.monotonic() + START_TIMEOUT
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise CommandFailed(f"{self.process.args[0]} did not start: {last_lines(self.log.read_bytes())}")
            time.sleep(0.002)

    def empty_log(self):
        os.truncate(self.log, 0)

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
                self.process.wait(STOP_TIMEOUT)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def _accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def _status(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None

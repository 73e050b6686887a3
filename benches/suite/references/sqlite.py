"""SQLite alone: one thread that inserts the same rows into a copy of the store and updates the versions of their owners, in batches
as large as those of the service in the same round, with a sync for each."""

import json
import resource
import shutil

import load
import machine
from process import run

NAME = "sqlite"
TITLE = "SQLite alone"
DURABILITY = "every commit is synced"
AUTHENTICATION = "none, no HTTP"


class Insert:
    def __init__(self, context, store):
        self.program = context.example("sqlite_alone")
        self.file = context.directory / "sqlite-alone.db"
        self.loads = 0
        # Rows of a transaction.
        self.batch = 1
        shutil.copyfile(store, self.file)

    def measure(self, seconds, ascending=False):
        self.loads += 1
        order = str(load.FIRST_ASCENDING + self.loads * load.ASCENDING_STEP) if ascending else "random"
        before, used = machine.cpu_times(), cpu_seconds_of_children()
        output = run([self.program, self.file, order, str(self.batch), str(seconds), str(self.loads)], timeout=seconds + 60)
        counts = json.loads(output)
        cpu_us = (cpu_seconds_of_children() - used) * 1e6 / counts["rows"]
        return {"rate": counts["rows"] / counts["seconds"], "batch": self.batch, "cpu_us": cpu_us, "steal": machine.steal_since(before)}


def cpu_seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

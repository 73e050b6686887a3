"""SQLite alone: one thread that inserts the same rows in batches into a copy of the store, with a sync for each batch."""

import json
import shutil

import load
import machine
from process import run

NAME = "sqlite"
TITLE = "SQLite alone"
DURABILITY = "every commit is synced"
AUTHENTICATION = "none, no HTTP"
BATCH = 64


class Insert:
    def __init__(self, context, store):
        self.program = context.example("sqlite_alone")
        self.file = context.directory / "sqlite-alone.db"
        self.loads = 0
        shutil.copyfile(store, self.file)

    def measure(self, seconds, ascending=False):
        self.loads += 1
        order = str(load.FIRST_ASCENDING + self.loads * load.ASCENDING_STEP) if ascending else "random"
        before = machine.cpu_times()
        output = run([self.program, self.file, order, str(BATCH), str(seconds), str(self.loads)], timeout=seconds + 60)
        counts = json.loads(output)
        return {"rate": counts["rows"] / counts["seconds"], "steal": machine.steal_since(before)}

"""Imports, exports, backups, restores and copies on both engines: their rates, and the same plants after each of them."""

import hashlib
import subprocess
import time

import machine
from plants import Collection
from process import CommandFailed, run as run_command
from references.postgresql import Cluster

TITLE = "import, export, backup, restore and copy"
USERS = 4
# An export whose output is not read must end after a minute.
UNREAD_SECONDS = 70
TABLE = """PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
    CREATE TABLE plants (user_id INTEGER NOT NULL, plant_id INTEGER NOT NULL, name TEXT NOT NULL, tag TEXT,
      version INTEGER NOT NULL, PRIMARY KEY (user_id, plant_id)) STRICT, WITHOUT ROWID"""


def run(context):
    Transfer(context).run()


class Transfer:
    def __init__(self, context):
        self.context = context
        self.directory = context.directory / "transfer"
        self.directory.mkdir()
        self.cluster = context.enter(Cluster(context.directory))
        self.plants = context.settings.transferred
        self.lines = self.directory / "plants.ndjson"
        self.rows = self.directory / "plants.csv"
        collection = Collection(USERS, self.plants)
        with open(self.lines, "w", encoding="utf-8") as lines, open(self.rows, "w", encoding="utf-8") as rows:
            lines.writelines(collection.lines())
            rows.writelines(f"{user},{plant},Monstera deliciosa,indoor,1\n" for user, plant in collection.rows())
        self.digest = hashlib.sha256(self.lines.read_bytes()).hexdigest()

    def run(self):
        store = f"sqlite:{self.directory}/plants.db"
        for _ in range(self.context.settings.curve_rounds):
            self.remove("reference.db")
            self.measure("sqlite3/import", ["sqlite3", "reference.db", TABLE, ".import --csv plants.csv plants"])
            self.remove("plants.db")
            self.plantstore("import into SQLite", "import", "--create", "--store", store, self.lines)
        self.verify("export from SQLite", store)

        imported = self.cluster.create_database("imported")
        self.plantstore("import into PostgreSQL", "import", "--create", "--store", imported, self.lines)
        self.verify("export from PostgreSQL", imported)

        copied, back = self.cluster.create_database("copied"), f"sqlite:{self.directory}/back.db"
        self.plantstore("copy from SQLite to PostgreSQL", "copy", "--from", store, "--to", copied)
        self.plantstore("copy from PostgreSQL to SQLite", "copy", "--from", copied, "--to", back)
        self.verify(None, copied)
        self.verify(None, back)

        restored = f"sqlite:{self.directory}/restored.db"
        self.plantstore("backup of SQLite", "backup", "--store", store, "backup.db")
        self.plantstore("restore into SQLite", "restore", "--store", restored, "backup.db")
        self.verify(None, restored)

        output = self.plantstore("import of existing plants", "import", "--store", store, "--on-conflict", "skip", self.lines)
        self.expect(f"skipped {self.plants:,} that exist already" in output, "an import of existing plants skips all of them")
        self.leave_export_unread(store)

    def plantstore(self, name, *arguments):
        return self.measure(f"plantstore/{name}" if name else None, [self.context.program, *arguments])

    def measure(self, name, command):
        """Runs a command, records its rate if it has a name, and returns its output."""
        before, began = machine.cpu_times(), time.monotonic()
        output = run_command(command, cwd=self.directory, env={"PATH": "/usr/bin:/bin"}, stderr_too=True)
        seconds = time.monotonic() - began
        if name:
            self.context.result.add(name, {"rate": self.plants / seconds, "steal": machine.steal_since(before)})
        return output

    def verify(self, name, store):
        """Exports a store and compares it with the plants that were imported."""
        output = self.plantstore(name, "export", "--store", store, "--output", "exported", "--force")
        self.expect(f"sha256 {self.digest}" in output, f"an export of {store} reports the digest of the imported plants")
        exported = hashlib.sha256((self.directory / "exported").read_bytes()).hexdigest()
        self.expect(exported == self.digest, f"{store} has the imported plants")

    def leave_export_unread(self, store):
        with subprocess.Popen([self.context.program, "export", "--store", store], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as export:
            time.sleep(UNREAD_SECONDS)
            _, error = export.communicate(timeout=60)
        message = b"its reader received nothing for a minute"
        self.expect(export.returncode != 0 and message in error, "an export whose output is not read gives up its snapshot")

    def expect(self, condition, promise):
        if not condition:
            raise CommandFailed(f"not true: {promise}")

    def remove(self, name):
        for path in self.directory.glob(f"{name}*"):
            path.unlink()

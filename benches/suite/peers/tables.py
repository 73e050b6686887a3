"""The database file of the peers that are programs of this repository: the tables of plantstore, without versions."""

import hashlib
import sqlite3

from plants import NAME, TAG

TABLES = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE tokens (hash BLOB PRIMARY KEY, user_id INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE plants (user_id INTEGER NOT NULL, plant_id INTEGER NOT NULL, name TEXT NOT NULL, tag TEXT,
      PRIMARY KEY (user_id, plant_id)) STRICT, WITHOUT ROWID;
"""


def create(file, collection):
    """Creates the file and returns the tokens of its users."""
    tokens = [f"token-of-{name}" for name in collection.user_names()]
    connection = sqlite3.connect(file)
    connection.executescript(TABLES)
    hashes = [(hashlib.sha256(token.encode()).digest(), user) for user, token in enumerate(tokens, 1)]
    connection.executemany("INSERT INTO tokens (hash, user_id) VALUES (?, ?)", hashes)
    rows = ((user, plant_id, NAME, TAG) for user, plant_id in collection.rows())
    connection.executemany("INSERT INTO plants (user_id, plant_id, name, tag) VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return tokens

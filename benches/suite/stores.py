"""Embedded stores of different sizes with the same users, created once for all parts of a run."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import plantstore
from context import progress
from plants import Collection


@dataclass(frozen=True)
class Store:
    file: Path
    # The first user alone, and all users.
    one: Path
    all: Path

    @property
    def url(self):
        return f"sqlite:{self.file}"


class Stores:
    def __init__(self, context):
        self.context = context
        self.created = {}
        # Tokens are created once; every store is a copy of the file that has them, with plants.
        self.empty = context.directory / "empty.db"
        self.names = Collection(context.settings.users, 0).user_names()
        self.tokens = plantstore.create_tokens(context, f"sqlite:{self.empty}", self.names)

    def of_size(self, plants):
        """Returns the store with this number of plants, and creates it if necessary."""
        if plants not in self.created:
            progress(f"  storing {plants:,} plants")
            collection = Collection.of_size(plants, self.context.settings.users)
            file = self.copy(self.empty, f"plants-{plants}.db")
            plantstore.import_plants(self.context, f"sqlite:{file}", collection)
            directory = self.context.directory
            one = plantstore.write_authorizations(directory / f"one-{plants}", self.tokens[:1])
            tokens = plantstore.write_authorizations(directory / f"all-{plants}", self.tokens[: collection.users])
            self.created[plants] = Store(file, one, tokens)
        return self.created[plants]

    def largest(self):
        return self.of_size(max(self.context.settings.sizes))

    def copy(self, file, name):
        copied = self.context.directory / name
        shutil.copyfile(file, copied)
        return copied

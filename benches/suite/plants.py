"""The plants and users that every contestant stores."""

import json
from dataclasses import dataclass

NAME = "Monstera deliciosa"
TAG = "indoor"
LIST_LENGTH = 20
# Body of a create; the load generator puts an id of 15 digits in the place of `%s`.
BODY = f'{{"id":%s,"name":"{NAME}","tag":"{TAG}"}}'
# Ids of stored plants are distributed evenly below this, as random ids are, so that creates reach all parts of a table.
ID_RANGE = 900_000_000_000_000


@dataclass(frozen=True)
class Collection:
    """Plants of a number of users, the same number for each."""

    users: int
    plants: int

    @classmethod
    def of_size(cls, plants, max_users):
        """Distributes plants over users, so that each has at least as many as a list returns."""
        return cls(max(1, min(max_users, plants // LIST_LENGTH)), plants)

    def user_names(self):
        return [f"user-{number}" for number in range(1, self.users + 1)]

    def rows(self):
        """Yields (number of the user from 1 on, id) in the order of users and ids."""
        per_user = self.plants // self.users
        step = ID_RANGE // (per_user + 1)
        for user in range(1, self.users + 1):
            for number in range(1, per_user + 1):
                yield user, number * step

    def lines(self):
        """Yields the lines of an import."""
        end = f',"name":{json.dumps(NAME)},"tag":{json.dumps(TAG)}}}\n'
        for user, plant_id in self.rows():
            yield f'{{"owner":"user-{user}","id":{plant_id}{end}'

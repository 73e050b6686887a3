"""Uses the client that openapi-python-client generates from the document, as an application does.

`tests/it/requires_tools/clients.rs` generates the package `plantstore_client`, and runs this with BASE_URL and TOKEN in its environment.
"""

import os
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from plantstore_client import AuthenticatedClient, Client
from plantstore_client.api.plants import create_plant, delete_plant, list_plants, replace_plant
from plantstore_client.api.service import is_live
from plantstore_client.models import Error, Include, NewPlant, Plant, ReplacePlantBody
from plantstore_client.types import UNSET
from requests.utils import parse_header_links

BASE_URL = os.environ["BASE_URL"]


def next_cursor(response):
    """Returns the cursor of the next page, from `Link`; UNSET after the last page."""
    links = parse_header_links(response.headers.get("link", ""))
    targets = [link["url"] for link in links if link.get("rel") == "next"]
    return parse_qs(urlsplit(targets[0]).query)["after"][0] if targets else UNSET


def create(client, plant_id, name):
    return create_plant.sync_detailed(client=client, body=NewPlant(id=plant_id, name=name, tag="indoor"))


def list_pages(client, limit):
    after, pages = UNSET, []
    while not pages or after is not UNSET:
        page = list_plants.sync_detailed(client=client, limit=limit, include=Include.ID, after=after)
        assert page.status_code == HTTPStatus.OK, page
        pages.append([plant.id for plant in page.parsed])
        after = next_cursor(page)
    return pages


def main():
    assert is_live.sync(client=Client(base_url=BASE_URL)).status == "live"
    rejected = list_plants.sync_detailed(client=Client(base_url=BASE_URL))
    assert (rejected.status_code, rejected.parsed.error) == (HTTPStatus.UNAUTHORIZED, 40100), rejected

    client = AuthenticatedClient(base_url=BASE_URL, token=os.environ["TOKEN"])
    ids = [-(2**63), 1, 2, 3, 2**63 - 1]
    for plant_id in ids:
        created = create(client, plant_id, f"Plant {plant_id}")
        assert created.status_code == HTTPStatus.OK, created
        assert created.parsed == Plant(name=f"Plant {plant_id}", tag="indoor"), created

    conflict = create(client, 1, "Rose")
    assert conflict.status_code == HTTPStatus.CONFLICT, conflict
    # One class for the errors of all statuses, whose code may be any integer.
    assert type(conflict.parsed) is Error and conflict.parsed.error == 40900, conflict
    assert Error.from_dict({"error": 49999, "message": "a code of a later release"}).error == 49999

    assert list_pages(client, 2) == [ids[:2], ids[2:4], ids[4:]]

    replaced = replace_plant.sync_detailed(2, client=client, body=ReplacePlantBody(name="Fern", tag="office"))
    assert (replaced.status_code, replaced.parsed) == (HTTPStatus.OK, Plant(name="Fern", tag="office")), replaced
    office = list_plants.sync_detailed(client=client, tag="office", include=Include.ID)
    assert [plant.id for plant in office.parsed] == [2], office

    deleted = delete_plant.sync_detailed(ids[-1], client=client)
    assert deleted.status_code == HTTPStatus.NO_CONTENT, deleted
    again = delete_plant.sync_detailed(ids[-1], client=client)
    assert (again.status_code, again.parsed.error) == (HTTPStatus.NOT_FOUND, 40400), again


main()

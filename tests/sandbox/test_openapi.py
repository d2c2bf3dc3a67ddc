"""The sandbox's OpenAPI document: two operations, what the specification does not show is marked."""

import json

from transfer_async.sandbox.control import DOCUMENT, OPENAPI

from .wire_client import CREATE, WHO_AM_I, WireClient

DOCUMENTED = json.loads(DOCUMENT)


async def test_the_document_is_served_to_whoever_asks(client: WireClient):
    answer = await client.ask(method="GET", path=OPENAPI, headers={"Authorization": None})
    wrong = await client.ask(method="POST", path=OPENAPI)

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json == DOCUMENTED
    assert (wrong.status, wrong.headers["Allow"]) == (405, "GET")


def test_the_document_shows_the_two_specified_operations_and_nothing_else():
    shown = {(path, method) for path, item in DOCUMENTED["paths"].items() for method in item}

    assert shown == {(CREATE, "post"), (WHO_AM_I, "get")}


def test_what_the_specification_does_not_show_is_marked_as_the_sandboxs_own():
    answers = [
        answer
        for item in DOCUMENTED["paths"].values()
        for operation in item.values()
        for answer in operation["responses"].values()
    ]

    assert all("sandbox's own" in answer["x-sandbox-own"] for answer in answers)

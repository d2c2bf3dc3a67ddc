"""The sandbox's OpenAPI document has two operations, and marks what the specification does not define."""

import json

from transfer_async.sandbox.control import DOCUMENT, OPENAPI

from .wire_client import CREATE, WHO_AM_I, WireClient

DOCUMENTED = json.loads(DOCUMENT)


async def test_the_document_needs_no_token(client: WireClient):
    answer = await client.ask(method="GET", path=OPENAPI, headers={"Authorization": None})
    wrong = await client.ask(method="POST", path=OPENAPI)

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json == DOCUMENTED
    assert (wrong.status, wrong.headers["Allow"]) == (405, "GET")


def test_the_document_has_only_the_two_specified_operations():
    shown = {(path, method) for path, item in DOCUMENTED["paths"].items() for method in item}

    assert shown == {(CREATE, "post"), (WHO_AM_I, "get")}


def test_additions_to_the_specification_are_marked_as_the_sandboxs_own():
    answers = [
        answer
        for item in DOCUMENTED["paths"].values()
        for operation in item.values()
        for answer in operation["responses"].values()
    ]

    assert all("sandbox's own" in answer["x-sandbox-own"] for answer in answers)

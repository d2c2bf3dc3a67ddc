"""The paths under `/sandbox/`: users, orders, the matcher bot, faults, and the OpenAPI document."""

import json
from urllib.parse import quote

from tests.support.cases import each
from transfer_async.sandbox import GarbageBody, Sandbox, StallAfterProcessing, Status
from transfer_async.sandbox.control import DOCUMENT, OPENAPI

from .wire_client import CREATE, WHO_AM_I, WireClient, order_body

DOCUMENTED = json.loads(DOCUMENT)


async def test_a_user_is_looked_up_by_username(sandbox: Sandbox, client: WireClient):
    answer = await client.get(sandbox.user_path.format(username=quote("ben.okri@example.com", safe="")))

    assert answer.status == 200
    assert (answer.json["firstname"], answer.json["lastname"]) == ("Ben", "Okri")
    assert "externalUser" not in answer.json


async def test_orders_are_matched_listed_and_shown(client: WireClient):
    made = (await client.ask(order_body())).json
    matched = await client.ask(path="/sandbox/match")
    (listed,) = (await client.get("/sandbox/orders")).json["orders"]
    shown = (await client.get(f"/sandbox/orders/{made['id']}")).json

    assert matched.json == {"matched": [made["id"]]}
    assert (listed["id"], listed["is_matched"]) == (made["id"], 1)
    assert listed["poster_username"] == "ada.eze@example.com"
    assert shown["matched_at"] is not None
    assert set(shown) == set(made)


async def test_the_orders_are_exported_one_a_line(client: WireClient):
    made = [(await client.ask(order_body())).json for _ in range(2)]
    answer = await client.get("/sandbox/orders.jsonl")

    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert [json.loads(line) for line in answer.body.splitlines()] == made


async def test_faults_are_added_listed_and_removed(sandbox: Sandbox, client: WireClient):
    sandbox.faults.mix({Status(429): 0.25})
    options = {"status": 503, "headers": {"a": "b"}}
    wanted = {"fault": "status", "options": options, "times": 2, "amount": "1.50"}
    added = await client.ask(wanted, path="/sandbox/faults")
    (rule,) = sandbox.faults.rules
    listed = await client.get("/sandbox/faults")
    forgotten = await client.ask(method="DELETE", path="/sandbox/faults")

    assert (rule.fault, rule.times, str(rule.amount)) == (Status(503, headers={"a": "b"}), 2, "1.50")
    assert added.json == listed.json
    (queued,), (mixed,) = listed.json["faults"], listed.json["mix"]
    assert (queued["options"]["status"], queued["times"]) == ("503", 2)
    assert (mixed["fault"], mixed["options"]["status"], mixed["share"]) == ("status", "429", 0.25)
    assert forgotten.json == {"faults": [], "mix": []}
    assert (sandbox.faults.rules, sandbox.faults.shares) == ((), {})


async def test_faults_with_odd_settings_can_be_listed(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(GarbageBody("\udcff"))

    assert (await client.get("/sandbox/faults")).json["faults"][0]["options"] == {"body": r"'\udcff'"}


@each(
    ("body", "status", "reason"),
    [
        (b"{", 400, "not valid JSON"),
        ({}, 422, "fault"),
        ([], 422, "object"),
        ({"fault": "meteor"}, 422, "fault must be one of close-before-reading, "),
        ({"fault": "status"}, 422, "status"),
        ({"fault": "status", "options": {"status": "503"}}, 422, "int"),
        ({"fault": "status", "options": {"state": 503}}, 422, "accepts only these options: body, headers, "),
        ({"fault": "truncated-head", "options": {"a": 1}}, 422, "accepts only these options: none"),
        ({"fault": "truncated-head", "times": 0}, 422, "times must be 1 or more"),
        ({"fault": "truncated-head", "colour": "red"}, 422, "colour"),
    ],
)
async def test_an_invalid_fault_is_refused(
    sandbox: Sandbox, client: WireClient, body: object, status: int, reason: str
):
    answer = await client.ask(body, path="/sandbox/faults")

    assert answer.status == status
    assert reason in answer.json["message"]
    assert sandbox.faults.rules == ()


async def test_stalled_requests_can_be_released(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(StallAfterProcessing(), path="*")

    assert (await client.ask(path="/sandbox/release")).json == {"released": 0}


async def test_no_fault_applies_to_control_paths(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(Status(500), path="*", times=None)

    assert (await client.get("/sandbox/orders")).status == 200
    assert (await client.get("/sandbox/")).status == 200
    assert (await client.get("/sandbox/users/ben.okri@example.com")).status == 500


@each("path", ["orders", "orders.jsonl", "users/ben.okri@example.com", "faults"])
async def test_control_paths_need_the_token(client: WireClient, path: str):
    answer = await client.get(f"/sandbox/{path}", headers={"Authorization": "Bearer wrong"})

    assert (answer.status, answer.json) == (401, {"message": "Unauthorized"})


@each(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/sandbox/nothing", 404, None),
        ("GET", "/sandbox/orders/tx-none", 404, None),
        ("GET", "/sandbox/users/nobody@example.com", 404, None),
        ("GET", "/sandbox/match", 405, "POST"),
        ("PUT", "/sandbox/faults", 405, "GET, POST, DELETE"),
        ("POST", OPENAPI, 405, "GET"),
    ],
)
async def test_unknown_paths_are_not_found_and_other_methods_not_allowed(
    client: WireClient, method: str, path: str, status: int, allowed: str | None
):
    answer = await client.ask(method=method, path=path)

    assert (answer.status, answer.headers.get("Allow")) == (status, allowed)


# --- the OpenAPI document -----------------------------------------------------------------------


async def test_the_document_needs_no_token(client: WireClient):
    answer = await client.get(OPENAPI, headers={"Authorization": None})

    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json == DOCUMENTED


def test_the_document_has_only_the_specified_operations_and_marks_what_is_the_sandboxs_own():
    operations = {
        (path, method): one for path, item in DOCUMENTED["paths"].items() for method, one in item.items()
    }
    answers = [answer for one in operations.values() for answer in one["responses"].values()]

    assert set(operations) == {(CREATE, "post"), (WHO_AM_I, "get")}
    assert all("sandbox's own" in answer["x-sandbox-own"] for answer in answers)

import json
from typing import Any
from urllib.parse import quote

from tests.support.cases import each
from transfer_async.sandbox import GarbageBody, Sandbox, StallAfterProcessing, Status

from .wire_client import Answer, WireClient, order_body


async def get(client: WireClient, path: str, **options: Any) -> Answer:
    return await client.ask(method="GET", path=path, **options)


async def test_a_user_is_looked_up_by_username(sandbox: Sandbox, client: WireClient):
    answer = await get(client, sandbox.user_path.format(username=quote("ben.okri@example.com", safe="")))

    assert answer.status == 200
    assert (answer.json["firstname"], answer.json["lastname"]) == ("Ben", "Okri")
    assert "externalUser" not in answer.json


async def test_orders_are_listed_and_shown(sandbox: Sandbox, client: WireClient):
    made = (await client.ask(order_body())).json
    await sandbox.match_now()
    listed = (await get(client, "/sandbox/orders")).json["orders"]
    shown = (await get(client, f"/sandbox/orders/{made['id']}")).json

    assert [(order["id"], order["is_matched"]) for order in listed] == [(made["id"], 1)]
    assert listed[0]["poster_username"] == "ada.eze@example.com"
    assert shown["matched_at"] is not None
    assert set(shown) == set(made)


async def test_the_orders_are_exported_one_a_line(client: WireClient):
    made = [(await client.ask(order_body())).json for _ in range(2)]
    answer = await get(client, "/sandbox/orders.jsonl")

    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert [json.loads(line) for line in answer.body.splitlines()] == made


async def test_an_order_that_does_not_exist_is_not_found(client: WireClient):
    assert (await get(client, "/sandbox/orders/tx-none")).status == 404


async def test_the_matcher_bot_can_be_run(sandbox: Sandbox, client: WireClient):
    made = (await client.ask(order_body())).json
    answer = await client.ask(path="/sandbox/match")

    assert answer.json == {"matched": [made["id"]]}
    await sandbox.matched(made["id"])


async def test_faults_are_added_listed_and_removed(sandbox: Sandbox, client: WireClient):
    wanted = {
        "fault": "status",
        "options": {"status": 503, "headers": {"a": "b"}},
        "times": 2,
        "amount": "1.50",
    }
    added = await client.ask(wanted, path="/sandbox/faults")
    rule = sandbox.faults.rules[0]
    listed = await get(client, "/sandbox/faults")
    forgotten = await client.ask(method="DELETE", path="/sandbox/faults")

    assert (rule.fault, rule.times, str(rule.amount)) == (Status(503, headers={"a": "b"}), 2, "1.50")
    assert added.json == listed.json
    assert listed.json["faults"][0]["options"]["status"] == "503"
    assert listed.json["faults"][0]["times"] == 2
    assert forgotten.json == {"faults": [], "mix": []}
    assert sandbox.faults.rules == ()


async def test_faults_with_odd_settings_can_be_listed(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(GarbageBody("\udcff"))

    assert (await get(client, "/sandbox/faults")).json["faults"][0]["options"] == {"body": r"'\udcff'"}


@each(
    ("body", "reason"),
    [
        ({}, "fault"),
        ([], "object"),
        ({"fault": "meteor"}, "fault must be one of close-before-reading, "),
        ({"fault": "status"}, "status"),
        ({"fault": "status", "options": {"status": "503"}}, "int"),
        ({"fault": "status", "options": {"status": 99}}, "from 200 to 599"),
        (
            {"fault": "status", "options": {"state": 503}},
            "status accepts only these options: body, headers, status",
        ),
        ({"fault": "truncated-head", "options": {"a": 1}}, "truncated-head accepts only these options: none"),
        ({"fault": "truncated-head", "times": 0}, "times must be 1 or more"),
        ({"fault": "truncated-head", "amount": "NaN"}, "amount must be finite"),
        ({"fault": "truncated-head", "colour": "red"}, "colour"),
    ],
)
async def test_an_invalid_fault_is_refused(sandbox: Sandbox, client: WireClient, body: object, reason: str):
    answer = await client.ask(body, path="/sandbox/faults")

    assert answer.status == 422
    assert reason in answer.json["message"]
    assert sandbox.faults.rules == ()


async def test_a_fault_that_is_not_json_is_refused(client: WireClient):
    assert (await client.ask(b"{", path="/sandbox/faults")).status == 400


async def test_stalled_requests_can_be_released(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(StallAfterProcessing(), path="*")
    answer = await client.ask(path="/sandbox/release")

    assert answer.json == {"released": 0}


async def test_no_fault_applies_to_control_paths(sandbox: Sandbox, client: WireClient):
    sandbox.faults.add(Status(500), path="*")

    assert (await get(client, "/sandbox/orders")).status == 200
    assert (await get(client, "/sandbox/users/ben.okri@example.com")).status == 500


@each(
    "path",
    ["/sandbox/orders", "/sandbox/orders.jsonl", "/sandbox/users/ben.okri@example.com", "/sandbox/faults"],
)
async def test_control_paths_need_the_token(client: WireClient, path: str):
    answer = await get(client, path, headers={"Authorization": "Bearer wrong"})

    assert (answer.status, answer.json) == (401, {"message": "Unauthorized"})


async def test_an_unknown_path_is_not_found_and_a_wrong_method_not_allowed(client: WireClient):
    assert (await get(client, "/sandbox/nothing")).status == 404
    assert (await get(client, "/sandbox/match")).headers["Allow"] == "POST"
    assert (await client.ask(method="PUT", path="/sandbox/faults")).headers["Allow"] == "GET, POST, DELETE"

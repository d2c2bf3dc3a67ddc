"""A profile records how the service responds, but nothing that identifies a person."""

import json

import pytest
from multidict import CIMultiDict

from tests.support import samples
from tests.support.cases import each
from transfer_async._cli.probe_http import NO_ORDER, Response, find_order, request_ids, seen_answer
from transfer_async.sandbox import SeenAnswer

BODY = json.dumps(
    {
        "message": "Ada Eze, ada.eze@example.com, has 900000.10",
        "errors": {"poster": "Ada"},
        "Ada Eze": "a name as a field",
        "id": "tx-secret0123",
        "bvn": "12345678901",
    }
).encode()
HEADERS = CIMultiDict(
    [
        ("Date", "today"),
        ("Server", "nginx"),
        ("Set-Cookie", "session=abc-ada"),
        ("X-Served-By", "host-7.internal"),
        ("X-Bad Name", "x"),
        ("Via", "1.1 h\u00f6st"),
    ]
)


def test_only_names_of_well_known_fields_are_kept_of_a_body():
    response = Response(status=422, headers=HEADERS, body=BODY)
    kept = seen_answer(response, seconds=0.3)

    assert "ada" not in repr(response).lower()
    assert kept == SeenAnswer(
        status=422,
        body="json",
        fields=("errors", "id", "message"),
        headers={"server": "nginx", "set-cookie": "", "x-served-by": "", "via": ""},
        within=0.5,
    )


def an_order(**changes) -> bytes:
    return samples.encode(samples.order_json(**changes))


@each(
    ("status", "body", "order"),
    [
        (200, b'{"id": "tx-new1"}', "unknown"),
        (200, an_order(id="tx-new1"), "new"),
        (201, an_order(id="tx-old1"), "same"),
        (422, an_order(id="tx-new1"), "new"),
        (200, b'{"message": "Unauthorized"}', "none"),
        (409, b'{"message": "see", "of": "the other"}', "none"),
        (409, b'{"of": {"id": "tx-old1"}}', "same"),
        (409, b'{"of": {"id": "tx-trace1"}, "see": "the other"}', "none"),
        (400, b'{"id": "tx-new1"}', "new"),
        (422, b"{}", "none"),
        (408, b"{}", "unknown"),
        (503, b"{}", "unknown"),
        (202, b"", "unknown"),
        (302, b"", "unknown"),
    ],
)
def test_each_response_is_classified_by_the_order_it_contains(status, body, order):
    assert find_order(Response(status=status, body=body), {"tx-old1"}).order == order


@each(
    ("body", "why"),
    [(an_order(poster_amount="100"), "$.poster_amount"), (b'{"data": ' + an_order() + b"}", "is missing")],
)
def test_the_reason_why_the_client_cannot_read_the_order_is_kept(body, why):
    assert why in find_order(Response(status=200, body=body), set()).unreadable


@each(
    ("body", "kind"),
    [(b"", "empty"), (b" <html>", "html"), (b"oh", "text"), (b"[1]", "json"), (b"[" * 100_000, "text")],
)
def test_each_response_body_is_recorded_with_its_kind(body, kind):
    assert seen_answer(Response(status=200, body=body), seconds=0.0).body == kind


def test_a_request_id_has_the_name_of_an_id_and_another_value_in_each_response():
    values = ("ETag", "CF-Ray", "X-Request-Id")
    first, second = (
        Response(status=200, headers={**{name: f"{name}-{number}" for name in values}, "X-Pod-Id": "7"})
        for number in (1, 2)
    )

    assert request_ids([first, second]) == ("cf-ray", "x-request-id")
    assert request_ids([first]) == ()


@pytest.mark.parametrize("is_order", [False, True])
def test_a_missing_response_is_recorded_without_status_or_time(is_order):
    found = find_order(Response(), set()) if is_order else NO_ORDER
    kept = seen_answer(Response(), seconds=3.0, found=found)

    assert (kept.status, kept.within) == (None, None)
    assert kept.order == ("unknown" if is_order else "none")

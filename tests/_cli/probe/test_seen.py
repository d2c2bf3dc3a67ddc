"""What is kept of an answer: how the service works, and nothing that names anybody."""

import json

import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async._cli.probe_http import RawAnswer, order_in, request_ids, seen
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
HEADERS = (
    ("Date", "today"),
    ("Server", "nginx"),
    ("Set-Cookie", "session=abc-ada"),
    ("X-Served-By", "host-7.internal"),
    ("X-Bad Name", "x"),
    ("Via", "1.1 h\u00f6st"),
)


def test_nothing_of_a_body_is_kept_but_the_names_of_well_known_fields():
    kept = seen(RawAnswer(status=422, headers=HEADERS, body=BODY), seconds=0.3)

    assert kept == SeenAnswer(
        status=422,
        body="json",
        fields=("errors", "id", "message"),
        headers={"server": "nginx", "set-cookie": "", "x-served-by": "", "via": ""},
        within=0.5,
    )


def test_an_answer_does_not_show_itself():
    assert "Ada" not in repr(RawAnswer(status=422, headers=HEADERS, body=BODY))


def an_order(**changes) -> bytes:
    return samples.encode(samples.order_json(**changes))


@each(
    ("status", "body", "says"),
    [
        (200, b'{"id": "tx-new1"}', "unknown"),
        (200, an_order(id="tx-new1"), "new"),
        (201, an_order(id="tx-old1"), "same"),
        (422, an_order(id="tx-new1"), "new"),
        (200, b'{"message": "Unauthorized"}', "none"),
        (409, b'{"message": "see", "of": "tx-old1"}', "none"),
        (409, b'{"of": {"id": "tx-old1"}}', "same"),
        (409, b'{"of": {"id": "tx-trace1"}, "see": "tx-old1"}', "none"),
        (400, b'{"id": "tx-new1"}', "new"),
        (422, b"{}", "none"),
        (408, b"{}", "unknown"),
        (503, b"{}", "unknown"),
        (202, b"", "unknown"),
        (302, b"", "unknown"),
    ],
)
def test_what_an_answer_says_of_an_order(status, body, says):
    if b"see" in body:
        body = body.replace(b'"tx-old1"', b'"the other"')

    assert order_in(RawAnswer(status=status, body=body), {"tx-old1"}).says == says


@each(
    ("body", "kind"),
    [(b"", "empty"), (b" <html>", "html"), (b"oh", "text"), (b"[1]", "json"), (b"[" * 100_000, "text")],
)
def test_the_kind_of_a_body(body, kind):
    assert seen(RawAnswer(status=200, body=body), seconds=0.0).body == kind


def test_a_request_id_is_another_in_each_answer_and_says_so():
    def answer(number: int) -> RawAnswer:
        headers = {
            "X-Request-Id": f"r{number}",
            "ETag": f"e{number}",
            "CF-Ray": f"f{number}",
            "X-Pod-Id": "7",
        }
        return RawAnswer(status=200, headers=tuple(headers.items()))

    assert request_ids([answer(1), answer(2)]) == ("cf-ray", "x-request-id")
    assert request_ids([answer(1)]) == ()


@pytest.mark.parametrize("known", [None, set()])
def test_no_answer_is_none(known):
    kept = seen(RawAnswer(), seconds=3.0, found=None if known is None else order_in(RawAnswer(), known))

    assert (kept.status, kept.within) == (None, None)
    assert kept.order == ("none" if known is None else "unknown")

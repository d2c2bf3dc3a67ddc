"""Level 0: what is not seen by asking a sandbox with a habit."""

import json

from tests.support.cases import each
from transfer_async._cli.probe.level_reads import ReadLimits, Service, _limits, _requests_on_one
from transfer_async._cli.probe.one_connection import RawAnswer
from transfer_async.sandbox import CloseAfterProcessing, Sandbox, StatusAfterProcessing
from transfer_async.sandbox.service import WHO_AM_I_PATH


async def test_a_connection_that_is_lost_without_a_word_took_one_request_less():
    async with Sandbox() as sandbox:
        sandbox.faults.add(StatusAfterProcessing(200), times=2, path=WHO_AM_I_PATH)
        sandbox.faults.add(CloseAfterProcessing(), path=WHO_AM_I_PATH)
        service = Service(base_url=sandbox.base_url, token=sandbox.token, patience=30.0)

        question = service.question("GET", WHO_AM_I_PATH)
        assert await _requests_on_one(service.connection(), question, 9) == 2


def of(*currencies: object) -> RawAnswer:
    return RawAnswer(status=200, body=json.dumps({"currencies": currencies}).encode())


def currency(code: object, least: object = 1, greatest: object = 2) -> dict[str, object]:
    return {"currency_code": code, "min_amount": least, "max_amount": greatest}


def test_limits_are_exact():
    found = _limits(
        RawAnswer(body=json.dumps({"currencies": [currency("NGN")]}).encode().replace(b"2", b"0.10"))
    )

    assert str(found["NGN"].greatest) == "0.10"


@each(
    "raw",
    [
        RawAnswer(body=b""),
        RawAnswer(body=b"[]"),
        RawAnswer(body=b"{}"),
        of(7),
        of({}),
        of(currency(["NGN"])),
        of(currency("Ada Eze")),
        of(currency("NGN", "1")),
        of(currency("NGN", 1, None)),
        of(currency("NGN", 1, float("inf"))),
        RawAnswer(body=b"[" * 100_000),
    ],
)
def test_what_who_am_i_does_not_show_as_the_specification_does_is_no_limit(raw: RawAnswer):
    assert _limits(raw) == {}


def test_an_idle_connection_is_watched_no_longer_than_wanted():
    assert ReadLimits(idle=5.0).steps == (1.0, 2.0, 4.0, 5.0)
    assert ReadLimits(idle=0.0).steps == ()

"""The labels that the desk shows."""

import math
from datetime import UTC, datetime
from decimal import Decimal

from tests.support.cases import each
from transfer_async._models.errors import Cause, CauseKind
from transfer_async._pipeline.decisions import DECISIONS
from transfer_async._pipeline.key_views import CAUSES, money, view_of
from transfer_async._support.clock import in_two_units
from transfer_async.desk import views
from transfer_async.desk.pending_keys import KINDS
from transfer_async.journal import Decision, Entry, HistoryEvent, KeyState, transitions
from transfer_async.journal.transitions import Claim, Move


def names_of_moves(kind: type[Move] = Move) -> set[str]:
    found = {kind.name} if hasattr(kind, "name") else set()
    return found.union(*map(names_of_moves, kind.__subclasses__()))


def line(move: str, reason: str | None = None) -> HistoryEvent:
    return HistoryEvent(at=0.0, move=move, state=KeyState.IN_DOUBT, intent_id="", epoch=0, reason=reason)


def test_every_transition_in_the_history_has_a_label():
    names = names_of_moves() - {"attend"}  # this transition adds no line to the history

    assert {transitions.Refute.name, Claim.name} < names
    assert {name for name in names if views.did(line(name))[0] == name} == set()


def test_a_transition_of_a_later_version_keeps_its_name():
    assert views.did(line("teleport")) == ("teleport", None)


@each(
    ("reason", "expected"),
    [
        ("resolve: in the export", ("proposed: the order exists", "in the export")),
        ("refute: a: b", ("proposed: no order exists, and none can appear", "a: b")),
        ("amend: read again", ("proposed: the order's id is corrected or withdrawn", "read again")),
        ("waive: one is ill", ("proposed: dual control is waived", "one is ill")),
        ("later: on", ("a decision was proposed", "later: on")),
        (None, ("a decision was proposed", None)),
    ],
)
def test_a_proposal_names_its_decision_as_the_forms_do(reason, expected):
    assert views.did(line("propose", reason)) == expected


def test_every_kind_of_pending_key_every_decision_and_every_cause_has_a_label():
    assert set(KINDS) == set(views.KIND_LABELS) == set(views.KIND_HELP)
    assert set(Decision) == {row.decision for row in DECISIONS}
    assert all(CAUSES[kind] for kind in CauseKind)


def test_an_http_status_is_shown_by_its_number():
    entry = Entry(
        state=KeyState.IN_DOUBT,
        fingerprint="",
        intent_id="",
        intent=None,
        claimed_at=0.0,
        cause=Cause(kind=CauseKind.STATUS, status=502),
    )
    view = view_of("k", entry, lambda _: None, now=datetime(2024, 5, 6, tzinfo=UTC), settle_after=0.0)

    assert view.cause_in_short == "status 502"


@each(
    ("amount", "currency", "text"),
    [
        ("1250", "NGN", "1,250.00 NGN"),
        ("1250.5", "NGN", "1,250.50 NGN"),
        ("1250.125", "NGN", "1,250.125 NGN"),
        ("0.00000001", "NGN", "0.00000001 NGN"),
        ("1E+3", "NGN", "1,000.00 NGN"),
        ("1250.00", "JPY", "1,250 JPY"),
        ("1250.5", "JPY", "1,250.5 JPY"),
        ("1250.5", "KWD", "1,250.500 KWD"),
        ("12345678901234567890123456789012.34", "NGN", "12,345,678,901,234,567,890,123,456,789,012.34 NGN"),
        ("1250.5", "", "1,250.5"),
    ],
)
def test_an_amount_has_its_currencys_decimals_and_loses_no_digit(amount: str, currency: str, text: str):
    assert money(Decimal(amount), currency) == text


@each(
    ("seconds", "text"),
    [(-5, "0 s"), (0, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")],
)
def test_an_age_shows_its_two_largest_units(seconds: float, text: str):
    assert in_two_units(seconds) == text


@each(("seconds", "year"), [(0.0, 1970), (1e300, 9999), (-1e300, 1), (math.inf, 9999), (math.nan, 1)])
def test_a_time_out_of_range_shows_the_nearest_valid_time(seconds: float, year: int):
    assert views.moment(seconds).year == year


def test_a_time_is_shown_in_utc():
    assert views.time_text(datetime(2024, 5, 6, 12, tzinfo=UTC)) == "2024-05-06 12:00:00 UTC"
    assert views.machine_time(datetime(2024, 5, 6, 12, tzinfo=UTC)) == "2024-05-06T12:00:00Z"

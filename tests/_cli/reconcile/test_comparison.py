"""`Comparison` matches orders to keys. Generated histories check it, too."""

import random

import pytest
from attrs import define, field

from tests.support.cases import each
from transfer_async._cli.reconcile_comparison import (
    Ambiguous,
    Comparison,
    ExportedOrder,
    Lacking,
    Match,
    NotFound,
    Sender,
    Unknown,
)

SLACK = 300.0
K = Sender("k", "w", 0.0, 100.0, is_in_doubt=True)


def compared(
    orders: list[ExportedOrder], *senders: Sender, created: list[tuple[str, str, float | None]] | None = None
) -> list[object]:
    with Comparison() as comparison:
        assert all(map(comparison.add_order, orders))
        comparison.add_senders(senders)
        comparison.add_created(created or [])
        comparison.compare()
        return list(comparison.findings())


def order(order_id: str = "tx-1", content: str = "w", posted_at: float = 50.0) -> ExportedOrder:
    return ExportedOrder(order_id, content, posted_at)


def refuted(key: str, content: str | None) -> Sender:
    return Sender(key, content, 40.0, 60.0, is_in_doubt=False, was_refuted=True)


UNKNOWN = Unknown("tx-1", None, None)
UNDECIDED = [Ambiguous("k", ("tx-1",), refuted=("l",)), UNKNOWN]


@each(
    ("orders", "senders", "created", "findings"),
    {
        "only one fits": ([order()], [K], [], [Match("k", "tx-1")]),
        "other contents": ([order(content="other")], [K], [], [NotFound("k"), UNKNOWN]),
        "posted too late": ([order(posted_at=100.1)], [K], [], [NotFound("k"), UNKNOWN]),
        "another key has it": ([order()], [K], [("tx-1", "first", 50.0)], [NotFound("k")]),
        "two fit": (
            [order(), order("tx-2", posted_at=60.0)],
            [K],
            [],
            [Ambiguous("k", ("tx-1", "tx-2")), UNKNOWN, Unknown("tx-2", None, None)],
        ),
        "a refuted key may have sent it": ([order()], [K, refuted("l", "w")], [], UNDECIDED),
        "a refuted key may have sent any": ([order()], [K, refuted("l", None)], [], UNDECIDED),
        "posted after a refuted attempt": (
            [order(posted_at=61.0)],
            [K, refuted("l", "w"), refuted("m", None)],
            [],
            [Match("k", "tx-1")],
        ),
        "only a refuted key may have sent it": (
            [order(content="v")],
            [K, refuted("l", None)],
            [],
            [NotFound("k"), UNKNOWN],
        ),
        "an earlier attempt of the same key": ([order()], [K, refuted("k", None)], [], [Match("k", "tx-1")]),
        "a similar order is known": (
            [order(), order("tx-2", posted_at=51.0)],
            [],
            [("tx-1", "k", 50.0)],
            [Unknown("tx-2", "tx-1", "k")],
        ),
    },
)
def test_each_key_and_order_gets_the_expected_finding(orders, senders, created, findings):
    assert compared(orders, *senders, created=created) == findings


@each("content", ["w", None])
@each("in_doubt", [True, False])
def test_an_order_that_two_keys_may_have_sent_is_no_match(content, in_doubt):
    """A key that is sending, is unreadable, or has a pending undo may have sent the order as well."""
    found = compared([ExportedOrder("tx-1", "w", 50.0)], K, Sender("l", content, 40.0, 140.0, in_doubt))

    assert not any(isinstance(finding, Match) for finding in found)
    assert Ambiguous("k", ("tx-1",)) in found


@each(("at", "lacks"), [(40.0, False), (55.0, True), (70.0, False), (None, False)])
def test_only_keys_created_within_the_exports_period_are_reported_missing(at, lacks):
    orders = [ExportedOrder("tx-1", "w", 50.0), ExportedOrder("tx-2", "v", 60.0)]
    created = [("tx-1", "a", 50.0), ("tx-2", "b", 60.0), ("tx-3", "c", at)]

    assert compared(orders, created=created) == [Lacking("c", "tx-3")] * lacks


def test_an_order_may_be_in_the_export_twice_with_the_same_values_only():
    with Comparison() as comparison:
        assert comparison.add_order(ExportedOrder("tx-1", "w", 50.0))
        assert comparison.add_order(ExportedOrder("tx-1", "w", 50.0))
        assert not comparison.add_order(ExportedOrder("tx-1", "w", 50.1))


# --- histories ------------------------------------------------------------------------------------


@define
class History:
    """Random keys and orders. ``owners`` maps each order to its key."""

    random: random.Random
    owners: dict[str, str] = field(factory=dict)
    exported: list[ExportedOrder] = field(factory=list)
    senders: list[Sender] = field(factory=list)
    created: list[tuple[str, str, float | None]] = field(factory=list)

    def add_keys(self, size: int) -> None:
        """Add keys. Many of them send the same order within minutes."""
        for number in range(size):
            self._add_key(f"key-{number}", f"content-{self.random.randrange(size // 4)}", number * 7.0)

    def _add_key(self, key: str, content: str, at: float) -> None:
        kind = self.random.choices(["created", "doubt", "sending"], [80, 18, 2])[0]
        exists = kind == "created" or self.random.random() < 0.6
        order_id = f"tx-{len(self.owners)}"
        posted_at = at + self.random.uniform(-SLACK, 30.0 + SLACK)  # according to the clock of the service
        if exists:
            self.owners[order_id] = key
        if exists and self.random.random() > 0.02:  # The remaining orders appear late or never.
            self.exported.append(ExportedOrder(order_id, content, posted_at))
        if kind == "created":
            self.created.append((order_id, key, at))
        else:
            is_doubt = kind == "doubt"
            since, until = (at - SLACK, at + 330.0 + SLACK) if is_doubt else (float("-inf"), float("inf"))
            self.senders.append(Sender(key, content, since, until, is_doubt))


@pytest.mark.trial(short=1_000, ci=20_000, long=1_000_000)
@pytest.mark.parametrize("seed", [1, 2])
def test_reconciliation_never_matches_an_order_to_the_wrong_key(size, seed):
    history = History(random.Random(seed))
    history.add_keys(size)
    history.random.shuffle(history.exported)

    found = compared(history.exported, *history.senders, created=history.created)

    matches = [finding for finding in found if isinstance(finding, Match)]
    assert [match for match in matches if history.owners[match.order_id] != match.key] == []
    assert len(matches) > size // 20
    reported = {finding.key for finding in found if isinstance(finding, Match | Ambiguous | NotFound)}
    assert reported == {sender.key for sender in history.senders if sender.is_in_doubt}
    unknown = {order.order_id for order in history.exported} - {order_id for order_id, *_ in history.created}
    unknown -= {match.order_id for match in matches}
    assert {finding.order_id for finding in found if isinstance(finding, Unknown)} == unknown

"""Which order is told to be whose: against stories of which the end is known."""

import random
from collections.abc import Iterator
from itertools import count

import pytest
from attrs import define, field

from tests.support.cases import each
from transfer_async._cli.reconcile_comparison import (
    Ambiguous,
    Books,
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
    with Books() as books:
        assert all(map(books.add_order, orders))
        books.all_orders_added()
        books.add_senders(senders)
        books.add_created(created or [])
        books.compare()
        return list(books.findings())


def test_the_one_order_that_fits_a_doubt_is_its_own():
    found = compared([ExportedOrder("tx-1", "w", 50.0)], K)

    assert found == [Match("k", "tx-1")]


@pytest.mark.parametrize("order", [ExportedOrder("tx-1", "other", 50.0), ExportedOrder("tx-1", "w", 100.1)])
def test_what_fits_in_part_is_not_found_and_nobodys(order: ExportedOrder):
    assert compared([order], K) == [NotFound("k"), Unknown("tx-1", None, None)]


def test_an_order_that_a_key_has_is_no_other_keys():
    found = compared([ExportedOrder("tx-1", "w", 50.0)], K, created=[("tx-1", "first", 50.0)])

    assert found == [NotFound("k")]


def test_of_two_orders_that_fit_none_is_proposed():
    orders = [ExportedOrder("tx-1", "w", 50.0), ExportedOrder("tx-2", "w", 60.0)]

    found = compared(orders, K)

    assert found[0] == Ambiguous("k", ("tx-1", "tx-2"))


@each("wish", ["w", None])
@each("in_doubt", [True, False])
def test_an_order_that_two_keys_may_have_sent_is_proposed_for_none(wish: str | None, in_doubt: bool):
    """Whoever sends right now, owes an undo, or cannot be read, may have sent it as well."""
    found = compared([ExportedOrder("tx-1", "w", 50.0)], K, Sender("l", wish, 40.0, 140.0, in_doubt))

    assert not any(isinstance(one, Match) for one in found)
    assert Ambiguous("k", ("tx-1",)) in found


@each("wish", ["w", None])
def test_an_order_that_a_refuted_key_may_have_sent_is_proposed_for_none(wish: str | None):
    refuted = Sender("l", wish, 40.0, 60.0, is_in_doubt=False, was_refuted=True)

    assert compared([ExportedOrder("tx-1", "w", 50.0)], K, refuted) == [
        Ambiguous("k", ("tx-1",), refuted=("l",)),
        Unknown("tx-1", None, None),
    ]
    assert Match("k", "tx-1") in compared([ExportedOrder("tx-1", "w", 61.0)], K, refuted)


def test_an_order_that_a_refuted_key_alone_may_have_sent_is_nobodys():
    refuted = Sender("l", None, 40.0, 60.0, is_in_doubt=False, was_refuted=True)

    assert compared([ExportedOrder("tx-1", "v", 50.0)], K, refuted) == [
        NotFound("k"),
        Unknown("tx-1", None, None),
    ]


def test_what_a_key_may_have_sent_before_is_no_other_keys():
    before = Sender("k", None, 40.0, 60.0, is_in_doubt=False, was_refuted=True)

    assert compared([ExportedOrder("tx-1", "w", 50.0)], K, before) == [Match("k", "tx-1")]


def test_an_order_that_no_key_has_is_told_beside_its_like():
    orders = [ExportedOrder("tx-1", "w", 50.0), ExportedOrder("tx-2", "w", 51.0)]

    assert compared(orders, created=[("tx-1", "k", 50.0)]) == [Unknown("tx-2", "tx-1", "k")]


@each(("at", "lacks"), [(40.0, False), (55.0, True), (70.0, False), (None, False)])
def test_an_export_lacks_what_was_created_in_its_time(at: float | None, lacks: bool):
    orders = [ExportedOrder("tx-1", "w", 50.0), ExportedOrder("tx-2", "v", 60.0)]
    created = [("tx-1", "a", 50.0), ("tx-2", "b", 60.0), ("tx-3", "c", at)]

    assert compared(orders, created=created) == [Lacking("c", "tx-3")] * lacks


def test_one_order_may_stand_in_the_export_twice_but_not_as_two():
    with Books() as books:
        assert books.add_order(ExportedOrder("tx-1", "w", 50.0))
        assert books.add_order(ExportedOrder("tx-1", "w", 50.0))
        assert not books.add_order(ExportedOrder("tx-1", "w", 50.1))


# --- stories ------------------------------------------------------------------------------------


@define
class Story:
    """Keys and orders in the order of time, and whose each order really is."""

    chance: random.Random
    whose: dict[str, str] = field(factory=dict)
    exported: list[ExportedOrder] = field(factory=list)
    senders: list[Sender] = field(factory=list)
    created: list[tuple[str, str, float | None]] = field(factory=list)
    _numbers: Iterator[int] = field(factory=count)

    def tell(self, size: int) -> None:
        """So many keys, of which many wish the same within minutes."""
        for _ in range(size):
            number = next(self._numbers)
            at = number * 7.0
            self._one(f"key-{number}", f"wish-{self.chance.randrange(size // 4)}", at)

    def _one(self, key: str, wish: str, at: float) -> None:
        kind = self.chance.choices(["created", "doubt", "sending"], [80, 18, 2])[0]
        exists = kind == "created" or self.chance.random() < 0.6
        order_id = f"tx-{len(self.whose)}"
        posted_at = at + self.chance.uniform(-SLACK, 30.0 + SLACK)  # by a clock that differs
        if exists:
            self.whose[order_id] = key
        if exists and self.chance.random() > 0.02:  # the rest comes late, or is missing
            self.exported.append(ExportedOrder(order_id, wish, posted_at))
        if kind == "created":
            self.created.append((order_id, key, at))
        else:
            is_doubt = kind == "doubt"
            since, until = (at - SLACK, at + 330.0 + SLACK) if is_doubt else (float("-inf"), float("inf"))
            self.senders.append(Sender(key, wish, since, until, is_doubt))


@pytest.mark.trial(short=4_000, ci=20_000, long=1_000_000)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_order_is_proposed_for_a_key_that_is_not_its_own(size: int, seed: int):
    story = Story(random.Random(seed))
    story.tell(size)
    story.chance.shuffle(story.exported)

    found = compared(story.exported, *story.senders, created=story.created)

    matches = [one for one in found if isinstance(one, Match)]
    assert [one for one in matches if story.whose[one.order_id] != one.key] == []
    assert len(matches) > size // 20
    told = {one.key for one in found if isinstance(one, Match | Ambiguous | NotFound)}
    assert told == {one.key for one in story.senders if one.is_in_doubt}
    nobodys = {one.order_id for one in story.exported} - {order_id for order_id, *_ in story.created}
    nobodys -= {one.order_id for one in matches}
    assert {one.order_id for one in found if isinstance(one, Unknown)} == nobodys

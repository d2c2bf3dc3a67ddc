"""Strict fields: they are read exactly and at once, or the order is unreadable."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async._converters import converter
from transfer_async._models.errors import Outcome, ServiceFailed, UnreadableOrder
from transfer_async._models.responses import ExternalOrder, Order, User

ID = "tx-9fk2m1c0d4"
GONE = object()

TEXTS = ("$.id", "$.poster_currency", "$.matcher_currency", "$.external_order.transaction_fee_currency")
NUMBERS = (
    *("$.poster_fee", "$.poster_amount", "$.matcher_amount", "$.exchange_rate"),
    *("$.external_order.current_account_balance", "$.external_order.transaction_fee"),
)
FLAGS = tuple(f"$.{flag}" for flag in samples.FLAGS)
WRONG = [
    *((path, wrong) for path in TEXTS for wrong in (GONE, None, 5, True, False, {}, [], Decimal("1.5"))),
    *((path, wrong) for path in NUMBERS for wrong in (GONE, None, "1250.00", True, False, {}, [], "", [1])),
    *((path, wrong) for path in FLAGS for wrong in (GONE, None, 2, -1, 10, "1", "true", {}, [], b"1.0")),
    *(("$.external_order", wrong) for wrong in (GONE, None, 5, "x", True, [], [{}])),
]


def put(path, value):
    tree = samples.order_json()
    return samples.without(tree, path) if value is GONE else samples.changed(tree, path, value)


@each(("path", "wrong"), WRONG)
def test_a_missing_or_wrong_strict_field_makes_the_order_unreadable(path, wrong):
    raw = samples.encode(put(path, wrong))
    with pytest.raises(UnreadableOrder, match=re.escape(f"{path}:")) as caught:
        Order.from_json(raw)

    error = caught.value
    assert (error.raw, error.order_id) == (raw, None if path == "$.id" else ID)
    assert (error.outcome, error.order_may_exist) == (Outcome.UNKNOWN, True)


@each(
    "text",
    [
        *("12345678901234567.89", "0.1", "1E+400", "123456789012345678901234567890", "0", "-5.50", "-0"),
        *("0.000", "1E-30", "7" * 5000, "7" * 1_000_000),
    ],
)
def test_a_strict_number_keeps_every_digit(text):
    tree = samples.order_json()
    for path in NUMBERS:
        tree = samples.changed(tree, path, text.encode())
    order = Order.from_json(samples.encode(tree))

    assert order.user is not None
    for path in NUMBERS:
        assert str(samples.at(order, path.removeprefix("$."))) == text


NINES = b"9" * 20


@each("path", NUMBERS)
@each("huge", [b"1e" + NINES, b"-1e" + NINES, b"1e-" + NINES, b"0e" + NINES])
def test_a_huge_strict_number_is_unreadable_rather_than_infinity_or_zero(path, huge):
    with pytest.raises(UnreadableOrder, match=re.escape(f"{path}:")) as caught:
        Order.from_json(samples.encode(put(path, huge)))

    assert caught.value.order_id == ID


@each(
    "wrong",
    ["", "tx-", "9fk2m1c0d4", "tx-9FK2", "tx-9fk2 ", "tx-9fk2\n", "TX-9fk2", "tx-٣", "tx-" + "a" * 101],
)
def test_an_id_of_another_shape_is_not_an_order_id(wrong):
    with pytest.raises(UnreadableOrder, match=r"\$\.id: ") as caught:
        Order.from_json(samples.encode(put("$.id", wrong)))

    assert caught.value.order_id is None


# --- duplicate fields ----------------------------------------------------------------------------

NOT_DUPLICATE = (*TEXTS, *NUMBERS, *FLAGS, "$.external_order", "$.user", "$.postersBeneficiary")
NOT_DUPLICATE += ("$.user.username", "$.postersBeneficiary.username")
OTHER = b'"tx-other1"'
NOT_DUPLICATE += ("$.user.username", "$.postersBeneficiary.username")


def with_duplicate(path, value, *, first, spelt=None):
    """Return the sample order with a duplicate ``value`` at the path, before or after the original."""
    holder, _, name = path.rpartition(".")
    tree = samples.order_json()
    inside = samples.encode(samples.inside(tree, holder))
    field = (f'"{name}"' if spelt is None else spelt).encode() + b":" + value
    both = b"{" + field + b"," + inside[1:] if first else inside[:-1] + b"," + field + b"}"
    return both if holder == "$" else samples.encode(tree).replace(inside, both)


@each("path", NOT_DUPLICATE)
def test_a_duplicate_strict_field_makes_the_order_unreadable(path):
    """Another program may read the other value, so an order could be recorded with a wrong id."""
    same = samples.encode(samples.inside(samples.order_json(), path))
    escaped = '"' + "".join(f"\\u{ord(letter):04x}" for letter in path.rpartition(".")[2]) + '"'
    for value in (same, b"null", OTHER, b'{"username":"eve@example.org"}'):
        for raw in (
            with_duplicate(path, value, first=True),
            with_duplicate(path, value, first=False),
            with_duplicate(path, value, first=False, spelt=escaped),
        ):
            with pytest.raises(UnreadableOrder, match=r"\$") as caught:
                Order.from_json(raw)
            assert caught.value.order_id == (None if (path, value) == ("$.id", OTHER) else ID)
    with pytest.raises(UnreadableOrder, match=re.escape(f"{path}: appears twice")):
        Order.from_json(with_duplicate(path, same, first=True))


@each("name", ["extra", "user.email", "postersBeneficiary.currencies", "external_order.created_by"])
def test_a_lenient_field_may_be_duplicated(name):
    assert Order.from_json(with_duplicate(f"$.{name}", b"null", first=False)).id == ID


def test_the_last_value_of_a_duplicate_lenient_field_counts():
    order = Order.from_json(with_duplicate("$.user_id", b'"other"', first=False))

    assert (order.user_id, order.unread) == ("other", ())


def test_concurrent_readings_in_other_threads_do_not_affect_a_reading():
    """The counter of leaves is shared by all threads. Too many leaves trigger a check, never a refusal."""
    good, bad = samples.encode(samples.order_json()), with_duplicate("$.id", b'"tx-other1"', first=False)

    def read(_):
        with pytest.raises(UnreadableOrder):
            Order.from_json(bad)
        return Order.from_json(good).id

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(read, range(100))) == {ID}
    finally:
        sys.setswitchinterval(before)


@each(
    ("model", "tree", "name"),
    [
        (User, samples.user_json(), "lastname"),
        (ExternalOrder, samples.external_order_json(), "transaction_fee"),
    ],
)
def test_a_duplicate_field_of_a_part_makes_the_part_unreadable(model, tree, name):
    """Without this, a beneficiary's name is compared that another program does not read."""
    raw = samples.encode(tree)[:-1] + f',"{name}":"Mallory"}}'.encode()

    with pytest.raises(ServiceFailed, match=rf"\$\.{name}: appears twice"):
        model.from_json(raw)


# --- an order's id in what is not readably an order -----------------------------------------------


@each(
    ("raw", "found"),
    [
        (b'{"id":"tx-abc1"}', "tx-abc1"),
        (b'{ "id" : "tx-abc1" , "poster', "tx-abc1"),
        (b'{"order":{"id":"tx-abc1","poster_fee":1}}', "tx-abc1"),
        (b'[{"id":"tx-abc1"}]', "tx-abc1"),
        (b'<pre>{"id":"tx-abc1"}</pre>', "tx-abc1"),
        (b'{"i\\u0064":"tx-abc1"}', "tx-abc1"),
        (b'{"confirmedMatches":[{"id":"tx-other"}],"id":"tx-abc1"}', "tx-abc1"),
        (b'{"data":{"id":"tx-abc1"},"again":{"id":"tx-abc1"}}', "tx-abc1"),
        (b'[{"id":"tx-abc1"},{"id":"tx-abc2"}]', None),
        (b'{"confirmedMatches":[{"id":"tx-other"}],"match":{"id":"tx-abc1"}}', None),
        (b'{"id":"tx-ab', None),
        (b'{"id":"TX-ABC"}', None),
        (b'{"id":7}', None),
        (b'{"id":"tx-abc1","id":"tx-abc2"}', None),
        (b'{"id":null,"id":"tx-abc2"}', "tx-abc2"),
        (b'{"text":"{\\"id\\":\\"tx-abc1\\"}"}', None),
        (b'{"order_id":"tx-abc1"}', None),
        (b"", None),
        (b"\xff\xfe", None),
    ],
)
def test_an_order_id_is_found_only_if_there_is_exactly_one(raw, found):
    assert converter.find_order_id(raw) == found


@each(
    ("raw", "username", "named"),
    [
        (b'{"id":"tx-a","user":{"username":"Ada@x.org"}}', "ada@x.org", True),
        (b'[{"id":"tx-a","by":"ada@x.org"},{"id":"tx-b"}]', "ada@x.org", True),
        (b'{"id":"tx-a","id":"tx-b","by":"ada@x.org"}', "ada@x.org", True),
        (b'{"text":"{\\"id\\":\\"tx-a\\",\\"by\\":\\"ada@x.org\\"}"}', "ada@x.org", True),
        (b'{"\\u0069d":"TX-A","by":"a\\/b\\u002Bc\\u0027d@x.org"}', "a/b+c'd@x.org", True),
        ('{"id":"tx-a","by":"ÉMILE@x.org"}'.encode(), "Émile@x.org", True),
        (b'{"id":"tx-a","by":"\\u00C9mile\\ud83d\\ude00@x.org"}', "émile\U0001f600@x.org", True),
        (b'{"id":"tx-a","by":"a\\\\b@x.org","cut":"\xff\\ud83d', "a\\b@x.org", True),
        (b'{"id":"tx-a","by":"ben@x.org"}', "ada@x.org", False),
        (b'{"id":"tx-a","user_id', None, True),
        (b'{"id":"tx-', None, False),
        (b'{"order_id":"tx-a","by":"ada@x.org"}', "ada@x.org", False),
        (b'{"message":"no","by":"ada@x.org"}', "ada@x.org", False),
        (b"", "ada@x.org", False),
    ],
)
def test_an_order_and_a_username_are_found_only_if_the_text_contains_them(raw, username, named):
    """Without this, a refusal that contains the order is believed, and the order is sent again."""
    assert converter.contains_order(raw, *([] if username is None else ["eve@x.org", username])) is named


def test_a_text_of_only_backslashes_is_searched_in_time():
    """Quadratic time would block the event loop for minutes."""
    assert not converter.contains_order(b"\\" * 2**20)


def test_an_answer_has_the_usernames_of_its_order():
    people = {"user": {"username": "Ada@example.org"}, "postersBeneficiary": {"username": "ben@example.org"}}
    read = converter.read_answer(samples.encode(samples.order_json(**people)))

    assert (read.poster_username, read.beneficiary_username) == ("Ada@example.org", "ben@example.org")
    assert read.order.id == ID


@each("person", [GONE, None, {}, {"username": None}, {"username": 5}, "ada", [], {"user_name": "ada"}, 5])
def test_an_answer_without_usernames_has_none(person):
    tree = samples.order_json(user=person, postersBeneficiary=person)
    read = converter.read_answer(
        samples.encode({name: value for name, value in tree.items() if value is not GONE})
    )

    assert (read.poster_username, read.beneficiary_username) == (None, None)


@each("name", ["current_account_balance", "transaction_fee", "transaction_fee_currency"])
@each("wrong", [None, True, [], {}])
def test_an_external_order_read_alone_is_checked_as_strictly(name, wrong):
    with pytest.raises(ServiceFailed, match=rf"\$\.{name}: ") as caught:
        ExternalOrder.from_json(samples.encode(samples.external_order_json(**{name: wrong})))

    assert caught.value.body
    assert not caught.value.order_may_exist

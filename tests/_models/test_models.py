"""The models of the service: requests are validated when created, and orders are parsed when accessed."""

import copy
import decimal
import inspect
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import product

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import samples, strategies
from tests.support.cases import each
from transfer_async._models import responses
from transfer_async._models.errors import InvalidOrder
from transfer_async._models.requests import NewExternalOrder, NewOrder, OrderIntent, OrderRequest, PersonName
from transfer_async._models.responses import Order, OrderState

AMOUNTS = ("poster_amount", "matcher_amount", "exchange_rate")


def faults(make):
    with pytest.raises(InvalidOrder) as caught:
        make()
    return caught.value


def named(make):
    return [field for field, _ in faults(make).problems]


# --- requests -----------------------------------------------------------------------------------


@each(
    ("kind", "fields"),
    [(NewOrder, samples.order_fields()), (NewExternalOrder, samples.external_order_fields())],
)
def test_every_field_of_a_request_is_required_and_a_keyword(kind, fields):
    for name in fields:
        with pytest.raises(TypeError, match=name):
            kind(**{other: fields[other] for other in fields if other != name})
        with pytest.raises(TypeError, match="positional"):
            kind(fields[name])


@each(
    ("made", "name"),
    [(samples.new_order(), "poster_amount"), (samples.new_external_order(), "transaction_fee")],
)
def test_a_request_cannot_be_changed(made, name):
    for change in (lambda: setattr(made, name, Decimal(1)), lambda: delattr(made, name)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            change()
    with pytest.raises((AttributeError, attrs.exceptions.FrozenInstanceError)):
        made.another = 1


WRONG_VALUES = {
    AMOUNTS: [
        *(1250.0, "1.25e3", "1E3", True, None, "", "1 250", "1,250", [], b"1250"),
        *(0, "0.00", "-0", -1, "-5.00", Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity")),
        Decimal("-Infinity"),
        *(Decimal("1E+999999999999999999"), Decimal("1E-999999999999999999"), "9" * 65, 10**70),
    ],
    ("poster_username", "poster_recipient_username"): [
        *("", " ", "ada", "ada@", "@example.org", "ada@example", "ada@@example.org", "a b@example.org"),
        *("ada@example..org", "ada@.org", "ada@example.org.", " ada@example.org", "ada@example.org\n"),
        *("ada\x00@example.org", "ada\x7f@example.org", "ada\x85@example.org", "ada\u2028@example.org"),
        *("ada\ud800@example.org", "a" * 250 + "@example.org", None, 5, b"ada@example.org"),
    ],
    ("poster_currency", "matcher_currency"): [
        *("", "U", "usd", "Usd", "US$", "US D", " USD", "USD ", "USD\n", "ABCDEFGHIJK", "US\x00D"),
        *("US\ud800", "USＤ", "UЅD", "ＵＳＤ", "US٣", "ΝGN", None, 566),
    ],
    ("poster_country", "matcher_country"): [
        *("", "U", "us", "Us", "USA", "U1", "US\n", "ＵＳ", "ΝG", "\ud800\ud800", None, 5),
    ],
    ("poster_payment_method_type",): [
        *("", "  ", "paypal\x00payment", "paypal\npayment", "\ud800", "\u2029", "p" * 255, None, 5),
    ],
    ("external_order",): [None, {}, "external", samples.external_order_fields()],
}


@each(
    ("name", "wrong"),
    [(name, wrong) for names, values in WRONG_VALUES.items() for name in names for wrong in values],
)
def test_an_invalid_value_is_a_fault_of_its_field(name, wrong):
    assert named(lambda: samples.new_order(**{name: wrong})) == [name]


@each(
    ("name", "wrong"),
    [
        *product(
            ("current_account_balance", "transaction_fee"),
            (1.5, "1e3", None, True, Decimal("NaN"), Decimal("-Infinity"), Decimal("1E+70")),
        ),
        ("transaction_fee", "-0.01"),
    ],
)
def test_an_invalid_fee_or_balance_is_a_fault_of_its_field(name, wrong):
    assert named(lambda: samples.new_external_order(**{name: wrong})) == [name]


@each(
    "fields",
    [
        *({"transaction_fee": 0}, {"transaction_fee": "0.00"}, {"transaction_fee": Decimal("-0")}),
        *({"current_account_balance": 0}, {"current_account_balance": "-125.50"}),
    ],
)
def test_a_fee_may_be_zero_and_a_balance_zero_or_negative(fields):
    made = samples.new_external_order(**fields)

    assert {name: getattr(made, name) for name in fields} == {
        name: Decimal(value) for name, value in fields.items()
    }


def test_a_fault_shows_neither_a_person_nor_an_amount():
    error = faults(
        lambda: samples.new_order(
            poster_username="secret-ada",
            poster_amount="771177.5e1",
            matcher_amount=Decimal(-882288),
            poster_country="secretland",
        )
    )
    shown = f"{error} {error!r} {error.problems}"

    assert not [secret for secret in ("secret", "771177", "882288") if secret in shown]


@each(
    ("poster", "matcher", "rate", "agrees"),
    [
        ("1250.00", "1000000", "0.00125", True),
        ("1250.01", "1000000", "0.00125", False),
        ("0.12", "1", "0.125", True),
        ("0.13", "1", "0.125", True),
        ("0.11", "1", "0.125", False),
        ("0.14", "1", "0.125", False),
        ("1250.004", "1000000", "0.0012500035", True),
        ("1250.00", "1000000", "0.001250006", False),
        ("2", "5", "0.5", True),
        ("3", "5", "0.5", True),
        (Decimal("1E+3"), "1000.5", "1", True),
        (Decimal("1E+3"), "999.5", "1", True),
        (Decimal("1E+3"), "1000.51", "1", False),
        (Decimal("1E+3"), "999.49", "1", False),
        ("0.1", "1", "0.1499999999999999999999999999999999999999", True),
        ("0.1", "1", "0.1500000000000000000000000000000000000001", False),
        ("800000000", "1000000", "0.00125", False),
    ],
)
def test_amounts_agree_to_within_half_a_unit_of_the_posters_last_place(poster, matcher, rate, agrees):
    amounts = {"poster_amount": poster, "matcher_amount": matcher, "exchange_rate": rate}

    if agrees:
        assert samples.new_order(**amounts).poster_amount == Decimal(poster)
    else:
        assert named(lambda: samples.new_order(**amounts)) == ["poster_amount"]


def quote(**changes):
    fields = samples.order_fields()
    del fields["poster_amount"]
    return NewOrder.quote(**fields | changes)


@each(
    ("matcher", "rate", "places", "poster"),
    [
        ("1000000", "0.00125", {}, "1250.00"),
        ("1", "0.125", {}, "0.12"),
        ("1", "0.1251", {}, "0.13"),
        ("1", "0.375", {}, "0.38"),
        ("1", "0.125", {"places": 3}, "0.125"),
        ("5", "0.5", {"places": 0}, "2"),
        (7, Decimal("1.5"), {"places": 0}, "10"),
        (Decimal("1E+3"), 2, {}, "2000.00"),
        ("1", "2", {"places": 4}, "2.0000"),
    ],
)
def test_a_quote_rounds_the_posters_amount_half_even(matcher, rate, places, poster):
    order = quote(matcher_amount=matcher, exchange_rate=rate, **places)

    assert str(order.poster_amount) == poster


@each("wrong", [1.5, "1e3", True, None, Decimal("NaN"), Decimal("1E+999999999")])
@each("name", ["matcher_amount", "exchange_rate"])
def test_a_quote_of_an_invalid_amount_is_a_fault_of_that_field(name, wrong):
    assert named(lambda: quote(**{name: wrong})) == [name]


def test_a_quote_that_rounds_to_nothing_is_refused():
    assert named(lambda: quote(matcher_amount="0.01", exchange_rate="0.01")) == ["poster_amount"]


@each("places", [-1, 65, 10**9, 2.0, "2", None, True])
def test_a_quote_with_an_invalid_number_of_places_is_refused(places):
    assert named(lambda: quote(places=places)) == ["places"]


@given(strategies.new_order_fields(), st.integers(0, 8))
def test_every_quote_is_an_order_whose_amounts_agree(fields, places):
    exact = strategies.EXACT.multiply(fields["matcher_amount"], fields["exchange_rate"])
    if not (rounded := exact.quantize(Decimal((0, (1,), -places)), context=strategies.EXACT)):
        return
    order = NewOrder.quote(**fields, places=places)

    assert str(order.poster_amount) == str(rounded)


HOSTILE = [
    decimal.Context(prec=3),
    decimal.Context(prec=1, rounding=decimal.ROUND_UP, traps=[]),
    decimal.Context(prec=3, rounding=decimal.ROUND_UP, Emax=1, Emin=-1, traps=[]),
    decimal.Context(
        prec=3, traps=[decimal.Inexact, decimal.Rounded, decimal.FloatOperation, decimal.Subnormal]
    ),
]


@each("context", HOSTILE)
def test_the_callers_decimal_context_changes_nothing(context):
    fields = {"matcher_amount": "12345678901234567.89", "exchange_rate": "1.000000000000000001"}
    with decimal.localcontext(context):
        order = quote(**fields, external_order=samples.new_external_order(transaction_fee="1234567.891"))
        again = samples.new_order(**fields, poster_amount="12345678901234567.90")
        read = NewOrder.from_json(order.to_json())
        answer = Order.from_json(
            samples.encode(samples.order_json(poster_amount=Decimal("12345678901234567.89")))
        )
        wrong = named(lambda: samples.new_order(**fields, poster_amount="12345678901234567.93"))

    assert str(order.poster_amount) == "12345678901234567.90"
    assert order == attrs.evolve(again, external_order=order.external_order)
    assert read == order
    assert str(answer.poster_amount) == "12345678901234567.89"
    assert answer.user.currencies[0].max_amount == 1000000
    assert wrong == ["poster_amount"]


# --- orders -------------------------------------------------------------------------------------


def read(**changes):
    return Order.from_json(samples.encode(samples.order_json(**changes)))


RANKS = list(OrderState)


@each("state", RANKS)
def test_the_first_true_flag_is_the_state(state):
    later = {f"is_{other.value}": 1 for other in RANKS[RANKS.index(state) : -1]}
    order = read(**dict.fromkeys(samples.FLAGS, 0) | later)

    assert order.state is state


def looked_at():
    order = read()
    assert order.unread is not None
    return order


FRESH_OR_LOOKED_AT = each("make", [read, looked_at])


@FRESH_OR_LOOKED_AT
@each(
    "again",
    {
        "another reading": lambda _: read(),
        "pickle": lambda order: pickle.loads(pickle.dumps(order)),
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "evolve": lambda order: attrs.evolve(attrs.evolve(order, is_matched=True), is_matched=False),
    },
)
def test_a_copy_of_an_order_is_equal_and_has_an_equal_hash(make, again):
    order = make()
    twin = again(order)

    assert twin == order
    assert (twin.to_json(), repr(twin), hash(twin)) == (order.to_json(), repr(order), hash(order))


def test_the_repr_of_an_order_shows_its_money_and_its_flags():
    shown = repr(read())

    assert "id='tx-9fk2m1c0d4'" in shown
    assert "poster_amount=Decimal('1250.00')" in shown
    assert "is_processing=True" in shown


@FRESH_OR_LOOKED_AT
@each("name", ["usr", "postersBeneficiary", "_nothing", "__len__"])
def test_a_misspelt_name_is_an_attribute_error(make, name):
    order = make()

    with pytest.raises(AttributeError, match=name):
        getattr(order, name)
    assert not hasattr(order, name)


@FRESH_OR_LOOKED_AT
@each("name", ["id", "user", "unread"])
def test_an_order_cannot_be_changed(make, name):
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(make(), name, None)


def test_an_order_can_be_read_from_two_threads_at_once():
    orders = [read() for _ in range(200)]
    gate, one = threading.Barrier(2), read()

    def look(_):
        gate.wait()
        return [(order.user, order.external_order, order.unread, order.confirmed_matches) for order in orders]

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(look, range(2))] == [[(one.user, one.external_order, (), ())] * 200] * 2


def paid_in(levels):
    deep = b'{"in":' * levels + b"1" + b"}" * levels
    return Order.from_json(samples.encode(samples.order_json(probably_paid=deep)))


def depth_of(tree):
    depth = 0
    while isinstance(tree, dict):
        tree, depth = tree["in"], depth + 1
    return depth


def from_deep_down(levels, look):
    return look() if levels == 0 else from_deep_down(levels - 1, look)


def test_a_decoded_order_can_be_read_with_little_stack_left():
    raw = samples.encode(samples.order_json())[:-1] + b',"new":' + b"[" * 600 + b"]" * 600 + b"}"
    order = Order.from_json(raw)
    stack_left = sys.getrecursionlimit() - len(inspect.stack(0))
    bank = from_deep_down(stack_left - 200, lambda: order.external_order)

    assert (str(bank.transaction_fee), str(bank.current_account_balance)) == ("1.50", "50000.00")
    assert order.state is OrderState.PROCESSING
    assert isinstance(order.unread, tuple)


@each("levels", [10, 60, 64, 65, 100, 400])
def test_an_order_of_any_readable_depth_can_be_written_copied_and_compared(levels):
    order = paid_in(levels)

    assert paid_in(levels) == order
    assert Order.from_json(order.to_json()) == order
    assert pickle.loads(pickle.dumps(order)) == order
    assert copy.deepcopy(order) == order
    assert depth_of(order.probably_paid) == (levels if levels <= 64 else 0)
    assert order.unread == (() if levels <= 64 else ("$.probably_paid",))


# --- what a repr shows --------------------------------------------------------------------------

# A repr may show ids, currencies, amounts, flags and roles; of a request, its key, method and countries.
SHOWN = {
    *("id", "user_id", "created_by", "order_id", "key", "held", "send_before", "role"),
    *("poster_currency", "matcher_currency", "transaction_fee_currency", "currency_code", "currency_name"),
    *("poster_fee", "poster_amount", "matcher_amount", "exchange_rate", "transaction_fee"),
    *("max_amount", "min_amount", "steps", "is_active", "can_post_offers", "can_accept_offers"),
    *("poster_country", "matcher_country", "poster_payment_method_type", *samples.FLAGS),
}


@each("model", [*responses.MODELS, PersonName])
def test_the_repr_of_a_response_shows_only_permitted_fields(model):
    """Every field contains its own marker, and only the markers of permitted fields may appear."""
    marks = {name: f"<mark of {name}>" for name in attrs.fields_dict(model)}
    shown = repr(model(**marks))

    assert {name for name, mark in marks.items() if mark in shown} <= SHOWN


TYPED = PersonName("Zebedee", "Quayle", "Xanthe")
SECRETS = ("zebedee", "quayle", "xanthe", "ada", "okafor", "okri", "@example.org", "50000")


@each(
    "request_",
    [
        samples.new_order(),
        samples.new_external_order(),
        OrderRequest(samples.new_order(), key="k-1", beneficiary=TYPED),
        OrderIntent(id="i-1", key="k-1", order=samples.new_order(), beneficiary=TYPED),
    ],
)
def test_no_repr_of_a_request_shows_a_person_or_a_balance(request_):
    shown = repr(request_).lower()

    assert [secret for secret in SECRETS if secret in shown] == []

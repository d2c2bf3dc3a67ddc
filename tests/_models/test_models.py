"""The models of the service: requests are validated when created, and orders are parsed when accessed."""

import copy
import decimal
import pickle
import sys
import threading
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
    ("kind", "fields", "name"),
    [
        *[(NewOrder, samples.order_fields(), name) for name in samples.order_fields()],
        *[
            (NewExternalOrder, samples.external_order_fields(), name)
            for name in samples.external_order_fields()
        ],
    ],
)
def test_every_field_of_a_request_is_required_and_a_keyword(kind, fields, name):
    with pytest.raises(TypeError, match=name):
        kind(**{other: fields[other] for other in fields if other != name})
    with pytest.raises(TypeError, match="positional"):
        kind(fields[name])


@pytest.mark.parametrize(
    ("made", "name"),
    [(samples.new_order(), "poster_amount"), (samples.new_external_order(), "transaction_fee")],
)
def test_a_request_cannot_be_changed(made, name):
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(made, name, Decimal(1))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        delattr(made, name)
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


def test_all_faults_are_reported_together_with_their_fields():
    wrong = {
        "poster_username": "ada",
        "poster_recipient_username": 5,
        "poster_currency": "usd",
        "poster_country": "us",
        "poster_amount": 1.5,
        "poster_payment_method_type": "",
        "matcher_currency": "€€",
        "matcher_country": "NGA",
        "matcher_amount": "1e5",
        "exchange_rate": -1,
        "external_order": None,
    }

    assert sorted(named(lambda: NewOrder(**wrong))) == sorted(wrong)


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
    ("poster", "matcher", "rate"),
    [
        ("1250.00", "1000000", "0.00125"),
        ("0.12", "1", "0.125"),
        ("0.13", "1", "0.125"),
        ("1250.004", "1000000", "0.0012500035"),
        ("2", "5", "0.5"),
        ("3", "5", "0.5"),
        (Decimal("1E+3"), "1000.5", "1"),
        (Decimal("1E+3"), "999.5", "1"),
        ("0.1", "1", "0.1499999999999999999999999999999999999999"),
    ],
)
def test_amounts_agree_to_within_half_a_unit_of_the_last_place(poster, matcher, rate):
    order = samples.new_order(poster_amount=poster, matcher_amount=matcher, exchange_rate=rate)

    assert order.poster_amount == Decimal(poster)


@each(
    ("poster", "matcher", "rate"),
    [
        ("1250.01", "1000000", "0.00125"),
        ("0.14", "1", "0.125"),
        ("0.11", "1", "0.125"),
        ("1250.00", "1000000", "0.001250006"),
        (Decimal("1E+3"), "1000.51", "1"),
        (Decimal("1E+3"), "1400", "1"),
        (Decimal("1E+3"), "999.49", "1"),
        ("0.1", "1", "0.1500000000000000000000000000000000000001"),
        ("800000000", "1000000", "0.00125"),
    ],
)
def test_amounts_that_disagree_by_more_are_a_fault_of_the_posters(poster, matcher, rate):
    wrong = {"poster_amount": poster, "matcher_amount": matcher, "exchange_rate": rate}

    assert named(lambda: samples.new_order(**wrong)) == ["poster_amount"]


def quote(**changes):
    fields = samples.order_fields()
    del fields["poster_amount"]
    return NewOrder.quote(**fields | changes)


@each(
    ("matcher", "rate", "places", "poster"),
    [
        ("1000000", "0.00125", {}, "1250.00"),
        ("1", "0.125", {}, "0.12"),
        ("1", "0.375", {}, "0.38"),
        ("1", "0.125", {"places": 3}, "0.125"),
        ("5", "0.5", {"places": 0}, "2"),
        (7, Decimal("1.5"), {"places": 0}, "10"),
        (Decimal("1E+3"), 2, {}, "2000.00"),
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


@each("places", [-1, 65, 10**9, 2.0, "2"])
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


def read(tree=None, **changes):
    return Order.from_json(samples.encode(samples.order_json(**changes) if tree is None else tree))


RANKS = list(OrderState)[:-1]


@each("state", RANKS)
def test_the_first_true_flag_is_the_state(state):
    later = {f"is_{other.value}": 1 for other in RANKS[RANKS.index(state) :]}
    order = read(**dict.fromkeys(samples.FLAGS, 0) | later)

    assert order.state is state


def test_an_order_without_a_set_flag_has_an_unknown_state():
    assert read(**dict.fromkeys(samples.FLAGS, 0)).state is OrderState.UNKNOWN


def looked_at(order):
    assert order.unread is not None
    return order


FRESH_OR_LOOKED_AT = each("make", {"fresh": read, "looked at": lambda: looked_at(read())})


@FRESH_OR_LOOKED_AT
@each("by", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_order_survives_copying(make, by):
    order = make()
    again = by(order)
    again = pickle.loads(again) if isinstance(again, bytes) else again

    assert again == order
    assert again.to_json() == order.to_json()
    assert hash(again) == hash(order)


@FRESH_OR_LOOKED_AT
def test_two_readings_of_one_reply_are_equal_and_have_equal_hashes(make):
    assert make() == read()
    assert hash(make()) == hash(read())
    assert len({make(), read()}) == 1


@FRESH_OR_LOOKED_AT
def test_an_order_can_be_evolved(make):
    later = attrs.evolve(make(), is_matched=True)

    assert later.state is OrderState.MATCHED
    assert later.user == read().user
    assert attrs.evolve(later, is_matched=False) == read()


@FRESH_OR_LOOKED_AT
def test_the_repr_of_an_order_shows_its_money_and_its_flags(make):
    shown = repr(make())

    assert shown == repr(read())
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
def test_an_order_cannot_be_changed(make):
    order = make()

    for name in ("id", "user", "unread"):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(order, name, None)


def test_an_order_can_be_read_from_two_threads_at_once():
    orders = [read() for _ in range(200)]
    gate = threading.Barrier(2)
    seen: list[list[object]] = [[], []]

    def look(into):
        gate.wait()
        into += [
            (order.user, order.external_order, order.unread, order.confirmed_matches) for order in orders
        ]

    threads = [threading.Thread(target=look, args=(into,)) for into in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one = read()

    assert seen[0] == seen[1]
    assert seen[0] == [(one.user, one.external_order, (), ())] * len(orders)


def from_deep_down(levels, look):
    return look() if levels == 0 else from_deep_down(levels - 1, look)


def stack_left():
    frame, used = sys._getframe(), 0
    while frame is not None:
        frame, used = frame.f_back, used + 1
    return sys.getrecursionlimit() - used


def paid_in(levels):
    deep = b'{"in":' * levels + b"1" + b"}" * levels
    return Order.from_json(samples.encode(samples.order_json(probably_paid="deep")).replace(b'"deep"', deep))


def depth_of(tree):
    depth = 0
    while isinstance(tree, dict):
        tree, depth = tree["in"], depth + 1
    return depth


def test_a_decoded_order_can_be_read_with_little_stack_left():
    raw = samples.encode(samples.order_json())[:-1] + b',"new":' + b"[" * 600 + b"]" * 600 + b"}"
    order = Order.from_json(raw)
    bank = from_deep_down(stack_left() - 200, lambda: order.external_order)

    assert str(bank.transaction_fee) == "1.50"
    assert str(bank.current_account_balance) == "50000.00"
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
    *(
        "max_amount",
        "min_amount",
        "steps",
        *samples.FLAGS,
        "is_active",
        "can_post_offers",
        "can_accept_offers",
    ),
    *("poster_country", "matcher_country", "poster_payment_method_type"),
}
MODELS = [
    *(responses.Order, responses.User, responses.ExternalUser, responses.ExternalOrder, responses.Currency),
    responses.UserOption,
    PersonName,
]


@each("model", MODELS)
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

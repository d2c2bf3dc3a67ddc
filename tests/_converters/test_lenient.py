"""Lenient fields: reading never raises. An unreadable value becomes None and is reported."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async._converters.wire_format import fields_of
from transfer_async._models.errors import ServiceFailed
from transfer_async._models.responses import MODELS, Currency, ExternalUser, Order, User, UserOption

TEXT, TIME, FLAG, NUMBER = "text", "time", "flag", "number"
WHOLE, OBJECT, LIST = "whole number", "object", "list"

WRONG = {
    TEXT: (5, True, Decimal("1.5"), [], {}),
    TIME: (
        *(5, Decimal("1.5"), True, [], {}, "", "yesterday", "2024-05-01", "2024-05-01T10:20:30"),
        *("2024-13-01T00:00:00Z", "2024-05-01T24:00:00Z", "9999-12-31T23:59:59-02:00"),
        "0001-01-01T00:00:00+02:00",
    ),
    FLAG: (2, -1, Decimal("1.0"), "1", "true", "", [], {}),
    NUMBER: ("5", "", True, [], {}),
    WHOLE: ("5", True, Decimal("1.0"), [], {}),
    OBJECT: (5, "x", True, [], [{}]),
    LIST: (5, "x", True, {}),
}

# Every lenient field of the specification's section 2, by its name in JSON.
KINDS = {
    "order": {
        TEXT: "user_id poster_country poster_payment_method_type posters_beneficiary_user_id matcher_country "
        "matcher_payment_method_type parent_id match_id poster_payment_purpose matcher_payment_purpose",
        FLAG: "can_cancel_order",
        TIME: "posted_at updated_at expires_at notified_is_about_to_expire_at published_at confirmed_at "
        "matched_at completed_at cancelled_at matcher_payment_completed_at",
        OBJECT: "user postersBeneficiary",
        LIST: "confirmedMatches extraOrderDetails",
    },
    "external order": {
        WHOLE: "id",
        TEXT: "created_by order_id bank_logo",
        TIME: "created_at updated_at",
        OBJECT: "createdBy",
    },
    "user": {
        TEXT: "id email username firstname middlename lastname phone avatar building_number street_number "
        "address address2 role country country_abbreviation timezone gender city state zipcode mxuid "
        "hear_from",
        FLAG: "tfa_required_for_login two_factor_verified is_active can_post_offers can_accept_offers "
        "has_valid_address",
        TIME: "joined_at updated_at verified_at verification_started_at email_verified_at name_verified_at "
        "dob_verified_at identity_verified_at dob",
        LIST: "userOptions currencies",
        OBJECT: "bank_options externalUser",
    },
    "external user": {
        WHOLE: "id",
        TEXT: "created_by user_id username bvn",
        TIME: "created_at updated_at",
        OBJECT: "createdBy",
    },
    "currency": {
        TEXT: "currency_code currency_name symbol flag",
        NUMBER: "max_amount min_amount steps",
        OBJECT: "payment_types",
        LIST: "can_trade_with",
    },
    "option": {
        WHOLE: "id",
        TEXT: "user_id name description",
        OBJECT: "value",
        TIME: "created_at updated_at",
    },
}
PLACES = {
    "order": ("$",),
    "external order": ("$.external_order",),
    "user": ("$.user", "$.external_order.createdBy"),
    "external user": ("$.user.externalUser",),
    "currency": ("$.user.currencies[0]", "$.external_order.createdBy.currencies[0]"),
    "option": ("$.user.userOptions[0]",),
}
FIELDS = [
    (f"{place}.{name}", kind)
    for model, kinds in KINDS.items()
    for place in PLACES[model]
    for kind, names in kinds.items()
    for name in names.split()
]
OURS = {field.wire_name: field.name for model in MODELS for field in fields_of(model)}


def read(tree):
    return Order.from_json(samples.encode(tree))


def found(order, path):
    return samples.at(order, ".".join(OURS.get(step, str(step)) for step in samples.steps_of(path)))


def with_all(paths, value):
    tree = samples.order_json()
    for path in paths:
        tree = samples.changed(tree, path, value)
    return tree


GROUPS = [
    (kind, group)
    for kind in WRONG
    for paths in [[path for path, kind_of_path in FIELDS if kind_of_path == kind]]
    for group in ([[path] for path in paths] if kind in (OBJECT, LIST) else [paths])
]
"""The fields of each kind, in groups: each field that contains others alone, the rest together."""


@each(("kind", "paths"), GROUPS)
def test_a_lenient_field_of_another_type_is_none_and_its_path_is_reported(kind, paths):
    empty = read(with_all(paths, None))
    for wrong in WRONG[kind]:
        order = read(with_all(paths, wrong))

        assert {path: found(order, path) for path in paths} == dict.fromkeys(paths), wrong
        assert sorted(order.unread) == sorted(paths), wrong
        assert order == empty, wrong
        assert order.to_json() == empty.to_json(), wrong


@each(("kind", "paths"), GROUPS)
def test_an_absent_or_null_lenient_field_is_none_and_not_reported(kind, paths):
    tree = null = with_all(paths, None)
    for path in paths:
        tree = samples.without(tree, path)
    absent = read(tree)

    assert {path: found(absent, path) for path in paths} == dict.fromkeys(paths)
    assert absent.unread == read(null).unread == ()
    assert absent == read(null)


@each("anything", [None, 5, Decimal("0.1"), True, "x", [1, "a"], {"by": {"id": 1}}])
def test_a_field_without_a_specified_type_may_have_any_value(anything):
    order = read(samples.order_json(probably_paid=anything))

    assert order.probably_paid == anything
    assert order.unread == ()


@each(
    ("path", "value", "kept", "unread"),
    [
        ("$.user.currencies", [5, samples.currency_json()], 1, ["[0]"]),
        ("$.user.currencies", [samples.currency_json(), "x", []], 1, ["[1]", "[2]"]),
        ("$.user.currencies", [None], 0, []),
        ("$.user.userOptions", [samples.option_json(), True], 1, ["[1]"]),
        ("$.user.currencies[0].can_trade_with", ["usd", 5, "gbp"], 2, ["[1]"]),
    ],
)
def test_an_element_of_another_type_is_left_out_and_its_path_is_reported(path, value, kept, unread):
    order = read(samples.changed(samples.order_json(), path, value))

    assert len(found(order, path)) == kept
    assert order.unread == tuple(path + at for at in unread)


ANYWHERE = ("$", "$.external_order", "$.user", "$.user.externalUser", "$.user.currencies[0]")


@each("value", [["$.forged"], 5, None, "x", {"username": "forged@example.org"}, [{}]])
def test_an_unknown_field_and_one_named_like_ours_are_ignored_at_every_level(value):
    names = ("brand_new", "unread", "_late", "__class__", *{*OURS.values()} - {*OURS})
    order = read(with_all([f"{place}.{name}" for place in ANYWHERE for name in names], value))

    assert order == read(samples.order_json())
    assert order.unread == order.user.unread == order.external_order.creator.unread == ()


FLAG_PATHS = [path for path, kind in FIELDS if kind == FLAG]


@each(("sent", "flag"), [(0, False), (1, True), (False, False), (True, True)])
def test_a_lenient_flag_is_0_or_1_or_true_or_false(sent, flag):
    order = read(with_all(FLAG_PATHS, sent))

    assert all(found(order, path) is flag for path in FLAG_PATHS)
    assert order.unread == ()


SOME_TIMES = ("$.posted_at", "$.user.joined_at", "$.external_order.created_at")


@each(
    "sent",
    [
        *("2024-05-01T10:00:00.000Z", "2024-05-01T10:00:00Z", "2024-05-01T10:00:00z"),
        *("2024-05-01T12:00:00+02:00", "2024-05-01T00:00:00.000-10:00", "2024-05-01T10:00:00-00:00"),
    ],
)
def test_a_time_is_aware_and_in_utc(sent):
    order = read(with_all(SOME_TIMES, sent))
    for time_read in (found(order, path) for path in SOME_TIMES):
        assert time_read == datetime(2024, 5, 1, 10, tzinfo=UTC)
        assert time_read.tzinfo is UTC


@each(
    "text",
    ["12345678901234567.89", "0.1", "1E+400", "123456789012345678901234567890", "0.000", "-7", "1E-400"],
)
def test_a_number_is_exact_at_every_level(text):
    paths = (
        *("$.probably_paid", "$.user.currencies[0].max_amount", "$.user.bank_options.limit"),
        *("$.user.currencies[0].payment_types.zelle_payment", "$.user.userOptions[0].value.limit"),
    )
    order = read(with_all(paths, text.encode()))
    currency, option = order.user.currencies[0], order.user.user_options[0]
    limits = (order.user.bank_options["limit"], option.value["limit"])
    numbers = (order.probably_paid, currency.max_amount, currency.payment_types["zelle_payment"], *limits)

    assert set(map(str, numbers)) == {text}
    assert isinstance(order.probably_paid, Decimal | int)


@each(
    "text",
    [b'"\\ud800"', b'"\\udc00 \\ud83d"', b'"\xff"', b"1e" + b"9" * 20, b"1" * 5000, b"[" * 500 + b"]" * 500],
)
@each("path", ["$.user.phone", "$.probably_paid", "$.user_id", "$.external_order.createdBy.email"])
def test_invalid_json_values_affect_only_their_own_part(path, text):
    """A service that truncates texts may split an emoji, although the order was created."""
    order = read(samples.changed(samples.order_json(), path, text))
    part = ".".join(path.split(".")[: 3 if "external_order" in path else 2])

    assert found(order, part) is None
    assert order.unread == (part,)
    assert order.posters_beneficiary == read(samples.order_json()).posters_beneficiary
    assert str(order.external_order.transaction_fee) == "1.50"


def users_within_users(levels, innermost):
    return b'{"externalUser":{"createdBy":' * levels + innermost + b"}}" * levels


@each("levels", [1, 25, 450])
def test_nested_users_are_read_in_bounded_time_with_any_wrong_value(levels):
    currency = b'{"currency_code":"USD","max_amount":"10","can_trade_with":["a",5]}'
    innermost = b'{"currencies":[' + b",".join([currency] * 1000) + b'],"is_active":7}'
    unread = read(samples.order_json(user=users_within_users(levels, innermost))).unread

    assert unread == ("$.user",) if levels > 30 else len(unread) == 2_001


# --- parts by themselves --------------------------------------------------------------------------


@each(
    ("part", "tree"),
    [
        (User, samples.user_json(externalUser=samples.external_user_json())),
        (ExternalUser, samples.external_user_json()),
        (Currency, samples.currency_json()),
        (UserOption, samples.option_json()),
    ],
)
def test_a_nested_model_of_an_order_round_trips_alone(part, tree):
    model = part.from_json(samples.encode(tree))

    assert part.from_json(model.to_json()) == model
    assert model != part()


def test_a_user_by_itself_reports_unreadable_fields():
    tree = samples.user_json(phone=5, currencies=[{"steps": "1"}], unread=["forged"])
    user = User.from_json(samples.encode(tree))

    assert (user.phone, user.unread) == (None, ("$.phone", "$.currencies[0].steps"))


@pytest.mark.parametrize("one", ["{}", "5", '{"can_trade_with":[5,5,5,5]}'])
def test_a_user_with_too_many_values_is_refused(one):
    """Without this, the response to a look-up could block the event loop."""
    many, few = (b'{"currencies":[' + b",".join([one.encode()] * count) + b"]}" for count in (30_000, 300))

    with pytest.raises(ServiceFailed, match="20,000"):
        User.from_json(many)
    assert User.from_json(few).currencies is not None


def test_reading_a_user_with_little_stack_left_is_refused_without_a_crash():
    raw = users_within_users(30, b'{"is_active":7}')
    outcomes = set()

    def descend(depth):
        try:
            if depth % 10 == 0:
                User.from_json(raw)
                outcomes.add("read")
            descend(depth + 1)
        except ServiceFailed:
            outcomes.add("no answer")
        except RecursionError:
            outcomes.add("nothing left at all")

    descend(0)

    assert outcomes >= {"read", "no answer"}

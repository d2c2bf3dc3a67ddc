import re

from tests.support.cases import each
from tests.support.samples import currency_json, user_json
from transfer_async.sandbox import (
    DEFAULT_ACCOUNTS,
    Account,
    Accounts,
    CurrencyAccount,
    rendering,
)

from .wire_client import names

ACCOUNTS = Accounts(DEFAULT_ACCOUNTS)
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

WHO_AM_I_FIELDS = names("""
    id email username firstname lastname phone two_factor_verified avatar address role country timezone
    joined_at updated_at verified_at verification_started_at email_verified_at is_active dob gender city
    state zipcode mxuid can_post_offers can_accept_offers has_valid_address currencies
""")


@each("account", DEFAULT_ACCOUNTS)
def test_a_user_object_has_every_field_of_the_specification(account: Account):
    assert set(rendering.user_object(account)) == set(user_json())


def test_who_am_i_has_the_specified_subset():
    assert set(rendering.who_am_i_object(ACCOUNTS.bank)) == WHO_AM_I_FIELDS


@each("account", DEFAULT_ACCOUNTS)
def test_times_are_timestamps_or_null(account: Account):
    user = rendering.user_object(account)
    times = {name: value for name, value in user.items() if name == "dob" or name.endswith("_at")}

    assert len(times) == 9
    assert all(value is None or TIMESTAMP.fullmatch(value) for value in times.values())


@each("account", DEFAULT_ACCOUNTS)
def test_flags_are_integers_and_not_booleans(account: Account):
    user = rendering.user_object(account)
    flags = [user[name] for name in ("is_active", "can_post_offers", "can_accept_offers")]

    assert all(type(flag) is int for flag in flags)
    assert user["has_valid_address"] is True


def test_derived_details_are_stable_and_differ_between_people():
    ada, ben = ACCOUNTS["ada.eze@example.com"], ACCOUNTS["ben.okri@example.com"]

    assert rendering.user_object(ada) == rendering.user_object(ada)
    assert rendering.user_object(ada)["dob"] != rendering.user_object(ben)["dob"]


def test_a_currency_object_shows_limits_and_payment_types():
    currency = rendering.user_object(ACCOUNTS["ben.okri@example.com"])["currencies"][0]

    assert set(currency) == set(currency_json())
    assert currency["currency_name"] == "us dollar"
    assert set(currency["payment_types"]["zelle_payment"]) == {"email", "phone", "name"}


def test_a_currency_of_an_unknown_code_is_shown_by_its_code():
    held = CurrencyAccount(code="XYZ")
    account = Account(username="x@example.com", firstname="X", lastname="Y", currencies=(held,))
    currency = rendering.user_object(account)["currencies"][0]

    assert (currency["currency_name"], currency["symbol"], currency["flag"]) == ("xyz", "XYZ", "xyz.png")

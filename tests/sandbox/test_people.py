from transfer_async.sandbox import DEFAULT_ACCOUNTS, Accounts
from transfer_async.sandbox.accounts import CURRENCY_LIMITS, currency_for

ACCOUNTS = Accounts(DEFAULT_ACCOUNTS)


def test_the_bank_has_a_plain_name():
    assert ACCOUNTS.bank.username == "lagoon-bank"


def test_customers_have_addresses_that_are_nobodys():
    usernames = [account.username for account in ACCOUNTS if not account.is_bank]

    assert all(username.endswith("@example.com") and " " not in username for username in usernames)


def test_there_is_somebody_for_every_case_a_test_asks_for():
    assert ACCOUNTS["ada.eze@example.com"].middlename == "Ngozi"
    assert not ACCOUNTS["noah.lind@example.com"].payable
    assert not ACCOUNTS["lucie.moreau@example.com"].active
    assert [held.code for held in ACCOUNTS["tunde.bello@example.com"].currencies] == ["NGN", "USD"]
    assert [held.code for held in ACCOUNTS["maria.silva.santos@example.com"].currencies] == ["GBP", "EUR"]


def test_every_person_can_be_paid_in_what_they_hold():
    assert all(
        held.payment_types for account in ACCOUNTS if not account.is_bank for held in account.currencies
    )


def test_no_currency_trades_with_itself():
    assert all(code.lower() not in held.can_trade_with for code, held in CURRENCY_LIMITS.items())


def test_a_currency_that_the_sandbox_does_not_know_is_none():
    assert currency_for("XYZ", name="A", email="a@example.com") is None

import json
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support import samples
from tests.support.cases import each
from transfer_async.sandbox import Account, Accounts, CurrencyAccount, load_accounts

BANK = Account(username="a-bank", firstname="A", lastname="Bank", is_bank=True)
ADA = Account(username="Ada@example.com", firstname="Ada", lastname="Eze")


def test_accounts_are_found_by_username_in_any_case():
    accounts = Accounts([BANK, ADA])

    assert accounts.get("ADA@EXAMPLE.COM") is ADA
    assert accounts["ada@example.com"] is ADA
    assert "aDa@example.com" in accounts
    assert 7 not in accounts
    assert accounts.get("nobody@example.com") is None


@each(("one", "other"), samples.TWO_PEOPLE)
def test_usernames_that_unicode_folds_together_stay_two_accounts(one: str, other: str):
    people = [Account(username=name, firstname="A", lastname="B") for name in (one, other)]
    accounts = Accounts([BANK, *people])

    assert [accounts[name] for name in (one, other)] == people


def test_accounts_keep_their_order_and_name_their_bank():
    accounts = Accounts([ADA, BANK])

    assert accounts.bank is BANK
    assert list(accounts) == [ADA, BANK]
    assert len(accounts) == 2


def test_a_username_is_registered_once():
    with pytest.raises(ValueError, match="is already registered"):
        Accounts([BANK, ADA, Account(username="ada@EXAMPLE.com", firstname="A", lastname="E")])


@pytest.mark.parametrize("banks", [0, 2])
def test_accounts_must_include_exactly_one_bank(banks: int):
    given = [
        Account(username=f"bank-{number}", firstname="B", lastname="B", is_bank=True)
        for number in range(banks)
    ]

    with pytest.raises(ValueError, match=f"exactly one account must have is_bank, not {banks}"):
        Accounts([ADA, *given])


@pytest.mark.parametrize(
    "limits",
    [
        {"min_amount": Decimal(-1)},
        {"min_amount": Decimal(2), "max_amount": Decimal(1)},
        {"steps": Decimal("-0.01")},
    ],
)
def test_invalid_limits_are_refused(limits: dict[str, Decimal]):
    with pytest.raises(ValueError, match="USD: 0 <= min_amount <= max_amount"):
        CurrencyAccount(code="USD", **limits)


def test_accounts_are_loaded_from_a_file_with_exact_amounts(tmp_path: Path):
    currency = {
        "code": "USD",
        "min_amount": 0.1,
        "max_amount": "12345678901234567.89",
        "payment_types": {"zelle_payment": {"email": "a@example.com"}},
        "can_trade_with": ["ngn"],
    }
    path = tmp_path / "accounts.json"
    path.write_text(
        json.dumps(
            [
                {"username": "a-bank", "firstname": "A", "lastname": "Bank", "is_bank": True},
                {"username": "a@example.com", "firstname": "A", "lastname": "B", "currencies": [currency]},
            ]
        ),
        encoding="utf-8",
    )
    bank, person = load_accounts(path)

    assert bank.is_bank
    assert person.currencies[0].min_amount == Decimal("0.1")
    assert person.currencies[0].max_amount == Decimal("12345678901234567.89")
    assert person.currencies[0].can_trade_with == ("ngn",)


@each(
    ("document", "place"),
    [
        (b"{}", "Expected `array`"),
        (b"[", "truncated"),
        (b'[{"username": "a"}]', "firstname"),
        (b'[{"username": "a", "firstname": 7, "lastname": "b"}]', r"\$\[0\].firstname"),
        (
            b'[{"username": "", "firstname": "", "lastname": "", "currencies": [{"code": "", "steps": -1}]}]',
            "steps >= 0",
        ),
    ],
)
def test_an_invalid_file_is_refused_with_the_path_and_the_rule(document: bytes, place: str, tmp_path: Path):
    path = tmp_path / "accounts.json"
    path.write_bytes(document)

    with pytest.raises(ValueError, match=place):
        load_accounts(path)

import json
from decimal import Decimal
from pathlib import Path

import pytest
from attrs import evolve

from tests.support import samples
from tests.support.cases import each
from transfer_async.sandbox import Account, Accounts, CurrencyAccount, load_accounts

BANK = Account(username="a-bank", firstname="A", lastname="Bank", is_bank=True)
ADA = Account(username="Ada@example.com", firstname="Ada", lastname="Eze")


def test_accounts_are_found_by_username_in_any_case():
    accounts = Accounts([ADA, BANK])

    assert accounts.get("ADA@EXAMPLE.COM") is accounts["ada@example.com"] is ADA
    assert ("aDa@example.com" in accounts, 7 in accounts) == (True, False)
    assert accounts.get("nobody@example.com") is None
    assert (list(accounts), len(accounts), accounts.bank) == ([ADA, BANK], 2, BANK)


@each(("one", "other"), samples.TWO_PEOPLE)
def test_usernames_that_unicode_folds_together_stay_two_accounts(one: str, other: str):
    people = [Account(username=name, firstname="A", lastname="B") for name in (one, other)]
    accounts = Accounts([BANK, *people])

    assert [accounts[name] for name in (one, other)] == people


def test_a_username_is_registered_once():
    with pytest.raises(ValueError, match="is already registered"):
        Accounts([BANK, ADA, Account(username="ada@EXAMPLE.com", firstname="A", lastname="E")])


@each("banks", [[], [BANK, evolve(BANK, username="another")]])
def test_accounts_must_include_exactly_one_bank(banks: list[Account]):
    with pytest.raises(ValueError, match=f"exactly one account must have is_bank, not {len(banks)}"):
        Accounts([ADA, *banks])


@each(
    "limits",
    [
        {"min_amount": Decimal(-1)},
        {"min_amount": Decimal(2), "max_amount": Decimal(1)},
        {"steps": Decimal(-1)},
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
    bank = {"username": "a-bank", "firstname": "A", "lastname": "Bank", "is_bank": True}
    person = {"username": "Ada@example.com", "firstname": "Ada", "lastname": "Eze", "currencies": [currency]}
    path = tmp_path / "accounts.json"
    path.write_text(json.dumps([bank, person]), encoding="utf-8")

    first, second = load_accounts(path)
    (held,) = second.currencies
    assert (first.is_bank, second.username) == (True, "Ada@example.com")
    assert (held.min_amount, held.max_amount) == (Decimal("0.1"), Decimal("12345678901234567.89"))
    assert held.can_trade_with == ("ngn",)


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

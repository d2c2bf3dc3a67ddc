"""The sandbox's accounts and their currency limits.

All data is fictional. The e-mail addresses use example.com, and the account numbers are not real.
"""

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from random import Random
from uuid import NAMESPACE_URL, uuid5

import msgspec
from attrs import evolve, field, frozen


class Chance(Random):
    """A seeded random generator for fictional data and faults, but not for secrets."""


PaymentTypes = Mapping[str, Mapping[str, str]]


@frozen(kw_only=True)
class CurrencyAccount:
    """A currency that an account holds (specification, section 2.5).

    Amounts are in the currency's major unit, such as dollars. An amount must be a multiple of `steps`;
    `Decimal(0)` allows any amount. Without `payment_types`, the account cannot receive the currency.
    """

    code: str
    min_amount: Decimal = Decimal("1")
    max_amount: Decimal = Decimal("10000")
    steps: Decimal = Decimal("0.01")
    payment_types: PaymentTypes = field(factory=dict, repr=False)
    can_trade_with: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.min_amount <= self.max_amount or self.steps < 0:
            raise ValueError(f"{self.code}: 0 <= min_amount <= max_amount and steps >= 0 are required")


@frozen(kw_only=True, eq=False)
class Account:
    """A user's account at the service. Accounts are compared by identity.

    `payable` means that the user has a valid bank account for receiving money. `is_bank` marks the one
    account that owns the token. The bank's username need not be an e-mail address. `email` defaults to the
    username. `id` is derived from the username.
    """

    username: str
    firstname: str
    lastname: str
    middlename: str | None = None
    email: str = ""
    country: str = "Nigeria"
    country_abbreviation: str = "NG"
    timezone: str = "Africa/Lagos"
    currencies: tuple[CurrencyAccount, ...] = ()
    active: bool = True
    payable: bool = True
    is_bank: bool = False
    id: str = ""

    def __attrs_post_init__(self) -> None:
        # Empty fields are derived from the username, so that an account is the same in every sandbox.
        object.__setattr__(self, "email", self.email or self.username)
        object.__setattr__(self, "id", self.id or str(uuid5(NAMESPACE_URL, f"sandbox:{self.username}")))

    def holding(self, code: str) -> CurrencyAccount | None:
        """Return the account's currency with the given code, ignoring case, or `None`."""
        wanted = code.upper()
        return next((held for held in self.currencies if held.code.upper() == wanted), None)


class Accounts:
    """The registered accounts, by username. Exactly one of the accounts is the bank.

    Look-ups ignore the case of ASCII letters.

    Raises:
        ValueError: not exactly one of the accounts is a bank, or two accounts have the same username.
    """

    def __init__(self, accounts: Iterable[Account]) -> None:
        self._by_username: dict[str, Account] = {}
        for account in accounts:
            self.add(account)
        banks = [account for account in self if account.is_bank]
        if len(banks) != 1:
            raise ValueError(f"accounts: exactly one account must have is_bank, not {len(banks)}")
        self.bank: Account = banks[0]

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_username.values())

    def __len__(self) -> int:
        return len(self._by_username)

    def __contains__(self, username: object) -> bool:
        return isinstance(username, str) and ascii_lower(username) in self._by_username

    def __getitem__(self, username: str) -> Account:
        return self._by_username[ascii_lower(username)]

    def get(self, username: str) -> Account | None:
        """Return the account with the given username, or `None`."""
        return self._by_username.get(ascii_lower(username))

    def add(self, account: Account) -> None:
        """Register an account.

        Raises:
            ValueError: the username is already registered.
        """
        if account.username in self:
            raise ValueError(f"account {account.username!r} is already registered: choose another username")
        self._by_username[ascii_lower(account.username)] = account


def ascii_lower(username: str) -> str:
    """Return the username with ASCII letters in lower case. `straße` and `strasse` stay different."""
    return "".join(item.lower() if item.isascii() else item for item in username)


def load_accounts(path: str | Path) -> tuple[Account, ...]:
    """Read accounts from a JSON file: an array of objects with the fields of `Account`.

    Amounts are decimal strings or JSON numbers, and are never rounded.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file's content is invalid. The message describes the first problem.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=tuple[Account, ...])
    except msgspec.MsgspecError as error:
        raise ValueError(f"accounts: {error}") from error


_TRADED = ("ngn", "usd", "gbp", "eur", "kes")


def default_payment_types(code: str, *, name: str, email: str) -> PaymentTypes:
    """Return a person's fictional account details, for each payment type of a currency."""
    if code == "NGN":
        bank = {"account_name": name, "account_number": "0123456789", "bank_code": "999"}
        return {"nigerian_bank_payment": bank}
    zelle = {"zelle_payment": {"email": email, "phone": "+15550100", "name": name}}
    paypal = {"paypal_payment": {"paypal_id": email, "name": name, "phone": "+15550100"}}
    return zelle | paypal if code == "USD" else paypal


def _currency(code: str, minimum: str, maximum: str, steps: str = "0.01") -> CurrencyAccount:
    return CurrencyAccount(
        code=code,
        min_amount=Decimal(minimum),
        max_amount=Decimal(maximum),
        steps=Decimal(steps),
        can_trade_with=tuple(other for other in _TRADED if other != code.lower()),
    )


CURRENCY_LIMITS = {
    limits.code: limits
    for limits in (
        _currency("NGN", "1000", "50000000"),
        _currency("USD", "1", "50000"),
        _currency("GBP", "1", "40000"),
        _currency("EUR", "1", "45000"),
        _currency("KES", "100", "6000000", steps="50"),
    )
}


def currency_for(code: str, *, name: str, email: str) -> CurrencyAccount | None:
    """Return a person's account in a currency, with the sandbox's limits, or `None` for an unknown code."""
    limits = CURRENCY_LIMITS.get(code)
    return limits and evolve(limits, payment_types=default_payment_types(code, name=name, email=email))


_COUNTRIES = {
    "NG": ("Nigeria", "Africa/Lagos"),
    "US": ("United States", "America/New_York"),
    "GB": ("United Kingdom", "Europe/London"),
    "KE": ("Kenya", "Africa/Nairobi"),
    "FR": ("France", "Europe/Paris"),
}
"""The name and the time zone of each country, by its code."""


def country_name(code: str) -> str:
    """Return the name of a country, or its code if the sandbox does not know it."""
    return _COUNTRIES[code][0] if code in _COUNTRIES else code


def _person(
    first: str,
    last: str,
    *codes: str,
    middle: str | None = None,
    country: str = "NG",
    active: bool = True,
    payable: bool = True,
) -> Account:
    username = f"{first}.{last}".lower().replace(" ", ".") + "@example.com"
    held = (currency_for(code, name=f"{first} {last}", email=username) for code in codes)
    return Account(
        username=username,
        firstname=first,
        middlename=middle,
        lastname=last,
        country=country_name(country),
        country_abbreviation=country,
        timezone=_COUNTRIES[country][1],
        currencies=tuple(currency for currency in held if currency),
        active=active,
        payable=payable,
    )


DEFAULT_ACCOUNTS = (
    Account(
        username="lagoon-bank",
        email="api@lagoon-bank.example.com",
        firstname="Lagoon",
        lastname="Bank",
        currencies=(CURRENCY_LIMITS["NGN"],),
        payable=False,
        is_bank=True,
    ),
    _person("Ada", "Eze", "NGN", middle="Ngozi"),
    _person("Tunde", "Bello", "NGN", "USD"),
    _person("Ben", "Okri", "USD", middle="Chukwuemeka", country="US"),
    _person("Maria", "Silva Santos", "GBP", "EUR", country="GB"),
    _person("Wanjiru", "Kamau", "KES", country="KE"),
    _person("Chidi", "Obi", "NGN"),
    _person("Noah", "Lind", "USD", country="US", payable=False),
    _person("Lucie", "Moreau", "EUR", country="FR", active=False),
)
"""The default accounts of a sandbox."""

"""The default accounts: one bank, two posters, and beneficiaries of every kind a test asks for.

All are made up; their addresses are under example.com, and their numbers are nobody's.
"""

from decimal import Decimal

from attrs import evolve

from transfer_async.sandbox.accounts import Account, CurrencyAccount, PaymentTypes

_TRADED = ("ngn", "usd", "gbp", "eur", "kes")


def _nigerian_bank(name: str) -> PaymentTypes:
    details = {"account_name": name, "account_number": "0123456789", "bank_code": "999"}
    return {"nigerian_bank_payment": details}


def _paypal(name: str, email: str) -> PaymentTypes:
    return {"paypal_payment": {"paypal_id": email, "name": name, "phone": "+15550100"}}


def _zelle(name: str, email: str) -> PaymentTypes:
    return {"zelle_payment": {"email": email, "phone": "+15550100", "name": name}}


def default_payment_types(code: str, *, name: str, email: str) -> PaymentTypes:
    """Make the account details that a person of this name would have in a currency."""
    if code == "NGN":
        return _nigerian_bank(name)
    return {**_zelle(name, email), **_paypal(name, email)} if code == "USD" else _paypal(name, email)


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
    """Make what a person holds in a currency, with the sandbox's limits; `None` for one it does not know."""
    limits = CURRENCY_LIMITS.get(code)
    return limits and evolve(limits, payment_types=default_payment_types(code, name=name, email=email))


def _person(
    first: str,
    last: str,
    *codes: str,
    middle: str | None = None,
    country: tuple[str, str, str] = ("Nigeria", "NG", "Africa/Lagos"),
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
        country=country[0],
        country_abbreviation=country[1],
        timezone=country[2],
        currencies=tuple(currency for currency in held if currency),
        active=active,
        payable=payable,
    )


_UNITED_STATES = ("United States", "US", "America/New_York")
_UNITED_KINGDOM = ("United Kingdom", "GB", "Europe/London")
_KENYA = ("Kenya", "KE", "Africa/Nairobi")
_FRANCE = ("France", "FR", "Europe/Paris")

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
    _person("Ben", "Okri", "USD", middle="Chukwuemeka", country=_UNITED_STATES),
    _person("Maria", "Silva Santos", "GBP", "EUR", country=_UNITED_KINGDOM),
    _person("Wanjiru", "Kamau", "KES", country=_KENYA),
    _person("Chidi", "Obi", "NGN"),
    _person("Noah", "Lind", "USD", country=_UNITED_STATES, payable=False),
    _person("Lucie", "Moreau", "EUR", country=_FRANCE, active=False),
)

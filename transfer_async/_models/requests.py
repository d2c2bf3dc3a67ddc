"""What a caller asks for, checked when it is made, all faults at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Self

from attrs import field, frozen

from transfer_async._models import amounts, keys, texts
from transfer_async._models.amounts import EXACT, differ, number_problem, places
from transfer_async._models.base import ByValue, Wire
from transfer_async._models.errors import InvalidOrder
from transfer_async._models.texts import NAME, REFERENCE, is_clean


@frozen(kw_only=True, eq=False, repr=False)
class NewExternalOrder(ByValue, Wire):
    """The bank's own data with an order (specification 4.1, ``external_order``).

    Args:
        current_account_balance: the customer's balance just before; may be zero or negative.
        transaction_fee: what the bank charges its customer; may be zero.
        transaction_fee_currency: 2 to 10 of ``[A-Z0-9]``.

    Raises:
        InvalidOrder: with every fault in ``.problems``.
    """

    current_account_balance: Decimal = field(converter=amounts.to_decimal, repr=False)
    transaction_fee: Decimal = field(converter=amounts.to_decimal)
    transaction_fee_currency: str = field(converter=texts.to_text)

    def __attrs_post_init__(self) -> None:
        refuse(external_order_problems(self))


@frozen(kw_only=True, eq=False, repr=False)
class NewOrder(ByValue, Wire):
    """An order to be created (specification 4.1), every field required.

    Amounts and the rate are `Decimal`; ``int`` and plain-decimal ``str`` are taken exactly,
    ``float`` is refused. ``poster_amount`` equals ``matcher_amount × exchange_rate`` to within
    half a unit of the last decimal place that ``poster_amount`` carries.

    Args:
        poster_username: e-mail of the bank's customer.
        poster_recipient_username: e-mail of the beneficiary, a registered account.
        poster_currency: 2 to 10 of ``[A-Z0-9]``.
        poster_country: two letters, upper case.
        poster_amount: what is sent, more than zero.
        poster_payment_method_type: a payment method type's name.
        matcher_currency: the receiving currency.
        matcher_country: the receiving country.
        matcher_amount: what the beneficiary receives, more than zero.
        exchange_rate: units of the poster's currency for one of the matcher's.
        external_order: the bank's own data.

    Raises:
        InvalidOrder: with every fault in ``.problems``.
    """

    poster_username: str = field(converter=texts.to_text, repr=False)
    poster_recipient_username: str = field(converter=texts.to_text, repr=False)
    poster_currency: str = field(converter=texts.to_text)
    poster_country: str = field(converter=texts.to_text)
    poster_amount: Decimal = field(converter=amounts.to_decimal)
    poster_payment_method_type: str = field(converter=texts.to_text)
    matcher_currency: str = field(converter=texts.to_text)
    matcher_country: str = field(converter=texts.to_text)
    matcher_amount: Decimal = field(converter=amounts.to_decimal)
    exchange_rate: Decimal = field(converter=amounts.to_decimal)
    external_order: NewExternalOrder

    def __attrs_post_init__(self) -> None:
        refuse(order_problems(self))

    @classmethod
    def quote(
        cls,
        *,
        poster_username: str,
        poster_recipient_username: str,
        poster_currency: str,
        poster_country: str,
        poster_payment_method_type: str,
        matcher_currency: str,
        matcher_country: str,
        matcher_amount: amounts.Exact,
        exchange_rate: amounts.Exact,
        external_order: NewExternalOrder,
        places: int = 2,
    ) -> Self:
        """Make an order whose ``poster_amount`` is worked out, half-even, to ``places`` decimals."""
        return cls(
            poster_username=poster_username,
            poster_recipient_username=poster_recipient_username,
            poster_currency=poster_currency,
            poster_country=poster_country,
            poster_amount=amounts.product(matcher_amount, exchange_rate, places=places),
            poster_payment_method_type=poster_payment_method_type,
            matcher_currency=matcher_currency,
            matcher_country=matcher_country,
            matcher_amount=matcher_amount,
            exchange_rate=exchange_rate,
            external_order=external_order,
        )


@frozen(eq=False, repr=False)
class PersonName(ByValue):
    """A person's name as the bank's customer typed it.

    Raises:
        InvalidOrder: a part is no text.
    """

    first: str = field(converter=texts.to_text, repr=False)
    last: str = field(converter=texts.to_text, repr=False)
    middle: str | None = field(default=None, converter=texts.to_optional_text, repr=False)

    def __attrs_post_init__(self) -> None:
        refuse(person_name_problems(self))


@frozen(eq=False, repr=False)
class OrderRequest(ByValue):
    """One wish to create one order, as `TransferClient.create_orders` takes it.

    ``send_before`` and ``deadline`` become times in UTC. What is wrong with any of it is said when it is
    carried out.
    """

    order: NewOrder
    key: str | None = field(default=None, converter=texts.to_optional_text)
    beneficiary: PersonName | None = None
    held: str | None = field(default=None, converter=texts.to_optional_text)
    send_before: datetime | None = field(default=None, converter=texts.to_moment)
    deadline: datetime | None = field(default=None, converter=texts.to_moment)


@frozen(eq=False, repr=False)
class OrderIntent(ByValue):
    """One wish to create one order, as hooks see it.

    Args:
        id: stable through retries and take-overs; new when a key is used again after a certain no.
        key: the caller's own id, or one the client made.
        order: what is to be created.
        beneficiary: who the customer says the beneficiary is.
        held: the reference of a hold that the bank placed itself.
        send_before: an aware time after which the order must not be sent.
    """

    id: str
    key: str
    order: NewOrder
    beneficiary: PersonName | None = None
    held: str | None = None
    send_before: datetime | None = None


Problem = tuple[str, str]
_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_CURRENCY = re.compile(r"[A-Z0-9]{2,10}")
_COUNTRY = re.compile(r"[A-Z]{2}")


def refuse(problems: Sequence[Problem] | Iterator[Problem]) -> None:
    """Raise `InvalidOrder` with all ``problems``, if there are any."""
    if found := tuple(problems):
        raise InvalidOrder(found)


def refuse_call(problems: Iterator[Problem], *, key: object) -> None:
    """Raise `InvalidOrder` with all ``problems`` of a call, if there are any.

    An earlier call with the same key may have created an order, unless this one names no valid order,
    or nothing that was ever taken for a key.
    """
    if found := tuple(problems):
        may_exist = keys.may_be_on_record(key) and "order" not in {name for name, _ in found}
        raise InvalidOrder(found, key=key if isinstance(key, str) else None, order_may_exist=may_exist)


def external_order_problems(new: NewExternalOrder) -> Iterator[Problem]:
    """Every fault of ``new`` (specification 4.1, ``external_order``)."""
    if why := number_problem(new.current_account_balance):
        yield "current_account_balance", why
    if why := number_problem(new.transaction_fee):
        yield "transaction_fee", why
    elif new.transaction_fee < 0:
        yield "transaction_fee", "is negative"
    if why := _text_problem(new.transaction_fee_currency, _CURRENCY, "2 to 10 of A-Z and 0-9"):
        yield "transaction_fee_currency", why


def order_problems(new: NewOrder) -> Iterator[Problem]:
    """Every fault of ``new`` (specification 4.1)."""
    for name, (pattern, rule) in _TEXTS.items():
        if why := _text_problem(getattr(new, name), pattern, rule):
            yield name, why
    wrong = dict(_amount_problems(new))
    yield from wrong.items()
    if not wrong and not _amounts_agree(new):
        yield (
            "poster_amount",
            "is not matcher_amount × exchange_rate to within half a unit of its last decimal place",
        )
    if not isinstance(new.external_order, NewExternalOrder):
        yield "external_order", "is not a NewExternalOrder"


def call_problems(
    *,
    order: object,
    key: object,
    beneficiary: object,
    held: object,
    send_before: object,
    deadline: object,
) -> Iterator[Problem]:
    """Every fault of what a caller passes to ``create_order``, as `OrderRequest` has made it plain."""
    if not isinstance(order, NewOrder):
        yield "order", "is not a NewOrder"
    if key is not None and (why := keys.problem(key)):
        yield "key", why
    if beneficiary is not None and not isinstance(beneficiary, PersonName):
        yield "beneficiary", "is not a PersonName"
    elif beneficiary is not None:
        yield from _name_problems(beneficiary)
    if held is not None and not (isinstance(held, str) and held.strip() and is_clean(held)):
        yield "held", "is not the reference of a hold: a text with something in it"
    elif held is not None and len(held) > REFERENCE:
        yield "held", f"is longer than {REFERENCE:,} characters"
    for name, moment in (("send_before", send_before), ("deadline", deadline)):
        if moment is not None and (why := moment_problem(moment)):
            yield name, why


def moment_problem(moment: object) -> str | None:
    """What is wrong with a moment of the wall clock, as `texts.to_moment` has made it plain."""
    if moment is None or (type(moment) is datetime and moment.tzinfo is UTC):
        return None
    return "is not a datetime with a time zone, within the years 1 to 9999 of UTC"


def person_name_problems(name: PersonName) -> Iterator[Problem]:
    """The parts of ``name`` that are no texts."""
    for part in ("first", "last", "middle"):
        value = getattr(name, part)
        if not (isinstance(value, str) or (value is None and part == "middle")):
            yield part, "is not a string"


def _name_problems(name: Any) -> Iterator[Problem]:
    for part in ("first", "last", "middle"):
        value: str = getattr(name, part) or ""
        if not is_clean(value):
            yield f"beneficiary.{part}", "holds a control character"
        elif len(value) > NAME:
            yield f"beneficiary.{part}", f"is longer than {NAME:,} characters"


_MAIL = (_EMAIL, "an e-mail address")
_CODE = (_CURRENCY, "2 to 10 of A-Z and 0-9")
_LAND = (_COUNTRY, "two letters, upper case")
_TEXTS: dict[str, tuple[re.Pattern[str] | None, str]] = {
    "poster_username": _MAIL,
    "poster_recipient_username": _MAIL,
    "poster_currency": _CODE,
    "poster_country": _LAND,
    "poster_payment_method_type": (None, "a payment method type's name"),
    "matcher_currency": _CODE,
    "matcher_country": _LAND,
}


def _amount_problems(new: NewOrder) -> Iterator[Problem]:
    for name in ("poster_amount", "matcher_amount", "exchange_rate"):
        value: Decimal = getattr(new, name)
        if why := number_problem(value):
            yield name, why
        elif value <= 0:
            yield name, "is not more than zero"


def _amounts_agree(new: NewOrder) -> bool:
    half = Decimal((0, (5,), -places(new.poster_amount) - 1))
    return not differ(
        EXACT.multiply(new.matcher_amount, new.exchange_rate), new.poster_amount, by_more_than=half
    )


def _text_problem(value: object, pattern: re.Pattern[str] | None, rule: str) -> str | None:
    if not isinstance(value, str):
        return "is not a string"
    if not is_clean(value):
        return "holds a control character"
    if not value.strip() or len(value) > 254 or (pattern is not None and not pattern.fullmatch(value)):
        return f"is not {rule}"
    return None

"""The service's words as frozen attrs classes.

Requests (``NewOrder``, ``NewExternalOrder``) are checked when they are made, all faults at once.
Responses (``Order``, ``User`` and their parts) are what the service said, typed: see
`transfer_async.converters` for how strictly each field is read.

No ``repr`` shows anything about a person: names, usernames, accounts, phones, dates, addresses.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Self

from attrs import field, fields, frozen
from msgspec import Meta

from transfer_async import checks

Timestamp = Annotated[datetime, Meta(tz=True)]
"""An aware ``datetime``, in UTC once read."""

_loose = functools.partial(field, default=None)
_quiet = functools.partial(field, default=None, repr=False)
_shapeless = functools.partial(field, default=None, repr=False, hash=False)


class Wire:
    """What every model can do: be read from the service's JSON, and written as it."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read one object from JSON, exactly.

        Raises:
            UnreadableOrder: for an ``Order`` that cannot be read as one; names the JSON path.
            InvalidOrder: for a request that is not valid.
            ServiceFailed: for anything else that cannot be read.
        """
        from transfer_async.converters import from_json  # models know nobody until they are asked

        return from_json(cls, data)

    def to_json(self) -> bytes:
        """Write the object as the service's JSON, digits kept."""
        from transfer_async.converters import to_json  # models know nobody until they are asked

        return to_json(self)


class ReadLate:
    """A model whose loose fields are read when one of them is first looked at.

    ``_late`` fills every slot that is still empty, and never raises; it goes when it has run.
    """

    __slots__ = ("_late",)
    _late: Callable[[Any], None]

    # Not for type checkers, or every misspelt field would pass them.
    if not TYPE_CHECKING:  # pragma: no branch - it runs

        def __getattr__(self, name: str) -> Any:
            if name == "_late" or name not in _field_names(type(self)):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self._late(self)
            return object.__getattribute__(self, name)


@functools.cache
def _field_names(cls: Any) -> frozenset[str]:
    return frozenset(attribute.name for attribute in fields(cls))


# --- requests (specification 4.1) -------------------------------------------------------------


@frozen(kw_only=True)
class NewExternalOrder(Wire):
    """The bank's own data with an order (specification 4.1, ``external_order``).

    Args:
        current_account_balance: the customer's balance just before; may be zero or negative.
        transaction_fee: what the bank charges its customer; may be zero.
        transaction_fee_currency: 2 to 10 of ``[A-Z0-9]``.

    Raises:
        InvalidOrder: with every fault in ``.problems``.
    """

    current_account_balance: Decimal = field(converter=checks.to_decimal, repr=False)
    transaction_fee: Decimal = field(converter=checks.to_decimal)
    transaction_fee_currency: str = field(converter=checks.to_text)

    def __attrs_post_init__(self) -> None:
        checks.refuse(checks.external_order_problems(self))


@frozen(kw_only=True)
class NewOrder(Wire):
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

    poster_username: str = field(converter=checks.to_text, repr=False)
    poster_recipient_username: str = field(converter=checks.to_text, repr=False)
    poster_currency: str = field(converter=checks.to_text)
    poster_country: str = field(converter=checks.to_text)
    poster_amount: Decimal = field(converter=checks.to_decimal)
    poster_payment_method_type: str = field(converter=checks.to_text)
    matcher_currency: str = field(converter=checks.to_text)
    matcher_country: str = field(converter=checks.to_text)
    matcher_amount: Decimal = field(converter=checks.to_decimal)
    exchange_rate: Decimal = field(converter=checks.to_decimal)
    external_order: NewExternalOrder

    def __attrs_post_init__(self) -> None:
        checks.refuse(checks.order_problems(self, external_order=NewExternalOrder))

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
        matcher_amount: checks.Exact,
        exchange_rate: checks.Exact,
        external_order: NewExternalOrder,
        places: int = 2,
    ) -> Self:
        """Make an order whose ``poster_amount`` is worked out, half-even, to ``places`` decimals."""
        return cls(
            poster_username=poster_username,
            poster_recipient_username=poster_recipient_username,
            poster_currency=poster_currency,
            poster_country=poster_country,
            poster_amount=checks.product(matcher_amount, exchange_rate, places=places),
            poster_payment_method_type=poster_payment_method_type,
            matcher_currency=matcher_currency,
            matcher_country=matcher_country,
            matcher_amount=matcher_amount,
            exchange_rate=exchange_rate,
            external_order=external_order,
        )


@frozen
class PersonName:
    """A person's name as the bank's customer typed it.

    Raises:
        InvalidOrder: a part is no text.
    """

    first: str = field(converter=checks.to_text, repr=False)
    last: str = field(converter=checks.to_text, repr=False)
    middle: str | None = field(default=None, converter=checks.to_optional_text, repr=False)

    def __attrs_post_init__(self) -> None:
        checks.refuse(checks.person_name_problems(self))


@frozen
class OrderRequest:
    """One wish to create one order, as `TransferClient.create_orders` takes it.

    ``send_before`` becomes a time in UTC. What is wrong with any of it is said when it is carried out.
    """

    order: NewOrder
    key: str | None = field(default=None, converter=checks.to_optional_text)
    beneficiary: PersonName | None = None
    held: str | None = field(default=None, converter=checks.to_optional_text)
    send_before: datetime | None = field(default=None, converter=checks.to_moment)


@frozen
class OrderIntent:
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


# --- responses (specification 2) --------------------------------------------------------------


@frozen(kw_only=True)
class Currency(Wire):
    """A currency of a user (specification 2.5)."""

    currency_code: str | None = None
    currency_name: str | None = None
    symbol: str | None = _quiet()
    flag: str | None = _quiet()
    max_amount: Decimal | None = None
    min_amount: Decimal | None = None
    steps: Decimal | None = None
    payment_types: Mapping[str, Any] | None = _shapeless()
    can_trade_with: tuple[str, ...] | None = _quiet()


@frozen(kw_only=True)
class UserOption(Wire):
    """An option of a user (specification 2.2, ``userOptions``)."""

    id: int | None = None
    user_id: str | None = None
    name: str | None = _quiet()
    description: str | None = _quiet()
    value: Mapping[str, Any] | None = _shapeless()
    created_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()


@frozen(kw_only=True)
class User(Wire):
    """A user of the service (specification 2.2); every field loose.

    ``unread`` holds the JSON paths whose values had another type than the specification says.
    """

    id: str | None = None
    email: str | None = _quiet()
    username: str | None = _quiet()
    firstname: str | None = _quiet()
    middlename: str | None = _quiet()
    lastname: str | None = _quiet()
    phone: str | None = _quiet()
    tfa_required_for_login: bool | None = _quiet()
    two_factor_verified: bool | None = _quiet()
    avatar: str | None = _quiet()
    building_number: str | None = _quiet()
    street_number: str | None = _quiet()
    address: str | None = _quiet()
    address2: str | None = _quiet()
    role: str | None = None
    country: str | None = _quiet()
    country_abbreviation: str | None = _quiet()
    timezone: str | None = _quiet()
    joined_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()
    verified_at: Timestamp | None = _quiet()
    verification_started_at: Timestamp | None = _quiet()
    email_verified_at: Timestamp | None = _quiet()
    name_verified_at: Timestamp | None = _quiet()
    dob_verified_at: Timestamp | None = _quiet()
    identity_verified_at: Timestamp | None = _quiet()
    is_active: bool | None = None
    dob: Timestamp | None = _quiet()
    gender: str | None = _quiet()
    city: str | None = _quiet()
    state: str | None = _quiet()
    zipcode: str | None = _quiet()
    mxuid: str | None = _quiet()
    can_post_offers: bool | None = None
    can_accept_offers: bool | None = None
    hear_from: str | None = _quiet()
    user_options: tuple[UserOption, ...] | None = _quiet()
    has_valid_address: bool | None = _quiet()
    currencies: tuple[Currency, ...] | None = _quiet()
    bank_options: Mapping[str, Any] | None = _shapeless()
    external_user: ExternalUser | None = _quiet()
    unread: tuple[str, ...] = field(default=(), repr=False, eq=False)


@frozen(kw_only=True)
class ExternalUser(Wire):
    """The bank's data about the poster (specification 2.4)."""

    id: int | None = None
    created_by: str | None = None
    user_id: str | None = None
    username: str | None = _quiet()
    bvn: str | None = _quiet()
    created_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()
    creator: User | None = _quiet()


@frozen(kw_only=True)
class ExternalOrder(Wire):
    """The bank's data with an order (specification 2.3); balance, fee and its currency are strict."""

    current_account_balance: Decimal = field(repr=False)
    transaction_fee: Decimal
    transaction_fee_currency: str
    id: int | None = None
    created_by: str | None = None
    order_id: str | None = None
    created_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()
    creator: User | None = _quiet()
    bank_logo: str | None = _quiet()


class OrderState(enum.Enum):
    """Where an order stands: our reading of its flags (the specification shows no transitions)."""

    CANCELLED = "cancelled"
    COMPLETED = "completed"
    CONFIRMED = "confirmed"
    MATCHED = "matched"
    ACCEPTED = "accepted"
    PROCESSING = "processing"
    UNKNOWN = "unknown"


@frozen(kw_only=True)
class Order(ReadLate, Wire):
    """An order as the service recorded it (specification 2.1).

    The first block is strict: read, checked and exact, or there is no `Order`. All else is
    loose: ``None`` where absent or of another type, with the JSON path in ``unread``.
    """

    id: str
    poster_fee: Decimal
    poster_amount: Decimal
    poster_currency: str
    matcher_amount: Decimal
    matcher_currency: str
    exchange_rate: Decimal
    is_matched: bool
    is_confirmed: bool
    is_completed: bool
    is_accepted: bool
    is_cancelled: bool
    is_processing: bool

    external_order: ExternalOrder = field(repr=False)
    user_id: str | None = _quiet()
    poster_country: str | None = _quiet()
    poster_payment_method_type: str | None = _quiet()
    posters_beneficiary_user_id: str | None = _quiet()
    matcher_country: str | None = _quiet()
    matcher_payment_method_type: str | None = _quiet()
    can_cancel_order: bool | None = _quiet()
    posted_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()
    expires_at: Timestamp | None = _quiet()
    parent_id: str | None = _quiet()
    match_id: str | None = _quiet()
    notified_is_about_to_expire_at: Timestamp | None = _quiet()
    published_at: Timestamp | None = _quiet()
    confirmed_at: Timestamp | None = _quiet()
    matched_at: Timestamp | None = _quiet()
    completed_at: Timestamp | None = _quiet()
    cancelled_at: Timestamp | None = _quiet()
    matcher_payment_completed_at: Timestamp | None = _quiet()
    probably_paid: Any = _shapeless()
    poster_payment_purpose: str | None = _quiet()
    matcher_payment_purpose: str | None = _quiet()
    user: User | None = _quiet()
    posters_beneficiary: User | None = _quiet()
    confirmed_matches: tuple[Any, ...] | None = _shapeless()
    extra_order_details: tuple[Any, ...] | None = _shapeless()
    unread: tuple[str, ...] = field(default=(), repr=False, eq=False)

    @property
    def state(self) -> OrderState:
        """The first true flag, in the order of `OrderState`."""
        for state in OrderState:
            if state is not OrderState.UNKNOWN and getattr(self, f"is_{state.value}"):
                return state
        return OrderState.UNKNOWN

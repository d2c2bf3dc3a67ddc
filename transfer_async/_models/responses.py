"""The response models: typed objects for the service's JSON."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Self

from attrs import field, fields, frozen
from msgspec import Meta

# --- base classes ------------------------------------------------------------------------------------
# Every model is read from the service's JSON and written as JSON. Optional fields are read on first access.


class Codec:
    """The functions that read and write models. `transfer_async._converters` registers the functions."""

    from_json: Callable[[type[Any], bytes | str], Any]
    to_json: Callable[[Any], bytes]


CODEC = Codec()

FLAG: Mapping[str, Any] = {"is_flag": True}
"""Metadata for a field that the service writes as 0 or 1."""


def called(name: str) -> Mapping[str, Any]:
    """Return the metadata of a field that is called ``name`` in the JSON."""
    return {"name": name}


class Wire:
    """Base class of the models, with methods that read and write the service's JSON."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Read one object from JSON. Numbers keep all their digits.

        Raises:
            UnreadableOrder: the model is ``Order``, and ``data`` cannot be read; the message contains the
                JSON path of the invalid value.
            InvalidOrder: the model is a request, and ``data`` is not valid.
            ServiceFailed: the model is a response other than ``Order``, and ``data`` cannot be read.
        """
        read: Self = CODEC.from_json(cls, data)
        return read

    def to_json(self) -> bytes:
        """Return the object in the service's JSON format. Numbers keep all their digits."""
        return CODEC.to_json(self)


class ReadLate:
    """A model that reads its optional fields only when one of them is first accessed.

    ``_late`` fills every empty slot at the first access, and never raises an error. It is then replaced by a
    function that does nothing.
    """

    __slots__ = ("_late",)
    _late: Callable[[Any], None]

    # Type checkers must not see this method, or they would accept every misspelt field.
    if not TYPE_CHECKING:  # pragma: no branch - it runs

        def __getattr__(self, name: str) -> Any:
            if name == "_late" or name not in _field_names(type(self)):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            self._late(self)
            return object.__getattribute__(self, name)


@functools.cache
def _field_names(cls: Any) -> frozenset[str]:
    return frozenset(attribute.name for attribute in fields(cls))


Timestamp = Annotated[datetime, Meta(tz=True)]
"""An aware ``datetime``; the reader converts it to UTC."""

_quiet = functools.partial(field, default=None, repr=False)
_shapeless = functools.partial(field, default=None, repr=False, hash=False)
_flag = functools.partial(field, metadata=FLAG, default=None)
_quiet_flag = functools.partial(_flag, repr=False)


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
    """A user's option (specification 2.2, ``userOptions``)."""

    id: int | None = None
    user_id: str | None = None
    name: str | None = _quiet()
    description: str | None = _quiet()
    value: Mapping[str, Any] | None = _shapeless()
    created_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()


@frozen(kw_only=True)
class User(Wire):
    """A user of the service (specification 2.2).

    A field is None if it is absent or has a type that the specification does not allow. ``unread`` lists the
    JSON paths of values with the wrong type.
    """

    id: str | None = None
    email: str | None = _quiet()
    username: str | None = _quiet()
    firstname: str | None = _quiet()
    middlename: str | None = _quiet()
    lastname: str | None = _quiet()
    phone: str | None = _quiet()
    tfa_required_for_login: bool | None = _quiet_flag()
    two_factor_verified: bool | None = _quiet_flag()
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
    is_active: bool | None = _flag()
    dob: Timestamp | None = _quiet()
    gender: str | None = _quiet()
    city: str | None = _quiet()
    state: str | None = _quiet()
    zipcode: str | None = _quiet()
    mxuid: str | None = _quiet()
    can_post_offers: bool | None = _flag()
    can_accept_offers: bool | None = _flag()
    hear_from: str | None = _quiet()
    user_options: tuple[UserOption, ...] | None = _quiet(metadata=called("userOptions"))
    has_valid_address: bool | None = _quiet()
    currencies: tuple[Currency, ...] | None = _quiet()
    bank_options: Mapping[str, Any] | None = _shapeless()
    external_user: ExternalUser | None = _quiet(metadata=called("externalUser"))
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
    creator: User | None = _quiet(metadata=called("createdBy"))


@frozen(kw_only=True)
class ExternalOrder(Wire):
    """The bank's data about an order (specification 2.3).

    The balance, the fee and the fee's currency are required. Any other field is None if it is absent or has
    the wrong type.
    """

    current_account_balance: Decimal = field(repr=False)
    transaction_fee: Decimal
    transaction_fee_currency: str
    id: int | None = None
    created_by: str | None = None
    order_id: str | None = None
    created_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()
    creator: User | None = _quiet(metadata=called("createdBy"))
    bank_logo: str | None = _quiet()


class OrderState(enum.Enum):
    """The state of an order, derived from its flags.

    The specification does not define transitions between the states.
    """

    CANCELLED = "cancelled"
    COMPLETED = "completed"
    CONFIRMED = "confirmed"
    MATCHED = "matched"
    ACCEPTED = "accepted"
    PROCESSING = "processing"
    UNKNOWN = "unknown"


_FLAGS = tuple((f"is_{state.value}", state) for state in OrderState if state is not OrderState.UNKNOWN)


@frozen(kw_only=True)
class Order(ReadLate, Wire):
    """An order as the service recorded it (specification 2.1).

    The fields from ``id`` to ``external_order`` are required: if one is missing or invalid, reading fails.
    Any other field is ``None`` if it is absent or has the wrong type. ``unread`` lists the JSON paths of
    values with the wrong type.
    """

    id: str
    poster_fee: Decimal
    poster_amount: Decimal
    poster_currency: str
    matcher_amount: Decimal
    matcher_currency: str
    exchange_rate: Decimal
    is_matched: bool = field(metadata=FLAG)
    is_confirmed: bool = field(metadata=FLAG)
    is_completed: bool = field(metadata=FLAG)
    is_accepted: bool = field(metadata=FLAG)
    is_cancelled: bool = field(metadata=FLAG)
    is_processing: bool = field(metadata=FLAG)

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
    posters_beneficiary: User | None = _quiet(metadata=called("postersBeneficiary"))
    confirmed_matches: tuple[Any, ...] | None = _shapeless(metadata=called("confirmedMatches"))
    extra_order_details: tuple[Any, ...] | None = _shapeless(metadata=called("extraOrderDetails"))
    unread: tuple[str, ...] = field(default=(), repr=False, eq=False)

    @property
    def state(self) -> OrderState:
        """The first state of `OrderState` whose flag is true, or ``UNKNOWN``."""
        for flag, state in _FLAGS:
            if getattr(self, flag):
                return state
        return OrderState.UNKNOWN


MODELS = (UserOption, Currency, ExternalUser, User, ExternalOrder, Order)
"""All models of the service's responses."""

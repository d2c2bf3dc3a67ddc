"""What the service said, typed."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from attrs import field, frozen
from msgspec import Meta

from transfer_async._models.base import FLAG, ByValue, ReadLate, Wire, called

Timestamp = Annotated[datetime, Meta(tz=True)]
"""An aware ``datetime``, in UTC once read."""

_quiet = functools.partial(field, default=None, repr=False)
_shapeless = functools.partial(field, default=None, repr=False, hash=False)
_flag = functools.partial(field, metadata=FLAG, default=None)
_quiet_flag = functools.partial(_flag, repr=False)


# --- responses (specification 2) --------------------------------------------------------------


@frozen(kw_only=True, eq=False, repr=False)
class Currency(ByValue, Wire):
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


@frozen(kw_only=True, eq=False, repr=False)
class UserOption(ByValue, Wire):
    """An option of a user (specification 2.2, ``userOptions``)."""

    id: int | None = None
    user_id: str | None = None
    name: str | None = _quiet()
    description: str | None = _quiet()
    value: Mapping[str, Any] | None = _shapeless()
    created_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()


@frozen(kw_only=True, eq=False, repr=False)
class User(ByValue, Wire):
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


@frozen(kw_only=True, eq=False, repr=False)
class ExternalUser(ByValue, Wire):
    """The bank's data about the poster (specification 2.4)."""

    id: int | None = None
    created_by: str | None = None
    user_id: str | None = None
    username: str | None = _quiet()
    bvn: str | None = _quiet()
    created_at: Timestamp | None = _quiet()
    updated_at: Timestamp | None = _quiet()
    creator: User | None = _quiet(metadata=called("createdBy"))


@frozen(kw_only=True, eq=False, repr=False)
class ExternalOrder(ByValue, Wire):
    """The bank's data with an order (specification 2.3); balance, fee and its currency are strict."""

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
    """Where an order stands: our reading of its flags (the specification shows no transitions)."""

    CANCELLED = "cancelled"
    COMPLETED = "completed"
    CONFIRMED = "confirmed"
    MATCHED = "matched"
    ACCEPTED = "accepted"
    PROCESSING = "processing"
    UNKNOWN = "unknown"


_FLAGS = tuple((f"is_{state.value}", state) for state in OrderState if state is not OrderState.UNKNOWN)


@frozen(kw_only=True, eq=False, repr=False)
class Order(ReadLate, ByValue, Wire):
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
        """The first true flag, in the order of `OrderState`."""
        for flag, state in _FLAGS:
            if getattr(self, flag):
                return state
        return OrderState.UNKNOWN


MODELS = (UserOption, Currency, ExternalUser, User, ExternalOrder, Order)
"""All that the service answers with."""

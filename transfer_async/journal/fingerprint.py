"""Which order a key is bound to: the same wish has the same fingerprint, however it is written."""

from __future__ import annotations

import hashlib
from decimal import Decimal

from transfer_async._models.amounts import EXACT
from transfer_async._models.requests import NewOrder


def fingerprint(order: NewOrder) -> str:
    """A digest of all request fields: amounts as numbers, usernames case-folded.

    ``current_account_balance`` is left out: a redelivery reads it anew.
    """
    parts = (
        order.poster_username.casefold(),
        order.poster_recipient_username.casefold(),
        order.poster_currency,
        order.poster_country,
        _number(order.poster_amount),
        order.poster_payment_method_type,
        order.matcher_currency,
        order.matcher_country,
        _number(order.matcher_amount),
        _number(order.exchange_rate),
        _number(order.external_order.transaction_fee),
        order.external_order.transaction_fee_currency,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _number(value: Decimal) -> str:
    return EXACT.to_sci_string(EXACT.normalize(value))  # in a caller's context the E may be a small one

"""The fields of an order that the sandbox accepts, usable in JSON, in files and in `NewOrder`."""

from collections.abc import Mapping
from typing import Any

EXTERNAL: Mapping[str, Any] = {
    "current_account_balance": "900000.10",
    "transaction_fee": 250,
    "transaction_fee_currency": "NGN",
}
"""The fields of ``external_order``."""

ORDER: Mapping[str, Any] = {
    "poster_username": "ada.eze@example.com",
    "poster_recipient_username": "ben.okri@example.com",
    "poster_currency": "NGN",
    "poster_country": "NG",
    "poster_amount": "155025.00",
    "poster_payment_method_type": "nigerian_bank_payment",
    "matcher_currency": "USD",
    "matcher_country": "US",
    "matcher_amount": "100.00",
    "exchange_rate": "1550.25",
}
"""The remaining fields of an order."""

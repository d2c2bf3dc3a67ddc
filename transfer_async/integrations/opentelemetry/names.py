"""What spans and metrics are called: the semantic conventions' names where there is one, else our own.

Names are strings here, not imports: the conventions come in a package of their own, for ever in beta.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "https://opentelemetry.io/schemas/1.33.0"
"""The version of the conventions that the names are taken from: the first with stable ones for databases."""

ERROR_TYPE: Final = "error.type"
METHOD: Final = "http.request.method"
STATUS: Final = "http.response.status_code"
RESENT: Final = "http.request.resend_count"
TEMPLATE: Final = "url.template"
URL: Final = "url.full"
ADDRESS: Final = "server.address"
PORT: Final = "server.port"
DB_SYSTEM: Final = "db.system.name"
DB_OPERATION: Final = "db.operation.name"

KEY: Final = "transfer_async.key"
INTENT_ID: Final = "transfer_async.intent_id"
ORDER_ID: Final = "transfer_async.order_id"
OUTCOME: Final = "transfer_async.outcome"
TAKEN_OVER: Final = "transfer_async.taken_over"
HOOK: Final = "transfer_async.hook.name"
HOOK_DURATION: Final = "transfer_async.hook.duration"
PAUSE: Final = "transfer_async.retry.pause"
WAITED: Final = "transfer_async.rate.waited"

UNRECORDED: Final = "unrecorded"
"""The outcome of a call that did not write down how it ended: its journal failed, or others were faster."""

OTHER: Final = "_OTHER"
"""The conventions' ``error.type`` for an error that has no name."""


def error_type(name: str) -> str:
    """``name`` if it is that of a class: sentences have no place in an attribute that metrics go by."""
    return name if name.isidentifier() else OTHER

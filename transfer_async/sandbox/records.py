"""What the sandbox received: one record for each request, in the order of arrival."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from attrs import define, field

from transfer_async.sandbox import wire

if TYPE_CHECKING:
    from transfer_async.sandbox.faults import Fault


@define(kw_only=True, eq=False)
class RequestRecord:
    """One request, and what became of it.

    Attributes:
        method, path, headers: as received; `headers` ignores case and holds the token.
        body: what was read of the body, at most the service's limit; empty until it has been read.
        received_at: when the head was read.
        fault: the fault that was played on it, if any.
        processed: whether the service itself looked at the request, whatever was answered.
        status: the status that was sent, `None` if no whole head was.
        order_id: the order that it created, if it did.
        finished: whether the sandbox is done with it.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    received_at: datetime
    body: bytes = field(default=b"", repr=False)
    fault: "Fault | None" = None
    processed: bool = False
    status: int | None = None
    order_id: str | None = None
    finished: bool = False

    def field_of_body(self, name: str) -> object:
        """Look up one field of the JSON body; `None` when there is none, or no JSON."""
        try:
            document = wire.read(self.body)
        except wire.BadJson:
            return None
        return document.get(name) if isinstance(document, dict) else None

    def is_for(self, *, username: str | None, amount: Decimal | None) -> bool:
        """Tell whether the body names this poster and this amount sent; `None` matches everything."""
        if username is not None and self.field_of_body("poster_username") != username:
            return False
        return amount is None or _as_decimal(self.field_of_body("poster_amount")) == amount


def _as_decimal(value: object) -> Decimal | None:
    try:
        number = Decimal(value) if isinstance(value, str | Decimal) else None
    except ArithmeticError:
        return None
    return number if number is not None and number.is_finite() else None

"""The sandbox as another service: it answers as a profile says that the service was seen to answer."""

import secrets
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from transfer_async.sandbox import ask_cases, exact_json
from transfer_async.sandbox.accounts import Account, currency_for
from transfer_async.sandbox.ask_cases import Situation
from transfer_async.sandbox.profile import IDLE, WITHIN, SeenAnswer, SeenConnection, ServiceProfile, amid
from transfer_async.sandbox.service import CREATE_ORDER_PATH, WHO_AM_I_PATH, Call, Reply, Service
from transfer_async.sandbox.validation import filled, parse

_KINDS = {"html": "text/html", "text": "text/plain", "json": "application/json"}

_GOOD: exact_json.JsonObject = {
    "poster_username": "somebody@example.com",
    "poster_recipient_username": "somebody.else@example.com",
    "poster_currency": "NGN",
    "poster_country": "NG",
    "poster_amount": "155025.00",
    "poster_payment_method_type": "nigerian_bank_payment",
    "matcher_currency": "USD",
    "matcher_country": "US",
    "matcher_amount": "100.00",
    "exchange_rate": "1550.25",
    "external_order": {
        "current_account_balance": "900000.10",
        "transaction_fee": exact_json.read(b"250"),
        "transaction_fee_currency": "NGN",
    },
}
"""What an order has in the place of what it lacks, where the profile says that it is created all the same."""


class ImitatingService(Service):
    """A `Service` that answers as a profile says; what the profile does not speak of, it answers as its own.

    An order that the service would create although a field is missing, or unfit, has a value of ours there.
    """

    def __init__(self, profile: ServiceProfile, **settings: Any) -> None:
        super().__init__(**settings)
        self._profile = profile
        self._limits = {code: (one.least, one.greatest) for code, one in profile.limits.items()}
        self._taken: dict[bytes, Reply] = {}

    def answer(self, call: Call) -> Reply:
        """Answer one call; never raises, whatever was sent."""
        name = self._name_of(call)
        seen = self._profile.answers.get(name)
        if seen is None:
            return super().answer(call)
        if name == ask_cases.WHO_AM_I and (status := _success(seen)) is not None:
            return self._dressed(evolve(super().answer(call), status=status), seen)
        if name in ask_cases.READS or seen.order == "none":
            return self._dressed(_as_seen(seen), seen)
        return self._dressed(self._ordered(call.body or b"", seen), seen)

    def _name_of(self, call: Call) -> str:
        if call.path not in (CREATE_ORDER_PATH, WHO_AM_I_PATH):
            return ask_cases.UNKNOWN_PATH
        if call.method != ("POST" if call.path == CREATE_ORDER_PATH else "GET"):
            return ask_cases.WRONG_METHOD
        if "Authorization" not in call.headers:
            return ask_cases.NO_TOKEN
        if not self.knows(call):
            return ask_cases.WRONG_TOKEN
        if call.path == WHO_AM_I_PATH:
            return ask_cases.WHO_AM_I
        asked = self._profile.answers
        return ask_cases.name_of(
            call.body or b"", Situation(asked=asked, limits=self._limits, taken=self._taken)
        )

    def _ordered(self, body: bytes, seen: SeenAnswer) -> Reply:
        """Make the order, or find the one that was made of the same body."""
        made = self._taken.get(body) if seen.order == "same" else None
        if made is None:
            made = self._taken[body] = self._made_all_the_same(body)
        if (status := _success(seen)) is not None:
            return evolve(made, status=status)
        return evolve(_as_seen(seen, order_id=made.order.id if made.order else ""), order=made.order)

    def _made_all_the_same(self, body: bytes) -> Reply:
        try:
            document = exact_json.read(body)
        except exact_json.BadJson:
            document = {}
        document = document if isinstance(document, dict) else {}
        request, problems = parse(document)
        if request is None:
            request, _ = parse(filled(document, problems, _GOOD))
        assert request is not None  # noqa: S101 - whatever was unfit is not any more
        beneficiary = self.accounts.get(request.poster_recipient_username)
        if beneficiary is None:
            beneficiary = _registered(request.poster_recipient_username, request.matcher_currency)
        return self.recorded(request, beneficiary=beneficiary)

    def _dressed(self, reply: Reply, seen: SeenAnswer) -> Reply:
        """Give a reply the headers, the time and the loss that were seen."""
        ids = self._profile.request_ids
        headers = {
            name: secrets.token_hex(8) if name in ids else value or "-"
            for name, value in seen.headers.items()
        }
        late = seen.within is not None and seen.within > WITHIN[0]
        seconds = amid(seen.within, WITHIN) if seen.within is not None and late else 0.0
        return evolve(
            reply, headers={**reply.headers, **headers}, seconds=seconds, is_lost=seen.status is None
        )


def _success(seen: SeenAnswer) -> int | None:
    """The status of an answer that gives what was asked for; None if it is no such answer."""
    return seen.status if seen.body == "json" and (seen.status or 0) // 100 == 2 else None


def _as_seen(seen: SeenAnswer, *, order_id: str = "") -> Reply:
    headers = {"Content-Type": _KINDS[seen.body]} if seen.body in _KINDS else {}
    return Reply(status=seen.status or 500, body=_body(seen, order_id), headers=headers)


def _body(seen: SeenAnswer, order_id: str) -> bytes:
    if seen.body == "html":
        return f"<html><body>{order_id}</body></html>".encode()
    if seen.body != "json":
        return b"" if seen.body == "empty" else f"As a profile says. {order_id}".encode()
    words: Mapping[str, object] = {name: {} for name in seen.fields}
    if "message" in seen.fields:
        words = {**words, "message": "Unauthorized" if seen.unauthorized else "As a profile says."}
    return exact_json.write({**words, "id": order_id} if order_id else words)


def _registered(username: str, code: str) -> Account:
    held = currency_for(code, name=username, email=username)
    return Account(username=username, firstname="-", lastname="-", currencies=(held,) if held else ())


def keep_alive_of(connection: SeenConnection | None, otherwise: float) -> float:
    """Seconds for which an idle connection is kept open, as a profile says."""
    if connection is None:
        return otherwise
    if connection.closed_by is None:
        return max(otherwise, 2 * connection.open_after)
    return amid(connection.closed_by, IDLE)

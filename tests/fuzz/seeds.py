"""The seeds: responses as the service writes them, and known ways to damage them."""

import random
from datetime import UTC, datetime

from tests.fuzz.targets import READ_INTO, SECRET, TARGETS
from tests.sandbox.wire_client import order_body
from tests.support import samples
from transfer_async.sandbox import Sandbox, wire
from transfer_async.sandbox.service import CREATE_ORDER_PATH, WHO_AM_I_PATH, Call

_STATUSES = (200, 201, 204, 302, 400, 401, 403, 408, 422, 425, 429, 451, 500, 503, 599, 0, 65535)
_HEADERS = (
    "",
    "1",
    "-1",
    "1e9",
    "9" * 50,
    "Mon, 06 May 2024 12:00:30 GMT",
    "Fri, 31 Dec 9999 23:59:59 -2359",
)


def replies() -> list[bytes]:
    """Return response bodies from the service, the sandbox and the samples."""
    secret = samples.external_user_json() | {"bvn": SECRET}
    return [
        *(samples.encode(samples.order_json(seed)) for seed in (1, 2)),
        samples.encode(samples.order_json(user=samples.user_json(externalUser=secret, phone=SECRET))),
        samples.encode(samples.user_json(3)),
        samples.encode(samples.external_order_json()),
        samples.encode(samples.currency_json()),
        samples.encode(samples.option_json()),
        *_of_the_sandbox(),
        b'{"message": "Unauthorized"}',
        b'{"message": "' + SECRET.encode() + b'", "errors": {"poster_amount": ["is odd"]}}',
        b"",
        b"null",
        b"[1, 1.5, 1e400, -0.0]",
        b"<html>not JSON</html>",
    ]


def _of_the_sandbox() -> list[bytes]:
    sandbox = Sandbox(token="t", now=lambda: datetime(2024, 5, 6, 12, tzinfo=UTC))
    headers = {"Authorization": "Bearer t", "Content-Type": "application/json"}
    created = Call(method="POST", path=CREATE_ORDER_PATH, headers=headers, body=wire.write(order_body()))
    asked = Call(method="GET", path=WHO_AM_I_PATH, headers=headers)
    refused = Call(method="POST", path=CREATE_ORDER_PATH, headers=headers, body=b"{}")
    return [sandbox._service.answer(call).body for call in (created, asked, refused)]


def inputs() -> list[bytes]:
    """Return every response for every target."""
    draw = random.Random(1)
    bodies = replies()
    made = []
    for number, target in enumerate(TARGETS):
        for body in bodies:
            if target.__name__ == "judge":
                header = draw.choice(_HEADERS).encode()
                head = (
                    bytes([draw.randrange(256)]) + draw.choice(_STATUSES).to_bytes(2) + bytes([len(header)])
                )
                made.append(bytes([number]) + head + header + body)
            elif target.__name__ == "read_into":
                made += [bytes([number, into]) + body for into in range(len(READ_INTO))]
            else:
                made.append(bytes([number]) + body)
    return made

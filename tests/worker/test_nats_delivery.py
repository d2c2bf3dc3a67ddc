"""What a line of NATS reads of a message, and what it sends along with an outcome, without a server."""

from types import SimpleNamespace

import pytest
from nats.aio.msg import Msg
from nats.errors import NotJSMessageError

from tests.support.cases import each
from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import Outcome
from transfer_async.integrations.faststream.line import WorkerSettings
from transfer_async.integrations.faststream.nats import NatsDelivery, NatsLine

AT_HOME = "$JS.ACK.TRANSFER_COMMANDS.transfer-workers.7.81.92.1790000000000000000.3"
IN_A_DOMAIN = "$JS.ACK.hub.acc-hash.TRANSFER_COMMANDS.transfer-workers.7.81.92.1790000000000000000.3"


def delivery(reply: str) -> NatsDelivery:
    line = NatsLine(None, WorkerSettings())
    return NatsDelivery(line, Msg(_client=None, subject="transfer.commands", reply=reply, data=b"{}"))


@each("reply", [AT_HOME, IN_A_DOMAIN, f"{IN_A_DOMAIN}.random"])
def test_how_often_it_was_delivered_is_what_the_client_itself_reads(reply):
    one = delivery(reply)

    assert one.deliveries == one._message.metadata.num_delivered == 7


@each("reply", ["", "_INBOX.a.b.c.d.e.f.g.h", AT_HOME.removesuffix(".3")])
def test_what_no_stream_has_delivered_has_no_count(reply):
    with pytest.raises(NotJSMessageError):
        _ = delivery(reply).deliveries


class Recorder:
    """A broker that keeps what is published."""

    def __init__(self) -> None:
        self.published: list[dict[str, object]] = []

    async def connect(self) -> SimpleNamespace:
        return SimpleNamespace(max_payload=1 << 20)

    async def publish(self, _body: bytes, _subject: str, **told: object) -> None:
        self.published.append(told)


@each(
    ("headers", "about"),
    [
        ({}, "intent-7"),
        ({"traceparent": "00-1-2-01"}, "intent-7"),
        ({"correlation_id": "the bank's"}, "the bank's"),
    ],
)
async def test_an_outcome_belongs_to_its_intent_however_often_it_is_told(headers, about):
    line = NatsLine(Recorder(), WorkerSettings())
    line._streams[line.settings.outcomes] = "OUTCOMES"
    outcome = OrderOutcome(key="k", intent_id="intent-7", outcome=Outcome.CREATED, order_may_exist=True)
    await line.publish(outcome, headers)
    (told,) = line.broker.published

    assert (told["correlation_id"], told["headers"]["correlation_id"]) == (about, about)

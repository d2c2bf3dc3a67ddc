"""The NATS broker's reading of messages and publishing of outcomes, without a server."""

from types import SimpleNamespace
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.errors import NotJSMessageError

from tests.support.cases import each
from transfer_async._converters.messages import EndOfDoubt, OrderOutcome
from transfer_async._models.errors import Outcome
from transfer_async._models.responses import OrderState
from transfer_async.integrations.faststream.broker import WorkerSettings
from transfer_async.integrations.faststream.nats import JetStreamBroker, NatsDelivery

AT_HOME = "$JS.ACK.TRANSFER_COMMANDS.transfer-workers.7.81.92.1790000000000000000.3"
IN_A_DOMAIN = "$JS.ACK.hub.acc-hash.TRANSFER_COMMANDS.transfer-workers.7.81.92.1790000000000000000.3"


def delivery(reply):
    line = JetStreamBroker(None, WorkerSettings())
    return NatsDelivery(line, Msg(_client=None, subject="transfer.commands", reply=reply, data=b"{}"))


@each("reply", [AT_HOME, IN_A_DOMAIN, f"{IN_A_DOMAIN}.random"])
def test_the_delivery_count_equals_the_nats_clients(reply):
    one = delivery(reply)

    assert one.deliveries == one._message.metadata.num_delivered == 7


@each("reply", ["", "_INBOX.a.b.c.d.e.f.g.h", AT_HOME.removesuffix(".3")])
def test_a_message_from_no_stream_has_no_delivery_count(reply):
    with pytest.raises(NotJSMessageError):
        _ = delivery(reply).deliveries


class Publisher:
    """A stream's client, or FastStream's broker, that records what is published."""

    def __init__(self):
        self.published: list[dict[str, Any]] = []

    async def publish(self, *_what, **message):
        self.published.append(message)


class Broker(Publisher):
    """A FastStream broker on top of the recording client."""

    def __init__(self, *middlewares):
        super().__init__()
        self.middlewares = middlewares
        self.client = Publisher()

    async def connect(self):
        return SimpleNamespace(max_payload=1 << 20, jetstream=lambda timeout: self.client)


NEW = OrderState.UNKNOWN
OUTCOME = {
    "key": "k",
    "intent_id": "intent-7",
    "outcome": Outcome.CREATED,
    "order_may_exist": True,
}


def given_back(**changes):
    """Return the outcome that is published for a redelivered command."""
    return OrderOutcome(**OUTCOME, order_id="tx-1", **changes)


def ended(**changes):
    """Return the outcome that a sweeper publishes."""
    return EndOfDoubt(**{**OUTCOME, "order_id": "tx-1", "ended_at": 1.0, **changes})


def in_doubt():
    """Return the outcome that is published for a doubt."""
    return OrderOutcome(**{**OUTCOME, "outcome": Outcome.UNKNOWN}, error="OutcomeUnknown")


def suspected(**changes):
    """Return the outcome of a suspected duplicate whose sender does not know its own outcome."""
    unknown = {"outcome": Outcome.UNKNOWN, "order_id": None, "error": "DuplicateSuspected"}
    return ended(**{**unknown, **changes})


def refuted(**changes):
    """Return the outcome that is published for a refutation."""
    return ended(**{"outcome": Outcome.REFUSED, "order_may_exist": False, "order_id": None, **changes})


async def published(broker, headers, outcome=None):
    line = JetStreamBroker(broker, WorkerSettings())
    line._streams[line.settings.outcomes] = "OUTCOMES"
    await line.publish(outcome or OrderOutcome(**OUTCOME), headers)


@each(
    ("headers", "about"),
    [
        ({}, "intent-7"),
        ({"traceparent": "00-1-2-01"}, "intent-7"),
        ({"correlation_id": "the bank's"}, "the bank's"),
    ],
)
async def test_an_outcome_is_correlated_by_its_intent_or_by_the_commands_header(headers, about):
    broker = Broker()
    await published(broker, headers)
    (message,) = broker.client.published

    assert message["headers"].items() >= {"correlation_id": about, **headers}.items()
    assert broker.published == []


@each(
    ("first", "second", "is_the_same"),
    [
        (ended(), ended(), True),
        (ended(), ended(ended_at=2.0), False),  # the id was amended and amended back
        (ended(ended_at=None), ended(ended_at=None), False),  # the id may or may not have been amended
        # Between two deliveries of the command, the id was amended and amended back.
        (given_back(), given_back(), False),
        # An id that the service confirmed is never amended.
        (given_back(state=NEW), given_back(state=NEW), True),
        (ended(state=NEW), given_back(state=NEW), True),
        (in_doubt(), in_doubt(), True),
        (in_doubt(), suspected(), False),  # the doubt ended between the two outcomes
        (suspected(), suspected(), True),
        (suspected(), suspected(ended_at=2.0), False),
        (suspected(ended_at=None), suspected(ended_at=None), False),
        (ended(), suspected(outcome=Outcome.CREATED, order_id="tx-1"), False),
        (refuted(), refuted(), True),
        (refuted(), refuted(ended_at=2.0), False),  # suspected once more, then refuted again
        (refuted(ended_at=None), refuted(ended_at=None), True),
    ],
)
async def test_outcomes_share_a_message_id_only_if_no_other_can_lie_between(first, second, is_the_same):
    broker = Broker()
    for outcome in (first, second):
        await published(broker, {}, outcome)
    before, after = (message["headers"].get("Nats-Msg-Id", object()) for message in broker.client.published)

    assert (before == after) is is_the_same


async def test_the_middlewares_of_a_broker_see_what_is_published():
    broker = Broker(object())
    await published(broker, {})
    (message,) = broker.published

    assert (message["correlation_id"], message["headers"]["correlation_id"]) == ("intent-7", "intent-7")
    assert (message["stream"], broker.client.published) == ("OUTCOMES", [])


async def test_a_command_without_correlation_id_gets_a_new_one():
    broker = Broker()
    line = JetStreamBroker(broker, WorkerSettings())
    for _ in range(2):
        await line.send(line.settings.commands, b"{}", {})
    first, second = (message["headers"]["correlation_id"] for message in broker.client.published)

    assert first
    assert first != second


def test_delayed_messages_of_nats_do_not_block_others():
    """NATS counts them as pending. With its default limit of 1,000, it would deliver nothing else."""
    consumer = JetStreamBroker(None, WorkerSettings())._consumer()

    assert (consumer.max_deliver, consumer.max_ack_pending) == (-1, -1)

"""Workers that use FastStream to read commands from NATS JetStream or Redis Streams.

Under the layering rules, this package may import the worker and the layers below it, but not the sandbox.
"""

from transfer_async.integrations.faststream.broker import Broker, WorkerSettings, broker_at
from transfer_async.integrations.faststream.worker import OrderWorker

__all__ = ["Broker", "OrderWorker", "WorkerSettings", "broker_at"]

line_at = broker_at
"""The former name of `broker_at`. It will be removed in version 1.0."""

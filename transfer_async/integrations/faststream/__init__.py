"""Workers on NATS JetStream and Redis Streams, through FastStream.

It knows the worker and below, never the sandbox.
"""

from transfer_async.integrations.faststream.broker import line_at
from transfer_async.integrations.faststream.line import Line, WorkerSettings
from transfer_async.integrations.faststream.worker import OrderWorker

__all__ = ["Line", "OrderWorker", "WorkerSettings", "line_at"]

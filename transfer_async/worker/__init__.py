"""Workers that take commands from any message broker.

This package decides what to do with each message and in which order. It may import the client and the layers
below it. A `Delivery` connects it to one broker. Banks may write their own.
"""

from transfer_async.worker.consumer import Delivery, Health, Measure, Sweeper, Worker
from transfer_async.worker.disposition import Action, Delays, Disposition, disposition
from transfer_async.worker.handler import Handled, Handler

__all__ = [
    "Action",
    "Delays",
    "Delivery",
    "Disposition",
    "Handled",
    "Handler",
    "Health",
    "Measure",
    "Sweeper",
    "Worker",
    "disposition",
]

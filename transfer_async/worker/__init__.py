"""Workers that take commands from any message broker.

This package defines how a worker processes a message, step by step. A `Delivery` connects the package to a
broker; you can write a `Delivery` for your own broker. Under the layering rules, the package may import the
client and the layers below it.
"""

from transfer_async.worker.consumer import Delivery, Health, Measure, Sweeper, Worker
from transfer_async.worker.handler import Action, Delays, Disposition, Handled, Handler, disposition

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

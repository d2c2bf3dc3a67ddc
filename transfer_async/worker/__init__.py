"""Workers that take commands from any message broker.

This package decides which steps to take for each message, and in which order. A `Delivery` connects it to a
particular broker; you can write one for your own broker. The package may import the client and the layers
below it.
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

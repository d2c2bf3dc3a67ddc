"""Workers that take commands from any message broker: what to do with each message, and in which order.

This package may import the client and everything below it. What differs between brokers is a `Delivery`,
from `transfer_async.integrations` or from a bank's own code.
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

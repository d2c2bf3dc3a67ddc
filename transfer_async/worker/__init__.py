"""Taking commands from a message broker, whichever it is: what is done with each message, and in which order.

It knows the client and below. What one broker does differently is a `Delivery`, and stands in
`transfer_async.integrations`, or in a bank's own code.
"""

from transfer_async.worker.consumer import Delivery, Health, Worker
from transfer_async.worker.disposition import Action, Delays, Disposition, disposition
from transfer_async.worker.handler import Handled, Handler
from transfer_async.worker.outbox import Sweeper

__all__ = [
    "Action",
    "Delays",
    "Delivery",
    "Disposition",
    "Handled",
    "Handler",
    "Health",
    "Sweeper",
    "Worker",
    "disposition",
]

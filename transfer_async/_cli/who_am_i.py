"""Who the caller is, asked of the service that the environment names."""

from __future__ import annotations

import json

from transfer_async._cli.console.output import in_one_line, shown
from transfer_async._client import TransferClient
from transfer_async._models.errors import ConnectionFailed, TransferError, Unauthorized
from transfer_async._models.responses import User
from transfer_async.journal.memory import MemoryJournal

_ADVICE: dict[type[TransferError], str] = {
    Unauthorized: "is TRANSFER_API_TOKEN the token of this service?",
    ConnectionFailed: "is the service at TRANSFER_BASE_URL up?",
}


def client_from_env() -> TransferClient:
    """A client that only reads: it leaves the journal that the environment may name alone.

    Raises:
        ValueError: a variable is missing or wrong; the message does not show the token.
    """
    return TransferClient.from_env(journal=MemoryJournal())


async def ask(client: TransferClient) -> User:
    """Ask who the caller is, and close the client."""
    async with client:
        return await client.who_am_i()


def as_json(user: User) -> str:
    """``user`` as one line of JSON: ``id``, ``username``, ``role``, ``active``; null where not said."""
    told = {"id": user.id, "username": user.username, "role": user.role, "active": user.is_active}
    return json.dumps(told)


def as_lines(user: User) -> list[str]:
    """``user`` as four lines for people."""
    active = {True: "yes", False: "no", None: "-"}[user.is_active]
    return [
        f"id        {shown(user.id)}",
        f"username  {shown(user.username)}",
        f"role      {shown(user.role)}",
        f"active    {active}",
    ]


_NOT_THERE = "is TRANSFER_BASE_URL right, with the path before /api/api/v1 if there is one, and no more?"


def explained(error: Exception) -> str:
    """``error`` in one line, with what to look at where that is known."""
    advice = next((said for kind, said in _ADVICE.items() if isinstance(error, kind)), None)
    if getattr(error, "status", None) in (404, 405) and not isinstance(error, Unauthorized):
        advice = _NOT_THERE
    told = in_one_line(error)
    return f"{told}; {advice}" if advice else told

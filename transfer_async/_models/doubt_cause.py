"""Why a key is in doubt: kept with the key, for whoever has to end the doubt; nothing about a person."""

from __future__ import annotations

from attrs import frozen

from transfer_async._models.base import ByValue
from transfer_async._models.errors import Attempt, CauseKind

KEPT_ATTEMPTS = 20
"""How many attempts are kept, the last ones: a policy may allow any number."""

_WORDS = {
    CauseKind.NO_ANSWER: "no answer came",
    CauseKind.CUT_ANSWER: "the answer broke off",
    CauseKind.STATUS: "the answer's status says nothing of the order",
    CauseKind.UNREADABLE_ANSWER: "the answer is not readably the order",
    CauseKind.SECOND_ANSWER: "more than one answer came",
    CauseKind.ABANDONED: "the process ended after the mark",
    CauseKind.CLOSED: "the client was closed before the answer came",
    CauseKind.TAKEN_BACK: "the order's id was taken back",
}


@frozen(kw_only=True, eq=False, repr=False)
class Cause(ByValue):
    """Why a key is in doubt.

    Args:
        kind: see `CauseKind`.
        status: the HTTP status of the last answer, where one came.
        error: the class name of what went wrong beneath, where something did.
        candidate: the id of an order that the answer names, although it is not readably ours.
        attempts: the HTTP attempts of the call, oldest first; none where the process left no word.
    """

    kind: CauseKind
    status: int | None = None
    error: str | None = None
    candidate: str | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def told(self) -> str:
        """The same in a line of words."""
        facts = [] if self.status is None else [f"status {self.status}"]
        if self.attempts and (last := self.attempts[-1]).request_id is not None:
            facts.append(f"request {last.request_id}")
        if self.error is not None:
            facts.append(self.error)
        words = _WORDS[self.kind] + (f" ({', '.join(facts)})" if facts else "")
        return words if self.candidate is None else f"{words}; the answer names {self.candidate}"

"""The rules that a bank's hooks must keep: what each says, what it costs to break it, and what helps."""

from __future__ import annotations

from attrs import field, frozen


@frozen
class HookRule:
    """One rule.

    Args:
        name: a short one, for code.
        says: the rule.
        costs: what happens to the bank where it is broken.
        helps: what a right hook does.
    """

    name: str
    says: str
    costs: str
    helps: str


REFERENCE = HookRule(
    "reference",
    "place returns the reference of the hold: a text with something in it.",
    "Without one the client calls the hold a failure, and no order is sent.",
    "Return what your ledger calls the hold.",
)
HELD = HookRule(
    "held",
    "What place has answered stands in the ledger.",
    "The order is sent, and the customer spends the money meanwhile.",
    "Commit before you return; or let held() look where place writes.",
)
ASKED_AGAIN = HookRule(
    "asked-again",
    "Asked again for the same intent.id, place gives the same hold back: it neither fails nor holds again.",
    "After a crash, a time-out or a lost answer the client asks again: the money is held twice, or the "
    "payment is stuck.",
    "Look for the intent.id first, in the same transaction, or make it a unique key of your holds.",
)
AT_ONCE = HookRule(
    "at-once",
    "Two workers that ask at once for the same intent.id get one hold.",
    "A slow worker whose lease ran out is still at work when another takes over: the money is held twice.",
    "Let the ledger decide, by a unique key on intent.id: between a look and a write another may write.",
)
BY_INTENT = HookRule(
    "by-intent",
    "A hold belongs to the intent.id. Two intents of one key are two wishes, each with a hold of its own.",
    "A payment that was refused and is tried again goes out without a hold, or its hold is released "
    "under it.",
    "Use intent.id wherever you use intent.key or the customer.",
)
RELEASED = HookRule(
    "released",
    "After release nothing stands for the intent.id.",
    "The order does not exist, and the customer's money stays held.",
    "Release every hold of the intent.id, and raise if that failed: the client comes again.",
)
NO_RECEIPT = HookRule(
    "no-receipt",
    "release(intent, None) finds the hold by intent.id.",
    "place was cut off, so nobody has the reference: the customer's money stays held.",
    "Find the hold by intent.id; the reference only makes it quicker.",
)
NOTHING_TO_RELEASE = HookRule(
    "nothing-to-release",
    "release of what was never placed, or is released already, succeeds and changes nothing.",
    "The undo stays owed for ever, and is tried again and again.",
    "Take 'there is none' for done.",
)
PAID_BACK = HookRule(
    "paid-back",
    "release pays back what was held, and pays it once: where nothing is held, it moves no money.",
    "An undo comes twice, or where nothing was placed: the customer has money that is not there, or has lost "
    "some.",
    "Pay back in the transaction that takes the hold away, and only if it took one away.",
)
OTHERS = HookRule(
    "others",
    "release touches no hold but its own intent's.",
    "The money of another payment is let go while its order is on the way.",
    "Release by intent.id, not by customer, key or amount.",
)
CUT_OFF = HookRule(
    "cut-off",
    "A hook may be cancelled at any await; what comes next, place again or release, makes it right.",
    "After a time-out or a shutdown the money is held twice, stays held, or the payment is stuck.",
    "One statement of the ledger that holds and names the intent.id; no half-way state in between.",
)
TOO_LATE = HookRule(
    "too-late",
    "A hold whose place was cut off does not arrive later, behind its release.",
    "The release found nothing, then the hold came: the customer's money stays held, and nobody knows.",
    "Send place and release down one queue; or let release leave a mark on intent.id that place obeys.",
)
VOUCHED = HookRule(
    "vouched",
    "A place that raises HoldFailed (or PreflightFailed) has held nothing: it vouches for that.",
    "The client does not release what was vouched for: the money stays held.",
    "Raise HoldFailed only where the ledger said no; let everything else through as it is.",
)
NEW_WORKER = HookRule(
    "new-worker",
    "A worker that was started anew knows the holds of the one before.",
    "After a crash the money is held a second time, or cannot be released.",
    "Keep what place and release need in the ledger, not in the worker's memory.",
)
COMES_BACK = HookRule(
    "comes-back",
    "A hook ends, also where two are called at once, or after one was cut off.",
    "The payment waits until the client's own time-out, each time.",
    "Look for a lock or a connection that a cancelled hook did not give back.",
)
CHECKS = HookRule(
    "checks",
    "Any other hook may be asked twice, and undone twice, also where it never ran.",
    "The payment is stuck, or the undo stays owed for ever.",
    "Make both halves idempotent by intent.id.",
)


@frozen(kw_only=True)
class BrokenRule:
    """One rule that was seen broken.

    Args:
        rule: which.
        trial: in which trial.
        did: what was done, step by step.
        saw: what came of it.
        more: in how many other trials it was seen, too.
    """

    rule: HookRule
    trial: str
    did: tuple[str, ...]
    saw: str
    more: int = 0

    def __str__(self) -> str:
        steps = "\n".join(
            f"{'  did    ' if at == 0 else '         '}{step}" for at, step in enumerate(self.did)
        )
        also = f" (and {self.more} more)" if self.more else ""
        return (
            f"BROKEN   {self.rule.says}\n"
            f"  trial  {self.trial}{also}\n"
            f"{steps}\n"
            f"  saw    {self.saw}\n"
            f"  costs  {self.rule.costs}\n"
            f"  helps  {self.rule.helps}"
        )


@frozen(kw_only=True)
class HookReport:
    """What became of the trials of a bank's hooks; it reads as text.

    Args:
        broken: the rules that were broken, each with the shortest way to it; none if the hooks are right.
        tried: how many trials there were.
        notes: what could not be tried, and why.
        seed: gives the same sequences again.
    """

    broken: tuple[BrokenRule, ...] = ()
    tried: int
    notes: tuple[str, ...] = field(default=())
    seed: int

    def check(self) -> None:
        """Fail a test if a rule was broken.

        Raises:
            AssertionError: says which, and how.
        """
        if self.broken:
            raise AssertionError(f"the hooks break {len(self.broken)} of the rules\n\n{self}")

    def __str__(self) -> str:
        notes = [f"note     {note}" for note in self.notes]
        ends = "all rules kept" if not self.broken else f"{len(self.broken)} rules broken"
        last = f"{ends}, in {self.tried} trials (seed {self.seed})"
        return "\n\n".join([*map(str, self.broken), "\n".join([*notes, last])])

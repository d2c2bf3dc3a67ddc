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
        after: more basic rules. While one of them is broken, this one is not reported: the fault is the same.
    """

    name: str
    says: str
    costs: str
    helps: str
    after: tuple[HookRule, ...] = ()


PLACES = HookRule(
    "places",
    "place holds the funds for an order that the customer can pay.",
    "No order is sent.",
    "See the error. The ledger for tests must have room for six holds of the factory's `order`.",
)
REFERENCE = HookRule(
    "reference",
    "place returns the reference of the hold: a text that is not empty. Another hook returns a text or None.",
    "The client takes the hold for a failure, and no order is sent.",
    "Return what your ledger calls the hold. Raise HoldFailed if the ledger refused.",
)
HELD = HookRule(
    "held",
    "When place returns, its hold stands in the ledger.",
    "The order is sent without a hold: the customer spends the money meanwhile.",
    "Raise HoldFailed if the ledger refused. Commit before you return. Use intent.id as the idempotency key: "
    "an old key gives back an old answer. Let held() read what place writes.",
)
RELEASED = HookRule(
    "released",
    "When release returns, nothing stands for the intent.id.",
    "The client takes the release for done: there is no order, and the customer's money stays held.",
    "Release every hold of the intent.id. Raise if that failed or was cut off: the client tries again.",
    after=(HELD,),
)
ASKED_AGAIN = HookRule(
    "asked-again",
    "One intent.id has one hold: asked again, place gives it back, and neither fails nor holds again.",
    "After a crash, a time-out or a lost answer the client asks again: the money is held twice, or the "
    "payment is stuck.",
    "Look for the intent.id first, in the same transaction, or make it a unique key of your holds.",
    after=(HELD,),
)
BY_INTENT = HookRule(
    "by-intent",
    "A hold belongs to the intent.id. Two intents of one key are two wishes, each with a hold of its own.",
    "A payment that was refused and is tried again is sent without a hold, or its hold is released under it.",
    "Use intent.id wherever you use intent.key, the customer or the amount.",
    after=(HELD, RELEASED, ASKED_AGAIN),
)
AT_ONCE = HookRule(
    "at-once",
    "Calls at once do what they do one after the other: one hold for each intent.id, however many ask.",
    "A slow worker whose lease ran out is still at work when another takes over: the money is held twice, or "
    "an order is sent without a hold.",
    "Let the ledger decide, by a unique key on intent.id: between a look and a write another call may write.",
    after=(HELD, RELEASED, ASKED_AGAIN, BY_INTENT),
)
NO_RECEIPT = HookRule(
    "no-receipt",
    "release(intent, None) finds the hold by intent.id.",
    "place was cut off, so nobody has the reference: the customer's money stays held.",
    "Find the hold by intent.id; the reference only makes it quicker.",
    after=(HELD, RELEASED),
)
NOTHING_TO_RELEASE = HookRule(
    "nothing-to-release",
    "release of what was never placed, or is released already, succeeds and changes nothing.",
    "The undo stays pending for ever, and is tried again and again.",
    "Take 'there is none' for done.",
    after=(HELD, RELEASED, NO_RECEIPT),
)
OTHERS = HookRule(
    "others",
    "release touches no hold but its own intent's.",
    "The money of another payment is let go while its order is on the way.",
    "Release by intent.id, not by customer, key or amount.",
    after=(HELD, RELEASED, BY_INTENT, NO_RECEIPT),
)
PAID_BACK = HookRule(
    "paid-back",
    "place takes the money once, and release pays back exactly that, once; where nothing is held, it moves "
    "none.",
    "The customer has money that is not there, or has lost some.",
    "Move the money in the transaction that adds or removes the hold, and only if it added or removed one.",
    after=(HELD, RELEASED, ASKED_AGAIN, BY_INTENT, AT_ONCE, NO_RECEIPT, OTHERS),
)
NEW_WORKER = HookRule(
    "new-worker",
    "A worker that was started anew knows the holds of the one before.",
    "After a crash the money is held a second time, or cannot be released.",
    "Keep what place and release need in the ledger, not in the worker's memory.",
    after=(HELD, RELEASED, ASKED_AGAIN, NO_RECEIPT, NOTHING_TO_RELEASE),
)
VOUCHED = HookRule(
    "vouched",
    "A place that raises HoldFailed (or PreflightFailed) has held nothing: it vouches for that.",
    "The client does not release what was vouched for: the money stays held.",
    "Raise HoldFailed only where the ledger said no. Let a time-out or a lost connection through as it is.",
)
RETRIES = HookRule(
    "retries",
    "A hook that tries again by itself, because an answer was lost, holds no more than once.",
    "The ledger had acted, and only its answer was lost: the money is held twice.",
    "Send the intent.id as the idempotency key of every try, never a new one.",
)
CUT_OFF = HookRule(
    "cut-off",
    "A hook may be cut off at any await; what comes next, place again or release, makes it right.",
    "After a time-out or a shutdown the money is held twice, stays held, or the payment is stuck.",
    "One statement of the ledger that holds and names the intent.id; no half-way state in between.",
    after=(HELD, RELEASED, VOUCHED, RETRIES),
)
TOO_LATE = HookRule(
    "too-late",
    "A hold whose place was cut off does not arrive later, behind its release.",
    "The release found nothing, then the hold came: the customer's money stays held, and nobody knows.",
    "Send place and release down one queue; or let release leave a mark on intent.id that place obeys.",
    after=(HELD, RELEASED, VOUCHED, RETRIES),
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
    "The payment is stuck, or the undo stays pending for ever.",
    "Make both halves idempotent by intent.id.",
)


_LETTERS = "A, B, ... are intents, each a wish to create one order; place(A) asks your hook to hold for A"


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
        steps = "  did    " + "\n         ".join(self.did or ("nothing",))
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
            raise AssertionError(f"the hooks break {_rules(len(self.broken))}\n\n{self}")

    def __str__(self) -> str:
        notes = [f"note     {note}" for note in (*[_LETTERS] * bool(self.broken), *self.notes)]
        ends = f"{_rules(len(self.broken))} broken" if self.broken else "all rules kept"
        last = f"{ends}, in {self.tried} trials (seed {self.seed})"
        return "\n\n".join([*map(str, self.broken), "\n".join([*notes, last])])


def _rules(count: int) -> str:
    return "1 rule" if count == 1 else f"{count} rules"

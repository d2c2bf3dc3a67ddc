"""The rules that a bank's hooks must follow, each with the cost of breaking it and the fix."""

from __future__ import annotations

from attrs import field, frozen


@frozen
class HookRule:
    """One rule for hooks.

    Args:
        name: a short name for use in code.
        says: the rule as a sentence.
        costs: what happens to the bank if the rule is broken.
        helps: how to fix the hook.
        after: the rules to fix before this rule. If one of them is broken too, the report omits this rule,
            because one fault probably breaks both.
    """

    name: str
    says: str
    costs: str
    helps: str
    after: tuple[HookRule, ...] = ()


PLACES = HookRule(
    "places",
    "`place` holds the funds if the customer can pay for the order.",
    "No order is sent.",
    "See the error. The account in your test ledger needs enough funds for six holds, each for the "
    "factory's `order`.",
)
REFERENCE = HookRule(
    "reference",
    "place returns the reference of the hold as a non-empty string. Another hook returns a string or None.",
    "The client treats the hold as failed, and no order is sent.",
    "Return the ledger's own reference for the hold. Raise HoldFailed if the ledger refused.",
)
HELD = HookRule(
    "held",
    "When place returns, its hold is in the ledger.",
    "The order is sent without a hold, so the customer can spend the money in the meantime.",
    "Raise HoldFailed if the ledger refused. Commit before you return. Use intent.id as the idempotency key, "
    "because a reused key returns its earlier result. Let held() read the data that place "
    "writes.",
)
RELEASED = HookRule(
    "released",
    "When release returns, no hold is left for the intent.id.",
    "The client records the release as done: there is no order, and the customer's money stays held.",
    "Release every hold placed for this intent.id. Raise an error if the release failed or was cancelled, so "
    "that the client retries.",
    after=(HELD,),
)
ASKED_AGAIN = HookRule(
    "asked-again",
    "One intent.id has one hold. A second call of place returns the same hold, without an error.",
    "After a crash, a timeout or a lost response, the client calls place again: the money is held twice, or "
    "the payment is stuck.",
    "First look for a hold with the intent.id in the same transaction, or put a unique constraint "
    "on intent.id.",
    after=(HELD,),
)
BY_INTENT = HookRule(
    "by-intent",
    "A hold belongs to an intent.id. Two intents with the same key have separate holds.",
    "After a refusal, the second attempt at a payment is sent without a hold, or loses its hold.",
    "Use intent.id instead of intent.key, the customer or the amount.",
    after=(HELD, RELEASED, ASKED_AGAIN),
)
AT_ONCE = HookRule(
    "at-once",
    "Concurrent calls have the same result as calls in sequence: one hold for each intent.id.",
    "A slow worker may still run when another takes over its lease: the money is held twice, or an "
    "order is sent without a hold.",
    "Put a unique constraint on intent.id in the ledger, because another call may write between your read "
    "and your write.",
    after=(HELD, RELEASED, ASKED_AGAIN, BY_INTENT),
)
NO_RECEIPT = HookRule(
    "no-receipt",
    "release(intent, None) finds the hold by intent.id.",
    "place was cancelled, so its reference is lost: the customer's money stays held.",
    "Find the hold by intent.id; the reference only makes the search faster.",
    after=(HELD, RELEASED),
)
NOTHING_TO_RELEASE = HookRule(
    "nothing-to-release",
    "release of a hold that was never placed, or is already released, succeeds and changes nothing.",
    "The undo stays pending forever and is retried again and again.",
    "If there is no hold, return without an error.",
    after=(HELD, RELEASED, NO_RECEIPT),
)
OTHERS = HookRule(
    "others",
    "release changes only the hold of its own intent.",
    "The hold of another payment is released while its order is being sent.",
    "Release by intent.id, not by customer, key or amount.",
    after=(HELD, RELEASED, BY_INTENT, NO_RECEIPT),
)
PAID_BACK = HookRule(
    "paid-back",
    "place takes the money once. release pays back the same amount once. Without a hold, release moves no "
    "money.",
    "The customer's balance is too high or too low.",
    "Move the money in the transaction that adds or removes the hold, and only if the hold changed.",
    after=(HELD, RELEASED, ASKED_AGAIN, BY_INTENT, AT_ONCE, NO_RECEIPT, OTHERS),
)
NEW_WORKER = HookRule(
    "new-worker",
    "A restarted worker finds the holds of the previous worker.",
    "After a crash the money is held a second time, or cannot be released.",
    "Store the data that place and release need in the ledger, not in the worker's memory.",
    after=(HELD, RELEASED, ASKED_AGAIN, NO_RECEIPT, NOTHING_TO_RELEASE),
)
VOUCHED = HookRule(
    "vouched",
    "If place raises HoldFailed (or PreflightFailed), it has placed no hold.",
    "After HoldFailed or PreflightFailed, the client releases nothing: the money stays held.",
    "Raise HoldFailed only if the ledger refused. Do not catch a timeout or a lost connection.",
)
RETRIES = HookRule(
    "retries",
    "A hook that retries by itself after a lost response places no more than one hold.",
    "The first request succeeded and only its response was lost: the money is held twice.",
    "Send intent.id as the idempotency key of every attempt. Never create a new key.",
)
CUT_OFF = HookRule(
    "cut-off",
    "A hook may be cancelled at any await. The next call of place or release completes its work.",
    "After a timeout or a shutdown, the money is held twice, the money stays held, or the payment is stuck.",
    "Place the hold and record its intent.id in one statement or transaction of the ledger.",
    after=(HELD, RELEASED, VOUCHED, RETRIES),
)
TOO_LATE = HookRule(
    "too-late",
    "If place is cancelled, its hold does not appear later, after release has run.",
    "The release finds no hold, and then the hold appears. The customer's money stays held unnoticed.",
    "Either send place and release through the same queue, or have release record intent.id and have place "
    "check it.",
    after=(HELD, RELEASED, VOUCHED, RETRIES),
)
COMES_BACK = HookRule(
    "comes-back",
    "A hook always ends, even during a concurrent call or after a cancelled call.",
    "Each payment waits until the client's own timeout.",
    "Look for a lock or a connection that a cancelled call did not release.",
)
CHECKS = HookRule(
    "checks",
    "A hook that places no hold may be called twice, undone twice, and undone if it never ran.",
    "The payment is stuck, or the undo stays pending forever.",
    "Make before and undo idempotent by intent.id.",
)


_LETTERS = "A, B, ... are intents, each for one order; place(A) calls your hook for intent A"


@frozen(kw_only=True)
class BrokenRule:
    """One broken rule.

    Args:
        trial: the title of the trial that broke the rule.
        did: the calls to the hooks during the trial, in order.
        saw: the observed result.
        more: the number of other trials that broke the rule.
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
    """The result of `verify_hooks`; ``str(report)`` is a human-readable report.

    Args:
        broken: the broken rules, each with the shortest trial that broke it; empty if none is broken.
        tried: the number of trials.
        notes: the trials that could not run, each with the reason.
        seed: the seed that repeats the same random sequences.
    """

    broken: tuple[BrokenRule, ...] = ()
    tried: int
    notes: tuple[str, ...] = field(default=())
    seed: int

    def check(self) -> None:
        """Fail a test if a rule is broken.

        Raises:
            AssertionError: a rule is broken; the message is the report.
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

"""The invariants. Each is a function that returns a description of the violation, or None.

Some are checked immediately when something happens. The last ones are checked at the end of the story: no
more faults happen, the surviving workers have finished, and a healthy worker has recovered the rest.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tests.simulation.loop import PROCESS
from tests.support.promises import KeyEvidence, broken_promises
from transfer_async._converters.messages import OrderOutcome
from transfer_async._models.errors import JournalFailed, Outcome, TransferError
from transfer_async._models.events import DuplicateSuspected
from transfer_async._models.requests import OrderIntent
from transfer_async.journal.model import FOUR_EYES, Entry, KeyState
from transfer_async.journal.transitions import Move, Refute, Resolve

if TYPE_CHECKING:
    from tests.simulation.service import Made
    from tests.simulation.witness import Record
    from tests.simulation.world import World

# --- when a request leaves ----------------------------------------------------------------------


def nothing_is_sent_without_its_mark(world: "World", intent: OrderIntent, attempt: str | None) -> str | None:
    """When the first byte is sent, the key's record shows this attempt as being sent."""
    entry = world.database.entries.get(intent.key)
    if entry is None or attempt is None or entry.attempt != attempt or entry.intent_id != intent.id:
        return f"{intent.id} is sent, and the journal knows nothing of it"
    return None


def nothing_is_sent_too_late(world: "World", intent: OrderIntent, attempt: str | None) -> str | None:
    """The last check before the first byte happens within the attempt's recorded time."""
    entry = world.database.entries.get(intent.key)
    if entry is not None and entry.attempt == attempt and world.database.now() > entry.sent_until:
        return f"{intent.id} is sent {world.database.now() - entry.sent_until:g} s after sent_until"
    return None


def nothing_is_done_after_the_callers_deadline(
    world: "World", record: "Record | None", what: str
) -> str | None:
    """Each hook starts, and the first byte is sent, before the caller's deadline."""
    if record is None or world.loop.time() < record.deadline + 1e-5:  # a datetime has whole microseconds
        return None
    return f"{what} for {record.key}, {world.loop.time() - record.deadline:g} s after its caller's deadline"


def nothing_is_sent_without_a_hold(world: "World", intent: OrderIntent) -> str | None:
    """When the first byte is sent, the customer's funds are held."""
    if intent.held is None and ("hold", intent.id) not in world.bank.open:
        return f"{intent.id} is sent, and no funds are held for it"
    return None


def nothing_is_sent_that_was_checked_for_others(
    world: "World", intent: OrderIntent, record: "Record | None"
) -> str | None:
    """When the first byte is sent, every hook of this client has checked the caller's arguments."""
    if record is None or record.beneficiary != intent.beneficiary or record.held != intent.held:
        return f"{intent.id} is sent for {intent}, and its caller passed {record}"
    for hook in world.hooks_at_work():
        seen = world.bank.seen.get((hook, intent.id))
        if hook == "hold" and intent.held is not None:
            continue
        if seen is None or (seen.beneficiary, seen.held) != (record.beneficiary, record.held):
            return f"{intent.id} is sent for {record.beneficiary}, and {hook} has not seen that"
    return None


def nothing_is_held_beside_that_is_not_on_record(world: "World", intent: OrderIntent) -> str | None:
    """When the first byte is sent, every other hook's effect for the key is undone, or its undo is recorded.

    Effects that a sleeping worker has caused since then are exempt.
    """
    entry = world.database.entries[intent.key]
    known = {(hook, entry.intent_id) for hook in entry.hooks}
    known |= {(one.hook, one.intent.id) for one in entry.pending_undos}
    for place in world.bank.open:
        if world.bank.seen[place].key == intent.key and place not in known | world.bank.late.keys():
            return f"{intent.id} is sent, and nobody knows of {place[0]} of {place[1]}"
    return None


# --- when an order comes to be ------------------------------------------------------------------


def a_key_has_one_order(world: "World", made: "Made") -> str | None:
    """No key ever has two orders at the service."""
    ids = [order.id for order in world.service.orders if order.key == made.key]
    return f"key {made.key} has {len(ids)} orders: {', '.join(ids)}" if len(ids) > 1 else None


def no_order_comes_after_a_certain_no(world: "World", made: "Made") -> str | None:
    """A recorded definite failure never changes."""
    if made.intent_id in world.witness.over:
        return f"{made.id} comes to be after a certain no was recorded for {made.intent_id}"
    return None


# --- when a hook is asked, or undone ------------------------------------------------------------


def no_receipt_is_asked_for_twice(hook: str, intent: OrderIntent, kept: set[str]) -> str | None:
    """A hook whose receipt was recorded before the claim is not run again."""
    return f"{hook} is asked again for {intent.id}" if hook in kept else None


def nothing_is_undone_before_the_no_is_on_record(
    world: "World", hook: str, intent: OrderIntent
) -> str | None:
    """An undo starts only after the definite failure of its intent is recorded."""
    return None if intent.id in world.witness.over else f"{hook} of {intent.id} is undone too early"


def what_is_owed_has_its_receipt(world: "World", entry: Entry) -> str | None:
    """A recorded receipt stays recorded until its hook is undone with it."""
    witness = world.witness
    for one in entry.pending_undos:
        place = (one.intent.id, one.hook)
        if one.receipt is None and place in witness.kept and place not in witness.undone:
            return f"the receipt of {one.hook} of {one.intent.id} was kept, and is lost"
    return None


# --- when people decide -------------------------------------------------------------------------


def nobody_decides_alone(world: "World", key: str, before: Entry | None, move: Move) -> str | None:
    """Under dual control, another person proposed the end of a doubt for the same version of the key."""
    by = getattr(move, "by", None)
    if not (world.four_eyes and isinstance(move, (Resolve, Refute)) and by != "resolve"):
        return None
    proposed = None if before is None else before.proposal
    if proposed is None or proposed.id != move.proposal or proposed.by == by:
        return f"{by} alone ends the doubt of key {key}"
    if world.witness.changes[key] != world.witness.proposed[key, proposed.id]:
        return f"{by} approves of key {key} what was proposed before it changed"
    return None


# --- when a caller receives a result ------------------------------------------------------------


def a_result_is_an_outcome(world: "World", record: "Record") -> str | None:
    """A call returns an order or raises an error of the package."""
    if record.order is None and not isinstance(record.error, TransferError):
        return f"the caller of {record.key} received {record.error!r}"
    return None


def an_order_given_back_exists_and_is_on_record(world: "World", record: "Record") -> str | None:
    """A returned order exists, belongs to the key, and was recorded before it was returned."""
    if record.order is None:
        return None
    entry = world.database.entries[record.key or ""]
    made = next((one for one in world.service.orders if one.id == record.order.id), None)
    if made is None or made.key != record.key:
        return f"the caller of {record.key} is given {record.order.id}, which is not its own"
    if entry.state is not KeyState.CREATED or entry.order_id != made.id:
        return f"the caller of {record.key} is given {made.id}, which is not on record"
    return None


def a_certain_no_is_true(world: "World", record: "Record") -> str | None:
    """If a caller receives ``order_may_exist=False``, its order does not exist."""
    error = record.error
    if isinstance(error, TransferError) and not error.order_may_exist:
        made = world.service.order_of(record.intent_id or "")
        if made is not None:
            return f"the caller of {record.key} received {error!r}, but {made.id} exists"
        if error.outcome not in (Outcome.NOT_SENT, Outcome.REFUSED):
            return f"the caller of {record.key} received {error.outcome} with order_may_exist=False"
    return None


def no_order_of_its_key_exists_when_none_may(
    world: "World", record: "Record", outcome: OrderOutcome | None = None
) -> str | None:
    """If a caller receives, or a worker publishes, ``order_may_exist=False``, the key has no order.

    A worker that slept since it read its key does not know about later orders.
    """
    result = record.error if outcome is None else outcome
    if not isinstance(result, (TransferError, OrderOutcome)) or result.order_may_exist:
        return None
    process = PROCESS.get()
    has_slept = process is not None and process.thawed_at > record.read_at
    made = world.service.order_of_key(record.key, seen=record.orders_seen if has_slept else None)
    return None if made is None else f"{result!r} is reported for key {record.key}, but {made.id} exists"


def a_created_without_a_record_carries_its_order(world: "World", record: "Record") -> str | None:
    """If an error says that an order was created but not recorded, that order exists.

    The order may belong to another key with the same content, because only the journal could show the
    difference.
    """
    error = record.error
    if isinstance(error, JournalFailed) and error.outcome is Outcome.CREATED:
        order_id = error.order.id if error.order is not None else None  # None: `resolve` returned only the id
        if not any(order_id in (None, one.id) for one in world.service.orders):
            return f"the caller of {record.key} received an order {order_id} that does not exist"
        if world.database.entries[record.key or ""].state is KeyState.FREE:
            return f"{order_id} exists, and key {record.key} is free"
    return None


def an_unknown_leaves_the_key_bound(world: "World", record: "Record") -> str | None:
    """While an outcome is unknown, the key is bound, unless the outcome has become certain since."""
    error = record.error
    if isinstance(error, TransferError) and error.outcome is Outcome.UNKNOWN:
        entry = world.database.entries[record.key or ""]
        if entry.intent_id == record.intent_id and entry.state in (KeyState.FREE, KeyState.CLAIMED):
            return (
                None if record.intent_id in world.witness.over else f"key {record.key} is in doubt and free"
            )
        if not error.order_may_exist:
            return f"the caller of {record.key} received order_may_exist=False for an unknown outcome"
    return None


RESULT_INVARIANTS: tuple[Callable[["World", "Record"], str | None], ...] = (
    a_result_is_an_outcome,
    an_order_given_back_exists_and_is_on_record,
    a_certain_no_is_true,
    no_order_of_its_key_exists_when_none_may,
    a_created_without_a_record_carries_its_order,
    an_unknown_leaves_the_key_bound,
)


def no_duplicate_is_suspected(event: DuplicateSuspected) -> str | None:
    """All refutations in a story are right, so no order may appear after one."""
    return f"{event.order_id} is suspected to be a duplicate"


# --- when the story is over ---------------------------------------------------------------------


def every_key_keeps_its_promises(world: "World") -> Iterator[str]:
    """What a killed process must keep, too, holds for every key, and its order is that of its last intent."""
    for key, entry in world.database.entries.items():
        if key == FOUR_EYES:  # the rule of dual control, which belongs to no order
            continue
        made = [order for order in world.service.orders if order.key == key]
        one = KeyEvidence(
            key=key,
            orders=[order.id for order in made],
            reported=[
                ("created", call.order.id) for call in world.witness.records if call.order and call.key == key
            ],
            entry=_without_the_stubborn(world, entry),
            open_effects=frozenset(_open_effects(world, key, entry)),
        )
        yield from (f"in the end, key {key}: {kind}, {why}" for kind, why in broken_promises(one))
        if any(order.intent_id != entry.intent_id for order in made):
            yield f"in the end, key {key} is for {entry.intent_id}, and has another's order"
        if entry.state is KeyState.IN_DOUBT and world.setting.resolve in ("order", "id"):
            yield f"key {key} is in doubt for ever"


def _without_the_stubborn(world: "World", entry: Entry) -> Entry:
    """Return the entry without the pending undos that always fail."""
    undos = tuple(undo for undo in entry.pending_undos if undo.hook != world.setting.stubborn)
    return replace(entry, pending_undos=undos)


def _open_effects(world: "World", key: str, entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the effects of the key's hooks that are not undone, and whose undo is not recorded.

    One case is exempt: a worker slept while others ended its intent, then acted, and died or lost the journal
    before it could record this.
    """
    pending = {(undo.hook, undo.intent.id) for undo in entry.pending_undos}
    for place in world.bank.open:
        if world.bank.seen[place].key != key or place in pending:
            continue
        process, when = world.bank.late.get(place, (None, 0.0))
        if process is not None and (process.dead or process.troubled_at >= when):
            world.saw("nobody's")
        else:
            yield place


def every_certain_no_stayed_one(world: "World") -> Iterator[str]:
    """A definite failure stays true even for requests that were still in flight."""
    for record in world.witness.records:
        if found := a_certain_no_is_true(world, record):
            yield f"in the end, {found}"


def the_end_of_a_doubt_is_published(world: "World") -> Iterator[str]:
    """If an outcome was published as unknown, the end of the doubt is published, too."""
    outcomes = world.witness.outcomes
    ends = {(one.key, one.intent_id) for one in outcomes if one.outcome is not Outcome.UNKNOWN}
    doubts = {(one.key, one.intent_id) for one in outcomes if one.outcome is Outcome.UNKNOWN}
    for key, intent_id in sorted(doubts - ends):
        entry = world.database.entries[key]
        if (entry.intent_id, entry.state) != (intent_id, KeyState.IN_DOUBT):
            yield f"{intent_id} of key {key} was published as unknown, and nothing since"


def what_is_published_is_true(world: "World") -> Iterator[str]:
    """A published order exists. If a definite failure was published, no order exists."""
    existing = {one.id: one.key for one in world.service.orders}
    for one in world.witness.outcomes:
        if one.outcome is Outcome.CREATED and existing.get(one.order_id or "") != one.key:
            yield f"{one.order_id} was published for key {one.key}, and is not its order"
        if not one.order_may_exist and world.service.order_of(one.intent_id) is not None:
            yield f"{one.intent_id} was published as {one.outcome}, and its order exists"


def what_nobody_could_prevent_is_detected(world: "World") -> Iterator[str]:
    """A sender that was paused beyond every wait, and continued after its doubt was ended, left a trace.

    A sender that died or lost the journal before it could record this is exempt.
    """
    published = {one.intent_id for one in world.witness.outcomes if one.error == "DuplicateSuspected"}
    for intent_id, (process, when) in world.witness.beyond.items():
        if process.dead or process.troubled_at >= when:
            continue
        if intent_id not in world.witness.suspected:
            yield f"{intent_id} was sent beyond every wait, and nothing on record says so"
        elif intent_id in world.witness.by_messages and intent_id not in published:
            yield f"{intent_id} was sent beyond every wait, and nothing was published of it"


IN_THE_END: tuple[Callable[["World"], Iterator[str]], ...] = (
    every_key_keeps_its_promises,
    every_certain_no_stayed_one,
    the_end_of_a_doubt_is_published,
    what_is_published_is_true,
)

"""The journal's data types: a key's state, its entry, its history, and the result of a transition."""

from __future__ import annotations

import enum
import functools
import re
import unicodedata
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from attrs import field, frozen

from transfer_async._models.errors import Cause, CauseKind, JournalFailed, Outcome, is_final_no
from transfer_async._models.requests import UNSEEN, OrderIntent

LEASE = 60.0
"""The default lease in seconds. A claim stays valid for this time after its last renewal. This is twice the
default retry deadline. A live worker rarely pauses for that long, and a dead worker's key becomes available
soon.
"""

SETTLE_AFTER = 300.0
"""The default of ``settle_after``: the seconds from the last possible send until a refutation is accepted. A
request may stall in a proxy or at the service, and take effect after its sender has given up.
"""

ABANDONED_SETTLE_AFTER = 86_400.0
"""The default of ``abandoned_settle_after`` in seconds: a day.

It replaces ``settle_after`` if the sender never reported that it sends no more requests. The sender's process
may not be dead, but only stopped: by a signal, in a suspended container or on a paused machine. When it
continues, it writes a request that has passed its last check, however late. A day is longer than pauses that
end on their own, and gives a person time to find the process.
"""

LONGEST_LEASE = 3600.0
"""The maximum lease in seconds that a client accepts."""

BELIEVED = LONGEST_LEASE + 60.0
"""The latest plausible end of a stored lease, in seconds from now. A later time must come from a clock that
was ahead. The extra minute allows for small clock corrections.
"""


class KeyState(enum.Enum):
    """The state of a key."""

    FREE = "free"
    CLAIMED = "claimed"
    SENDING = "sending"
    IN_DOUBT = "in_doubt"
    CREATED = "created"


AT_WORK = (KeyState.CLAIMED, KeyState.SENDING, KeyState.IN_DOUBT)
"""The states in which a worker is using the key, or the key is in doubt."""

ENDED = (KeyState.FREE, KeyState.CREATED)
"""All other states. The tuple is a constant, because each access to an enum member is as slow as a call."""


class Rejection(enum.Enum):
    """Why a transition was rejected."""

    CONFLICT = "the key is bound to a different order"
    CREATED = "the key's order exists"
    BUSY = "another worker holds a lease on the key"
    IN_DOUBT = "the key's order may exist"
    LOST = "the key's claim or attempt has changed"
    TOO_EARLY = "a request may still take effect"
    FOREIGN = "the order's id is bound to another key"
    REFUSED = "the same order was refused before, and would be refused again"
    UNREAD = "the key's record is corrupt or cannot be decrypted"
    MOVED = "the key has changed since it was read"
    VOID = "the proposal is void: the key has changed, or another proposal has replaced it"
    SAME_PERSON = "the person who made the proposal may not approve it"
    ANSWERED = "the service itself returned the order"
    ALONE = "the scope requires dual control: another person must approve the decision"


ABANDONED = "Abandoned"
"""Used instead of an error's name if the worker disappeared without reporting an error."""

ABANDONED_CAUSE = Cause(kind=CauseKind.ABANDONED)
"""The cause of a doubt whose worker disappeared without reporting an error."""

REFUTED = "Refuted"
"""The error's name in the ending of a refuted order."""

SUSPECTED = "DuplicateSuspected"
"""The error's name in an outbox entry that reports a suspected duplicate."""


@frozen(kw_only=True)
class Ending:
    """The definite failure that ended an intent. The failure stays on record after the key is free again."""

    outcome: Outcome
    error: str
    status: int | None = None
    refused: bool = False
    """Whether a hook refused the order, as opposed to failing."""

    in_vain: bool = False
    """Whether nothing was sent for a reason that may be temporary, such as a failed hook or connection."""

    fields: tuple[str, ...] = ()
    """The request fields that the service named in its refusal."""

    @property
    def is_final(self) -> bool:
        """Whether the service refused the order and would refuse it again."""
        return self.outcome is Outcome.REFUSED and is_final_no(self.error, self.status)


@frozen(kw_only=True)
class OutboxEntry:
    """A notification to publish: an order whose outcome was unknown has been resolved or refuted.

    If ``error`` is `SUSPECTED`, two orders may exist, because the sender's result contradicts the recorded
    one.
    """

    intent_id: str
    outcome: Outcome
    order_id: str | None = None
    error: str | None = None
    status: int | None = None
    since: float | None = field(default=None, eq=False)
    """When the doubt ended, on the journal's clock. None in records of earlier versions."""


@frozen(kw_only=True)
class PendingUndo:
    """An undo that still has to run. Until ``lease_until``, only one worker may run the undo."""

    intent: OrderIntent
    hook: str
    receipt: str | None
    lease_until: float = 0.0
    since: float | None = field(default=None, eq=False)
    """When the undo became due, on the journal's clock. None in records of earlier versions."""


@frozen(kw_only=True)
class Unread:
    """A key's stored record that cannot be decoded or decrypted.

    Args:
        why: the kind of error, without any part of the record.
        kept: the whole stored record, unchanged.
        hooks: the hooks to undo if the intent ends in a definite failure.
        earlier_hooks: the hooks of earlier intents that still have to be undone.
        is_sealed: whether the record is intact, but this process lacks its encryption key.
    """

    why: str
    kept: str = field(repr=False)
    hooks: tuple[str, ...]
    earlier_hooks: tuple[str, ...]
    is_sealed: bool = False


class HidesStored(msgspec.Struct, frozen=True):
    """Base class whose ``repr`` omits the service's reply and stored records, for privacy."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields to show, for ``repr`` and for the ``rich`` package."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in _HIDDEN]

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__qualname__}({', '.join(shown)})"

    if not TYPE_CHECKING:
        # The fields' former names, until version 1.0. They are properties, because `__getattr__` would slow
        # down the reading of every field: an order would take a fifth more instructions.
        owed = property(attrgetter("pending_undos"))
        promised = property(attrgetter("notification_requested"))
        untold = property(attrgetter("pending_notifications"))
        laid_aside = property(attrgetter("quarantined"))
        moves = property(attrgetter("version"))


_HIDDEN = ("reply", "quarantined", "unknown_members")


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of a key's history."""

    at: float
    move: str
    state: KeyState
    intent_id: str
    epoch: int
    attempt: str | None = None
    order_id: str | None = None
    ending: Ending | None = None
    by: str | None = None
    reason: str | None = None


class Entry(HidesStored, frozen=True, kw_only=True, gc=False):
    """The journal's record of one key. All times are in seconds on the journal's clock.

    Args:
        state: see `KeyState`.
        fingerprint: the digest of the order to which the key is bound, or was last bound.
        intent_id: the id of the current intent.
        intent: the intent; None once the key is free or the service's response with the order is recorded. If
            only the order id is recorded, the intent is kept, because the id may be withdrawn.
        client_made: whether the client generated the key.
        epoch: how many times this intent has been claimed, including take-overs.
        hooks: the hooks to undo if this intent ends in a definite failure, in this order.
        claimed_at: when this intent was first claimed.
        lease_until: when the lease of the worker that uses the key expires.
        receipts: the receipts that the hooks returned, by hook name.
        held: the reference of a hold that the bank itself placed.
        attempt: the token of the attempt that may send, or may have sent, requests.
        sent_until: the time after which this attempt sends no more requests, unless its process was stopped
            (by SIGSTOP, for example) after its last check; see `sender_reported`.
        order_id: the order's id, once the order exists.
        reply: the service's response with the order, if it was received.
        ending: the definite failure that ended the last intent.
        pending_undos: the pending undos, including those of earlier intents.
        notification_requested: whether the outcome of this intent was published as unknown; if so, the final
            outcome must be published too.
        pending_notifications: the pending notifications, including those of earlier intents.
        candidates: order ids found in responses that could not be read as this intent's order.
        cause: why this intent is, or was, in doubt; None in records of earlier versions. The cause lists
            attempts only if the sender reported the doubt.
        unread: set if the record is corrupt. The other fields of a corrupt record contain only its readable
            part, and its key is not free, whatever the ``state``.
        quarantined: the key's corrupt records, unchanged, after they were put into quarantine.
        version: the number of the key's transitions, excluding look-ups, notes and `AcquireLease`.
        proposal: a person's proposal that is waiting for approval.
        watcher: the person who last said that they are looking at the key. Read `watched_by` instead, because
            a watcher is valid only for one version of the entry.
        four_eyes: in the scope's own entry (`FOUR_EYES`), whether dual control is required; None in other
            entries.
        unknown_members: stored members that only a newer version of the package uses, as JSON. The members
            are written back unchanged, so that programs running the older and the newer version can share a
            journal.
    """

    state: KeyState
    fingerprint: str
    intent_id: str
    intent: OrderIntent | None
    client_made: bool = False
    epoch: int = 1
    hooks: tuple[str, ...] = ()
    claimed_at: float
    lease_until: float = 0.0
    receipts: dict[str, str | None] = msgspec.field(default_factory=dict)
    held: str | None = None
    attempt: str | None = None
    sent_until: float = 0.0
    order_id: str | None = None
    reply: bytes | None = None
    ending: Ending | None = None
    pending_undos: tuple[PendingUndo, ...] = ()
    notification_requested: bool = False
    pending_notifications: tuple[OutboxEntry, ...] = ()
    candidates: tuple[str, ...] = ()
    cause: Cause | None = None
    unread: Unread | None = None
    quarantined: tuple[str, ...] = ()
    version: int = 0
    proposal: Proposal | None = None
    four_eyes: bool | None = None
    watcher: Watcher | None = None
    unknown_members: dict[str, bytes] | None = None

    @property
    def all_receipts(self) -> dict[str, str | None]:
        """The receipts for callers, including the bank's own hold as ``"held"``."""
        return dict(self.receipts) if self.held is None else {**self.receipts, "held": self.held}

    @property
    def sender_reported(self) -> bool:
        """Whether the sender itself reported that the outcome is unknown.

        A sender that has reported an unknown outcome sends nothing more.

        If the sender did not report, its process may have ended. A process that is only suspended may still
        send the order when it resumes.
        """
        return self.cause is not None and self.cause.is_from_sender

    @property
    def is_suspected(self) -> bool:
        """Whether an order of an earlier intent exists or may exist: see `Suspect`."""
        is_superseded = self.cause is not None and self.cause.kind is CauseKind.SUPERSEDED
        # If the key is free, a person has refuted that order.
        return is_superseded and self.state is not KeyState.FREE

    def settled_at(self, settle_after: float, abandoned_settle_after: float | None = None) -> float:
        """Return the earliest time at which a refutation is accepted.

        Args:
            settle_after: for how many seconds a sent request may still take effect.
            abandoned_settle_after: replaces ``settle_after`` if the sender did not report the doubt. If None,
                ``settle_after`` always applies.
        """
        if abandoned_settle_after is None or self.sender_reported:
            return self.sent_until + settle_after
        return self.sent_until + abandoned_settle_after

    @property
    def is_readable(self) -> bool:
        """Whether the whole record could be read."""
        return self.unread is None

    @property
    def watched_by(self) -> Watcher | None:
        """The person who is looking at the key; None once the key has changed."""
        return self.watcher if self.watcher is not None and self.watcher.version == self.version else None

    @property
    def is_amendable(self) -> bool:
        """Whether the order id can be amended, that is, whether a person or ``resolve`` supplied it."""
        return self.state is KeyState.CREATED and self.reply is None and self.unread is None


BLANK = Entry(state=KeyState.FREE, fingerprint="", intent_id="", intent=None, claimed_at=0.0)
"""A blank entry. New entries are copies of it, because a copy takes half as long to create."""


def demands_four_eyes(entry: Entry | None) -> bool:
    """Return whether ``entry``, the scope's own entry under `FOUR_EYES`, requires dual control.

    A corrupt entry requires dual control too, so that damage does not disable the rule.
    """
    return entry is not None and (entry.four_eyes is True or entry.unread is not None)


def undos_on_failure(entry: Entry) -> tuple[PendingUndo, ...]:
    """Return the undos to run if the intent of ``entry`` ends in a definite failure."""
    if entry.intent is None:
        return ()
    return tuple(
        PendingUndo(intent=entry.intent, hook=hook, receipt=entry.receipts.get(hook)) for hook in entry.hooks
    )


class TransitionResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a transition.

    Args:
        entry: the entry after the transition. A rejection leaves the entry unchanged, except as described for
            ``found_doubt``.
        denial: the reason for the rejection, or None if the transition was made.
        found_doubt: whether the rejection also put the key in doubt, because an order may exist.
        now: the time of the decision, in seconds on the journal's clock.
    """

    entry: Entry
    denial: Rejection | None = None
    found_doubt: bool = False
    now: float

    @property
    def lease_left(self) -> float:
        """The seconds until the entry's lease expires."""
        return max(0.0, self.entry.lease_until - self.now)


# --- dual control ------------------------------------------------------------------------------------
# With dual control (the four-eyes rule), one person proposes a decision and another approves it.


FOUR_EYES = "\tfour eyes"
"""The key of the entry that records whether a scope requires dual control. No order can use this key."""


class Decision(enum.Enum):
    """A person's decision about a key."""

    RESOLVE = "resolve"
    """The order of a key in doubt exists."""

    REFUTE = "refute"
    """The order of a key in doubt does not exist, and can no longer appear."""

    AMEND = "amend"
    """An order id that a person supplied is wrong. The correct one is given, or is unknown."""

    WAIVE = "waive"
    """Dual control is no longer required."""


@frozen(kw_only=True)
class Proposal:
    """A decision that a person has proposed. The proposal becomes void when the key changes.

    Args:
        id: the proposal's id. An approval contains the id, so that only the proposal that the approver saw
            can be approved.
        decision: see `Decision`.
        order_id: the order's id, for `RESOLVE` and `AMEND`. With `AMEND`, None puts the key back in doubt.
        by: the person who made the proposal.
        reason: the evidence for the decision.
        at: the time of the proposal, in seconds on the journal's clock.
        undone: for `REFUTE`, whether the undos that recovery cannot run were done manually.
    """

    id: str
    decision: Decision
    order_id: str | None = None
    by: str
    reason: str
    at: float
    undone: bool = False


@frozen(kw_only=True)
class Watcher:
    """A person who has said that they are looking at a key.

    Args:
        by: the person.
        at: when the person began to look at the key, in seconds on the journal's clock.
        version: the version of the entry that the person is looking at.
    """

    by: str
    at: float
    version: int


# --- names of people --------------------------------------------------------------------------------


_LOOK_ALIKES = (
    "'`ʹʻʼʽʾˈˊˋ˴՚՝\u05d9\u05f3\u07f4\u07f5ᑊᛌ‘’‛′‵ꞌ𖽑𖽒 -˗\u06d4‐‒–⁃−➖Ⲻ﹘ "
    ".\u0660۰\u0701\u0702ꓸ꘎\U00010a50\U0001d16d 2ƧϨᒿꙄꛯꝚ 3ƷȜЗӠⳌꝪꞫ𑣊𖼻𝈆 4Ꮞ𑢯 5Ƽ𑢻 6бᏮⳒ𑣕 7𐓒𑣆𝈒 "
    "8Ȣȣ৪੪ଃ𐌚\U0001e8cb 9৭੧୨൭ⳊꝮ𑢬𑣌𑣖 aɑΑαАаᎪᗅ⍺ꓮ𐊠𖽀 bƄΒВЬᏏᏴᑲᖯᗷꓐꞴ𐊂𐊡𐌁 cϲϹСсᏟᴄⲤⲥꓚꮯ𐊢𐌂𐐕𐐽𐔜𑣩𑣲🝌 dԁᎠᏧᑯᗞᗪꓒꓓ "
    "eΕЕеҽᎬ℮⋿ⴹꓰꬲ𐊆𑢦𑢮 fſϜքᖴẝꓝꞘꞙꬵ𐊇𐊥𐔥𑢢𑣂𝈓 gƍɡԌցᏀᏳᶃꓖ hΗНһհᎻᏂᕼⲎꓧ𐋏 iıɩɪ˛ͺιіӏᎥ⍳ꙇꭵ𑣃 jͿϳЈјᎫᒍꓙꞲ kΚКᏦᛕⲔꓗ𐔘 "
    "l1I|ƖǀΙІӀ\u05c0\u05d5\u05df\u0627\u0661۱\u07caᏞᒪᛁ∣⏽ⲒⳐⵏꓡꓲ￨𐊊𐌉𐌠𐐛𐔦𑢣𑢲𖼖𖼨𝈪\U0001e8c7 mΜϺМᎷᗰᛖⲘꓟ𐊰𐌑𑜀𑣣 "
    "nΝոռⲚꓠ𐔓 "
    "o0ΟοσОоՕօ\u05e1\u0647\u0665\u06be\u06c1\u06d5۵\u07c0०০੦૦ଠ୦௦ం౦ಂ೦ംഠ൦ං๐໐ဝ၀ჿዐᴏᴑⲞⲟⵔ〇ꓳꬽ𐊒𐊫𐐄𐐬𐓂𐓪𐔖𑓐𑢵𑣈𑣗𑣠 "
    "pΡρРрᏢᑭ⍴Ⲣⲣꓑ𐊕 qԛգզⵕ rƦгᎡᏒᖇᴦⲅꓣꭇꭈꮁ𐒴𖼵𝈖 sƽЅѕՏᏕᏚꓢꜱꮪ𐊖𐐠𐑈𑣁𖼺 tΤТᎢ⊤⟙Ⲧꓔ𐊗𐊱𐌕𑢼𖼊🝨 uʋυՍսሀᑌᴜ∪⋃ꓴꞟꭎꭒ𐓎𐓶𑢸𑣘𖽂 "
    "vνѴѵ\u05d8\u0667۷Ꮩᐯᴠ∨⋁ⴸꓦꛟꮩ𐔝𑜆𑢠𑣀𖼈𝈍 wɯѡԜԝաᎳᏔᴡꓪꮃ𑜊𑜎𑜏𑣦𑣯 x×ΧХхᕁᕽ᙭᙮ᚷ╳⤫⤬⨯ⲬⵝꓫꞳ𐊐𐊴𐌗𐌢𐔧𑣬 yɣʏΥγУуҮүყᎩᎽᶌỿⲨꓬꭚ𐊲𑢤𑣜𖽃 "
    "zΖᏃᴢꓜꮓ𐋵𑢩𑣄𑣥 ÐĐƉ ÞϷ ßβꞵ øꬾ þƿϸ ħћ ĸκкᴋⲕ ƀѢѣҌҍ ƂƃБ ƅь ƆϽ ƏӘ ƐԐ Ɨƚ ƞη ƟΘθѲӨꝊ ƨϩᴤꙅ ƩΣ ǝəә ǶԊ ȝʒӡჳⳍꝫ "
    "ȷյ ɅΛЛ ɋᶐ ɍғ ɎҰ ɏұ ɔͻᴐↄ ɛεєԑⲉꞓ ɜзᴈ ɢԍ ɦꚕ ɨᵻᵼ ɰպ ɵѳөꝋ ɸφфⲫ ʃꭍ ʌᴧ ʍмᴍ ʘꙨ ʙв ʚꞝ ʜн ʟⳑ \u0302\u0311 "
    "\u0303\u0342 \u0304\u0305 \u0306\u030c\u036e \u0307\u0358 \u030a\u0366 \u0313\u0315 \u0320\u0331 "
    "\u0321\u0326\u0327\u0339 \u0322\u0328\u0345 \u0333\u0347 \u0335\u0336 \u0337\u0338 \u0350\u0357 "
    "ͰⱵ ͶИ ͷиᴎ ͽꜿ ΓГⲄ ΔⲆ ΠПⲠ ΦФՓⲪ ΨѰⲮ δծẟ λⲖ πпᴨ ςϛ τтᴛ χⲭꭓꭕ ψѱ ωⲱꙍꞷ ϗⳤ ϬⳜ ϿꜾ ЄⲈꞒ ШⲼ лᴫ шⲽ яᴙ љꭠ ҚⱩ "
    "ҞꝀ ҢⱧ ҶӋ ҷӌ ӇӉ ӈӊ \u0629\u06c3 \u062b\u063f\u067e\u06bd\u06d1 \u0641\u06a7 \u0643\u06a9\u06aa "
    "\u0648\u08b1 \u0649\u064a\u066e\u06ba\u06cc\u06d2\u08bd \u066f\u06a1\u08bb\u08bc \u0679\u06bb "
    "\u067b\u06d0 \u0681\u0772 \u06a4\u06a8 \u06ac\u0762 \u06ad\u0763 \u06af\u08b0 \u06ce\u0756 "
    "\u0754\u0767\u08a9 ႠꞆ ᴘᴩ ꙌꞶ ꜧꞕ"
)
"""Groups of characters that look alike, separated by spaces. Each character looks like the first one of its
group.

They come from confusables.txt of Unicode's Technical Standard 39: characters that look like an ASCII letter
or digit, a dash, a dot or an apostrophe, and those that look alike among the Latin, Greek, Cyrillic,
Armenian, Georgian, Coptic, Hebrew and Arabic letters. Characters that become equal by Unicode's compatibility
normalisation are omitted.
"""


_BEFORE_PATH = re.compile(r"[^/]*://[^/]*")


def scope_as_seen(scope: str) -> str:
    """Return the form in which two scopes that look the same are equal.

    Such scopes differ only in case, width, the number of blanks, blanks at the beginning or end, invisible
    characters or a final slash. The path of a URL is case-sensitive.
    """
    text = unicodedata.normalize("NFKC", UNSEEN.sub("", scope))
    text = " ".join(text.split()).rstrip("/ ")
    url = _BEFORE_PATH.match(text)
    end = len(text) if url is None else url.end()
    return unicodedata.normalize("NFKC", text[:end].casefold()) + text[end:]


def similar_scope(scope: str, known: Sequence[str]) -> str | None:
    """Return the scope in ``known`` that looks like ``scope``, or None if ``scope`` itself is known."""
    if scope in known:
        return None
    form = scope_as_seen(scope)
    return next((other for other in known if scope_as_seen(other) == form), None)


def similar_scope_refusal(scope: str, other: str, *, argument: str = "scope=") -> str:
    """Return the error message for a scope without keys that looks like the scope ``other``.

    Args:
        scope: the refused scope.
        other: the scope that has keys.
        argument: how the caller passes a scope.
    """
    return (
        f"the journal has no keys in the scope {scope!r}, but keys in {other!r}, which looks the same: if "
        f"both mean the same service, pass {argument}{other!r}; otherwise choose a scope that differs more"
    )


def refuse_similar_scopes(new: set[str], known: Sequence[str]) -> None:
    """Refuse each scope without keys whose name looks like that of another scope.

    The two names probably mean the same service. Under the new name every key would be free, so payments
    that were already made would be made again. A store calls this function while no other process can write
    the first key of a scope.

    Raises:
        JournalFailed: a new scope looks like a known one or like another new one.
    """
    for scope in new:
        if (other := similar_scope(scope, [*known, *(new - {scope})])) is not None:
            raise JournalFailed(similar_scope_refusal(scope, other))


def is_same_person(name: str, other: str) -> bool:
    """Return whether two names are equal or look the same to a reader.

    If two names of one person counted as different, that person could approve their own proposal. The
    opposite mistake only prevents two people from approving each other's proposals.
    """
    return not _comparable_forms(name).isdisjoint(_comparable_forms(other))


def _comparable_forms(name: str) -> set[str]:
    # A lower-case letter may look like another letter although its capital does not, for example the Greek
    # nu.
    return {_without_look_alikes(form) for form in (name, name.lower(), name.upper(), name.casefold())}


def _without_look_alikes(name: str) -> str:
    # Case folding and normalisation split some letters into several, so each step runs twice.
    replacements = _replacements()
    for _ in range(2):
        name = unicodedata.normalize("NFKD", name.translate(replacements)).translate(replacements).casefold()
    name = UNSEEN.sub("", unicodedata.normalize("NFKD", name).translate(replacements))
    return "".join(name.split()).replace("rn", "m").replace("vv", "w")


@functools.cache
def _replacements() -> dict[int, str]:
    return {ord(char): group[0] for group in _LOOK_ALIKES.split() for char in group[1:]}

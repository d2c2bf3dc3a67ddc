"""Compare two names. The result is one of those defined by Verification of Payee, such as a close match.

The result is a *match* if both names are the same. The comparison ignores case, accents, punctuation, spacing
and titles. The comparison also ignores a middle name that only one side contains, swapped first and last
names, and differences between the usual transliterations of a letter. The result is a *close match* if the
difference is small: a typo, an initial instead of a name, a missing second surname or a missing particle. The
bank's customer decides whether to accept a close match. Words are compared by edit distance, using rapidfuzz.
The first name and the last name are the two *halves* of a name. Each half gets a score, and the mean of the
two scores determines the result.

The comparison must be fast, because it runs on the event loop. The comparison therefore caches results and
limits the number of words, letters and *readings*. A reading is one way to divide a name into first, middle
and last name.

The functions have no side effects. No message or ``repr`` shows personal data.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from attrs import evolve, field, frozen
from rapidfuzz.distance import OSA

from transfer_async._beneficiary import transliteration
from transfer_async._beneficiary.transliteration import ALPHABETS, HAN, LATIN, UnreadableName, Word
from transfer_async._models.errors import MatchResult
from transfer_async._models.requests import PersonName

# --- name parsing ------------------------------------------------------------------------------------
# A name is split into words. Titles are removed, a generation such as "Jr" is separated, and each particle
# gets one spelling.


Words = tuple[Word, ...]

MAX_LENGTH = 140
"""The maximum number of characters of a whole name, as in payment messages. Longer names are not compared."""

MAX_WORDS = 14
"""The maximum number of words of a whole name."""


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _listed(
    "mr mrs ms miss mx dr prof professor sir rev reverend engr barr barrister capt sgt lt chief alhaji "
    "alhaja hajia hajiya otunba mallam sr sra srta senor senora herr frau mme mlle monsieur madame dott "
    "dottssa dipl shri smt"
)
"""Titles that are removed from the start of a name. Titles that are also names (Prince) are not listed."""

PARTICLES = _listed(
    "de del della di da do dos das du des la las los le van von der den ter ten te op het zu zur zum vom "
    "af av al bin bint binti bte st san santa abu umm ould wa"
)
"""Minor words of a surname. The names are still close if one side lacks such a word."""

ABBREVIATIONS = {
    "md": "mohammed",
    "mohd": "mohammed",
    "muhd": "muhammad",
    "ma": "maria",
    "wm": "william",
    "fco": "francisco",
    "jas": "james",
    "chas": "charles",
    "geo": "george",
}
"""Abbreviations of first names. Like an initial, an abbreviation is a close match of the full name."""

_RANKS = {
    **dict.fromkeys(("jr", "jnr", "junior"), "junior"),
    **dict.fromkeys(("sr", "snr", "senior"), "senior"),
    **dict.fromkeys(("ii", "2nd"), "2"),
    **dict.fromkeys(("iii", "3rd"), "3"),
    **dict.fromkeys(("iv", "4th"), "4"),
}
_HONOURS = _listed("phd esq")
_PLACEHOLDERS = _listed("fnu lnu nmn")  # "first name unknown", as registers write it
_LINKS = _listed("y e i")  # between two surnames: Ramón y Cajal
_ONE_SPELLING = {"el": "al", "ul": "al", "ibn": "bin", "saint": "st"}

_SERVANT = re.compile(r"abd[aeu](?:l|([rsnzdt])(?=\1))(.{3,})")
_SERVANT_OF = re.compile(r"abd(?:[aeu][lrsnzdt])?")


class TooLong(ValueError):
    """Raised if a name would take too long to compare."""


@frozen
class NameParts:
    """A name, divided into its words.

    Args:
        first: the words of the first name, without titles.
        middle: the words of the middle name.
        last: the words of the last name.
        rank: the generational suffix, such as "Jr" or "III", in a uniform spelling; None if there is none.
    """

    first: Words = field(repr=False)
    middle: Words = field(repr=False)
    last: Words = field(repr=False)
    rank: str | None = field(default=None, repr=False)

    @property
    def words(self) -> Words:
        """All words of the name, with the given name first."""
        return self.first + self.middle + self.last

    @property
    def is_single(self) -> bool:
        """Return whether the name has only one word, as some people's names do."""
        return len(self.words) == 1

    def orders(self) -> tuple[Words, ...]:
        """Return the words in each usual order: given name first, family name first, and Vietnamese order."""
        first, middle, last = self.first, self.middle, self.last
        return first + middle + last, last + first + middle, last + middle + first

    def readings(self) -> Iterator[NameParts]:
        """Yield every way of dividing the words into first, middle and last name."""
        if not self.first or not self.last:
            words = self.words
            for cut in range(1, len(words)):
                yield evolve(self, first=words[:cut], middle=(), last=words[cut:])
                if cut + 1 < len(words):
                    yield evolve(self, first=words[:cut], middle=words[cut:-1], last=words[-1:])
            return
        yield self
        if self.middle:
            yield evolve(self, first=self.first + self.middle, middle=())
            yield evolve(self, last=self.middle + self.last, middle=())


def read_name(name: PersonName) -> NameParts:
    """Split ``name`` into its parts. Any part of ``name`` may be empty.

    Raises:
        TooLong: the name exceeds `MAX_LENGTH` or `MAX_WORDS`.
        UnreadableName: the name mixes scripts, or contains a character that is not used in names.
    """
    first, middle, last = _texts(name.first or "", name.middle or "", name.last or "")
    _drop_titles(first, middle, last)
    ranks = [_cut_rank(first, keep=1), _cut_rank(middle, keep=0), _cut_rank(last, keep=1)]
    parts = NameParts(
        first=_words(first),
        middle=_words(middle),
        last=_words(_without_links(last)),
        rank=next(filter(None, ranks), None),
    )
    scripts = {word.script for word in parts.words}
    if len(scripts) > 1 and not scripts <= {LATIN, HAN, "HANGUL"}:  # as in "Peter 陳"
        raise UnreadableName("contains words in several scripts")
    return parts


def _texts(*parts: str) -> list[list[str]]:
    if sum(map(len, parts)) > MAX_LENGTH:
        raise TooLong
    texts = [[text for text in transliteration.words_of(part) if text not in _PLACEHOLDERS] for part in parts]
    words = list(itertools.chain(*texts))
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_LENGTH:  # One character may expand to 18 letters.
        raise TooLong
    return texts


def _drop_titles(*parts: list[str]) -> None:
    while sum(map(len, parts)) > 2:
        head = next(part for part in parts if part)
        if transliteration.without_marks(head[0]) not in TITLES:
            return
        del head[0]


def _cut_rank(part: list[str], *, keep: int) -> str | None:
    """Remove a generational suffix such as "Jr" or "III" and return it, but keep at least ``keep`` words."""
    while len(part) > keep:
        last = transliteration.without_marks(part[-1])
        if last not in _HONOURS and last not in _RANKS:
            return None
        part.pop()
        if last in _RANKS:
            return _RANKS[last]
    return None


def _without_links(part: list[str]) -> list[str]:
    inner = range(1, len(part) - 1)
    return [text for place, text in enumerate(part) if not (place in inner and text in _LINKS)]


def _words(texts: list[str]) -> Words:
    light = [_ONE_SPELLING.get(text, text) for text in texts[:-1]]
    return tuple(transliteration.read_word(text) for text in _with_servants(light + texts[-1:]))


def _with_servants(texts: list[str]) -> Iterator[str]:
    """Yield the words, with one spelling for variants such as Abd al-Rahman and Abdurrahman."""
    rest = iter(texts)
    for text in rest:
        served = next(rest, None) if _SERVANT_OF.fullmatch(text) else None
        if served == "al":
            served = next(rest, None)
        if served is not None:
            yield "abdullah" if served == "allah" else f"abdul{served}"
        else:
            found = _SERVANT.fullmatch(text)
            yield f"abdul{found[2]}" if found else text


CLOSE_SCORE = 0.85
"""The minimum mean score of a close match. It allows one difference, but not two in short words."""

ALLOWED_EDITS = ((12, 2), (4, 1))
"""The number of allowed edits by the length of a word: 2 from 12 letters, 1 from 4 letters, otherwise none.

A word of 4 letters stays recognisable after one typing error. Shorter names that differ in one letter are
different names: Ada and Ade, Li and Lu, Obi and Oba. Two edits turn Chukwuemeka into Chukwuebuka, so a word
of 11 letters allows only one edit. A swap of two neighbouring letters is one edit.
"""

INITIAL_SCORE = 0.8
"""The score of an initial or a short form. A close match then needs other halves that are nearly the same."""

MIN_SHORT_FORM = 4
"""The minimum length of a short form (Tunde, Emeka, Alex), which is the start or the end of the full name."""

SOUND_SCORE = 0.88
"""The score of two spellings with the same sound (Mohammed, Muhammad).

Names are close even if both of their halves have this score.
"""

SHORT_WORD = 3
"""The length of a word that may gain one silent letter. Longer words allow any one edit."""

MIN_SKELETON = (5, 3)
"""The minimum number of sounds, and of consonants, in two words that may differ in one vowel."""

MISSING_NAME_FACTOR = 0.9
"""The factor for a half in which one side has a name that the other lacks, such as a second surname."""

MINOR_FACTOR = 0.95
"""The factor for a half with a missing particle, a changed order of words, or contradicting accents.

If both sides have middle names and these differ, the whole score is also multiplied by this factor.
"""

MIN_RESPACED_LENGTH = 7
"""The minimum length of a half, written as one word, that may contain a typing error."""

MAX_STEPS = 2_000
"""The maximum number of steps of a comparison, which take a few milliseconds.

The number of steps is the number of pairs of readings times the number of pairs of words. Only long names
without separate first and last names exceed the limit. Two names of ten words need 1,700 steps if one of them
has separate first and last names. Names that exceed the limit match only if they are the same.
"""

P = ParamSpec("P")
T = TypeVar("T")


@frozen
class NameMatch:
    """The result of a comparison.

    Args:
        result: match, close match, no match or not possible.
        score: the similarity, from 0 to 1. A match has a score of 1, and a close match has a score of at
            least `CLOSE_SCORE`.
        reason: the reason for the result, without personal data.
        is_deceptive: whether a name mixes scripts, or contains a look-alike letter or a character that is not
            a letter.
    """

    result: MatchResult
    score: float
    reason: str
    is_deceptive: bool = False


def match_names(given: PersonName, found: PersonName) -> NameMatch:
    """Compare the name that a customer typed with the name that an account shows.

    Any part of a name may be empty. Swapping the two names does not change the result.

    Returns:
        The result is ``NO_MATCH`` if a name mixes scripts. The result is ``NOT_POSSIBLE`` if a name is
        missing, too long, incomplete or too ambiguous, or if the scripts cannot be compared.
    """
    try:
        one, other = _read(given, found)
    except TooLong:
        return NameMatch(MatchResult.NOT_POSSIBLE, 0.0, "a name is too long to be compared")
    except UnreadableName as error:
        return NameMatch(MatchResult.NO_MATCH, 0.0, f"a name {error}", is_deceptive=True)
    if not one.words or not other.words:
        return NameMatch(MatchResult.NOT_POSSIBLE, 0.0, "there is no name to compare")
    if not (_can_be_read_as(one, other) and _can_be_read_as(other, one)):
        return NameMatch(MatchResult.NOT_POSSIBLE, 0.0, "the names are in scripts that cannot be compared")
    return _judge(one, other)


def _read(*names: PersonName) -> list[NameParts]:
    """Split each name into its parts. Raise `UnreadableName` rather than `TooLong` if both apply."""
    parts, too_long = [], None
    for name in names:
        try:
            parts.append(read_name(name))
        except TooLong as error:
            too_long = error
    if too_long:
        raise too_long
    return parts


def _judge(one: NameParts, other: NameParts) -> NameMatch:
    if one.rank and other.rank and one.rank != other.rank:
        return NameMatch(
            MatchResult.NO_MATCH, 0.0, "the generational suffixes differ, such as senior and junior"
        )
    comparison = _Comparison()
    if comparison.is_same(one, other):
        return NameMatch(MatchResult.MATCH, 1.0, "the names are the same")
    pairs = list(itertools.product(one.readings(), other.readings()))
    if len(pairs) * len(one.words) * len(other.words) > MAX_STEPS:
        return NameMatch(MatchResult.NOT_POSSIBLE, 0.0, "the names have too many words to compare")
    if one.is_single and other.is_single:
        score = comparison.half(one.words, other.words, surname=True)
    else:
        score = max((comparison.score(a, b) for a, b in pairs), default=0.0)
    if score == 1.0:
        return NameMatch(MatchResult.MATCH, score, "the names are the same")
    if score >= CLOSE_SCORE:
        return NameMatch(MatchResult.CLOSE_MATCH, score, "the names differ only slightly")
    if one.is_single != other.is_single and any(
        comparison.first_name_score(a, b) for a in one.words for b in other.words
    ):
        return NameMatch(MatchResult.NOT_POSSIBLE, score, "one name is only a first or a last name")
    return NameMatch(MatchResult.NO_MATCH, score, "the names differ")


def _can_be_read_as(one: NameParts, other: NameParts) -> bool:
    return all(any(_are_comparable(a.script, b.script) for b in other.words) for a in one.words)


def _once(ask: Callable[Concatenate[_Comparison, P], T]) -> Callable[Concatenate[_Comparison, P], T]:
    """Cache the results of a `_Comparison` method in the `_Comparison` object."""

    @functools.wraps(ask)
    def answer(comparison: _Comparison, /, *about: P.args, **how: P.kwargs) -> T:
        question = (ask, *about, *how.values())
        try:
            found: T = comparison.known[question]
        except KeyError:
            found = comparison.known[question] = ask(comparison, *about, **how)
        return found

    return answer


class _Comparison:
    """The comparison of two names.

    Intermediate results are cached, because many readings of a name contain the same words.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], Any] = {}
        self.same = functools.cache(_same)
        self.joined = functools.cache(transliteration.joined)
        self.surname_score = functools.cache(_surname_score)
        self.first_name_score = functools.cache(_first_name_score)

    # --- the same ---

    @_once
    def aligned(self, ours: Words, theirs: Words) -> bool:
        """Return whether the words are the same and in the same order, ignoring spaces."""
        if len(ours) == len(theirs) == 1:
            return self.same(ours[0], theirs[0])
        seen: set[tuple[int, int]] = set()
        todo = [(0, 0)]  # the numbers of words of both sides that were compared already
        while todo:
            place = i, j = todo.pop()
            if place == (len(ours), len(theirs)):
                return True
            if place not in seen and i < len(ours) and j < len(theirs):
                seen.add(place)
                todo += ((i + 1, end) for end in self._ends(ours[i], theirs, j))
                todo += ((end, j + 1) for end in self._ends(theirs[j], ours, i))
        return False

    def _ends(self, word: Word, words: Words, start: int) -> Iterator[int]:
        """Yield each ``end`` for which ``words[start:end]``, joined, is the same word as ``word``."""
        shortest = length = 0
        for end, last in enumerate(words[start:], start + 1):
            shortest, length = shortest + last.shortest, length + len(last.native)
            if shortest > word.longest and length > len(word.native):
                return
            if self.same(word, self.joined(words[start:end])):
                yield end

    def is_same(self, one: NameParts, other: NameParts) -> bool:
        """Return whether the names are the same, in any usual order of first, middle and last name."""
        return (
            any(self.aligned(one.words, order) for order in other.orders())
            or any(self.aligned(order, other.words) for order in one.orders())
            or self._is_doubled(one, other)
            or self._is_doubled(other, one)
        )

    def _is_doubled(self, one: NameParts, other: NameParts) -> bool:
        """Return whether ``one`` is a single word and ``other`` repeats it, as in "Cher" and "Cher Cher"."""
        twice = other.first and other.last and not other.middle
        return bool(one.is_single and twice) and all(
            self.aligned(one.words, half) for half in (other.first, other.last)
        )

    # --- close ---

    def score(self, a: NameParts, b: NameParts) -> float:
        """Return the mean score of the halves; swapped halves or different middle names may reduce it."""
        straight = self.halves(a.first, a.last, b.first, b.last)
        swapped = max(
            self.halves(a.last, a.first, b.first, b.last), self.halves(a.first, a.last, b.last, b.first)
        )
        score = max(straight, swapped if swapped == 1.0 else MINOR_FACTOR * swapped)
        return score if not score or self.middles_agree(a.middle, b.middle) else MINOR_FACTOR * score

    def halves(self, first: Words, last: Words, their_first: Words, their_last: Words) -> float:
        """Return the mean of the scores of the first and the last name, or 0 if either score is 0."""
        lasts = self.half(last, their_last, surname=True)
        firsts = self.half(first, their_first, surname=False) if lasts else 0.0
        return (firsts + lasts) / 2 if firsts else 0.0

    @_once
    def middles_agree(self, ours: Words, theirs: Words) -> bool:
        """Return whether one name contains all middle names of the other, or their initials."""
        return (
            self.aligned(ours, theirs)
            or (len(ours) <= len(theirs) and self._all_among(ours, theirs))
            or (len(theirs) <= len(ours) and self._all_among(theirs, ours))
        )

    def _all_among(self, fewer: Words, more: Words) -> bool:
        return all(
            any(self.same(a, b) or _is_initial(a, b) or _is_initial(b, a) for b in more) for a in fewer
        )

    @_once
    def half(self, ours: Words, theirs: Words, *, surname: bool) -> float:
        """Return the similarity of two first names or two last names, from 0 (different) to 1 (the same)."""
        if self.aligned(ours, theirs):
            return 1.0
        score = self._pairing_score(ours, theirs, surname=surname)
        if len(ours) > 1 or len(theirs) > 1:
            a, b = self.joined(ours), self.joined(theirs)
            if min(len(a.plain), len(b.plain)) >= MIN_RESPACED_LENGTH:
                score = max(score, _edit_score(a, b))
            if not surname and (_is_monogram(ours, theirs) or _is_monogram(theirs, ours)):
                score = max(score, INITIAL_SCORE)
        return min(score, MINOR_FACTOR)

    def _pairing_score(self, ours: Words, theirs: Words, *, surname: bool) -> float:
        """Pair the words, the most similar first, and return the mean score of the pairs.

        Unpaired words lower the score.
        """
        score_of = self.surname_score if surname else self.first_name_score
        pairs = [
            (score, -i - j, -abs(i - j), i, j)
            for i, a in enumerate(ours)
            for j, b in enumerate(theirs)
            if (score := score_of(a, b))
        ]
        left, right = dict(enumerate(ours)), dict(enumerate(theirs))
        light = PARTICLES if surname and len(ours) > 1 < len(theirs) else ()
        total = weight = 0.0
        for score, _, _, i, j in sorted(pairs, reverse=True):
            if i in left and j in right:
                a, b = left.pop(i), right.pop(j)
                size = 0 if a.plain in light and b.plain in light else max(len(a.plain), len(b.plain))
                total, weight = total + score * size, weight + size
        if not weight:
            return 0.0
        particles = [_are_particles(left, len(ours), surname), _are_particles(right, len(theirs), surname)]
        return total / weight * _missing_words_factor(*particles)


def _are_particles(left: dict[int, Word], count: int, surname: bool) -> list[bool]:
    """Return, for each unpaired word, whether it is a particle before the last word of a surname."""
    return [surname and word.plain in PARTICLES and place < count - 1 for place, word in left.items()]


def _missing_words_factor(ours: list[bool], theirs: list[bool]) -> float:
    if not all(ours) and not all(theirs):
        return 0.0  # Each side has a name that the other side lacks.
    names = not all(ours + theirs)
    return (MISSING_NAME_FACTOR if names else 1.0) * (MINOR_FACTOR if any(ours + theirs) else 1.0)


# --- words --------------------------------------------------------------------------------------


def _are_comparable(a: str, b: str) -> bool:
    """Return whether both scripts are the same, or one is Latin and the other is alphabetic."""
    return a == b or (LATIN in (a, b) and {a, b} <= ALPHABETS)


def _same(a: Word, b: Word) -> bool:
    if a.native == b.native and a.script == b.script:
        return not _accents_contradict(a, b)
    if LATIN not in (a.script, b.script) or not _are_comparable(a.script, b.script):
        return False
    return (b.script == LATIN and a.can_be_spelt(b.plain)) or (a.script == LATIN and b.can_be_spelt(a.plain))


def _accents_contradict(a: Word, b: Word) -> bool:
    """Return whether the two words have different accents on the same letter, as in Thủy and Thúy."""
    return any(not (x <= y or y <= x) for x, y in zip(a.marks, b.marks, strict=False))


def _surname_score(a: Word, b: Word) -> float:
    """Return the similarity of two words from surnames, from 0 (different) to 1 (the same)."""
    if _same(a, b):
        return 1.0
    if not _may_contain_typing_error(a, b):
        return 0.0
    if a.script == b.script and a.native == b.native:
        return MINOR_FACTOR  # They differ only in accents.
    return max(_edit_score(a, b), _sound_score(a, b), _silent_letter_score(a, b))


def _first_name_score(a: Word, b: Word) -> float:
    """Return the similarity of two words from first names. Each word may be an initial or a short form."""
    stands_for = _may_contain_typing_error(a, b) and (_stands_for(a, b) or _stands_for(b, a))
    return max(_surname_score(a, b), INITIAL_SCORE if stands_for else 0.0)


def _may_contain_typing_error(a: Word, b: Word) -> bool:
    """Return whether the difference between the words may be a typo.

    Only words in an alphabetic script can differ by a single mistyped letter.
    """
    return a.script in ALPHABETS and _are_comparable(a.script, b.script)


def _stands_for(a: Word, b: Word) -> bool:
    return _is_initial(a, b) or _is_short(a, b) or _abbreviates(a, b)


def _is_initial(a: Word, b: Word) -> bool:
    return len(a.native) == 1 < len(b.native) and a.plain[:1] == b.plain[:1] != ""


def _is_monogram(ours: Words, theirs: Words) -> bool:
    """Return whether ``ours`` consists of the initials of ``theirs``, such as JP for Jean Pierre."""
    return len(ours) == 1 and len(theirs) > 1 and ours[0].plain == "".join(word.plain[:1] for word in theirs)


def _is_short(a: Word, b: Word) -> bool:
    long = MIN_SHORT_FORM <= len(a.plain) < len(b.plain)
    return long and (b.plain.startswith(a.plain) or b.plain.endswith(a.plain))


def _edit_score(a: Word, b: Word) -> float:
    x, y = (a.native, b.native) if a.script == b.script else (a.plain, b.plain)
    if not {a.script, b.script} <= ALPHABETS:
        return 0.0
    edits = next((edits for least, edits in ALLOWED_EDITS if min(len(x), len(y)) >= least), 0)
    if not edits or OSA.distance(x, y, score_cutoff=edits) > edits:
        return 0.0
    return OSA.normalized_similarity(x, y)


def _sound_score(a: Word, b: Word) -> float:
    """Return `SOUND_SCORE` for two romanisations of one name, such as Mohammed and Muhammad, else 0."""
    if LATIN not in (a.script, b.script):
        return 0.0
    x, y = a.sound, b.sound
    if x == y:
        return SOUND_SCORE if len(x) >= MIN_SHORT_FORM else 0.0
    skeleton = a.skeleton
    long = min(len(x), len(y)) >= MIN_SKELETON[0] and len(skeleton) >= MIN_SKELETON[1]
    return SOUND_SCORE if long and skeleton == b.skeleton and OSA.distance(x, y) <= 1 else 0.0


def _silent_letter_score(a: Word, b: Word) -> float:
    """Return `SOUND_SCORE` for short words that differ in a silent letter, such as Jon and John, else 0."""
    x, y = sorted((a.plain, b.plain), key=len)
    return SOUND_SCORE if len(x) == SHORT_WORD and transliteration.differ_in_silent_letter(x, y) else 0.0


def _abbreviates(a: Word, b: Word) -> bool:
    full = _ABBREVIATED.get(a.plain)
    return full is not None and bool(_same(full, b) or _edit_score(full, b) or _sound_score(full, b))


_ABBREVIATED = {short: transliteration.read_word(full) for short, full in ABBREVIATIONS.items()}

"""A person's name as words: titles and "Jr" off, particles in one spelling, joined or parted alike."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from attrs import evolve, field, frozen

from transfer_async._beneficiary import transliteration
from transfer_async._beneficiary.transliteration import HAN, LATIN, UnreadableName, Word
from transfer_async._models.requests import PersonName

Words = tuple[Word, ...]

MAX_LENGTH = 140
"""Characters of a whole name, which is what a payment message has room for; a longer one is not compared."""

MAX_WORDS = 14
"""Words of the same."""


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


TITLES = _listed(
    "mr mrs ms miss mx dr prof professor sir rev reverend engr barr barrister capt sgt lt chief alhaji "
    "alhaja hajia hajiya otunba mallam sr sra srta senor senora herr frau mme mlle monsieur madame dott "
    "dottssa dipl shri smt"
)
"""Left out at the head of a name; what is a name as well (Prince, Sheikh, Hon, Sri) is not among them."""

PARTICLES = _listed(
    "de del della di da do dos das du des la las los le van von der den ter ten te op het zu zur zum vom "
    "af av al bin bint binti bte st san santa abu umm ould wa"
)
"""Light words of a surname: one side may lack them, and the names are still close."""

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
"""What stands for a whole first name without being its initial: close to it, as an initial is."""

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
    """A name that would take too long to compare."""


@frozen
class NameParts:
    """The words of a name.

    Args:
        first: of the first name, without titles.
        middle: of the middle name.
        last: of the last name.
        rank: what tells the generation, "Jr" or "III", in one form.
    """

    first: Words = field(repr=False)
    middle: Words = field(repr=False)
    last: Words = field(repr=False)
    rank: str | None = field(default=None, repr=False)

    @property
    def words(self) -> Words:
        """All of them, given name first."""
        return self.first + self.middle + self.last

    @property
    def is_single(self) -> bool:
        """Whether there is one word only: half a name, or the whole of a person who has but one."""
        return len(self.words) == 1

    def orders(self) -> tuple[Words, ...]:
        """The orders that names are written in: given name first, family name first, and Vietnam's."""
        first, middle, last = self.first, self.middle, self.last
        return first + middle + last, last + first + middle, last + middle + first

    def readings(self) -> Iterator[NameParts]:
        """The ways to tell first from last name; what is left between them is the middle name."""
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
    """The parts of ``name``; each may be empty.

    Raises:
        TooLong: it is longer than `MAX_LENGTH` or `MAX_WORDS`.
        UnreadableName: it mixes scripts, or holds what is no letter of a name.
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
        raise UnreadableName("mixes words of several scripts")
    return parts


def _texts(*parts: str) -> list[list[str]]:
    if sum(map(len, parts)) > MAX_LENGTH:
        raise TooLong
    texts = [[text for text in transliteration.words_of(part) if text not in _PLACEHOLDERS] for part in parts]
    words = list(itertools.chain(*texts))
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_LENGTH:  # a sign may stand for eighteen letters
        raise TooLong
    return texts


def _drop_titles(*parts: list[str]) -> None:
    while sum(map(len, parts)) > 2:
        head = next(part for part in parts if part)
        if transliteration.without_marks(head[0]) not in TITLES:
            return
        del head[0]


def _cut_rank(part: list[str], *, keep: int) -> str | None:
    """Take "Jr" or "III" off the end; the only word of a first or last name is a name."""
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
    """Abd al-Rahman, Abdul Rahman, Abdelrahman and Abdurrahman as one word, spelt in one way."""
    rest = iter(texts)
    for text in rest:
        whom = next(rest, None) if _SERVANT_OF.fullmatch(text) else None
        if whom == "al":
            whom = next(rest, None)
        if whom is not None:
            yield "abdullah" if whom == "allah" else f"abdul{whom}"
        else:
            found = _SERVANT.fullmatch(text)
            yield f"abdul{found[2]}" if found else text

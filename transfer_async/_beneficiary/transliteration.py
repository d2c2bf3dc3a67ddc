"""Transliterate names: clean up their letters, determine the script, and spell the words in plain Latin.

A word consists of units; a unit is one letter, or a few letters that are transliterated together. A unit may
have several spellings: ``ü`` as ``u`` or ``ue``, ``щ`` as ``shch``, ``sch`` or ``sc``. Two words are the same
if one is a spelling of the other, in any transliteration scheme. Words that mix scripts, or that contain
characters not used in names, are rejected, because they could imitate another name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Literal

from attrs import field, frozen

LATIN, CYRILLIC, GREEK, HAN = "LATIN", "CYRILLIC", "GREEK", "HAN"

ALPHABETS = frozenset((LATIN, CYRILLIC, GREEK))
"""The scripts that can be compared with Latin, and in which typing errors can be recognised."""

Units = tuple[tuple[str, ...], ...]
"""The possible spellings of each unit of a word, the usual one first."""


class UnreadableName(ValueError):
    """Raised if a text cannot be read as a name. The error message contains the reason, but not the text."""


@frozen(eq=False)
class Word:
    """One word of a name. Two `Word` objects are equal only if they are the same object.

    Args:
        native: the word in its own script, case-folded and without accents.
        script: the script of all letters of the word.
        units: for each letter or group of letters, its possible spellings in plain Latin letters.
        marks: the accents of each Latin letter, used to detect words with conflicting accents.
    """

    native: str = field(repr=False)
    script: str
    units: Units = field(repr=False)
    marks: tuple[frozenset[str], ...] = field(default=(), repr=False)
    plain: str = field(init=False, repr=False)
    """The usual spelling in plain Latin, or the native form if the script has no such spelling."""

    @plain.default
    def _plain(self) -> str:
        return "".join(ways[0] for ways in self.units)

    @cached_property
    def shortest(self) -> int:
        """The number of letters in the word's shortest spelling."""
        return sum(min(map(len, ways)) for ways in self.units)

    @cached_property
    def longest(self) -> int:
        """The number of letters in the word's longest spelling."""
        return sum(max(map(len, ways)) for ways in self.units)

    def can_be_spelt(self, text: str) -> bool:
        """Return whether ``text`` is one of the word's spellings."""
        return self.shortest <= len(text) <= self.longest and is_spelling(self.units, text)

    @cached_property
    def sound(self) -> str:
        """The word as respelt by the function `sound`."""
        return sound(self.plain)

    @cached_property
    def skeleton(self) -> str:
        """The consonants of the word's `sound`."""
        return consonants(self.sound)


def _table(rows: str, *, form: Literal["NFC", "NFD"] = "NFC") -> dict[str, tuple[str, ...]]:
    """Parse rows of ``letter:spelling/spelling``. The spelling ``-`` means that the letter is omitted."""
    pairs = (row.split(":") for row in unicodedata.normalize(form, rows).split())
    return {letter: tuple(ways.replace("-", "").split("/")) for letter, ways in pairs}


def joined(words: Sequence[Word]) -> Word:
    """Join ``words`` into one word. The joined word has no script if the words have different scripts."""
    if len(words) == 1:
        return words[0]
    scripts = {word.script for word in words}
    return Word(
        native="".join(word.native for word in words),
        script=scripts.pop() if len(scripts) == 1 else "",
        units=tuple(ways for word in words for ways in word.units),
        marks=tuple(marks for word in words for marks in word.marks),
    )


def is_spelling(units: Units, text: str) -> bool:
    """Return whether ``text`` is one of the spellings of ``units``.

    The search follows all spellings at once, by keeping the set of positions reached in ``text``.
    """
    where: dict[str, int] = {}  # the positions of each letter, as bits
    for place, letter in enumerate(text):
        where[letter] = where.get(letter, 0) | 1 << place
    reached = 1
    for ways in units:
        before, reached = reached, 0
        for way in ways:
            places = before
            for letter in way:
                places = (places & where.get(letter, 0)) << 1
            reached |= places
        if not reached:
            return False
    return bool(reached >> len(text) & 1)


# --- from text to words -------------------------------------------------------------------------

_APOSTROPHES = dict.fromkeys(map(ord, "'’‘‛`´′ʹʼʻʽʾʿˈꞌ׳״"))
# Writers use these marks interchangeably: the Yoruba dot and line below, and the cedilla and the comma.
_SAME_MARKS = {0x0329: 0x0323, 0x0331: 0x0323, 0x0326: 0x0327}


def words_of(text: str) -> list[str]:
    """Split ``text`` into case-folded words without apostrophes and invisible characters.

    Hyphens, full stops and all other punctuation separate words; an apostrophe does not.
    """
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES))
    text = unicodedata.normalize("NFKC", text.casefold()).translate(_APOSTROPHES)
    return "".join(map(_kept, text)).split()


def without_marks(text: str) -> str:
    """Return ``text`` without accents."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


@lru_cache(maxsize=4096)
def _kept(letter: str) -> str:
    kind = unicodedata.category(letter)
    if kind == "Cf" or letter == "\u034f" or "\ufe00" <= letter <= "\ufe0f":
        return ""  # Invisible: zero-width joiners, marks of direction, soft hyphens, variation selectors
    return " " if kind[0] in "PZ" or kind == "Cc" else letter


def read_word(text: str) -> Word:
    """Read one of the words that `words_of` returns.

    Raises:
        UnreadableName: the word mixes scripts, or contains a character that is not used in names.
    """
    scripts = {script for letter in text if (script := _script(letter))}
    if len(scripts) != 1:
        raise UnreadableName(
            "mixes letters from several scripts" if scripts else "contains a character that is not a letter"
        )
    script = scripts.pop()
    if script == LATIN:
        return _latin(text)
    if script == CYRILLIC:
        return _cyrillic(text)
    if script == GREEK:
        return _greek(text)
    native = _without_points(text) if script in _POINTED else unicodedata.normalize("NFC", text)
    if not native:
        raise UnreadableName("contains a character that is not a letter")
    return Word(native=native, script=script, units=tuple((letter,) for letter in native))


_HAN = {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "BOPOMOFO"}


@lru_cache(maxsize=4096)
def _script(letter: str) -> str | None:
    kind = unicodedata.category(letter)
    if kind[0] == "M":
        return None
    if kind[0] != "L":
        raise UnreadableName("contains a character that is not a letter")
    script = unicodedata.name(letter, "UNNAMED").partition(" ")[0]
    return HAN if script in _HAN else script


# --- Latin --------------------------------------------------------------------------------------

_LATIN_LETTERS = _table(
    """
    æ:ae œ:oe ø:o/oe þ:th ð:d/dh đ:d/dj ł:l ı:i ħ:h ŧ:t ŋ:ng/n ɓ:b ɗ:d ƙ:k ƴ:y ɖ:d ƒ:f ɣ:g/gh ɛ:e ɔ:o
    ʋ:v/w ɲ:ny/n ƭ:t ɠ:g ɨ:i ʉ:u ə:e/a ǝ:e/a ĸ:k/q
    """
)
"""Letters of names that are not a plain letter with an accent. Look-alikes such as ``ɑ`` are not listed."""

_WITH_MARKS = _table(
    """
    ä:ae ö:oe ő:oe ü:ue/yu/v ű:ue å:aa ṣ:sh ş:sh š:sh č:ch ć:ch ž:zh ğ:gh
    """,
    form="NFD",
)
"""More spellings of accented letters, in addition to the plain letter: German, Yoruba, pinyin and others."""


def _latin(text: str) -> Word:
    units: list[tuple[str, ...]] = []
    marks: list[frozenset[str]] = []
    for letter in unicodedata.normalize("NFD", text).translate(_SAME_MARKS):
        if not unicodedata.combining(letter):
            units.append(_LATIN_LETTERS.get(letter, (letter,)))
            marks.append(frozenset())
        elif units and letter not in marks[-1]:
            units[-1] += _WITH_MARKS.get(units[-1][0] + letter, ())
            marks[-1] |= {letter}
    word = Word(
        native="".join(ways[0] for ways in units), script=LATIN, units=tuple(units), marks=tuple(marks)
    )
    if not word.plain.isascii() or not word.plain.isalpha():
        raise UnreadableName("contains a look-alike letter that is not used in names")
    return word


# --- Cyrillic and Greek -------------------------------------------------------------------------

_CYRILLIC = _table(
    """
    а:a б:b в:v/w/f/ff г:g/h/gh/gu д:d е:e/ye/ie/je ё:e/yo/io/jo/o ж:zh/j/z/g/sch з:z/s и:i/y й:y/i/j
    к:k/c л:l м:m н:n о:o п:p р:r с:s/ss т:t у:u/ou ф:f/ph х:kh/h/ch/x ц:ts/c/tz/z ч:ch/tch/tsch/c/cz
    ш:sh/ch/sch/s/sz щ:shch/sch/chtch/schtsch/sc/sht/stsch ъ:-/a/u ы:y/i ь:- э:e ю:yu/iu/ju/u я:ya/ia/ja
    ий:iy/y/i/ii/ij/yi/yy ый:yy/y/yi/iy/ij/i ия:iya/ia/iia/ija/ya кс:ks/x др:dr/der
    і:i ї:i/yi/ji є:ye/ie/e/je ґ:g ў:u/w/v ій:iy/ii/i/y/ij ђ:dj/d ћ:c/ch џ:dz/dzh љ:lj/l њ:nj/n ј:j/y/i
    ѓ:gj/g ќ:kj/k ѕ:dz ә:a/ae ө:o ұ:u ү:u қ:k/q ғ:g/gh ң:n/ng һ:h
    """
)

_GREEK = _table(
    """
    α:a β:v/b γ:g/y/gh δ:d/dh ε:e ζ:z η:i/e/h θ:th ι:i κ:k/c λ:l μ:m ν:n ξ:x/ks ο:o π:p ρ:r/rh σ:s τ:t
    υ:y/i/u φ:f/ph χ:ch/h/kh/x ψ:ps ω:o/w ου:ou/u αυ:av/af/au ευ:ev/ef/eu ει:ei/i αι:ai/e οι:oi/i
    μπ:b/mp/mb ντ:nt/d/nd γκ:gk/g/ng γγ:ng/gg γχ:nch/gch/nh τζ:tz/dz/j
    """
)


def _cyrillic(text: str) -> Word:
    composed = unicodedata.normalize("NFC", text)
    native = "".join(letter for letter in composed if not unicodedata.combining(letter))
    return _romanised(native.replace("ё", "е"), native, CYRILLIC, _CYRILLIC)


def _greek(text: str) -> Word:
    native = without_marks(text)
    return _romanised(native, native, GREEK, _GREEK)


def _romanised(native: str, text: str, script: str, table: dict[str, tuple[str, ...]]) -> Word:
    units: list[tuple[str, ...]] = []
    place = 0
    while place < len(text):
        unit = text[place : place + 2]
        if len(unit) < 2 or unit not in table:
            unit = text[place]
        if unit not in table:
            raise UnreadableName("contains a look-alike letter that is not used in names")
        units.append(table[unit])
        place += len(unit)
    return Word(native=native, script=script, units=tuple(units))


# --- Arabic and Hebrew --------------------------------------------------------------------------

_POINTED = {"ARABIC", "HEBREW"}
_ARABIC_FORMS = str.maketrans("أإآٱىیکةۀ", "ااااييكهه", "ـ")


def _without_points(text: str) -> str:
    composed = unicodedata.normalize("NFC", text).translate(_ARABIC_FORMS)
    return "".join(letter for letter in composed if not unicodedata.combining(letter))


# --- sound --------------------------------------------------------------------------------------

_SOUNDS = (
    *(("ph", "v"), ("f", "v"), ("ck", "k"), ("kh", "h"), ("th", "t"), ("dh", "d"), ("sh", "s"), ("gh", "g")),
    *(("ou", "u"), ("oo", "u"), ("oe", "u"), ("ee", "i"), ("c", "k"), ("q", "k"), ("w", "v")),
    *(("y", "i"), ("z", "s"), ("o", "u"), ("e", "i")),
)


def sound(plain: str) -> str:
    """Respell a plain Latin word so that each sound is always spelt the same way."""
    for spelling, sound_spelling in _SOUNDS:
        plain = plain.replace(spelling, sound_spelling)
    return re.sub(r"(.)\1+", r"\1", plain)


def consonants(sounds: str) -> str:
    """Return the consonants of a word that `sound` returned."""
    return re.sub("[aiu]", "", sounds)


_SILENT_LETTERS = tuple(
    re.compile(letter)
    for letter in (
        r"(?<=[aeiouy])h(?![aeiouy])",  # silent in John and Isah, but not between vowels
        r"(?<=r)h",  # silent in Rhea; after s, t, n or z it changes the sound, as in Thai and Zhou
        r"([^aeiou])(?=\1)",  # silent in Anna; a doubled vowel changes the sound, as in Been
        r"c(?=k)|(?<=c)k",  # silent in Nick
        r"(?<=ff|ll|nn|rr|ss|tt)e$",  # silent in Anne; after one consonant it changes the vowel, as in Jane
        r"(?<=[aeiou][wy])e$",  # silent in Faye and Lowe
    )
)
"""Patterns of silent letters. A word with any other added letter is a different name."""


def differ_in_silent_letter(shorter: str, longer: str) -> bool:
    """Return whether ``longer`` is ``shorter`` plus one silent letter.

    ``longer`` and ``shorter`` are plain Latin words.
    """
    return len(longer) == len(shorter) + 1 and any(
        longer[: letter.start()] + longer[letter.end() :] == shorter
        for pattern in _SILENT_LETTERS
        for letter in pattern.finditer(longer)
    )

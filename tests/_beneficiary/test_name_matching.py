"""Name matching: a table of pairs, and properties that hold for all pairs."""

import random
import sys
import unicodedata
from collections import Counter
from functools import partial
from itertools import combinations, product

import pytest
from hypothesis import example, given, settings, target
from hypothesis import strategies as st

from tests.support.cases import each
from tests.support.name_pairs import CROWDS, PAIRS, Pair, name
from tests.support.strategies import CHARACTERS
from transfer_async._beneficiary import transliteration
from transfer_async._beneficiary.name_matching import (
    CLOSE_SCORE,
    MAX_LENGTH,
    MAX_WORDS,
    NameMatch,
    TooLong,
    match_names,
    read_name,
)
from transfer_async._models.errors import MatchResult
from transfer_async._models.requests import PersonName

MATCH, CLOSE = MatchResult.MATCH, MatchResult.CLOSE_MATCH
NO, NOT_POSSIBLE = MatchResult.NO_MATCH, MatchResult.NOT_POSSIBLE
PEOPLE = st.one_of(
    st.builds(PersonName, first=st.sampled_from(firsts), last=st.sampled_from(lasts))
    for firsts, lasts in CROWDS.values()
)
TEXTS = st.text(CHARACTERS, max_size=40) | st.text("aàеοé-'. ьـA1", max_size=20)
ANYBODY = st.builds(PersonName, first=TEXTS, last=TEXTS, middle=st.none() | TEXTS)


@each("pair", PAIRS)
def test_a_pair_of_the_table_matches_as_expected_in_both_orders(pair: Pair) -> None:
    assert match_names(pair.given, pair.found).result is pair.expected
    assert match_names(pair.found, pair.given).result is pair.expected


# --- what holds for all -------------------------------------------------------------------------


@given(person=PEOPLE)
def test_case_accents_and_the_form_of_unicode_change_nothing(person: PersonName) -> None:
    changes = [str.upper, str.lower, str.title, partial(unicodedata.normalize, "NFD")]
    if not any("CYRILLIC" in unicodedata.name(letter) for letter in person.first):
        changes.append(transliteration.without_marks)  # Й is not an и with an accent.
    for change in changes:
        changed = PersonName(first=change(person.first), last=change(person.last))

        assert match_names(changed, person).result is MATCH


@given(tradition=st.sampled_from(list(CROWDS)), data=st.data())
def test_a_middle_name_missing_on_one_side_still_matches(tradition: str, data: st.DataObject) -> None:
    firsts, lasts = (st.sampled_from(names) for names in CROWDS[tradition])
    person = data.draw(st.builds(PersonName, first=firsts, last=lasts))
    more = PersonName(first=person.first, last=person.last, middle=data.draw(firsts | lasts))

    assert match_names(more, person).result is MATCH


@given(one=ANYBODY, other=ANYBODY)
@example(PersonName("ь", "ъ"), PersonName("ь", "a"))
@example(PersonName("ـ", "\u0301"), PersonName("ЬЬ", "\ud800"))
@example(PersonName("1", ""), PersonName("a" * (MAX_LENGTH + 1), ""))
def test_any_two_texts_compare_without_an_error_in_both_orders(one: PersonName, other: PersonName) -> None:
    match = match_names(one, other)

    assert match.result is match_names(other, one).result
    assert (match.result is MATCH) == (match.score == 1.0)
    assert (match.result is CLOSE) == (CLOSE_SCORE <= match.score < 1.0)


@given(person=PEOPLE, where=st.integers(0, 30), change=st.sampled_from("xqzw"))
def test_one_wrong_letter_is_never_a_match(person: PersonName, where: int, change: str) -> None:
    at = where % len(person.first)
    slipped = PersonName(first=person.first[:at] + change + person.first[at + 1 :], last=person.last)

    if person.first.isascii() and slipped.first.casefold() != person.first.casefold():
        assert match_names(slipped, person).result is not MATCH


# --- other people -------------------------------------------------------------------------------


def people(tradition: str, count: int) -> list[PersonName]:
    """Return ``count`` people of a tradition. Every call returns the same people."""
    firsts, lasts = CROWDS[tradition]
    everybody = [PersonName(first=first, last=last) for first, last in product(firsts, lasts)]
    return random.Random(tradition).sample(everybody, count)


def are_one(a: PersonName, b: PersonName) -> bool:
    """Return whether two names differ only in accents or in swapped first and last names."""
    bare = [tuple(map(transliteration.without_marks, (person.first, person.last))) for person in (a, b)]
    return bare[0] == bare[1] or bare[0] == bare[1][::-1]


def results_of_different(people: list[PersonName]) -> Counter[MatchResult]:
    return Counter(match_names(*pair).result for pair in combinations(people, 2) if not are_one(*pair))


@pytest.mark.trial(short=6, ci=30, long=30)
@each("tradition", sorted(CROWDS))
def test_different_people_of_one_tradition_never_match_and_are_rarely_close(
    tradition: str, size: int
) -> None:
    results = results_of_different(people(tradition, size))

    assert results[MATCH] == 0
    assert results[CLOSE] <= 0.005 * results.total()


def test_different_people_of_all_traditions_never_match_and_are_hardly_ever_close() -> None:
    results = results_of_different([person for tradition in CROWDS for person in people(tradition, 2)])

    assert results[MATCH] == 0
    assert results[CLOSE] <= 0.002 * results.total()


@each(
    ("letter", "others"),
    [
        *(("a", "аαɑ"), ("e", "еҽ"), ("o", "оοо0"), ("p", "рρ"), ("c", "сϲ"), ("i", "іιⲓ1"), ("x", "хχ")),
        *(("y", "уү"), ("s", "ѕ")),
    ],
)
def test_a_look_alike_letter_within_a_word_is_not_a_match(letter: str, others: str) -> None:
    word = f"b{letter}rnard"
    for other in others:
        assert (
            match_names(PersonName(word.replace(letter, other), "Okri"), PersonName(word, "Okri")).result
            is NO
        )


@each("hidden", ["\u200b", "\u200d", "\u200e", "\u202e", "\u2060", "\ufeff", "\u00ad", "\ufe0f"])
def test_invisible_characters_are_ignored(hidden: str) -> None:
    assert (
        match_names(PersonName(f"B{hidden}en{hidden}", f"{hidden}Okri"), name("Ben / Okri")).result is MATCH
    )


@each(("length", "edits"), [(3, 0), (4, 1), (11, 1), (12, 2), (20, 2)])
def test_the_number_of_allowed_edits_depends_on_the_length(length: int, edits: int) -> None:
    word = "bcdfghjklmnpqrstvwxz"[:length]
    close = [
        match_names(PersonName(word, "Okri"), PersonName("u" * wrong + word[wrong:], "Okri")).result is CLOSE
        for wrong in range(1, 4)
    ]

    assert close == [wrong <= edits for wrong in range(1, 4)]


# --- limits -------------------------------------------------------------------------------------


@each(
    "long",
    [
        PersonName("a" * (MAX_LENGTH + 1), "Okri"),
        PersonName("a" * 50, "a" * 50, "a" * (MAX_LENGTH - 99)),
        # One character that matching expands to four letters.
        PersonName("\u3300" * (MAX_LENGTH // 2), "Okri"),
        PersonName("a " * (MAX_WORDS + 1), "Okri"),
        PersonName("a " * MAX_WORDS, "Okri"),
    ],
)
def test_a_name_that_is_too_long_is_not_compared(long: PersonName) -> None:
    assert match_names(long, name("Ben / Okri")).result is NOT_POSSIBLE
    assert match_names(name("Ben / Okri"), long).result is NOT_POSSIBLE
    with pytest.raises(TooLong):
        read_name(long)


def test_long_names_without_parts_are_compared_only_for_equality() -> None:
    long_name = PersonName("María de los Ángeles Fernández de la Torre García de la Vega", "")
    split = name("María de los Ángeles / Fernández de la Torre García de la Vega")

    for same in (split, PersonName("", long_name.first)):
        assert match_names(long_name, same).result is MATCH
    assert match_names(long_name, PersonName(f"{long_name.first}s", "")) == NameMatch(
        NOT_POSSIBLE, 0.0, "the names have too many words to compare"
    )


MOST_WORK = 40_000
"""The maximum number of calls of one comparison; a thousand calls take 0.2 ms. Without this limit, a
comparison took millions of calls and blocked the event loop for seconds.
"""


def work(one: PersonName, other: PersonName) -> int:
    """Count the Python and C calls of one comparison, which don't depend on the machine's load."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        match_names(one, other)
    finally:
        sys.setprofile(None)
    return calls


CRAFTED = {
    "all words alike": ("aaaaaaab aaaaaaba baaaaaaa aaaaaaac /", "abaaaaaa / aabaaaaa / aaabaaaa aaaaaabb"),
    "joined and parted": ("e ê e è è éê é e ê ê è /", "ê / êê / ê"),
    "initials": ("a b c d e f g h i j k l m n /", "n m l k j i h g f e d c b a /"),
    "accents": ("ö oe oe / ö øø ö ø ö / ö ø ø oe øö", "ö oeö oe ø / o oe ö o o / oe oe oe oeo oe"),
    "marks upon marks": ("u" + "\u0308\u030b" * 60 + " /", "ue" * 60 + " /"),
    "short forms": ("mohammed ma maria md mohammed md / md maria md / ma ma", "md md md md maria / ma / ma"),
    "particles": ("de bin de bin van de van van / van van van", "van van van van / de / bin de bin"),
    "letters that may be silent": ("ъ" * 66 + " / " + "ъ" * 66, "a" * 66 + " / " + "a" * 66),
    "letters spelt in many ways": ("щ" * 70 + " / " + "щ" * 66, "shchsch" * 9 + " / " + "schtsch" * 9),
    "one field": ("aaaa baaa aaac aaab baaa aaac /", "baaa aaac aaab aaaa aaac /"),
}


@each(("one", "other"), CRAFTED)
def test_no_crafted_name_takes_much_work(one: str, other: str) -> None:
    """Matching runs on the event loop, so a crafted name could otherwise delay all payments."""
    assert work(name(one), name(other)) <= MOST_WORK


@pytest.mark.trial(ci=1, long=1)
@given(
    letters=st.sampled_from(("aab", "ü u ue", "öoøe", "ъа а", "сс ss", "jon joan", "ab cdef")), data=st.data()
)
@settings(max_examples=25)
def test_a_search_finds_no_name_that_takes_much_work(letters: str, data: st.DataObject) -> None:
    names = st.lists(st.text(letters.replace(" ", ""), min_size=1, max_size=8), max_size=8).map(" ".join)
    people = st.builds(PersonName, names, names, names)

    calls = work(data.draw(people), data.draw(people))

    target(calls)
    assert calls <= MOST_WORK


# --- words --------------------------------------------------------------------------------------


@each(
    ("text", "expected"),
    [
        *(("O'Brien-Smith", ["obrien", "smith"]), ("J.R.R.", ["j", "r", "r"]), ("Straße", ["strasse"])),
        *(("Ｂｅｎ\u00a0Ｏｋｒｉ", ["ben", "okri"]), ("\u0301Ben", ["\u0301ben"]), ("", []), (" -.' ", [])),
    ],
)
def test_a_text_is_split_into_words(text: str, expected: list[str]) -> None:
    assert transliteration.words_of(text) == expected


@each(
    ("word", "spelt"),
    [
        ("müller", "mueller"),
        ("müller", "muller"),
        ("щербаков", "shcherbakov"),
        ("щербаков", "scherbakow"),
        ("μπάμπης", "bambis"),
        ("ṣọlá", "shola"),
        ("\u0301ben", "ben"),
    ],
)
def test_each_transliteration_of_a_word_counts_as_a_spelling(word: str, spelt: str) -> None:
    (text,) = transliteration.words_of(word)

    assert transliteration.is_spelling(transliteration.read_word(text).units, spelt)


@each("word", ["mаria", "mɑria", "b3n", "ben🎉", "\u0301", "ѱ", "ϗ", "ـ", "\u1d00"])
def test_an_unreadable_word_is_refused(word: str) -> None:
    with pytest.raises(transliteration.UnreadableName):
        transliteration.read_word(word)


def test_words_of_several_scripts_have_no_common_script() -> None:
    assert transliteration.joined([transliteration.read_word(word) for word in ("陳", "tai")]).script == ""


@each(("found", "expected"), [("Peter / 陳", MATCH), ("Peter / 林", NO), ("Peter / Chan", NOT_POSSIBLE)])
def test_an_english_first_name_may_go_with_characters(found: str, expected: MatchResult) -> None:
    assert match_names(name("Peter / 陳"), name(found)).result is expected

"""Names of operators that look alike belong to one person, however they are encoded."""

import string

import pytest

from tests.support.cases import each
from transfer_async.journal.model import is_same_person

NAMES = ["ada", "Ada Eze", "ΐ", "Straße", "ﬁona", "İnci", "ᾳ", "josé"]


@pytest.mark.parametrize(
    "unseen",
    ["\ufe0f", "\u034f", "\u3164", "\u00ad", "\U000e0100", "\u200b", "\u2800", "\U0001d159", "\U00013441"],
)
def test_invisible_characters_do_not_make_another_person(unseen: str):
    for name in NAMES:
        assert is_same_person(name, name + unseen)
        assert is_same_person(unseen.join(name), name)


def test_case_width_and_blanks_do_not_make_another_person():
    for name in NAMES:
        for form in (str.upper, str.casefold, str.title, lambda text: f"  {text}\t "):
            assert is_same_person(name, form(name)), (name, form(name))
    assert is_same_person("ada", "\uff21\uff24\uff21")
    assert is_same_person("ada  eze", "ADA\u3000EZE")
    assert is_same_person("ada", "a d a")


def test_another_name_is_another_person():
    assert [(one, other) for one in NAMES for other in NAMES if is_same_person(one, other)] == [
        (one, one) for one in NAMES
    ]
    assert not is_same_person("ada", "ada2")
    for one, other in DIFFERENT:
        assert not is_same_person(one, other), (one, other)


DIFFERENT = [
    *(("anna", "hanna"), ("amara.obi", "amara.ebo"), ("jose", "josé"), ("ben", "dan"), ("u1001", "u1007")),
    *(("иван", "павел"), ("νίκος", "γιώργος"), ("محمد", "أحمد"), ("陈伟", "陈卫"), ("राजू", "राजेश")),
]
LOOK_ALIKES = {
    "a Cyrillic letter": ("ada", "\u0430da"),
    "another one": ("zoe", "zo\u0435"),
    "a capital one that is written small": ("Tom", "\u0442om"),
    "a Greek letter": ("bob", "b\u03bfb"),
    "a Greek capital": ("Nadia", "\u039dadia"),
    "an Armenian letter": ("oskar", "\u0585skar"),
    "a Cherokee letter": ("David", "\u13a0avid"),
    "a Coptic letter": ("mona", "m\u2c9fna"),
    "a Lisu letter": ("BEN", "\ua4d0EN"),
    "a phonetic letter": ("gina", "\u0261ina"),
    "a mathematical letter": ("ada", "\U0001d41ada"),
    "a letter in a circle": ("ada", "\u24d0da"),
    "a wide letter": ("ada", "\uff41da"),
    "the whole name in Cyrillic": ("ace", "\u0430\u0441\u0435"),
    "the whole name in Cyrillic capitals": ("ATOM", "\u0410\u0422\u041e\u041c"),
    "the whole name in Greek capitals": ("ZOE", "\u0396\u039f\u0395"),
    "a Greek letter in a Cyrillic name": ("\u043f\u0430\u0432\u0435\u043b", "\u043f\u03b1\u0432\u0435\u043b"),
    "an accent that is a character of its own": ("jos\u00e9", "jos\u0435\u0301"),
    "a nought": ("bob", "b0b"),
    "a one": ("clara", "c1ara"),
    "a capital I": ("clara", "cIara"),
    "a bar": ("clara", "c|ara"),
    "an r and an n": ("mina", "rnina"),
    "two v": ("wale", "vvale"),
    "another dash": ("ada-eze", "ada\u2010eze"),
    "another apostrophe": ("o'neil", "o\u2019neil"),
    "an Arabic letter of Persian": ("\u0639\u0644\u064a", "\u0639\u0644\u06cc"),
}


@each(("one", "other"), LOOK_ALIKES)
def test_a_look_alike_name_counts_as_the_proposers(one: str, other: str):
    """Without this, one person with two accounts could approve their own proposal."""
    for form in (str, str.upper, str.lower, str.title):
        assert is_same_person(form(one), other), form
        assert is_same_person(other, form(one)), form


def test_look_alikes_follow_unicode():
    """Replacing an ASCII letter or digit by a character that looks like it does not make another person."""
    pytest.importorskip("confusable_homoglyphs", reason="its copy of Unicode's confusables.txt is read")
    from confusable_homoglyphs.confusables import confusables_data

    plain = string.ascii_letters + string.digits
    alike = {
        (one, other["c"].strip("\u200e"))
        for one in plain
        for other in confusables_data[one]
        if len(other["c"].strip("\u200e")) == 1
    }

    assert len(alike) > 1300
    assert [pair for pair in sorted(alike) if not is_same_person(*pair)] == []

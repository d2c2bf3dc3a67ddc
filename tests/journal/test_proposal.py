"""Whether two names are one person's: by what is seen of them, not by how they are written."""

import pytest

from transfer_async.journal.proposal import is_same_person

NAMES = ["ada", "Ada Eze", "ΐ", "Straße", "ﬁona", "İnci", "ᾳ", "josé"]


@pytest.mark.parametrize("unseen", ["\ufe0f", "\u034f", "\u3164", "\u00ad", "\U000e0100", "\u200b"])
def test_what_is_not_seen_makes_no_other_person(unseen: str):
    for name in NAMES:
        assert is_same_person(name, name + unseen)
        assert is_same_person(unseen.join(name), name)


def test_nor_do_case_width_and_blanks():
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
    assert not is_same_person("ada", "\u0430da")  # a Cyrillic a

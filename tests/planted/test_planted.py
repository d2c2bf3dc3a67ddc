"""The list itself: every fault still fits its module, and the tests that are asked are there."""

import ast
from collections import Counter

import pytest

from tests.planted.asking import FAULTS, recorded
from tests.planted.checkout import HERE
from tests.planted.fault import Fault, SnippetNotFound, path_of
from tests.planted.places import PLACES, PROMISE


def test_every_fault_fits_its_module_once_and_leaves_python_behind():
    sources = {
        place.module: (HERE / path_of(place.module)).read_text(encoding="utf-8") for place in PLACES.values()
    }
    for fault in FAULTS:
        ast.parse(fault.planted(sources[fault.module]))


def test_the_names_are_unique():
    assert [name for name, count in Counter(fault.name for fault in FAULTS).items() if count > 1] == []


def test_the_named_tests_exist():
    asked = {path for place in PLACES.values() for path in place.asked} | set(PROMISE)

    assert [path for path in sorted(asked) if not (HERE / path).exists()] == []


def test_every_fault_has_a_recorded_test_that_catches_it():
    assert set(recorded()) == {fault.name for fault in FAULTS}


def test_a_fault_that_does_not_match_the_source_is_reported():
    fault = Fault("odd", "states", "now < then", "now <= then", "nothing")

    with pytest.raises(SnippetNotFound, match="odd: found 0 times"):
        fault.planted("now > then")
    with pytest.raises(SnippetNotFound, match="found 2 times"):
        fault.planted("now < then or now < then")

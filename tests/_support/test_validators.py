"""What more than 0 and finite means, and that each rule is told with the name of what was set."""

from datetime import timedelta

import attrs
import pytest

from tests.support.cases import each
from transfer_async._support.validators import (
    a_duration,
    at_least,
    check_count,
    count,
    instance_of,
    is_positive,
    positive,
    positive_seconds,
)


@each("value", [0.0, -1.0, float("inf"), float("nan"), "1", None, True, 1])
def test_only_seconds_more_than_0_and_finite_can_be_waited_for(value):
    assert not is_positive(value)
    assert is_positive(5e-324)


def test_an_argument_is_given_back_in_seconds_or_refused_by_its_name():
    assert positive_seconds("every", timedelta(minutes=1)) == 60.0
    with pytest.raises(ValueError, match=r"^every: must be more than 0 seconds, and finite$"):
        positive_seconds("every", 0)
    with pytest.raises(ValueError, match=r"^every: is not a number of seconds or a timedelta$"):
        positive_seconds("every", "often")


@each("value", [0, 1.0, True, "1", None])
def test_a_number_of_things_is_whole_and_not_below_the_least(value):
    with pytest.raises(ValueError, match=r"^lanes: must be a whole number, 1 or more$"):
        check_count("lanes", value)


@each(
    ("rule", "wrong", "words"),
    [
        (positive(), 0.0, "must be more than 0 seconds, and finite"),
        (positive("must pass"), "soon", "must pass"),
        (at_least(0.5), 0.25, "must be a finite number of seconds, 0.5 or more"),
        (a_duration, "soon", "is not a number of seconds or a timedelta"),
        (count(0), -1, "must be a whole number, 0 or more"),
        (instance_of(dict), [], "must be a dict"),
    ],
)
def test_a_field_is_refused_by_its_name(rule, wrong, words):
    settings = attrs.make_class("Settings", {"limit": attrs.field(validator=rule)}, frozen=True)

    with pytest.raises(ValueError, match=f"^limit: {words}$"):
        settings(wrong)

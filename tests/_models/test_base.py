"""What all values have in common: they are equal, hashed and shown as attrs itself would do it."""

from typing import Any

import attrs
import pytest
from attrs import field, frozen

from transfer_async._models.base import ByValue

FIELDS: dict[str, Any] = {
    "amount": field(),
    "name": field(repr=False),
    "at": field(default=0.0, eq=False),
    "extra": field(default=None, hash=False),
}


def made_by(**how: Any) -> Any:
    return attrs.make_class("Payment", FIELDS, frozen=True, slots=True, **how)


OURS, THEIRS = made_by(bases=(ByValue,), eq=False, repr=False), made_by()


@pytest.mark.parametrize(
    "other",
    [{}, {"amount": 2}, {"name": "Ben"}, {"at": 5.0}, {"extra": ["a list"]}, {"at": 5.0, "amount": 2}],
)
def test_they_are_equal_where_those_of_attrs_are(other):
    same = OURS(amount=1, name="Ada") == OURS(**{"amount": 1, "name": "Ada"} | other)

    assert same is (THEIRS(amount=1, name="Ada") == THEIRS(**{"amount": 1, "name": "Ada"} | other))


def test_what_does_not_count_for_the_hash_is_not_asked_for_one():
    one, another = OURS(amount=1, name="Ada", extra=["a list"]), OURS(amount=1, name="Ada", at=5.0)

    assert hash(one) == hash(another)
    assert hash(one) != hash(OURS(amount=2, name="Ada"))


def test_only_what_may_be_shown_is():
    assert repr(OURS(amount=1, name="Ada")) == repr(THEIRS(amount=1, name="Ada"))
    assert "Ada" not in repr(OURS(amount=1, name="Ada"))


def test_one_is_not_equal_to_anything_of_another_kind():
    @frozen(eq=False, repr=False)
    class Refund(OURS):
        pass

    assert OURS(amount=1, name="Ada") != Refund(amount=1, name="Ada")
    assert OURS(amount=1, name="Ada") != 1

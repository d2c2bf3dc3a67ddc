"""`each` runs every row of its table and names the row in a failure."""

import pytest

from tests.support.cases import each


def failing(test, error, **fixtures):
    with pytest.raises(error) as caught:
        test(**fixtures)
    return caught.value.__notes__


def test_every_combination_runs():
    tried = []

    @each("one", [1, 2])
    @each(("two", "three"), [("a", "b"), ("c", "d")])
    def test(one, two, three):
        tried.append((one, two, three))

    test()

    assert tried == [(1, "a", "b"), (1, "c", "d"), (2, "a", "b"), (2, "c", "d")]


async def test_an_async_test_is_awaited_at_every_row():
    tried = []

    @each("one", [1, 2])
    async def test(one):
        tried.append(one)

    await test()

    assert tried == [1, 2]


def test_a_failure_names_its_row():
    @each("one", {"small": 1, "large": 2})
    @each("two", [3, 4])
    def test(one, two):
        assert (one, two) != (2, 4)

    assert failing(test, AssertionError) == ["at the row {'two': 4}", "at the row 'large'"]


def test_a_failure_of_pytest_itself_names_the_row():
    @each("kind", [KeyError, ValueError])
    def test(kind):
        with pytest.raises(KeyError):
            raise kind if kind is KeyError else pytest.fail("another")

    assert "ValueError" in failing(test, pytest.fail.Exception)[0]


@each("one", [1, 2])
def test_fixtures_are_given_to_every_row(one, tmp_path):
    assert tmp_path.exists()


def test_a_table_without_a_row_or_of_another_width_is_refused():
    @each(("one", "two"), [(1, 2, 3)])
    def test(one, two): ...

    with pytest.raises(ValueError, match="zip"):
        test()
    with pytest.raises(AssertionError, match="without a row"):
        each("one", [])

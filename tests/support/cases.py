"""Table-driven tests: run all rows in one test if the set-up costs more than the checks."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.ids import stable_repr

LONGEST = 300
"""The maximum length of a row in a failure message."""


def lists(table: dict[type, str]) -> Callable[[str], Callable[[type], type]]:
    """Return a decorator of classes that enters each class into ``table`` with the decorator's argument."""

    def with_value(value: str) -> Callable[[type], type]:
        def add(kind: type) -> type:
            table[kind] = value
            return kind

        return add

    return with_value


def each(names: str | tuple[str, ...], table: Iterable[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Run a test for each row of a table, and name the row in a failure.

    Use it like `pytest.mark.parametrize`. Several decorators run every combination. All rows share the test's
    fixtures. The keys of a mapping are the names of its rows.
    """
    names = (names,) if isinstance(names, str) else names
    rows = dict(table) if isinstance(table, Mapping) else dict(enumerate(table))
    assert rows, "a table without a row tests nothing"

    def cases() -> Iterator[tuple[Any, dict[str, Any]]]:
        for key, row in rows.items():
            given = dict(zip(names, (row,) if len(names) == 1 else row, strict=True))
            yield key if isinstance(table, Mapping) else given, given

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def all_rows(**fixtures: Any) -> None:
            for row, given in cases():
                with row_in_failures(row):
                    test(**fixtures, **given)

        @functools.wraps(test)
        async def all_rows_async(**fixtures: Any) -> None:
            for row, given in cases():
                with row_in_failures(row):
                    await test(**fixtures, **given)

        whole = all_rows_async if inspect.iscoroutinefunction(test) else all_rows
        signature = inspect.signature(test)
        fixtures = [one for name, one in signature.parameters.items() if name not in names]
        whole.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined] # pytest reads it
        return whole

    return decorate


@contextmanager
def row_in_failures(row: Any) -> Iterator[None]:
    """Name the row in any failure within the block."""
    try:
        yield
    except BaseException as error:  # pytest's failures are not subclasses of Exception
        error.add_note(f"at the row {stable_repr(row)[:LONGEST]}")
        raise

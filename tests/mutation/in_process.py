"""Faults that are planted in the running process, for trials that fork or must not wait for an import."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.mutation.faults import FAULTS

BY_NAME = {fault.name: fault for fault in FAULTS}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a fault while the block runs: its module's functions get the code that they would have.

    A fault outside functions, in a table say, cannot be planted so.

    Args:
        name: the fault's; None plants nothing.
    """
    changed = {} if name is None else dict(_changed(name))
    as_it_was = {function: function.__code__ for function in changed}
    try:
        for function, code in changed.items():
            function.__code__ = code
        yield
    finally:
        for function, code in as_it_was.items():
            function.__code__ = code


def plant_for_good(name: str | None) -> None:
    """Plant a fault until this process ends."""
    for function, code in () if name is None else _changed(name):
        function.__code__ = code


def _changed(name: str) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions that a fault changes, each with its new code."""
    fault = BY_NAME[name]
    module = import_module(fault.path.removesuffix(".py").replace("/", "."))
    wrong = dict(_codes(compile(fault.plant(inspect.getsource(module)), fault.path, "exec")))
    functions = {function for function in _functions(module) if function.__qualname__ in wrong}
    pairs = [(function, wrong[function.__qualname__]) for function in functions]
    changed = [(function, code) for function, code in pairs if _content(code) != _content(function.__code__)]
    assert changed, f"{name} changes no function"
    return changed


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const.co_qualname, const
            yield from _codes(const)


def _content(code: CodeType) -> tuple[Any, ...]:
    """Return what a code does, without its place in the file."""
    consts = (_content(const) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, tuple(consts)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions of a module, and those of its classes."""
    classes = [kind for kind in vars(module).values() if isinstance(kind, type)]
    for owner in (module, *(kind for kind in classes if kind.__module__ == module.__name__)):
        for value in vars(owner).values():
            for found in (value, getattr(value, "fget", None), getattr(value, "__func__", None)):
                function = inspect.unwrap(found) if callable(found) else None
                if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                    yield function

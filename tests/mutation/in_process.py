"""Faults planted in the running process, for trials that fork or must start quickly."""

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
    """Plant a fault while the block runs, by replacing the code of the functions that it changes.

    A fault outside functions, for example in a table, cannot be planted in this way.

    Args:
        name: the name of the fault; None plants nothing.
    """
    changed = {} if name is None else dict(_changed(name))
    original = {function: function.__code__ for function in changed}
    try:
        for function, code in changed.items():
            function.__code__ = code
        yield
    finally:
        for function, code in original.items():
            function.__code__ = code


def plant_for_good(name: str | None) -> None:
    """Plant a fault until this process ends."""
    for function, code in () if name is None else _changed(name):
        function.__code__ = code


def _changed(name: str) -> list[tuple[FunctionType, CodeType]]:
    """Return each function that a fault changes, with its new code."""
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
    """Return the content of a code object without its position in the file."""
    consts = (_content(const) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, tuple(consts)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions and methods of a module."""
    classes = [kind for kind in vars(module).values() if isinstance(kind, type)]
    for owner in (module, *(kind for kind in classes if kind.__module__ == module.__name__)):
        for value in vars(owner).values():
            for found in (value, getattr(value, "fget", None), getattr(value, "__func__", None)):
                function = inspect.unwrap(found) if callable(found) else None
                if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                    yield function

"""The option that chooses the event loop of async tests. The command line uses uvloop if it is installed::

pytest --loop=uvloop tests/faults tests/_pipeline/test_cancellation.py tests/_http
"""

from typing import Any

import pytest

OPTION = "--loop"


def add_option(parser: pytest.Parser) -> None:
    """Add the option ``--loop``."""
    parser.addoption(
        OPTION, choices=["asyncio", "uvloop"], default="asyncio", help="the event loop of async tests"
    )


def choose(config: pytest.Config) -> None:
    """Make pytest-asyncio use the chosen kind of event loop."""
    if config.getoption(OPTION) == "uvloop":
        config.pluginmanager.register(_OnUvloop())


class _OnUvloop:
    def pytest_asyncio_loop_factories(self) -> dict[str, Any]:
        import uvloop  # imported here, because uvloop does not support every system

        return {"uvloop": uvloop.new_event_loop}

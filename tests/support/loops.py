"""What async tests run on: `pytest --loop=uvloop` is for what the command line uses where it is installed::

pytest --loop=uvloop tests/faults tests/_pipeline/test_cancellation.py tests/_http
"""

from typing import Any

import pytest

OPTION = "--loop"


def add_option(parser: pytest.Parser) -> None:
    """Add the option that chooses the loop."""
    parser.addoption(OPTION, choices=["asyncio", "uvloop"], default="asyncio", help="what async tests run on")


def choose(config: pytest.Config) -> None:
    """Let pytest-asyncio make its loops of the kind that was chosen."""
    if config.getoption(OPTION) == "uvloop":
        config.pluginmanager.register(_OnUvloop())


class _OnUvloop:
    def pytest_asyncio_loop_factories(self) -> dict[str, Any]:
        import uvloop  # only where it is asked for: not every system has it

        return {"uvloop": uvloop.new_event_loop}

"""The pytest plug-in: fixtures and a marker for tests of code that uses the client.

If the package is installed, pytest finds the plug-in by its entry point. If the package is not installed,
write `pytest_plugins = ["transfer_async.testing.pytest_plugin"]` in `conftest.py`.

The fixtures work in sync tests. With pytest-asyncio or anyio, the fixtures also work in async tests on any
event loop.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transfer_async.sandbox import Fault
    from transfer_async.testing import Holds, ManualClock, RunningSandbox

_CONTRACTS = ("transfer_async.testing.journal_contract", "transfer_async.testing.broker_contract")
_NAME = "transfer_sandbox"
_FAULT = "transfer_fault"
_MARKER = "transfer_faults"
_ABOUT = (
    f"{_MARKER}(*faults): run the test once for each of these faults (objects or names; default: all). "
    f"The fault applies to the next order of transfer_sandbox"
)

_UNMARKED = f"{_FAULT} needs a marker: add @pytest.mark.{_MARKER} to the test"
_UNITTEST = (
    f"@pytest.mark.{_MARKER}: pytest cannot run a method of unittest.TestCase once for each fault. "
    "Make the test a function or a method of a plain class; or loop over EACH_FAULT of "
    "transfer_async.testing with self.subTest(), with a new sandbox for each fault"
)


class _Plugin:
    """The fixtures, and the pytest hooks that implement the marker.

    The fixtures and the hooks are registered only once, even if the module is loaded twice.
    """

    @pytest.fixture
    def transfer_sandbox(self) -> Iterator[RunningSandbox]:
        """A new sandbox for each test, with the default accounts and seed.

        The sandbox listens on the loopback interface.
        """
        # Imported here, so that pytest loads it only for tests that use it.
        from transfer_async.testing import RunningSandbox

        with RunningSandbox() as sandbox:
            yield sandbox

    @pytest.fixture
    def transfer_clock(self) -> ManualClock:
        """A `ManualClock` for a client and its journal."""
        from transfer_async.testing import ManualClock

        return ManualClock()

    @pytest.fixture
    def transfer_holds(self) -> Holds:
        """A `Holds` ledger in memory. Pass ``transfer_holds.hook`` to a client."""
        from transfer_async.testing import Holds

        return Holds()

    @pytest.fixture
    def transfer_fault(self, request: pytest.FixtureRequest, transfer_sandbox: RunningSandbox) -> Fault:
        """The fault for the next order of `transfer_sandbox`, as chosen by the marker `transfer_faults`."""
        if not hasattr(request, "param"):
            is_marked = request.node.get_closest_marker(_MARKER) is not None
            pytest.fail(_UNITTEST if is_marked else _UNMARKED, pytrace=False)
        fault: Fault = request.param
        transfer_sandbox.faults.add(fault)
        return fault

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        marker = metafunc.definition.get_closest_marker(_MARKER)
        if marker is None:
            return
        from transfer_async.testing.fake_client import named_faults

        try:
            faults = named_faults(marker.args)
        except ValueError as error:
            pytest.fail(f"@pytest.mark.{_MARKER}: {error}", pytrace=False)
        if _FAULT not in metafunc.fixturenames:  # The fixture need not be an argument of the test.
            metafunc.fixturenames.append(_FAULT)
        metafunc.parametrize(_FAULT, faults.values(), ids=faults, indirect=True)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if not isinstance(item, pytest.Function) or item.get_closest_marker(_MARKER) is None:
            return
        if _FAULT not in item.fixturenames:  # pytest keeps only the fixtures that are arguments.
            item.fixturenames.append(_FAULT)


def pytest_configure(config: pytest.Config) -> None:
    """Add the fixtures and the marker, unless the package's entry point has already added them."""
    if config.pluginmanager.hasplugin(_NAME):
        return
    for contract in _CONTRACTS:
        if contract not in sys.modules:  # pytest rewrites a module's assertions on import only
            pytest.register_assert_rewrite(contract)
    config.addinivalue_line("markers", _ABOUT)
    config.pluginmanager.register(_Plugin(), _NAME)

"""Fixtures for the tests of failures."""

from typing import Any

import pytest

from tests.support.trials import ONLY_IN_TRIALS

from .parties import Bank, Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates() -> Certificates:
    return make_certificates()


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def sides(request: pytest.FixtureRequest, certificates: Certificates) -> tuple[Any, dict[str, Any]]:
    """Return the TLS settings of the server and of the client."""
    return (certificates.server, {"ssl": certificates.client}) if request.param else (None, {})


@pytest.fixture(autouse=True)
def http_path(http_path: str) -> str:
    """Run every test with both HTTP paths; see `pytest_itemcollected`."""
    return http_path


LONG = ("test_failure_table", "test_stale_connections", "test_bounded_reading", "test_evidence")
"""The slow modules. By default, they use only the path of the tested versions of aiohttp."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """In slow modules, run the other path only in trials. Fast modules use both paths by default."""
    path = item.callspec.params.get("http_path") if hasattr(item, "callspec") else None
    if path == "session" and item.path.stem in LONG:
        item.add_marker(ONLY_IN_TRIALS)

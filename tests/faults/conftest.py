"""What the tests of failures share."""

import pytest

from tests.support.trials import ONLY_IN_TRIALS

from .parties import Bank, Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates() -> Certificates:
    return make_certificates()


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture(autouse=True)
def http_path(http_path: str) -> str:
    """Every failure is tried on both paths: see `pytest_itemcollected`."""
    return http_path


LONG = ("test_failure_table", "test_stale_connections", "test_bounded_reading", "test_evidence")
"""The modules that take long. By default they use only the path of the tested versions."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the other path to the trials in the long modules; the short ones try both by default."""
    path = item.callspec.params.get("http_path") if hasattr(item, "callspec") else None
    if path == "session" and item.path.stem in LONG:
        item.add_marker(ONLY_IN_TRIALS)

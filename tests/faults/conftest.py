"""What the tests of failures share."""

import pytest

from .parties import Bank, Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates() -> Certificates:
    return make_certificates()


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture(autouse=True)
def http_path(http_path: str) -> str:
    """Every failure is tried on both paths."""
    return http_path

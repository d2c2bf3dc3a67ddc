"""What the tests of failures share."""

import pytest

from .parties import Bank, Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates() -> Certificates:
    return make_certificates()


@pytest.fixture
def bank() -> Bank:
    return Bank()

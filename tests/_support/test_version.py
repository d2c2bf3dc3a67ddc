"""The version of the package."""

from importlib.metadata import version

from transfer_async._support.util import VERSION


def test_the_version_is_that_of_the_installed_package():
    assert version("transfer_async") == VERSION

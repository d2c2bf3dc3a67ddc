"""The version that the package says of itself."""

from importlib.metadata import version

from transfer_async._support.util import VERSION


def test_it_is_the_one_under_which_the_package_is_installed():
    assert version("transfer_async") == VERSION

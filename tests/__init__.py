"""The tests. They run without the environment variables that the user has set. / pytest and ``python -m
tests.crash`` import this module before all other test modules.
"""

import os
import sys
import time

_CLEAN = "TRANSFER_ASYNC_TESTS_ARE_IN_A_CLEAN_ENVIRONMENT"
"""Set for processes that tests start, so that they keep the variables that the tests have set."""

_KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONHASHSEED", "PYTHONPYCACHEPREFIX"),
    "AXE_CORE",  # for tests/desk/test_browser.py
}
_KEPT_PREFIXES = ("COV_", "COVERAGE_", "LD_", "PYTEST_XDIST_", "TRANSFER_ASYNC_TESTS_")
_SET = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
}

OPTIMIZED = "the tests need their asserts: unset PYTHONOPTIMIZE, and leave out python's option -O"

ASCII_NAMES = (
    "the path to the tests is not ASCII, and file names are: unset PYTHONUTF8, or set LC_ALL=C.UTF-8"
)


def is_kept(name: str) -> bool:
    """Return whether the tests keep this environment variable."""
    return name in _KEPT or name.startswith(_KEPT_PREFIXES)


def _clean() -> None:
    """Delete all variables that are not on the allowlist, because a library might read them."""
    for name in [name for name in os.environ if not is_kept(name)]:
        del os.environ[name]
    os.environ.update(_SET)
    os.environ[_CLEAN] = "1"
    os.environ.setdefault("LOGNAME", "tester")  # in a container, the user may have no name
    sys.dont_write_bytecode = False  # otherwise, each of a hundred processes would compile all modules again
    time.tzset()


if sys.flags.optimize:
    sys.exit(OPTIMIZED)
if any("\udc80" <= letter <= "\udcff" for letter in __file__ + sys.executable):
    sys.exit(ASCII_NAMES)
if _CLEAN not in os.environ:
    _clean()

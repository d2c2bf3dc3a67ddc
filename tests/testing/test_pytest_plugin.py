"""The fixture, as a bank's own tests use it: runs of pytest within this one."""

import shutil
import tomllib
from pathlib import Path

import pytest

from transfer_async.testing import pytest_plugin

pytest_plugins = ["pytester"]

SOURCE = Path(pytest_plugin.__file__)
ROOT = SOURCE.parents[2]
MODULE = "transfer_async_pytest"
BANKS_TEST = """
from transfer_async import TransferClient

async def test_the_bank_knows_itself(transfer_sandbox):
    async with TransferClient(transfer_sandbox.base_url, transfer_sandbox.token) as client:
        assert (await client.who_am_i()).username == "lagoon-bank"
"""
STRICT = BANKS_TEST.replace("async def", "import pytest\n\n@pytest.mark.asyncio\nasync def", 1)
BY_NAME = ["-p", "no:transfer_async"]  # and not as the entry point, if the package is installed
OTHERS = [
    "aiohttp",
    "cacheprovider",
    "cov",
    "hypothesispytest",
    "pytest_cov",
    "schemathesis",
    "timeout",
    "xdist",
]
ALONE = [word for name in OTHERS for word in ("-p", f"no:{name}")]
"""No other plug-ins than pytest-asyncio and ours."""
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
NOT_USED = """
import sys

def test_nothing_of_ours_is_imported():
    assert "transfer_async_pytest" in sys.modules
    assert not {"aiohttp", "cattrs", "transfer_async"} & set(sys.modules)
"""


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs of pytest that find the plugin as an installed package's entry point, and nothing else of ours."""
    site = pytester.mkdir("site")
    shutil.copy(SOURCE, site / f"{MODULE}.py")
    about = site / "transfer_async_fixtures-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: transfer_async_fixtures\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[pytest11]\ntransfer_async = {MODULE}\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return pytester


def run(pytester: pytest.Pytester, *options: str, **tests: str) -> pytest.RunResult:
    """Run files of tests, by their names."""
    pytester.makepyfile(**tests)
    if "no:asyncio" not in options:
        pytester.makeini(INI)
    return pytester.runpytest_subprocess(*ALONE, "-W", "error", *options)


@pytest.mark.parametrize(
    ("mode", "tests"),
    [("auto", {"test_auto": BANKS_TEST, "test_strict": STRICT}), ("strict", {"test_strict": STRICT})],
)
def test_five_lines_of_a_bank_work_as_soon_as_the_package_is_installed(installed, mode, tests):
    run(installed, "--asyncio-mode", mode, **tests).assert_outcomes(passed=len(tests))


def test_without_pytest_asyncio_the_fixture_says_what_it_needs_and_other_tests_run(installed):
    test = "def test_it(transfer_sandbox):\n    pass\n\ndef test_another():\n    pass\n"
    result = run(installed, "-p", "no:asyncio", test_it=test)

    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["*the fixture transfer_sandbox needs pytest-asyncio: pip install *"])


def test_who_does_not_use_it_imports_nothing(installed):
    run(installed, test_it=NOT_USED).assert_outcomes(passed=1)


@pytest.mark.trial(ci=1, long=1)
def test_each_test_has_a_sandbox_of_its_own(installed):
    test = """
    seen = []

    async def test_one(transfer_sandbox):
        seen.append(transfer_sandbox)

    async def test_two(transfer_sandbox):
        assert transfer_sandbox not in seen
        assert transfer_sandbox.base_url
    """
    run(installed, "--asyncio-mode", "auto", test_it=test).assert_outcomes(passed=2)


@pytest.mark.trial(ci=1, long=1)
def test_it_is_listed_among_the_fixtures_with_what_it_is(installed):
    result = run(installed, "--fixtures", test_it="")

    result.stdout.fnmatch_lines(["transfer_sandbox*", "*A sandbox of the test's own, listening on loopback*"])


@pytest.mark.parametrize("twice", [False, True])
def test_a_conftest_may_ask_for_it_by_name(pytester, twice):
    pytester.makeconftest('pytest_plugins = ["transfer_async.testing.pytest_plugin"]')
    pytester.makepyfile(BANKS_TEST)
    pytester.makeini(INI)
    shutil.copy(SOURCE, pytester.path / "again.py")
    pytester.syspathinsert()
    options = ["-p", "again"] if twice else []

    pytester.runpytest_inprocess("--asyncio-mode", "auto", *ALONE, *BY_NAME, *options).assert_outcomes(
        passed=1
    )


def test_without_pytest_asyncio_a_conftest_learns_what_is_needed(pytester):
    pytester.makeconftest('pytest_plugins = ["transfer_async.testing.pytest_plugin"]')
    pytester.makepyfile("def test_it(transfer_sandbox):\n    pass\n")

    pytester.runpytest_inprocess("-p", "no:asyncio", *ALONE, *BY_NAME).assert_outcomes(errors=1)


def test_the_package_declares_the_entry_point_and_brings_the_module():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]

    assert settings["project"]["entry-points"]["pytest11"] == {"transfer_async": MODULE}
    assert wheel["force-include"][str(SOURCE.relative_to(ROOT))] == f"{MODULE}.py"

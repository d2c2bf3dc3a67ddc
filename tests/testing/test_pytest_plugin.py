"""The pytest plug-in, tested with test files that run in another pytest run."""

import shutil
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from transfer_async.testing import pytest_plugin

pytest_plugins = ["pytester"]

SOURCE = Path(pytest_plugin.__file__)
ROOT = SOURCE.parents[2]
MODULE = "transfer_async.testing.pytest_plugin"
ASYNC = """
import pytest
from transfer_async import TransferClient
from transfer_async.sandbox import StallBeforeProcessing
from transfer_async.testing import make_new_order

async def use(transfer_sandbox):
    async with TransferClient(transfer_sandbox.base_url, transfer_sandbox.token) as client:
        assert (await client.who_am_i()).username == "lagoon-bank"
        order = await client.create_order(make_new_order(), key="k", held="our-own")
    await transfer_sandbox.created()
    assert await transfer_sandbox.match_now() == [order.id]
"""
AUTO = f"{ASYNC}\nasync def test_of_auto_mode(transfer_sandbox):\n    await use(transfer_sandbox)\n"
EVERY_LOOP = f"""{ASYNC}
import asyncio

@pytest.mark.asyncio
async def test_of_strict_mode(transfer_sandbox):
    await use(transfer_sandbox)

@pytest.mark.asyncio(loop_scope="module")
async def test_on_the_modules_loop(transfer_sandbox):
    await use(transfer_sandbox)

@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_sessions_loop(transfer_sandbox):
    await use(transfer_sandbox)

def test_that_is_sync(transfer_sandbox):
    asyncio.run(use(transfer_sandbox))
    transfer_sandbox.wait(transfer_sandbox.received())
"""
ANYIO = f"""{ASYNC}
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_of_anyio(transfer_sandbox):
    await use(transfer_sandbox)
"""
FAULTS = """
import pytest
from transfer_async.sandbox import Status

@pytest.mark.transfer_faults
def test_each(transfer_sandbox):
    assert len(transfer_sandbox.faults.rules) == 1

@pytest.mark.transfer_faults("status-422", "stall-after-processing", Status(418))
def test_some(transfer_fault, transfer_sandbox):
    (rule,) = transfer_sandbox.faults.rules
    assert rule.fault is transfer_fault
"""
NO_XDIST = ["-p", "no:xdist"]
BY_NAME = ["-p", "no:transfer_async"]  # ignore the entry point, if the package is installed
OF_LOOPS = {"anyio", "asyncio"}
OURS = {"transfer_async", "xdist", "xdist.looponfail"}
INSTALLED = {plugin.name for plugin in entry_points(group="pytest11")}
OTHERS = ["cacheprovider", *sorted(INSTALLED - OF_LOOPS - OURS)]
ALONE = [word for name in OTHERS for word in ("-p", f"no:{name}")]
"""Options that disable all plug-ins except those for event loops and the package's own."""
INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
NOT_USED = """
import sys

BEFORE_THE_OTHER_TESTS = set(sys.modules)

def test_nothing_of_ours_is_imported():
    assert "transfer_async.testing.pytest_plugin" in BEFORE_THE_OTHER_TESTS
    assert not {"aiohttp", "attrs", "cattrs"} & BEFORE_THE_OTHER_TESTS
"""


Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run_installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs test files in a new process.

    pytest finds the plug-in by the entry point of an installed package.
    """
    about = pytester.mkdir("site") / "transfer_async_fixtures-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: transfer_async_fixtures\nVersion: 1\n", encoding="utf-8"
    )
    (about / "entry_points.txt").write_text(f"[pytest11]\ntransfer_async = {MODULE}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{about.parent}:{ROOT}")
    pytester.makeini(INI)

    def run(*options: str, **tests: str) -> pytest.RunResult:
        pytester.makepyfile(**tests)
        return pytester.runpytest_subprocess(*ALONE, "-W", "error", *options)

    return run


@pytest.fixture
def run_here(pytester: pytest.Pytester) -> Run:
    """Return a function that runs test files in this process, with the plug-in loaded by a conftest."""
    pytester.makeconftest('pytest_plugins = ["transfer_async.testing.pytest_plugin"]')
    pytester.makeini(INI)

    def run(*options: str, **tests: str) -> pytest.RunResult:
        pytester.makepyfile(**tests)
        return pytester.runpytest_inprocess(*ALONE, *NO_XDIST, *BY_NAME, "--strict-markers", *options)

    return run


def test_the_installed_plugin_imports_nothing_until_it_is_used_on_any_kind_of_loop(run_installed):
    result = run_installed(
        *NO_XDIST, "--asyncio-mode", "strict", test_a_first=NOT_USED, test_loops=EVERY_LOOP
    )

    result.assert_outcomes(passed=1 + 4)


def test_the_plugin_works_in_the_auto_mode_of_pytest_asyncio(run_here):
    run_here("--asyncio-mode", "auto", test_auto=AUTO).assert_outcomes(passed=1)


def test_the_plugin_works_with_anyio_and_without_pytest_asyncio(run_here, pytester):
    pytester.makeini("[pytest]\n")
    run_here("-p", "no:asyncio", test_anyio=ANYIO).assert_outcomes(passed=1)


@pytest.mark.trial(ci=1, long=1)
def test_xdist_processes_have_separate_sandboxes_and_the_same_faults(run_installed):
    result = run_installed("-n", "2", test_faults=FAULTS, test_loops=EVERY_LOOP)

    result.assert_outcomes(passed=4 + 19 + 3)


def test_the_marker_runs_a_test_once_for_each_fault(run_here):
    result = run_here("-v", test_it=FAULTS)

    result.assert_outcomes(passed=19 + 3)
    result.stdout.fnmatch_lines(
        ["*::test_each[[]close-after-processing] PASSED*", "*::test_some[[]stall-after-processing] PASSED*"]
    )


def test_an_unknown_fault_and_a_missing_marker_are_explained(run_here, pytester):
    wrong = "import pytest\n\n@pytest.mark.transfer_faults('stauts')\ndef test_it(): pass\n"
    without = "def test_it(transfer_fault): pass\n"

    one = run_here(test_wrong=wrong)
    (pytester.path / "test_wrong.py").unlink()
    other = run_here(test_without=without)

    assert "@pytest.mark.transfer_faults: unknown fault 'stauts': use one of close-" in str(one.stdout)
    other.assert_outcomes(errors=1)
    other.stdout.fnmatch_lines(["*transfer_fault needs a marker: add @pytest.mark.transfer_faults*"])


def test_the_marker_on_a_unittest_method_is_explained(run_here):
    test = """
    import unittest
    import pytest

    class TestPayments(unittest.TestCase):
        @pytest.mark.transfer_faults
        def test_it(self): pass

    @pytest.mark.transfer_faults
    class TestAsync(unittest.IsolatedAsyncioTestCase):
        async def test_it(self): pass
    """
    result = run_here(test_it=test)

    found = result.parseoutcomes()
    assert "passed" not in found
    assert found.get("failed", 0) + found.get("errors", 0) >= 2
    assert "needs a marker" not in str(result.stdout)
    assert "cannot run a method of unittest.TestCase once for each fault. Make the test a function" in str(
        result.stdout
    )


def test_the_clock_and_holds_fixtures_fit_a_client(run_here):
    test = """
    from transfer_async.testing import FakeClient, make_new_order

    async def test_it(transfer_clock, transfer_holds):
        async with FakeClient(hooks=[transfer_holds.hook], clock=transfer_clock) as client:
            await client.create_order(make_new_order())
        assert len(transfer_holds.standing) == 1
    """
    run_here("--asyncio-mode", "auto", test_it=test).assert_outcomes(passed=1)


@pytest.mark.trial(ci=1, long=1)
def test_fixtures_and_markers_are_listed_with_their_descriptions(run_installed):
    fixtures = run_installed(*NO_XDIST, "--fixtures", test_it="")
    markers = run_installed(*NO_XDIST, "--markers", test_it="")

    fixtures.stdout.fnmatch_lines(["transfer_sandbox*", "*A new sandbox for each test, with the default *"])
    markers.stdout.fnmatch_lines(
        ["@pytest.mark.transfer_faults(*faults): run the test once for each of these*"]
    )


@pytest.mark.trial(ci=1, long=1)
def test_the_journal_contract_runs_in_strict_mode_and_shows_failures(run_here):
    test = """
    import pytest
    from transfer_async import MemoryJournal
    from transfer_async.testing.journal_contract import JournalContract

    class Forgetful(MemoryJournal):
        async def history(self, scope, key):
            return ()

    class TestRight(JournalContract):
        stories = 1

        @pytest.fixture
        def new_journal(self, journal_time):
            return MemoryJournal(clock=journal_time.clock)

    class TestWrong(TestRight):
        @pytest.fixture
        def new_journal(self, journal_time):
            return Forgetful(clock=journal_time.clock)
    """
    result = run_here("--asyncio-mode", "strict", test_it=test)

    found = result.parseoutcomes()
    assert found["failed"] >= 3
    assert found["passed"] > 20
    assert "TestRight" not in "".join(line for line in result.outlines if line.startswith("FAILED"))


@pytest.mark.trial(ci=1, long=1)
def test_the_broker_contract_runs_in_strict_mode_and_shows_failures(run_here):
    test = """
    import pytest
    from tests.contract.own_broker import TableBroker
    from transfer_async.testing.broker_contract import BrokerContract

    class Trial(BrokerContract):
        ack_wait = 0.5
        kind = TableBroker

        @pytest.fixture
        def new_line(self, tmp_path):
            return lambda settings: self.kind(tmp_path / "messages.db", settings)

    class TestRight(Trial):
        kills = 0

    class NoHeaders(TableBroker):
        async def send(self, subject, body, headers):
            await super().send(subject, body, {})

    class TestWrong(TestRight):
        kind = NoHeaders
    """
    chosen = ["-k", "as_it_was_sent or acknowledged_message or is_stored_with"]
    result = run_here("--asyncio-mode", "strict", *chosen, test_it=test)

    found = result.parseoutcomes()
    assert (found["failed"], found["passed"]) == (3, 5)
    assert "TestRight" not in "".join(line for line in result.outlines if line.startswith("FAILED"))
    result.stdout.fnmatch_lines(["E*assert*False*"])


def test_the_plugin_may_be_named_twice(run_here, pytester):
    shutil.copy(SOURCE, pytester.path / "again.py")
    pytester.makeconftest('pytest_plugins = ["again"]')
    pytester.syspathinsert()

    run_here("-p", "transfer_async.testing.pytest_plugin", test_it=FAULTS).assert_outcomes(passed=19 + 3)


def test_the_package_declares_the_entry_point():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert settings["project"]["entry-points"]["pytest11"] == {"transfer_async": MODULE}

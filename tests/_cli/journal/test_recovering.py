"""`journal recover`, with hooks of the bank's own module: what is worked off, and hooks that are none."""

import asyncio
import json
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from tests._cli.journal.terminal import ADA, asked, everything, told
from tests.support import commands
from tests.support.bank import World
from tests.support.cases import each
from transfer_async._cli.options import factory_named, made_by

BANK = """
from transfer_async import FundsHold

released = []

async def place(intent):
    return "hold"

async def release(intent, receipt):
    {release}

def hooks():
    return [FundsHold(place, release)]

async def everything():
    async def resolve(intent, doubt):
        return "tx-found"
    return {{"hooks": hooks(), "resolve": resolve}}

def with_token():
    return {{"hooks": hooks(), "token": "s3cr3t"}}

closed = []

def for_every_command():
    from transfer_async.testing import Holds, make_new_order

    holds = Holds()
    async def resolve(intent, doubt):
        return "tx-found"
    async def close():
        closed.append(True)
        {close}
    return {{
        "hooks": [holds.hook], "held": holds.held, "balance": lambda: 0, "order": make_new_order(),
        "close": close, "resolve": resolve, "token": "s3cr3t",
    }}

def broken():
    raise RuntimeError("no\\nconfiguration")

def nothing():
    return None

def too_much():
    return {{"hooks": hooks(), "retries": 3}}

def wrong():
    return ["a string"]

NAME = "hooks"
"""


@pytest.fixture
def bank_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A module of the bank's in the current directory, and what writes another."""

    def write(release: str = "released.append(intent.id)", close: str = "pass") -> None:
        (tmp_path / "our_bank.py").write_text(BANK.format(release=release, close=close), encoding="utf-8")
        (tmp_path / "broken_bank.py").write_text("import nowhere_to_be_found", encoding="utf-8")

    write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop("our_bank", None)


async def test_what_is_left_over_is_worked_off_with_the_banks_hooks(world: World, bank_module: Any):
    await everything(world)
    result = await asked("recover", "--hooks", "our_bank:hooks")

    assert result.stdout.splitlines() == [
        f"scope        {world.scope}",
        "taken over       1",
        "in doubt         2",
        "resolved         0",
        "refuted          0",
        "released         2",
        "undos pending    0",
        "unreadable       0",
    ]


async def test_a_factory_may_be_async_and_bring_a_resolve(world: World, bank_module: Any):
    await world.in_doubt("doubt")
    result = await asked("recover", "--hooks", "our_bank:everything", "--json")

    assert json.loads(result.stdout) == {
        "taken_over": 0,
        "in_doubt": 0,
        "resolved": 1,
        "refuted": 0,
        "released": 0,
        "undos_pending": 0,
        "unreadable": 0,
    }
    assert (await world.entry("doubt")).order_id == "tx-found"


async def test_a_recovery_that_leaves_an_undo_owed_has_a_code_of_its_own(world: World, bank_module: Any):
    await asyncio.to_thread(bank_module, release="raise OSError")
    await world.owing("owing")
    result = await asked("recover", "--hooks", "our_bank:hooks", code=3)

    assert result.stdout.splitlines()[-2:] == ["undos pending    1", "unreadable       0"]


async def test_a_row_that_cannot_be_read_is_shown_as_such_and_refuted_by_word(world: World, bank_module: Any):
    """It would be in no list, and its hold would be kept for ever."""
    await world.in_doubt("doubt")
    sql = "UPDATE keys_2 SET intent = '{}'"
    await world.journal.journal._ask(lambda file: file._db.execute(sql).rowcount)  # type: ignore[attr-defined] # SQLite
    await world.journal.journal.close()
    listed = await asked("list")
    shown = await told("show", "doubt")
    recovered = await asked("recover", "--hooks", "our_bank:hooks", code=3)
    no = await asked("refute", "doubt", "--yes", "--settle-after", "0", *ADA, code=1)
    await asked("refute", "doubt", "--yes", "--settle-after", "0", "--undone", *ADA)
    after = await told("show", "doubt")

    assert "in doubt (unreadable)" in listed.stdout
    assert recovered.stdout.splitlines()[-1] == "unreadable       1"
    assert (shown["state"], shown["readable"], len(shown["history"])) == ("in_doubt", False, 3)
    assert no.stderr.startswith("journal: --undone: is required: ")
    assert "(funds_hold)" in no.stderr
    assert (after["state"], after["readable"], after["owed"]) == ("free", True, [])
    assert [step["move"] for step in after["history"]][-2:] == ["layaside", "refute"]


# --- the hooks ----------------------------------------------------------------------------------


@each(
    ("spec", "why"),
    [
        ("our_bank", "must be module:factory, as in our_bank.hooks:make"),
        (":hooks", "must be module:factory"),
        ("our_bank:", "must be module:factory"),
        ("nowhere:hooks", "cannot import nowhere (ModuleNotFoundError: No module named 'nowhere')"),
        ("broken_bank:hooks", "cannot import broken_bank (ModuleNotFoundError"),
        ("our_bank:missing", "there is no function missing in our_bank"),
        ("our_bank:NAME", "there is no function NAME in our_bank"),
        ("our_bank:broken", "the factory failed (RuntimeError: no?configuration)"),
        ("our_bank:nothing", "the factory must return a sequence of hooks"),
        ("our_bank:too_much", "unexpected setting 'retries' returned by the factory"),
        ("our_bank:wrong", "hooks: a str is neither a hook nor an async function"),
    ],
)
async def test_hooks_that_cannot_be_had_are_told_in_one_line(
    world: World, bank_module: Any, spec: str, why: str
):
    await world.owing("owing")
    result = await asked("recover", "--hooks", spec, code=2)

    assert why in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("close", ["pass", "raise OSError('the pool is gone')"])
async def test_the_factory_that_verify_hooks_tried_is_the_one_that_works_for_the_bank(
    world: World, bank_module: Any, close: str
):
    """With two factories the trials say nothing about the hooks that hold the money."""
    await asyncio.to_thread(bank_module, close=close)
    await world.in_doubt("doubt")
    await asked("recover", "--hooks", "our_bank:for_every_command")
    import our_bank  # type: ignore[import-not-found] # written by the fixture

    assert (await world.entry("doubt")).order_id == "tx-found"
    assert our_bank.closed == [True]
    if close == "pass":
        verified = await commands.asked("verify-hooks", "our_bank:for_every_command", "--late", "0")
        assert "all rules kept" in verified.stdout


async def test_an_object_with_hooks_will_do():
    class Ours:
        hooks = ()

    def make() -> Ours:
        return Ours()

    side = await made_by(make)

    assert (side.hooks, side.resolve) == ((), None)


def test_a_module_is_found_once_in_the_current_directory(bank_module: Any):
    factory_named("our_bank:hooks")
    factory_named("our_bank:nothing")

    assert sys.path.count(str(Path.cwd())) == 1


def test_what_lies_about_in_the_current_directory_stands_for_no_library(bank_module: Any):
    """A file there by the name of one would otherwise run, with the token in its environment."""
    decoys = [Path("asyncpg.py"), Path("aiohttp.py"), Path("rich.py")]
    for decoy in decoys:
        decoy.touch()
    factory_named("our_bank:hooks")
    found = [PathFinder.find_spec(decoy.stem) for decoy in decoys]

    assert [one is not None and Path(one.origin or "").parent == Path.cwd() for one in found] == [False] * 3


async def test_a_token_must_be_given_or_be_brought_by_the_factory(
    world: World, bank_module: Any, monkeypatch: pytest.MonkeyPatch
):
    await world.create()
    monkeypatch.delenv("TRANSFER_API_TOKEN")
    none = await asked("recover", "--hooks", "our_bank:hooks", code=2)
    brought = await asked("recover", "--hooks", "our_bank:with_token")

    needed = "--token, or TRANSFER_API_TOKEN, is required, unless the factory of --hooks returns a token"
    assert (none.stderr, brought.stderr) == (f"journal: {needed}\n", "")


async def test_the_token_is_not_told(world: World, bank_module: Any):
    await world.create(key="created")
    result = await asked("recover", "--hooks", "our_bank:hooks", "--token", "very s3cr3t", code=2)

    assert "token: " in result.stderr
    assert "s3cr3t" not in result.stderr

"""`journal recover` with the hooks of a bank's module, and with modules that have no usable hooks."""

import asyncio
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests._cli.journal.terminal import ADA, asked, corrupt_intents, everything, json_of
from tests.support import commands
from tests.support.cases import each
from tests.support.trials import ONLY_IN_TRIALS
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
    """Write a bank's module to the current directory. Return the function that can write it again."""

    def write(release: str = "released.append(intent.id)", close: str = "pass") -> None:
        (tmp_path / "our_bank.py").write_text(BANK.format(release=release, close=close), encoding="utf-8")
        (tmp_path / "broken_bank.py").write_text("import nowhere_to_be_found", encoding="utf-8")

    write()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    sys.modules.pop("our_bank", None)


async def test_recover_runs_the_banks_hooks_and_its_resolve(world, bank_module):
    await everything(world)
    result = await asked("recover", "--hooks", "our_bank:hooks")
    resolving = await json_of("recover", "--hooks", "our_bank:everything")

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
    others = dict.fromkeys(["taken_over", "refuted", "released", "undos_pending", "unreadable"], 0)
    assert resolving == others | {"in_doubt": 1, "resolved": 1}  # both doubts cannot have the same order
    assert (await world.entry("doubt")).order_id == "tx-found"


async def test_recover_exits_with_3_if_an_undo_is_still_pending(world, bank_module):
    await asyncio.to_thread(bank_module, release="raise OSError")
    await world.owing("owing")
    result = await asked("recover", "--hooks", "our_bank:hooks", code=3)

    assert result.stdout.splitlines()[-2:] == ["undos pending    1", "unreadable       0"]


async def test_a_corrupt_record_is_listed_and_can_be_refuted(world, bank_module):
    """Without this, its hold is never released."""
    await world.in_doubt("doubt")
    await corrupt_intents(world)
    listed = await asked("list")
    shown = await json_of("show", "doubt")
    recovered = await asked("recover", "--hooks", "our_bank:hooks", code=3)
    no = await asked("refute", "doubt", "--yes", "--settle-after", "0", *ADA, code=1)
    await asked("refute", "doubt", "--yes", "--settle-after", "0", "--undone", *ADA)
    after = await json_of("show", "doubt")

    assert "in doubt (unreadable)" in listed.stdout
    assert recovered.stdout.splitlines()[-1] == "unreadable       1"
    assert (shown["state"], shown["readable"], len(shown["history"])) == ("in_doubt", False, 3)
    assert no.stderr.startswith("journal: --undone: must be set, because ")
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
        ("our_bank:missing", "the module our_bank has no function missing"),
        ("our_bank:NAME", "the module our_bank has no function NAME"),
        ("our_bank:broken", "the factory failed (RuntimeError: no?configuration)"),
        ("our_bank:nothing", "the factory must return a sequence of hooks"),
        ("our_bank:too_much", "the factory returned an unknown setting, 'retries'"),
        ("our_bank:wrong", "hooks: a str is neither a hook nor an async function"),
    ],
)
async def test_an_unusable_factory_is_reported_in_one_line(world, bank_module, spec, why):
    result = await asked("recover", "--hooks", spec, code=2)

    assert why in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "close", [pytest.param("pass", marks=ONLY_IN_TRIALS), "raise OSError('the pool is gone')"]
)
async def test_one_factory_serves_recover_and_verify_hooks(world, bank_module, close):
    """With two factories, the checks would prove nothing about the hooks in production."""
    await asyncio.to_thread(bank_module, close=close)
    await world.in_doubt("doubt")
    await asked("recover", "--hooks", "our_bank:for_every_command")
    import our_bank  # type: ignore[import-not-found] # written by the fixture

    assert (await world.entry("doubt")).order_id == "tx-found"
    assert our_bank.closed == [True]
    if close == "pass":
        verified = await commands.asked(
            "verify-hooks", "our_bank:for_every_command", "--late", "0", "--sequences", "0"
        )
        assert "all rules kept" in verified.stdout


async def test_a_factory_may_return_an_object_with_hooks():
    side = await made_by(lambda: SimpleNamespace(hooks=()))

    assert (side.hooks, side.resolve) == ((), None)


def test_a_file_in_the_current_directory_replaces_no_library(bank_module):
    """Without this, a file with a library's name is executed, with the token in its environment."""
    decoys = [Path("asyncpg.py"), Path("aiohttp.py"), Path("rich.py")]
    for decoy in decoys:
        decoy.touch()
    factory_named("our_bank:hooks")
    factory_named("our_bank:nothing")
    found = [PathFinder.find_spec(decoy.stem) for decoy in decoys]

    assert not any(spec is not None and Path(spec.origin or "").parent == Path.cwd() for spec in found)
    assert sys.path.count(str(Path.cwd())) == 1


async def test_a_token_is_required_as_an_option_or_from_the_factory(world, bank_module, monkeypatch):
    await world.create()
    monkeypatch.delenv("TRANSFER_API_TOKEN")
    none = await asked("recover", "--hooks", "our_bank:hooks", code=2)
    from_factory = await asked("recover", "--hooks", "our_bank:with_token")
    invalid = await asked("recover", "--hooks", "our_bank:hooks", "--token", "very s3cr3t", code=2)

    needed = "no token: pass --token, set TRANSFER_API_TOKEN, or return a token from the --hooks factory"
    assert (none.stderr, from_factory.stderr) == (f"journal: {needed}\n", "")
    assert "token: " in invalid.stderr
    assert "s3cr3t" not in invalid.stderr

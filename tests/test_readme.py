"""The README's examples run as they stand, and its tables say what the code says."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats import connect
from typer.testing import CliRunner

import transfer_async
from tests.bank import World, new_order
from tests.brokers import NatsServer
from tests.worker.test_command import running
from transfer_async import OrderCommand, OrderOutcome, Outcome, OutcomeUnknown, SQLiteJournal
from transfer_async._cli.app import app
from transfer_async._http.retry import REFUSED
from transfer_async.sandbox import CloseAfterProcessing, Sandbox

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def sandbox_elsewhere() -> Iterator[Sandbox]:
    """A sandbox in a thread of its own, for examples that bring their own event loop."""
    up = threading.Event()
    found: list[Sandbox] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with Sandbox() as sandbox:
            down = asyncio.Event()
            found.append(sandbox)
            loops.append((asyncio.get_running_loop(), down))
            up.set()
            await down.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert up.wait(10)
    yield found[0]
    loop, down = loops[0]
    loop.call_soon_threadsafe(down.set)
    thread.join(10)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_every_example_runs(
    example: str,
    sandbox_elsewhere: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRANSFER_BASE_URL", sandbox_elsewhere.base_url)
    monkeypatch.setenv("TRANSFER_API_TOKEN", sandbox_elsewhere.token)

    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})


def test_the_first_example_creates_an_order(
    sandbox_elsewhere: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRANSFER_BASE_URL", sandbox_elsewhere.base_url)
    monkeypatch.setenv("TRANSFER_API_TOKEN", sandbox_elsewhere.token)

    exec(compile(EXAMPLES[0], "README.md", "exec"), {"__name__": "readme"})

    order_id = capsys.readouterr().out.split()[0]
    assert order_id in sandbox_elsewhere.orders


def test_every_error_that_the_readme_names_is_there() -> None:
    table = README.partition("## What each outcome means")[2].partition("### If the network dies")[0]
    named = {name for name in re.findall(r"`([A-Z]\w+)`", table) if name != "Order"}

    assert len(named) > 10
    assert all(issubclass(getattr(transfer_async, name), transfer_async.TransferError) for name in named)


def test_the_refused_statuses_of_the_readme_are_the_defaults() -> None:
    listed = re.search(r"`UnreadableOrder`; ([\d–, ]+) → `Refused`", README)
    assert listed
    statuses = set()
    for part in listed[1].split(","):
        first, _, last = part.strip().partition("–")
        statuses |= set(range(int(first), int(last or first) + 1))

    assert statuses == REFUSED


def test_the_readme_has_two_commands_of_one_line_each() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)

    assert [block.count("\n") for block in blocks] == [1, 1]


def test_the_file_of_orders_is_created_by_the_commands_beside_it(
    sandbox_elsewhere: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRANSFER_BASE_URL", sandbox_elsewhere.base_url)
    monkeypatch.setenv("TRANSFER_API_TOKEN", sandbox_elsewhere.token)
    monkeypatch.chdir(tmp_path)
    (table,) = re.findall(r"^```csv\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^transfer-async (create salaries\.csv.*)$", README, re.MULTILINE)
    Path("salaries.csv").write_text(table, encoding="utf-8")
    before = len(sandbox_elsewhere.orders)

    ended = [CliRunner().invoke(app, shlex.split(command, comments=True)) for command in commands]

    assert [one.exit_code for one in ended] == [0, 0, 0]
    assert "nothing was sent" in ended[0].stdout
    assert len(sandbox_elsewhere.orders) == before + 2
    assert Path("salaries.csv.outcomes.jsonl").read_text(encoding="utf-8").count('"outcome":"created"') == 2


async def test_the_worker_of_the_readme_takes_orders_from_nats(
    sandbox_elsewhere: Sandbox, nats: NatsServer, database: str, tmp_path: Path
) -> None:
    (command,) = re.findall(r"^transfer-async (worker --broker .*)$", README, re.MULTILINE)
    (module,) = [example for example in EXAMPLES if example.startswith("# our_bank.py")]
    await asyncio.to_thread((tmp_path / "our_bank.py").write_text, module)
    command = command.replace("nats://broker:4222", nats.address)
    command = command.replace("postgresql://db/payments", database)
    environment = {
        "TRANSFER_BASE_URL": sandbox_elsewhere.base_url,
        "TRANSFER_API_TOKEN": sandbox_elsewhere.token,
    }
    order = OrderCommand(key="from-the-readme", order=new_order()).to_json()

    async with running(*shlex.split(command), cwd=tmp_path, **environment) as worker:
        await worker.line("health ")
        send = ["send", "--broker", nats.address, "-"]
        assert (await asyncio.to_thread(CliRunner().invoke, app, send, input=order)).exit_code == 0
        outcome = await first_outcome(nats.address)
        worker.process.terminate()
        assert (await worker.end())[0] == 0

    assert (outcome.key, outcome.outcome) == ("from-the-readme", Outcome.CREATED)
    assert outcome.order_id in sandbox_elsewhere.orders


async def first_outcome(address: str) -> OrderOutcome:
    """What is published first, by a reader that knows nothing but NATS."""
    connection = await connect(address)
    try:
        reader = await connection.jetstream().subscribe("transfer.outcomes", ordered_consumer=True)
        message = await reader.next_msg(timeout=20)
    finally:
        await connection.close()
    return OrderOutcome.from_json(message.data)


def test_the_readme_tries_a_worker_in_two_commands() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (first, second) = next(block for block in blocks if "worker --try" in block).splitlines()

    assert first.endswith("pip install --quiet '.[try]'")
    assert second == ".venv-worker/bin/transfer-async worker --try"


def test_the_test_of_the_readme_runs_as_pasted_and_fails_for_a_bank_that_pays_twice(tmp_path: Path) -> None:
    """In pytest-asyncio's default mode; a test that asserts nothing would pass for any bank."""
    (example,) = [example for example in EXAMPLES if "transfer_sandbox" in example]
    (tmp_path / "test_as_pasted.py").write_text(example, encoding="utf-8")
    pays_twice = example.replace('key="payment-8731"', "key=None")
    assert pays_twice != example
    (tmp_path / "test_pays_twice.py").write_text(pays_twice, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "pytest_asyncio.plugin", "-p", "transfer_async.sandbox.pytest_plugin"]  # and no others
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False
    )

    assert ended.stdout.splitlines()[-1].startswith("1 failed, 1 passed in ")
    assert "FAILED test_pays_twice.py::" in ended.stdout


def test_whatever_the_readme_installs_can_be_installed_from_a_clone() -> None:
    """The package is on no index: its name alone would install nothing, or somebody else's."""
    settings = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"]
    installed = [
        word
        for line in re.findall(r"pip install ([^`\n&]+)", README)
        for word in shlex.split(line, comments=True)
        if not word.startswith("--")
    ]

    assert len(installed) > 10
    for one in installed:
        named = re.fullmatch(r"\.(?:\[([a-z,]+)\])?", one)
        if named is None:
            assert one in {"opentelemetry-sdk", "pytest", "pytest-asyncio"}
        else:
            assert set(filter(None, (named[1] or "").split(","))) <= set(extras)


async def test_an_operators_day_goes_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    days = re.findall(r"^transfer-async (journal .*)$", README, re.MULTILINE)
    (module,) = [example for example in EXAMPLES if example.startswith("# our_bank.py")]
    await asyncio.to_thread((tmp_path / "our_bank.py").write_text, module)
    await asyncio.to_thread(monkeypatch.chdir, tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("transfer_async._cli.journal.journal_commands.somebody_is_there", lambda: True)
    async with Sandbox() as sandbox:
        world, path = World(sandbox), tmp_path / "payments.journal"
        world.journal.journal = SQLiteJournal(path, clock=world.time.clock)  # in 2024
        monkeypatch.setenv("TRANSFER_JOURNAL", str(tmp_path / "payments.journal"))
        monkeypatch.setenv("TRANSFER_BASE_URL", sandbox.base_url)
        monkeypatch.setenv("TRANSFER_API_TOKEN", sandbox.token)
        async with world.client() as client:
            for key in ("payment-8731", "payment-8732"):
                sandbox.faults.add(CloseAfterProcessing())
                with pytest.raises(OutcomeUnknown):
                    await client.create_order(new_order(), key=key)
        await world.journal.journal.close()
        ended = [
            await asyncio.to_thread(CliRunner().invoke, app, shlex.split(line, comments=True), input="y\n")
            for line in days
        ]
    sys.modules.pop("our_bank", None)

    assert [one.exit_code for one in ended] == [0] * len(days) == [0] * 6, [one.output for one in ended]
    assert re.search(r"^released +1$", ended[4].stdout, re.MULTILINE)


def test_the_readme_is_filled_in() -> None:
    assert not re.search(r"[A-Z]{4,}FIGURES", README)

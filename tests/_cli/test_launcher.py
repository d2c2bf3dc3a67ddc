"""The installed command: a fast `--version`, and streams that are closed or support only ASCII."""

import asyncio
import importlib.metadata
import io
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.cases import each
from tests.support.commands import invoke
from tests.support.journalling import SCOPE, claim, doubt, mark, of_key
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import SQLiteJournal
from transfer_async._cli import launcher

ALONE = """
import sys
from transfer_async._cli.launcher import main
sys.argv = ["transfer-async", "--version"]
main()
print(*{"aiohttp", "attrs", "cattrs", "typer"} & set(sys.modules))
"""


def test_the_version_is_shown_without_the_client(tmp_path):
    about = tmp_path / "transfer_async-1.2.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: transfer_async\nVersion: 1.2.3\n")
    path = os.pathsep.join([str(tmp_path), str(Path(launcher.__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, check=True)

    assert done.stdout == b"transfer-async 1.2.3\n\n"


def test_the_version_is_the_same_as_that_of_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.2.3")
    monkeypatch.setattr("transfer_async._cli.app.VERSION", "1.2.3")
    monkeypatch.setattr(sys, "argv", ["transfer-async", "--version"])
    launcher.main()

    assert capsys.readouterr().out == invoke("--version").output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--version", "--nope"], 2, "No such option: --nope"),
        (["--help"], 0, "Usage: transfer-async"),
        ([], 2, "whoami"),
    ],
)
def test_other_arguments_are_parsed_by_the_command_line(arguments, code, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transfer-async", *arguments])
    with pytest.raises(SystemExit) as ended:
        launcher.main()

    assert ended.value.code == code
    assert message in "".join(capsys.readouterr())


class InterruptedImport:
    """An import hook that simulates Ctrl-C while the command line is imported."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "transfer_async._cli.app":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_starts_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["transfer-async", "create", "orders.csv"])
    monkeypatch.delitem(sys.modules, "transfer_async._cli.app")
    monkeypatch.setattr(sys, "meta_path", [InterruptedImport(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        launcher.main()

    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "transfer-async: stopped by Ctrl-C while starting; nothing was done\n")


# --- streams --------------------------------------------------------------------------------------

KEY = "支払い-1"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return the path of a journal with a key in doubt."""
    async with SQLiteJournal(tmp_path / "journal") as journal:
        for move in (claim(), mark(), doubt()):
            await journal.move(SCOPE, KEY, of_key(move, KEY))
    return tmp_path / "journal"


@pytest.fixture
def options(path: Path) -> list[str]:
    return ["--journal", str(path), "--base-url", SCOPE]


def test_a_key_that_the_terminal_cannot_show_is_escaped(options, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["transfer-async", "journal", "list", *options])
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit) as ended:
        launcher.main()

    assert ended.value.code == 0
    assert KEY.encode("ascii", "backslashreplace") in terminal.buffer.getvalue()


async def test_a_command_with_closed_streams_does_its_work(path, options):
    arguments = ["resolve", KEY, "--order-id", "tx-seen", "--by", "ada", "--reason", "seen", *options]
    program = [sys.executable, "-m", "transfer_async", "journal", *arguments]
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *program]
    done = await asyncio.to_thread(subprocess.run, command, check=False)

    assert done.returncode == 0
    async with SQLiteJournal(path) as journal:
        entry = await journal.read(SCOPE, KEY)
    assert entry is not None
    assert entry.order_id == "tx-seen"


@ONLY_IN_TRIALS
def test_pythons_exit_does_not_replace_the_exit_code_of_an_error(options):
    program = [sys.executable, "-m", "transfer_async", "journal", "show", "no-such-key", *options]
    for streams in ("2>/dev/full", ">/dev/full 2>/dev/full", ">&- 2>/dev/full"):
        command = ["sh", "-c", f'exec "$@" {streams}', "sh", *program]
        assert subprocess.run(command, check=False).returncode == 1, streams


LOST = "stdout: cannot be written (No space left on device); the command may have done its work\n"


def on_a_full_disk() -> TextIO:
    return Path("/dev/full").open("w", encoding="utf-8")


def without_a_reader() -> TextIO:
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w", encoding="utf-8")


@each(
    ("arguments", "streams", "opened", "code", "error"),
    [
        # If an incomplete list looked complete, a script would find no key in doubt.
        (["list", "--json"], ["stdout"], on_a_full_disk, 1, LOST),
        (["show", "no-such-key"], ["stderr"], on_a_full_disk, 1, ""),
        (["show", "no-such-key"], ["stdout", "stderr"], on_a_full_disk, 1, ""),
        (["list", "--json"], ["stdout"], without_a_reader, 0, ""),
        (["show", "no-such-key"], ["stdout", "stderr"], without_a_reader, 1, ""),
    ],
)
def test_only_a_full_disk_fails_a_command_and_a_lost_error_keeps_its_exit_code(
    arguments, streams, opened, code, error, options, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["transfer-async", "journal", *arguments, *options])
    with ExitStack() as stack, monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        for name in streams:
            patch.setattr(sys, name, stack.enter_context(opened()))
        launcher.main()

    # Closing a stream writes what it still contains, as Python does at its exit.
    assert (ended.value.code, capsys.readouterr().err) == (code, error)

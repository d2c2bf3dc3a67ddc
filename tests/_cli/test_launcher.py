"""The installed command: a fast `--version`, and streams that are closed or support only ASCII."""

import asyncio
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def test_the_version_is_shown_without_the_client(tmp_path: Path):
    about = tmp_path / "transfer_async-1.2.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: transfer_async\nVersion: 1.2.3\n")
    path = os.pathsep.join([str(tmp_path), str(Path(launcher.__file__).parents[2])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, check=True)

    assert done.stdout == b"transfer-async 1.2.3\n\n"


def test_the_version_is_the_same_as_that_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.2.3")
    monkeypatch.setattr("transfer_async._cli.app.VERSION", "1.2.3")
    monkeypatch.setattr(sys, "argv", ["transfer-async", "--version"])
    launcher.main()

    assert capsys.readouterr().out == invoke("--version").output


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--version", "--nope"], 2, "No such option: --nope"),
        (["--help"], 0, "Usage: transfer-async"),
        ([], 2, "whoami"),
    ],
)
def test_other_arguments_are_parsed_by_the_command_line(words, code, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transfer-async", *words])
    with pytest.raises(SystemExit) as ended:
        launcher.main()

    assert ended.value.code == code
    assert told in "".join(capsys.readouterr())


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


def run_journal(*words: str, path: Path, shell: str = "", **environment: str) -> Any:
    options = ["--journal", str(path), "--base-url", SCOPE]
    program = [sys.executable, "-m", "transfer_async", "journal", *words, *options]
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", *program]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, check=False)


@ONLY_IN_TRIALS
def test_a_key_that_the_terminal_cannot_show_is_escaped(path: Path):
    done = run_journal("list", path=path, PYTHONIOENCODING="latin-1")

    assert (done.returncode, done.stderr) == (0, b"")
    assert KEY.encode("ascii", "backslashreplace") in done.stdout


async def test_a_command_with_closed_streams_does_its_work(path: Path):
    words = ["resolve", KEY, "--order-id", "tx-seen", "--by", "ada", "--reason", "seen"]
    done = await asyncio.to_thread(run_journal, *words, path=path, shell="<&- >&- 2>&-")

    assert done.returncode == 0
    async with SQLiteJournal(path) as journal:
        entry = await journal.read(SCOPE, KEY)
    assert entry is not None
    assert entry.order_id == "tx-seen"


def test_a_list_that_cannot_be_written_is_a_failure(path: Path):
    """A script that reads an incomplete list would find no key in doubt."""
    done = run_journal("list", "--json", path=path, shell=">/dev/full")

    why = b"stdout: cannot be written (No space left on device); the command may have done its work\n"
    assert (done.returncode, done.stderr) == (1, why)


def test_an_error_that_cannot_be_written_keeps_its_exit_code(path: Path):
    for shell in ("2>/dev/full", ">/dev/full 2>/dev/full", ">&- 2>/dev/full"):
        assert run_journal("show", "no-such-key", path=path, shell=shell).returncode == 1, shell

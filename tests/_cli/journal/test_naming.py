"""Which journal, and which part of it: what is no good is told in a line, and no journal is made."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests._cli.journal.terminal import asked
from tests.support.bank import World
from tests.support.cases import each
from tests.support.commands import invoke, refused

ONE_KEY = ["show", "resolve", "refute", "amend", "approve", "withdraw"]
ARGUMENTS = {
    **dict.fromkeys(ONE_KEY, " KEY\n"),
    **dict.fromkeys(["resolve", "refute", "approve"], " [KEY]\n"),
    "propose": " [KEY] [DECISION]\n",
}
COMMANDS = [*ARGUMENTS, "list", "four-eyes", "recover", "prune"]


@each("command", COMMANDS)
def test_every_command_says_how_it_is_called_as_manuals_do(command: str):
    usage = f"Usage: transfer-async journal {command} [OPTIONS]{ARGUMENTS.get(command, '')}"

    assert usage in invoke("journal", command, "--help").output
    assert command in invoke("journal", "--help").output


@pytest.mark.parametrize("command", [["list"], ["show", "k"], ["prune", "--older-than", "1d", "--yes"]])
def test_without_a_journal_named_it_is_a_wrong_use(command: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRANSFER_JOURNAL", raising=False)
    result = invoke("journal", *command, "--scope", "live")

    assert result.exit_code == 2
    assert "--journal" in result.stderr


@each(
    ("address", "why"),
    [
        ("typo.db", "there is no file typo.db"),
        ("mysql://bank:hunter2@db/x", "a journal is the path of a file, or a postgresql:// address"),
        ("postgresql://bank:hunter/2@db/x", "dsn: "),
        ("postgresql://bank:hunter?2@db/x", "dsn: "),
        ("postgresql:/bank:hunter@db/x", ""),
        ("host=db user=bank password=hunter", ""),
    ],
)
def test_a_mistyped_address_is_refused_without_its_password_and_nothing_is_made(address: str, why: str):
    """A part of it was printed as what is no port: into a terminal's history, and a support ticket."""
    line = refused("journal", "list", "--journal", address, "--scope", "live")

    assert line.startswith(f"journal: --journal: {why}")
    assert "hunter" not in line
    assert not Path(address).exists()


def test_a_mistyped_address_is_refused_where_python_leaves_asserts_out(tmp_path: Path):
    command = [sys.executable, "-O", "-m", "transfer_async", "journal", "list", "--scope", "live"]
    done = subprocess.run(
        [*command, "--journal", "typo.db"], cwd=tmp_path, capture_output=True, encoding="utf-8", check=False
    )

    assert (done.returncode, done.stderr) == (2, "journal: --journal: there is no file typo.db\n")


async def test_a_file_that_is_no_journal_is_told_in_one_line(tmp_path: Path):
    path = tmp_path / "other.db"
    await asyncio.to_thread(path.write_bytes, b"not a database, and long enough to be read as one" * 50)
    result = await asked("list", "--journal", str(path), "--scope", "live", code=1)

    assert result.stderr.startswith("journal: JournalFailed: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "journal: --scope, --base-url or TRANSFER_BASE_URL is required"),
        (["--base-url", "http://bank.example"], "journal: --base-url: must"),
    ],
)
async def test_a_scope_or_an_address_must_be_named(
    world: World, words: list[str], line: str, monkeypatch: pytest.MonkeyPatch
):
    await world.create()
    monkeypatch.delenv("TRANSFER_BASE_URL")

    assert (await asked("list", *words, code=2)).stderr.startswith(line)

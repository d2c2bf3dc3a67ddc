"""The address and the scope of a journal: an error has one line, and no journal is created."""

import asyncio
from pathlib import Path

from tests._cli.journal.terminal import asked
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
def test_usage_lines_look_like_those_of_manual_pages(command):
    usage = f"Usage: transfer-async journal {command} [OPTIONS]{ARGUMENTS.get(command, '')}"

    assert usage in invoke("journal", command, "--help").output
    assert command in invoke("journal", "--help").output


@each(
    ("address", "why"),
    [
        ("typo.db", "the file typo.db does not exist"),
        ("mysql://bank:hunter2@db/x", "a journal must be a file path or a postgresql:// address"),
        ("postgresql://bank:hunter/2@db/x", "dsn: "),
        ("postgresql://bank:hunter?2@db/x", "dsn: "),
        ("postgresql:/bank:hunter@db/x", ""),
        ("host=db user=bank password=hunter", ""),
    ],
)
def test_a_mistyped_address_is_refused_and_its_password_not_printed(address, why):
    """Without this, a part of the password, mistaken for a port, is printed and ends up in support
    tickets.
    """
    line = refused("journal", "list", "--journal", address, "--scope", "live")

    assert line.startswith(f"journal: --journal: {why}")
    assert "hunter" not in line
    assert not Path(address).exists()


async def test_a_file_that_is_not_a_journal_is_refused_in_one_line(tmp_path):
    path = tmp_path / "other.db"
    await asyncio.to_thread(path.write_bytes, b"not a database, and long enough to be read as one" * 50)
    result = await asked("list", "--journal", str(path), "--scope", "live", code=1)

    assert result.stderr.startswith("journal: JournalFailed: ")
    assert result.stderr.count("\n") == 1


@each(
    ("options", "variable", "line"),
    [
        ([], "TRANSFER_BASE_URL", "journal: --scope, --base-url or TRANSFER_BASE_URL is required"),
        (["--base-url", "http://bank.example"], "TRANSFER_BASE_URL", "journal: --base-url: must"),
        (["--scope", "live"], "TRANSFER_JOURNAL", "Missing option '--journal'"),
    ],
)
async def test_a_journal_and_a_scope_or_a_base_url_are_required(world, options, variable, line, monkeypatch):
    with monkeypatch.context() as patched:
        patched.delenv(variable)
        assert line in (await asked("list", *options, code=2)).stderr

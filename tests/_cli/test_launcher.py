"""The command as it is installed: `--version` needs neither the client nor typer."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import invoke
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
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: transfer_async\nVersion: 1.2.3\n", encoding="utf-8"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(launcher.__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )

    assert done.stdout.splitlines() == ["transfer-async 1.2.3", ""]


def test_it_says_what_the_command_line_itself_says(
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
        ([], 2, "Usage: transfer-async"),
    ],
)
def test_everything_else_is_for_the_command_line(words, code, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["transfer-async", *words])
    with pytest.raises(SystemExit) as ended:
        launcher.main()

    assert ended.value.code == code
    assert told in "".join(capsys.readouterr())

"""The user's environment does not affect the tests, and the client takes no proxy or login from it."""

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest
from tests.support.cases import each
from tests.support.server_process import ServerNotStarted
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import TransferClient
from transfer_async.sandbox import Sandbox

ROOT = Path(__file__).parents[1]

SET = {
    "TRANSFER_JOURNAL": "/nowhere/journal.db",
    "TRANSFER_SEAL": "/nowhere/keys",
    "OTEL_SDK_DISABLED": "true",
    "PGSSLMODE": "verify-full",
    "PGSERVICE": "nobody",
    "https_proxy": "http://127.0.0.1:1",
    "FORCE_COLOR": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONSAFEPATH": "1",
    "PYTEST_ADDOPTS": "-p no:such",
    "COLUMNS": "40",
    "LC_ALL": "POSIX",
    "PYTHONUTF8": "1",
    "TZ": "Asia/Kathmandu",
}


if not str(ROOT).isascii() or not sys.prefix.isascii():
    del SET["LC_ALL"]  # With an ASCII locale, Python itself does not start in such a directory.


def outside(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with only a search path and the given environment variables."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=False,
    )


def test_the_tests_do_not_see_the_users_variables():
    seen = outside("-c", "import json, os, tests; print(json.dumps(dict(os.environ)))", **SET)

    kept = json.loads(seen.stdout)
    assert {name: value for name, value in kept.items() if SET.get(name) == value} == {}
    assert (kept["LC_ALL"], kept["TZ"]) == ("C.UTF-8", "UTC")


@ONLY_IN_TRIALS
def test_without_asserts_the_tests_fail_with_one_line():
    run = outside("-m", "pytest", "-q", "tests/test_environment.py", PYTHONOPTIMIZE="2")

    assert (run.returncode, run.stderr.count("\n")) == (1, 1)
    assert "PYTHONOPTIMIZE" in run.stderr


def test_a_server_that_cannot_start_is_one_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conftest, "_not_started", set())
    for expected in (ServerNotStarted, pytest.skip.Exception, pytest.skip.Exception):
        setup = conftest.pytest_runtest_setup()
        next(setup)
        with pytest.raises(expected):
            setup.throw(ServerNotStarted("PostgreSQL", "no space left"))


# --- the locale ---------------------------------------------------------------------------------

FOLDERS = ("transfer_async", "tests", "docs", "benchmarks", ".ci")
MAY_GUESS = re.compile(r"\bopen\(|read_text|write_text|text=True|universal_newlines")
"""Only files that contain one of these texts are parsed, because parsing is slow."""


def guesses_the_encoding(call: ast.Call) -> bool:
    """Return whether a call reads or writes text in the locale's encoding. Ruff finds only some of them."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    keywords = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
    if "encoding" in keywords:
        return False
    given = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    modes = [value for value in (*given, keywords.get("mode")) if isinstance(value, str)]
    opens = name == "open" and any(set(mode) <= set("rwxat+") for mode in modes)
    files = name in ("read_text", "write_text") and len(call.args) < {"read_text": 1, "write_text": 2}[name]
    return opens or files or keywords.get("text") is True or keywords.get("universal_newlines") is True


@each(
    ("source", "is_guessed"),
    [
        ("path.read_text()", True),
        ('path.read_text(encoding="utf-8")', False),
        ("path.write_text(text)", True),
        ('path.open("w")', True),
        ('path.open("rb")', False),
        ("run(command, text=True)", True),
    ],
)
def test_a_missing_encoding_is_found(source: str, is_guessed: bool):
    call = ast.parse(source, mode="eval").body

    assert isinstance(call, ast.Call)
    assert guesses_the_encoding(call) is is_guessed


@ONLY_IN_TRIALS
def test_every_text_file_is_opened_with_an_encoding():
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    sources = {path: path.read_text(encoding="utf-8") for path in paths}
    guessed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, source in sources.items()
        if MAY_GUESS.search(source)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and guesses_the_encoding(node)
    ]

    assert guessed == []


async def test_a_proxy_and_a_login_of_the_environment_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    logins = tmp_path / "logins"
    await asyncio.to_thread(logins.write_text, "machine 127.0.0.1 login somebody password else\n", "utf-8")
    monkeypatch.setenv("NETRC", str(logins))
    async with Sandbox() as sandbox, TransferClient(sandbox.base_url, sandbox.token) as client:
        me = await client.who_am_i()

    assert (me.username, len(sandbox.requests)) == ("lagoon-bank", 1)

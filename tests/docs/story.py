"""The code of a page, run from top to bottom in one directory.

====================  =======================================================================================
block                 use
====================  =======================================================================================
``python``            run. A block that begins with ``# name.py`` is written to that file, and run by a
                      command that names it, by an import, or at the end
``text``              directly after a Python block: compared with its output; elsewhere ignored
``csv``               written to the file that was named last
``sh``                each line is a command that must succeed
``console``           each ``$ line`` is a command, and the lines after it are compared with its output
====================  =======================================================================================

In compared text, ``…`` stands for any text within its line, and a line of ``…`` alone for any lines. Commands
run in this process if possible. For commands that install or take minutes, the test only checks that their
options and files exist.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from attrs import field, frozen

from transfer_async._cli import launcher
from transfer_async._cli.servers import announcement
from transfer_async.testing import RunningSandbox

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md"))]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
(_PLUGIN,) = _PROJECT["project"]["entry-points"]["pytest11"].values()
_EXTRAS = _PROJECT["project"]["optional-dependencies"]
_OTHERS = {"opentelemetry-sdk", "pip", "pytest", "pytest-asyncio"}


@frozen
class Block:
    """A fenced block of a page. ``before`` is the text between the previous block and this one."""

    kind: str
    text: str = field(repr=False)
    line: int
    before: str = field(repr=False)

    @property
    def file(self) -> str | None:
        """The name of the file to which the block is written, if any."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named else None


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, without directives of Sphinx."""
    text, end, found = page.read_text(encoding="utf-8"), 0, []
    for fence in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(fence[1], fence[2], line, text[end : fence.start()]))
        end = fence.end()
    return found


def commands_in(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield the commands of a block, each with its expected output, or None if the page shows none."""
    if block.kind == "sh":
        lines = block.text.replace("\\\n", " ").splitlines()
        yield from ((line, None) for line in lines if line.strip())
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def python_block(page: Path, file: str) -> str:
    """Return the text of the block that is written to ``file``."""
    (found,) = [block.text for block in blocks_of(page) if block.file == file]
    return found


def module_of(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Create a module that can be imported during a test."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    return module


class Story:
    """The run of one page.

    Args:
        where: the current directory.
        set_variable: sets an environment variable of the process.
    """

    def __init__(self, where: Path, set_variable: Callable[[str, str], None]) -> None:
        self._where, self._set_variable = where, set_variable
        self._printed = ""
        self._sandboxes = contextlib.ExitStack()
        self._not_yet_run: dict[str, str] = {}

    def play(self, page: Path) -> None:
        """Run all blocks of a page. An error names the line on the page."""
        last: Block | None = None
        for block in blocks_of(page):
            try:
                self._play(block, last)
            except BaseException as error:
                error.add_note(f"in the block at {page.name}:{block.line}")
                raise
            last = block
        self._play_what_no_command_ran()

    def close(self) -> None:
        """Stop the sandboxes that commands started."""
        self._sandboxes.close()
        self._forget_modules()

    def _play(self, block: Block, last: Block | None) -> None:
        match block.kind:
            case "python" if block.file:
                self.write(block.file, block.text)
            case "python":
                self._printed = self._python(block.text)
            case "text" if last is not None and last.kind == "python" and block.before.strip() == "":
                assert_output(self._printed, block.text)
            case "csv":
                self.write(re.findall(r"`(\w+\.csv)`", block.before)[-1], block.text)
            case "sh" | "console":
                for command, shown in commands_in(block):
                    output = self.command(command)
                    if shown is not None:
                        assert_output(output, shown)
            case "text" | "json":
                pass
            case unknown:
                raise AssertionError(f"a block of {unknown} cannot be run")

    def write(self, name: str, text: str) -> None:
        """Write a file into the directory."""
        (self._where / name).write_text(text, encoding="utf-8")
        if name.endswith(".py"):
            self._not_yet_run[name] = text

    def _play_what_no_command_ran(self) -> None:
        for name, text in list(self._not_yet_run.items()):
            self._python(text, arguments=(name,))
        self._not_yet_run.clear()

    # --- Python ---------------------------------------------------------------------------------

    def _python(self, text: str, *, arguments: tuple[str, ...] = ("-",)) -> str:
        self._forget_modules()
        self._not_yet_run.pop(arguments[0], None)
        with _as_a_program(arguments, self._where) as output:
            exec(compile(text, arguments[0], "exec"), {"__name__": "__main__"})
        return output.getvalue()

    def _forget_modules(self) -> None:
        where = str(self._where)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if file.startswith(where):
                self._not_yet_run.pop(Path(file).name, None)
                del sys.modules[name]

    # --- commands -------------------------------------------------------------------------------

    def command(self, line: str) -> str:
        """Run or check one command. Return its output."""
        line = re.sub(r"\$\((.*?)\)", lambda inner: self.command(inner[1]).strip(), line)
        output = ""
        for part in line.split(" && "):
            argv = shlex.split(part, comments=True)
            if argv:
                output += self._handler(argv)(argv)
        return output

    def _handler(self, argv: list[str]) -> Callable[[list[str]], str]:
        first = Path(argv[0]).name or argv[0]
        known = {
            ".": lambda _: "",
            "cd": lambda _: "",
            "export": self._export,
            "pip": _check_install,
            "pytest": self._pytest,
            "sphinx-build": lambda _: "",
            "transfer-async": self._transfer_async,
        }
        if first in ("python", "python3"):
            return self._program if not argv[1].startswith("-") else _check_module
        return known[first]

    def _export(self, argv: list[str]) -> str:
        for word in argv[1:]:
            name, _, value = word.partition("=")
            self._set_variable(name, value)
        return ""

    def _program(self, argv: list[str]) -> str:
        return self._python((self._where / argv[1]).read_text(encoding="utf-8"), arguments=tuple(argv[1:]))

    def _pytest(self, argv: list[str]) -> str:
        if argv[0] != "pytest":  # this would run all tests, including this one
            return ""
        for word in argv[1:]:
            self._not_yet_run.pop(word, None)
        if argv[1].startswith("tests/"):  # these tests already run anyway
            assert (ROOT / argv[1]).exists(), f"there is no {argv[1]}"
            return ""
        return run_pytest(self._where, *argv[1:])[1]

    def _transfer_async(self, argv: list[str]) -> str:
        match argv[1]:
            case "sandbox":
                return self._sandbox(argv)
            case "demo" | "worker" | "probe":  # each of these commands has its own tests
                self._check_options(argv)
                return ""
        return self._command_line(argv)

    def _command_line(self, argv: list[str]) -> str:
        self._forget_modules()
        with _as_a_program(tuple(argv), self._where) as output, _answering_yes():
            try:
                launcher.main()
            except SystemExit as end:
                assert end.code in (0, None), output.getvalue()  # noqa: PT017 - this is how a program ends
        return output.getvalue()

    def _check_options(self, argv: list[str]) -> None:
        """Check that the command's help lists its options and faults."""
        help_text = self._command_line([argv[0], argv[1], "--help"])
        for word in argv[2:]:
            assert not word.startswith("--") or word in help_text, f"{argv[1]} has no option {word}"
        for before, word in itertools.pairwise(argv):
            assert before != "--fault" or word.partition("=")[0] in help_text, f"there is no fault {word}"

    def _sandbox(self, argv: list[str]) -> str:
        if len(argv) > 2:
            self._check_options(argv)
            return ""
        lines = announcement(self._sandboxes.enter_context(RunningSandbox()))
        for line in lines:
            if line.startswith("export "):
                self._export(shlex.split(line))
        return "\n".join(lines)


def run_pytest(where: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in this process with only two plug-ins. Return its exit code and output."""
    options = ["--rootdir", str(where), "-o", "asyncio_default_fixture_loop_scope=function"]
    options += ["-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", _PLUGIN]
    options += ["-p", "no:unraisableexception"]  # the outer pytest does the same, with fewer collections
    with (
        mock.patch.dict(os.environ, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
        mock.patch.dict(sys.modules),
        contextlib.chdir(where),
        _as_a_program(("pytest",), where) as output,
    ):
        return pytest.main([*arguments, *options]), output.getvalue()


@contextlib.contextmanager
def _as_a_program(arguments: tuple[str, ...], where: Path) -> Iterator[io.StringIO]:
    """Collect the output of a program that runs in ``where`` with these arguments."""
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", list(arguments)),
        mock.patch.object(sys, "path", [str(where), *sys.path]),
        contextlib.redirect_stdout(output),
    ):
        yield output


@contextlib.contextmanager
def _answering_yes() -> Iterator[None]:
    """Answer all questions of a command with yes."""
    answers = io.StringIO("y\n" * 3)
    with mock.patch.object(answers, "isatty", return_value=True), mock.patch.object(sys, "stdin", answers):
        yield


def assert_output(output: str, shown: str) -> None:
    """Check that a program's output matches the output on the page."""
    output = "\n".join(line.rstrip() for line in output.splitlines())
    pattern = "\n".join(
        r"(?:.*\n?)*?" if line == "…" else re.escape(line.rstrip()).replace("…", ".*")
        for line in shown.splitlines()
    ).replace("(?:.*\\n?)*?\n", "(?:.*\\n)*?")
    assert re.fullmatch(pattern, output.rstrip()), f"output:\n{output}\n\nshown:\n{shown}"


# --- what is only checked -----------------------------------------------------------------------


def _check_install(argv: list[str]) -> str:
    """Check that only the clone is installed, because the package is not on any index."""
    assert argv[1] == "install"
    named = [(before, word) for before, word in itertools.pairwise(argv[1:]) if not word.startswith("--")]
    assert named
    for before, name in named:
        known = name in _PROJECT["dependency-groups"] if before == "--group" else is_installable(name)
        assert known, f"{name!r} cannot be installed from a clone"
    return ""


def is_installable(what: str) -> bool:
    """Return whether ``what`` is the clone with existing extras, or one of a few known packages."""
    own = re.fullmatch(r"\.(?:\[([a-z,]+)\])?", what)
    if own is None:
        return what in _OTHERS
    return set(filter(None, (own[1] or "").split(","))) <= set(_EXTRAS)


def _check_module(argv: list[str]) -> str:
    """Check that ``python -m module --option`` uses an existing module and existing options."""
    assert argv[1] == "-m"
    if argv[2] == "venv":
        return ""
    path = ROOT.joinpath(*argv[2].split("."))
    files = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.rglob("*.py"))
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert source, f"there is no module {argv[2]}"
    for word in argv[3:4]:
        known = word.startswith("-") or word in {file.stem for file in files} or f'"{word}"' in source
        assert known, f"{argv[2]} has no program {word}"
    for option in argv[3:]:
        assert not option.startswith("--") or f'"{option}"' in source, f"{argv[2]} has no option {option}"
    return ""

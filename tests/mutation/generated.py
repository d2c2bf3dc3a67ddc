"""Faults that mutmut generates in the modules that decide about money.

Usage (up to ten minutes for each part, on two idle cores)::

    pip install mutmut
    python -m tests.mutation.generated                       all parts
    python -m tests.mutation.generated classify operators    some of them
    python -m tests.mutation.generated outcomes --sample 150 a sample, always the same one

It prints the faults that survive and are not in `equivalents.txt`. That list has the faults that no test
can catch, with the reasons; it names the function and the changed lines, so it stays valid while other lines
change. For each other fault, write a test. `PARTS` has the modules to change and the tests to run. The parts
in `OPEN` still have such faults.

mutmut leaves out functions with a decorator, and everything outside functions. A fault that only changes a
message is caught by `tests.test_catalogue`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from tests.mutation.checkout import Checkout
from tests.test_catalogue import is_message, literals

KNOWN = Path(__file__).with_name("equivalents.txt")
_CAUGHT = (1, 3, -24, 24, 152, 255, -11, -9)
"""mutmut's exit codes for a failed test, a timeout and a crash. With any other code, the fault survived."""

_ORIGINAL = "orig"

SEED = 7
"""The seed of the samples. Another seed selects other faults."""

_LIST_FAULTS = """
import sys
from pathlib import Path
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name
for module in sys.argv[1:]:
    for name in mutate_file_contents(module, Path(module).read_text("utf-8")).mutant_names:
        print(get_mutant_name(Path(module), name))
"""

_SETTINGS = """\
[mutmut]
source_paths =
    transfer_async
only_mutate =
    {modules}
also_copy =
    CHANGELOG.md
    LICENSE
    README.md
    docs
pytest_add_cli_args =
    -p
    no:cacheprovider
    -p
    no:xdist
pytest_add_cli_args_test_selection =
    {tests}
"""


@frozen
class Part:
    """Modules that are changed together, and the tests that must catch each change."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    @property
    def settings(self) -> str:
        """Return the content of mutmut's `setup.cfg`."""
        return _SETTINGS.format(modules="\n    ".join(self.modules), tests="\n    ".join(self.tests))


PARTS = {
    "state_machine": Part(
        (
            "transfer_async/journal/operator_transitions.py",
            "transfer_async/journal/state_machine.py",
            "transfer_async/journal/transitions.py",
        ),
        ("tests/journal/test_state_machine.py", "tests/journal/test_transitions.py"),
    ),
    "classify": Part(
        ("transfer_async/_http/classify.py",),
        (
            "tests/_http/test_classify.py",
            "tests/_pipeline/test_create_order.py",
            "tests/_pipeline/test_doubt_cause.py",
        ),
    ),
    "create_order": Part(
        ("transfer_async/_pipeline/create_order.py",),
        (
            "tests/_beneficiary/test_verification.py",
            "tests/_pipeline/test_call.py",
            "tests/_pipeline/test_create_order.py",
            "tests/_pipeline/test_deadline.py",
            "tests/_pipeline/test_doubt.py",
            "tests/_pipeline/test_hooks.py",
            "tests/_pipeline/test_lease.py",
            "tests/_pipeline/test_pacing.py",
            "tests/_pipeline/test_undo.py",
            "tests/worker/test_handler.py",
        ),
    ),
    "attempt": Part(
        ("transfer_async/_pipeline/attempt.py",),
        (
            "tests/_http/test_header_settings.py",
            "tests/_pipeline/test_cancellation.py",
            "tests/_pipeline/test_create_order.py",
            "tests/_pipeline/test_deadline.py",
            "tests/_pipeline/test_doubt_cause.py",
            "tests/_pipeline/test_pacing.py",
            "tests/faults/test_another_behind.py",
        ),
    ),
    "outcomes": Part(
        ("transfer_async/_pipeline/outcomes.py",),
        (
            "tests/_beneficiary/test_verification.py",
            "tests/_http/test_header_settings.py",
            "tests/_pipeline/test_call.py",
            "tests/_pipeline/test_create_order.py",
            "tests/_pipeline/test_deadline.py",
            "tests/_pipeline/test_decisions.py",
            "tests/_pipeline/test_doubt.py",
            "tests/_pipeline/test_doubt_cause.py",
            "tests/_pipeline/test_recovery_doubts.py",
            "tests/_pipeline/test_recovery_runs.py",
            "tests/_pipeline/test_undo.py",
            "tests/_pipeline/test_unrecorded.py",
            "tests/worker/test_handler.py",
        ),
    ),
    "operators": Part(
        ("transfer_async/_pipeline/operators.py",),
        (
            "tests/_pipeline/test_decisions.py",
            "tests/_pipeline/test_operators.py",
            "tests/desk/test_damaged_records.py",
            "tests/desk/test_notes.py",
        ),
    ),
}

OPEN = ("create_order", "outcomes")
"""The parts with surviving faults that are not listed yet. Run them only by name."""


def known() -> set[str]:
    """Return the listed faults, which survive because they change nothing."""
    lines = KNOWN.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def survivors(part: Part, top: Path, *, sample: int | None = None) -> tuple[set[str], int]:
    """Run mutmut on a copy of the checkout in ``top``; return the surviving faults and the number of all.

    ``sample`` is the number of faults to try, drawn with `SEED`; None for all.
    """
    Checkout(top)
    pyproject = (top / "pyproject.toml").read_text(encoding="utf-8")
    assert "[tool.mutmut]" not in pyproject, "mutmut would not read setup.cfg"
    (top / "setup.cfg").write_text(part.settings, encoding="utf-8")
    chosen = [] if sample is None else _sample(part, top, sample)
    done = _run(top, "-m", "mutmut", "run", *chosen)
    found = [path for module in part.modules for path in top.glob(f"mutants/{module}.meta")]
    if done.returncode or len(found) < len(part.modules):
        raise RuntimeError(f"mutmut failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    codes = {path: json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"] for path in found}
    asked = {
        path: {name: code for name, code in codes[path].items() if not chosen or name in chosen}
        for path in found
    }
    faults = {fault for path in found for fault in _survivors_of(path, asked[path])}
    return faults, sum(map(len, asked.values()))


def _run(top: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=top, capture_output=True, encoding="utf-8", check=False
    )


def _sample(part: Part, top: Path, size: int) -> list[str]:
    """Return mutmut's names of the faults to try."""
    listed = _run(top, "-c", _LIST_FAULTS, *part.modules)
    names = sorted(set(listed.stdout.split()))
    if listed.returncode or not names:
        raise RuntimeError(f"mutmut failed:\n{listed.stderr[-2000:]}")
    return random.Random(SEED).sample(names, min(size, len(names)))


def _survivors_of(meta: Path, codes: dict[str, int | None]) -> Iterator[str]:
    source = meta.with_suffix("").read_text(encoding="utf-8")
    lines = source.splitlines()
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    for name in (name.rpartition(".")[2] for name, code in codes.items() if code not in _CAUGHT):
        function = name.rpartition("__mutmut_")[0]
        before, after = functions[f"{function}__mutmut_{_ORIGINAL}"], functions[name]
        if _messages(before) != _messages(after):
            continue
        old, new = (_lines(lines, one) for one in (before, after))
        changed = [line for line in difflib.ndiff(old, new) if line.startswith(("- ", "+ "))]
        readable = function.removeprefix("x").strip("_ǁ").replace("ǁ", ".")
        yield f"{meta.name.removesuffix('.py.meta')}.{readable}: {'  '.join(changed)}"


def _lines(source: Sequence[str], function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    head, *body = source[function.lineno - 1 : function.end_lineno]
    return [line.strip() for line in (head.replace(function.name, "this"), *body)]


def _messages(function: ast.AST) -> list[str]:
    return [text for text in literals(function) if is_message(text)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the surviving faults of the chosen parts, or of all. Return 1 if one of them is not listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.generated", description=__doc__)
    parser.add_argument("names", metavar="PART", nargs="*", choices=[[], *PARTS], help=", ".join(PARTS))
    parser.add_argument("--sample", metavar="N", type=int, help="ask about N faults of each part only")
    options = parser.parse_args(arguments)
    new: set[str] = set()
    for name in options.names or PARTS:
        with tempfile.TemporaryDirectory() as top:
            found, number = survivors(PARTS[name], Path(top), sample=options.sample)
        unknown = found - known()
        lines = [*sorted(unknown), f"{name}: {len(found)} of {number} survive, {len(unknown)} are not known"]
        sys.stdout.write("\n".join([*lines, ""]))
        new |= unknown
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())

"""Faults that mutmut generates in the state machine. The tests catch all that change something.

Usage (about seven minutes on two idle cores)::

    pip install mutmut
    python -m tests.mutation.generated

It prints the faults that survive and are not in `equivalents.txt`. That list has the faults that no test
can catch, with the reasons; it names the function and the changed lines. For each other fault, write a
test. `[tool.mutmut]` in pyproject.toml sets the modules to change and the tests to run.
"""

from __future__ import annotations

import ast
import difflib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.mutation.checkout import Checkout

KNOWN = Path(__file__).with_name("equivalents.txt")
_SURVIVED = 0  # the exit code of the tests
_ORIGINAL = "orig"


def known() -> set[str]:
    """Return the faults that survive because they change nothing."""
    lines = KNOWN.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def survivors(top: Path) -> tuple[set[str], int]:
    """Run mutmut on a copy of the checkout in ``top``; return the surviving faults and the number of all."""
    Checkout(top)
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", "run"], cwd=top, capture_output=True, encoding="utf-8", check=False
    )
    found = sorted(top.glob("mutants/**/*.py.meta"))
    if done.returncode or not found:
        raise RuntimeError(f"mutmut failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    codes = {path: json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"] for path in found}
    return {fault for path in found for fault in _survivors_of(path, codes[path])}, sum(
        map(len, codes.values())
    )


def _survivors_of(meta: Path, codes: dict[str, int]) -> Iterator[str]:
    source = meta.with_suffix("").read_text(encoding="utf-8")
    functions = {
        node.name: [line.strip() for line in source.splitlines()[node.lineno : node.end_lineno]]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    for name in (name.rpartition(".")[2] for name, code in codes.items() if code == _SURVIVED):
        function = name.rpartition("__mutmut_")[0]
        before, after = functions[f"{function}__mutmut_{_ORIGINAL}"], functions[name]
        changed = [line for line in difflib.ndiff(before, after) if line.startswith(("- ", "+ "))]
        readable = function.removeprefix("x").strip("_ǁ").replace("ǁ", ".")
        yield f"{meta.name.removesuffix('.py.meta')}.{readable}: {'  '.join(changed)}"


def main() -> int:
    with tempfile.TemporaryDirectory() as top:
        found, number = survivors(Path(top))
    new = sorted(found - known())
    sys.stdout.write(
        "\n".join([*new, f"{len(found)} of {number} survive, {len(new)} of them are not known", ""])
    )
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())

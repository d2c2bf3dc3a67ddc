"""The imports of the benchmarks: programs import contenders, and both import measuring."""

import ast
import importlib.util
from pathlib import Path

from benchmarks.__main__ import PROGRAMS
from benchmarks.contenders.process import PROFILE_PARTS
from tests.support.cases import each

ROOT = Path(__file__).parent.parent.parent
ROOMS = ("measuring", "contenders", "programs")
FILES = sorted((ROOT / "benchmarks").rglob("*.py"))


def rooms_imported_by(path: Path) -> set[str]:
    """Return the benchmark packages that a file imports anywhere."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[1] for name in names if name.startswith("benchmarks.")}


@each("room", ROOMS)
def test_a_benchmark_room_imports_only_itself_and_lower_rooms(room):
    known = {*ROOMS[: ROOMS.index(room) + 1]}
    inside = [path for path in FILES if room in path.parts]

    assert inside
    assert {path.name: found for path in inside if (found := rooms_imported_by(path) - known)} == {}


@each("name", [*PROGRAMS])
def test_every_program_is_where_its_entry_says(name):
    assert importlib.util.find_spec(f"benchmarks.programs.{PROGRAMS[name][0]}") is not None


@each("module", [name for name in PROFILE_PARTS if name.startswith("transfer_async")])
def test_the_profile_names_existing_modules(module):
    assert importlib.util.find_spec(module) is not None

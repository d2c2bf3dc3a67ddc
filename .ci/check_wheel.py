"""Check that a wheel contains all required files and metadata, and nothing else: ``check_wheel.py WHEEL``."""

import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def problems_in(wheel: Path) -> Iterator[str]:
    """Yield a description of each problem in the wheel."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        dist_info = metadata.rpartition("/")[0]
        yield from name_problems(names, dist_info)
        yield from metadata_problems(file.read(metadata).decode())
        yield from entry_point_problems(file.read(f"{dist_info}/entry_points.txt").decode())


def name_problems(names: set[str], dist_info: str) -> Iterator[str]:
    """Yield the files that are missing from the wheel, and the files that do not belong in it."""
    ours = set(package_files())
    for name in sorted({*ours, "transfer_async/py.typed", f"{dist_info}/licenses/LICENSE"} - names):
        yield f"{name} is missing"
    for name in sorted(names - ours):
        if not name.startswith(f"{dist_info}/"):
            yield f"{name} does not belong in the wheel"


def entry_point_problems(text: str) -> Iterator[str]:
    """Yield the groups of entry points that differ from those in pyproject.toml."""
    found = ConfigParser()
    found.read_string(text)
    project = SETTINGS["project"]
    for group, wanted in {"console_scripts": project["scripts"], **project["entry-points"]}.items():
        if group not in found or dict(found[group]) != wanted:
            yield f"the entry points of {group} are missing or differ from pyproject.toml"


def package_files() -> Iterator[str]:
    """Yield the names that the package's files must have in the wheel."""
    for path in (ROOT / "transfer_async").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def metadata_problems(text: str) -> Iterator[str]:
    """Yield the metadata fields with wrong values."""
    metadata = Parser().parsestr(text)
    for field, value in {"License-Expression": "MIT", "License-File": "LICENSE"}.items():
        if metadata[field] != value:
            yield f"{field} is {metadata[field]}, not {value}"
    if "authors" not in (metadata["Author"] or ""):
        yield "the author is missing"


if __name__ == "__main__":
    found = list(problems_in(Path(sys.argv[1])))
    print(*found or [f"{Path(sys.argv[1]).name}: no problem found"], sep="\n")
    sys.exit(bool(found))

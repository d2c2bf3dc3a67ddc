"""Looks into a built wheel: has it all that it must have, and nothing else? ``look_into_wheel.py WHEEL``."""

import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def faults_of(wheel: Path) -> Iterator[str]:
    """Everything that is wrong with the wheel, in words."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = metadata.rpartition("/")[0]
        yield from faults_of_names(names, about)
        yield from faults_of_metadata(file.read(metadata).decode())
        yield from faults_of_entry_points(file.read(f"{about}/entry_points.txt").decode())


def faults_of_names(names: set[str], about: str) -> Iterator[str]:
    """What is missing, and what should not be there."""
    ours = set(files_of_the_package())
    for name in sorted({*ours, "transfer_async/py.typed", f"{about}/licenses/LICENSE"} - names):
        yield f"{name} is missing"
    for name in sorted(names - ours):
        if not name.startswith(f"{about}/"):
            yield f"{name} does not belong there"


def faults_of_entry_points(text: str) -> Iterator[str]:
    """The command, or pytest's plug-in, that would not be found."""
    found = ConfigParser()
    found.read_string(text)
    project = SETTINGS["project"]
    for group, wanted in {"console_scripts": project["scripts"], **project["entry-points"]}.items():
        if group not in found or dict(found[group]) != wanted:
            yield f"its entry points lack {group}, or have others"


def files_of_the_package() -> Iterator[str]:
    """The package's files, by their names in the wheel."""
    for path in (ROOT / "transfer_async").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def faults_of_metadata(text: str) -> Iterator[str]:
    """What the index and the installer would be told wrongly."""
    metadata = Parser().parsestr(text)
    for field, value in {"License-Expression": "MIT", "License-File": "LICENSE"}.items():
        if metadata[field] != value:
            yield f"{field} is {metadata[field]}, not {value}"
    if "authors" not in (metadata["Author"] or ""):
        yield "it names no authors"


if __name__ == "__main__":
    found = list(faults_of(Path(sys.argv[1])))
    print(*found or [f"{Path(sys.argv[1]).name}: as it should be"], sep="\n")
    sys.exit(bool(found))

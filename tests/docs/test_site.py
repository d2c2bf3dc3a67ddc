"""The site's diagrams and lists match the code. `.ci/run` checks that the site builds."""

from __future__ import annotations

import html
import importlib.util
import pkgutil
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import transfer_async
from tests.docs.story import ROOT
from tests.support.commands import invoke
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import integrations

pytest.importorskip("sphinx", reason="the extra docs is not installed")
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    """Load a module of the site's build."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawings() -> ModuleType:
    return load("_drawings")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load("_reference")


# --- the reference ------------------------------------------------------------------------------


def listed() -> dict[str, list[str]]:
    """Return the names that the reference lists, by module; an empty list if it lists all names."""
    found: dict[str, list[str]] = {}
    pages = sorted((DOCS / "reference").glob("*.rst"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for module, names in re.findall(r"^\.\. names:: (\S+)\n((?:\n|   .*\n)*)", text, re.MULTILINE):
        found.setdefault(module, []).extend(names.split())
    return found


def test_the_reference_has_every_public_module_and_every_name_of_the_package_once(
    reference: ModuleType,
) -> None:
    found = [
        module.name
        for package in (transfer_async, integrations)
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
        if "._" not in module.name
    ]
    sources = {name: Path(find_spec(name).origin).read_text("utf-8") for name in found}  # type: ignore[union-attr, arg-type] # neither is None for a module that was found
    public = {name for name, source in sources.items() if "\n__all__ = " in source}
    names = listed()

    # `faststream` exports the names of this module.
    assert public - {"transfer_async.integrations.faststream.broker"} <= set(names)
    assert set(names) == set(reference.PUBLIC)
    assert sorted(names["transfer_async"]) == sorted(transfer_async.__all__)


def test_the_reference_lists_every_name_of_the_public_modules(reference: ModuleType) -> None:
    own_names = {module: reference.own_names(module) for module in reference.PUBLIC}

    for module in reference.PUBLIC:
        for name in reference.public_names(module):
            thing = getattr(sys.modules[module], name)
            homes = [home for home, names in own_names.items() if name in names]
            assert any(getattr(sys.modules[home], name) is thing for home in homes), (module, name)
    assert "Order" in own_names["transfer_async.sandbox"]  # the sandbox has its own class named Order


def test_a_default_is_shown_as_source_code(reference: ModuleType) -> None:
    written = "(*, attempts: int = attr_dict['attempts'].default, budget: RetryBudget = NOTHING)"

    shown = reference.with_defaults(transfer_async.RetryPolicy, written)

    assert shown == "(*, attempts: int = 4, budget: RetryBudget = RetryBudget())"


def test_every_page_of_the_reference_is_linked_from_its_first_page() -> None:
    text = (DOCS / "reference/index.rst").read_text(encoding="utf-8")
    pages = {page.stem for page in (DOCS / "reference").glob("*.rst")} - {"index"}

    assert set(re.findall(r"^:doc:`(\w+)`", text, re.MULTILINE)) == pages


# --- the command line ---------------------------------------------------------------------------


def test_the_command_line_page_lists_every_command_and_option() -> None:
    site = load("_commands")
    commands = {name.removeprefix("transfer-async").strip(): command for name, command in site.all_commands()}

    assert {"", "create", "journal", "journal four-eyes", "verify-hooks"} <= set(commands)
    for name, command in commands.items():
        help_text = invoke(*name.split(), "--help").output
        options = {typed.split()[0] for typed, *_ in site.options_of(command) if typed.startswith("-")}
        assert options == set(re.findall(r"^ +(--[a-z-]+)", help_text, re.MULTILINE)) - {"--help"}


def test_documented_defaults_variables_and_exit_codes_match_the_program() -> None:
    site = load("_commands")
    worker = dict(site.all_commands())["transfer-async worker"]
    rows = {typed.split()[0]: more for typed, *more, _ in site.options_of(worker)}

    assert rows["--lease"] == ["60", ""]
    assert rows["--broker"] == ["", "TRANSFER_BROKER"]
    assert {code for code, _ in site.exit_code_rows()} == {"0", "1", "2", "3, 4, 5", "3", "4"}


# --- the drawings -------------------------------------------------------------------------------


@ONLY_IN_TRIALS
def test_every_import_points_down_in_the_diagram_of_layers(drawings: ModuleType) -> None:
    layer_of = {box: number for number, boxes in enumerate(drawings.layers()) for box in boxes}
    graph = drawings.arrows()

    assert set(layer_of) == set(graph)
    for box, others in graph.items():
        for other in others:
            in_a_circle = box in drawings.reach(graph, other)
            assert layer_of[other] < layer_of[box] or in_a_circle
    assert layer_of["sandbox"] == 0
    picture, direct = drawings.draw_layers(), drawings.direct()
    assert all(f">{box}</text>" in picture for box in layer_of)
    assert picture.count('class="way"') == len(direct)
    shown = {box: {to for start, to in direct if start == box} for box in graph}
    for box in graph:  # an arrow may be omitted only if other arrows lead to the same box
        assert drawings.reach(graph, box) == drawings.reach(shown, box)


def test_every_transition_is_in_the_state_diagram(drawings: ModuleType) -> None:
    ways, picture = drawings.ways(), drawings.draw_states()

    assert ways["free", "claimed"] == ["Claim"]
    assert ways["claimed", "sending"] == ["MarkSending"]
    assert "Resolve" in ways["in doubt", "created"]
    assert "Refute" in ways["in doubt", "free"]
    assert ("sending", "claimed") not in ways
    assert picture.count('class="way"') == len(ways)
    for state in {state for way in ways for state in way}:
        assert f">{state}</text>" in picture


@pytest.mark.trial(ci=1, long=1)  # excluded because it runs the complete demo
def test_the_demos_diagram_shows_what_the_demo_prints() -> None:
    picture = (DOCS / "demo.svg").read_text(encoding="utf-8")
    # A picture contains special blanks.
    shown = "".join(html.unescape("".join(re.findall(r">([^<>]+)</text>", picture))).split())

    for line in load("demo_picture").shown():
        assert "".join(line.split()) in shown, f"run python docs/demo_picture.py: {line}"

"""The README is short, and the tables of the documentation match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import transfer_async
from tests.docs.story import PAGES, README, ROOT
from tests.support.cases import each
from transfer_async import Event, RetryPolicy, Timeouts, sandbox

DOCS = ROOT / "docs"


def test_the_readme_has_at_most_200_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("page", [README, DOCS / "outcomes.md"], ids=lambda page: page.name)
def test_every_error_in_the_table_of_outcomes_exists(page: Path) -> None:
    table = re.search(r"^\| outcome \|.*?\n\n", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert table
    named = {name for name in re.findall(r"`([A-Z]\w+)`", table[0]) if name != "Order"}

    assert len(named) > 10
    assert all(issubclass(getattr(transfer_async, name), transfer_async.TransferError) for name in named)


def test_the_documented_refused_statuses_are_the_defaults() -> None:
    listed = re.search(
        r"^\| ([\d–, ]+) \| `Refused`", (DOCS / "outcomes.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert listed
    statuses = set()
    for part in listed[1].split(","):
        first, _, last = part.strip().partition("–")
        statuses |= set(range(int(first), int(last or first) + 1))

    assert statuses == RetryPolicy().refused


def test_the_client_pages_defaults_match_the_code() -> None:
    page = (DOCS / "client.md").read_text(encoding="utf-8")
    (timeouts,) = re.findall(r"`Timeouts\(([^)]+)\)`", page)
    policy = RetryPolicy()

    assert (
        Timeouts(**{name: float(value) for name, value in re.findall(r"(\w+)=(\d+)", timeouts)}) == Timeouts()
    )
    assert f"| `attempts` | {policy.attempts} |" in page
    assert f"| `deadline` | {policy.deadline:g} s |" in page
    assert f"| {policy.first_delay:g} s, {policy.max_delay:g} s |" in page
    assert f"| `not_processed` | {', '.join(map(str, sorted(policy.not_processed)))} |" in page


def test_every_fault_and_event_is_listed_in_a_table() -> None:
    faults = {name for name in sandbox.__all__ if is_kind_of(getattr(sandbox, name), sandbox.Fault)}
    events = {name for name in transfer_async.__all__ if is_kind_of(getattr(transfer_async, name), Event)}

    assert faults <= named_in_tables(DOCS / "testing.md")
    assert events <= named_in_tables(DOCS / "observability.md")


def is_kind_of(thing: object, kind: type) -> bool:
    return isinstance(thing, type) and issubclass(thing, kind) and thing is not kind


def named_in_tables(page: Path) -> set[str]:
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return set(re.findall(r"`(\w+)`", "\n".join(rows)))


@each("page", PAGES)
def test_every_link_has_an_existing_target(page: Path) -> None:
    """The build of the site checks neither the README nor the links as GitHub shows them."""
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            assert heading in headings(target), link


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each("page", PAGES)
def test_no_table_cell_is_longer_than_160_characters(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            for cell in line.strip("|").split(" | "):
                shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
                assert len(shown) <= 160, cell

"""The README is a way in: short, and its tables say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import transfer_async
from tests.docs.story import PAGES, README, ROOT
from transfer_async import RetryPolicy

DOCS = ROOT / "docs"


def test_the_readme_is_a_page_that_one_reads() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("page", [README, DOCS / "outcomes.md"], ids=lambda page: page.name)
def test_every_error_of_the_table_of_outcomes_is_there(page: Path) -> None:
    table = re.search(r"^\| outcome \|.*?\n\n", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert table
    named = {name for name in re.findall(r"`([A-Z]\w+)`", table[0]) if name != "Order"}

    assert len(named) > 10
    assert all(issubclass(getattr(transfer_async, name), transfer_async.TransferError) for name in named)


def test_the_refused_statuses_are_the_defaults() -> None:
    listed = re.search(r"^\| ([\d–, ]+) \| `Refused`", (DOCS / "outcomes.md").read_text(), re.MULTILINE)
    assert listed
    statuses = set()
    for part in listed[1].split(","):
        first, _, last = part.strip().partition("–")
        statuses |= set(range(int(first), int(last or first) + 1))

    assert statuses == RetryPolicy().refused


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_something(page: Path) -> None:
    """The site's build looks, too; but the README is not on the site, and pages are read where they lie."""
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            assert heading in headings(target), link


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_cell_of_a_table_holds_an_essay(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            for cell in line.strip("|").split(" | "):
                shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
                assert len(shown) <= 230, cell

"""Every line of code in the README and on the site runs, and prints what the page shows."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from tests.docs.story import (
    PAGES,
    README,
    ROOT,
    Story,
    assert_output,
    blocks_of,
    commands_in,
    is_installable,
    python_block,
)
from tests.support.bank import World, new_order
from tests.support.cases import each
from transfer_async import OutcomeUnknown, SQLiteJournal
from transfer_async.sandbox import CloseAfterProcessing, Sandbox
from transfer_async.testing import RunningSandbox

DOCS = ROOT / "docs"
JOURNAL = "payments.journal"


@pytest.fixture(scope="module")
def sandbox_elsewhere() -> Iterator[Sandbox]:
    """Start a sandbox in a thread, for examples with their own event loop."""
    with RunningSandbox() as sandbox:
        yield sandbox


@pytest.fixture
def story(
    sandbox_elsewhere: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blockbuster: BlockBuster
) -> Iterator[Story]:
    """Return a `Story` with an empty directory, the tutorial's bank, and a running sandbox."""
    looked_for = blockbuster.functions["os.getcwd"]
    looked_for.deactivate()  # the code of the pages uses relative paths
    monkeypatch.setenv("TRANSFER_BASE_URL", sandbox_elsewhere.base_url)
    monkeypatch.setenv("TRANSFER_API_TOKEN", sandbox_elsewhere.token)
    monkeypatch.chdir(tmp_path)
    story = Story(tmp_path, monkeypatch.setenv)
    story.write("bank.py", python_block(DOCS / "tutorial.md", "bank.py"))
    yield story
    story.close()
    looked_for.activate()


async def _doubts(sandbox: Sandbox, where: Path) -> None:
    """Create keys that have been in doubt since 2024, so that an operator may refute them."""
    world = World(sandbox)
    world.journal.journal = SQLiteJournal(where / JOURNAL, clock=world.time.clock)  # in 2024
    async with world.client() as client:
        for key in (f"payment-{number}" for number in range(8731, 8736)):
            sandbox.faults.add(CloseAfterProcessing())
            with pytest.raises(OutcomeUnknown):
                await client.create_order(new_order(), key=key)
    await world.journal.journal.close()


def _an_operators_day(story: Story, sandbox: Sandbox, where: Path) -> None:
    asyncio.run(_doubts(sandbox, where))
    story.write("our_bank.py", python_block(DOCS / "workers.md", "our_bank.py"))
    story.command(f"export TRANSFER_JOURNAL={shlex.quote(str(where / JOURNAL))}")


BEFORE: dict[str, Callable[[Story, Sandbox, Path], None]] = {
    "operations.md": _an_operators_day,
    "upgrading.md": _an_operators_day,
}
"""The set-up that a page needs in addition to the tutorial's bank."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_code_of_a_page_runs(
    page: Path, story: Story, sandbox_elsewhere: Sandbox, tmp_path: Path
) -> None:
    BEFORE.get(page.name, lambda *_: None)(story, sandbox_elsewhere, tmp_path)

    story.play(page)


# --- results of a page ---------------------------------------------------------------------------


def test_the_readmes_first_order_exists(
    story: Story, sandbox_elsewhere: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in blocks_of(README) if block.file]
    story.write(str(block.file), block.text)

    order_id = story.command(f"python {block.file}").split()[0]

    assert order_id in sandbox_elsewhere.orders


def test_a_file_of_orders_is_created_once(story: Story, sandbox_elsewhere: Sandbox, tmp_path: Path) -> None:
    before = len(sandbox_elsewhere.orders)

    story.play(DOCS / "bulk.md")

    assert len(sandbox_elsewhere.orders) == before + 20 + 2
    outcomes = (tmp_path / "salaries.csv.outcomes.jsonl").read_text(encoding="utf-8")
    assert outcomes.count('"outcome":"created"') == 2


# --- commands that .ci/run runs -------------------------------------------------------------------


def test_the_readme_has_the_three_set_up_commands() -> None:
    lines = [line for block in blocks_of(README) if block.kind == "sh" for line, _ in commands_in(block)]
    from_nothing = [line for line in lines if line.startswith("python3 -m venv --upgrade-deps ")]

    assert [line.split()[4] for line in from_nothing] == [".venv-demo", ".venv-test", ".venv-docs"]


def test_the_worker_page_starts_a_trial_in_two_commands() -> None:
    (block,) = [block for block in blocks_of(DOCS / "workers.md") if "worker --try" in block.text]
    first, second = block.text.splitlines()

    assert first.endswith("pip install --quiet '.[try]'")
    assert second == ".venv-worker/bin/transfer-async worker --try"


@each("page", PAGES)
def test_every_pip_install_in_a_sentence_works_from_a_clone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"`pip install ([^`\n]+)`", text):
        assert all(is_installable(word) for word in shlex.split(line) if not word.startswith("--")), line


# --- the runner itself ----------------------------------------------------------------------------


def test_shown_output_is_compared_with_real_output() -> None:
    assert_output("a 17 b\nc\nd\ne\n", "a … b\n…\ne\n")
    for output, shown in (("a\nb\n", "a\n"), ("a\n", "a\nb\n")):
        with pytest.raises(AssertionError):
            assert_output(output, shown)


def test_a_block_that_cannot_be_run_is_an_error(story: Story, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for block, error in (("ruby\nputs 1", AssertionError), ("sh\nrm -rf /", KeyError)):
        page.write_text(f"```{block}\n```\n", encoding="utf-8")
        with pytest.raises(error):
            story.play(page)

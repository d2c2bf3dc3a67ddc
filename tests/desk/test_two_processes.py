"""Desks in two processes with one SQLite journal: two people propose for the same keys at once."""

import asyncio
import csv
import re
from pathlib import Path

import pytest
from aiohttp import ClientSession, CookieJar, FormData

from tests.desk.visitor import SAME, Desk
from tests.support.bank import World, world_in_a_file
from tests.support.commands import running
from tests.support.pages import Page
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import KeyState
from transfer_async._support.clock import Clock
from transfer_async.desk import Role

KEYS = [f"payment-{number}" for number in range(8)]
PEOPLE = ("ada", "ben")


class Colleague:
    """An operator with a browser who uses the desk of one process."""

    def __init__(self, name: str, http: ClientSession, base: str) -> None:
        self.name, self._http, self._base = name, http, base
        self._headers = {**SAME, "X-User": name}

    async def get(self, path: str) -> str:
        async with self._http.get(self._base + path, headers=self._headers) as response:
            return await response.text()

    async def post(self, path: str, fields: list[tuple[str, str]]) -> tuple[int, Page]:
        asked = self._http.post(
            self._base + path, data=FormData(fields), headers=self._headers, allow_redirects=False
        )
        async with asked as response:
            return response.status, Page(await response.text())

    async def selected(self, keys: list[str]) -> list[tuple[str, str]]:
        """Select keys in the list. Return the form with an order id for each key."""
        _, page = await self.post("select", [("key", key) for key in keys])
        hidden = [tag for name, tag in page.tags if name == "input" and tag.get("name") in ("key", "stamp")]
        form = [(tag["name"] or "", tag["value"] or "") for tag in hidden]
        assert [value for name, value in form if name == "key"] == keys
        ids = [("order_id", f"tx-{self.name}-{key}") for key in keys]
        return [*form, *ids, ("reason", f"in the export of {self.name}")]


def refused(page: Page) -> set[str]:
    """Return the keys that the page lists as not proposed."""
    text = re.sub(r"\S+ : the order exists, \S+", "", page.text.partition("Propose that the orders")[2])
    return {key for key in KEYS if key in text}


@ONLY_IN_TRIALS
async def test_two_processes_propose_for_the_same_keys_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each key gets one proposal. Each person sees which proposals were made by the other."""
    path = tmp_path / "journal.db"
    async with (
        world_in_a_file(path, monkeypatch, clock=Clock()) as world,
        running(
            *("desk", "--journal", path, "--scope", world.scope, "--by", "ben", "--may", "change")
        ) as process,
        world.client() as client,
        Desk.of(client) as desk,
        ClientSession(cookie_jar=CookieJar(unsafe=True)) as http,
    ):
        await asyncio.gather(*(world.in_doubt(key) for key in KEYS))
        desk.visitor("ada", [Role.CHANGE])
        ada = Colleague("ada", http, f"{desk.base}/")
        async with http.get(f"http://{await process.line('http://')}") as admitted:
            ben = Colleague("ben", http, str(admitted.url))
        forms = await asyncio.gather(ada.selected(KEYS), ben.selected(KEYS[::-1]))
        answers = await asyncio.gather(ada.post("propose", forms[0]), ben.post("propose", forms[1]))
        audits = [await person.get("decisions.csv") for person in (ada, ben)]
        await _assert_one_proposal_for_each_key(world, answers, audits)


async def _assert_one_proposal_for_each_key(
    world: World, answers: list[tuple[int, Page]], audits: list[str]
) -> None:
    winners: dict[str, str] = {}
    for key in KEYS:
        entry, steps = await world.entry(key), await world.journal.history(world.scope, key)
        assert entry.state is KeyState.IN_DOUBT
        assert entry.proposal is not None
        by = winners[key] = entry.proposal.by
        assert (entry.proposal.order_id, entry.proposal.reason) == (
            f"tx-{by}-{key}",
            f"in the export of {by}",
        )
        assert [(step.move, step.by) for step in steps if step.by] == [("propose", by)]

    for name, (status, page) in zip(PEOPLE, answers, strict=True):
        lost = {key for key in KEYS if winners[key] != name}
        assert status == (422 if lost else 303)
        assert refused(page) == lost
        made = len(KEYS) - len(lost)
        claimed = f"Proposed: {made} key{'s' * (made != 1)}."
        assert (claimed in page.text) is bool(lost and made)
        assert page.text.count("Proposed: ") == bool(lost and made)

    for audit in audits:  # each process shows the proposals of both
        lines = list(csv.DictReader(audit.lstrip("\ufeff").splitlines()))
        assert {line["key"]: (line["by"], line["order id"]) for line in lines} == {
            key: (by, f"tx-{by}-{key}") for key, by in winners.items()
        }
        assert len(lines) == len(KEYS)
        assert all(f"in the export of {line['by']}" in line["reason"] for line in lines)

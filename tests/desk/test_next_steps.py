"""The suggested first steps for a doubt, and the links to the bank's own search."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from attrs import evolve
from msgspec.structs import replace

from tests.desk.visitor import Answer, Desk
from tests.support.bank import World
from tests.support.cases import each
from transfer_async import UnreadableOrder
from transfer_async._models.errors import CauseKind
from transfer_async._pipeline.key_views import NEXT_STEPS
from transfer_async.desk import desk as made_desk
from transfer_async.desk.views import MAX_LINKS, PageStyle, links_of
from transfer_async.sandbox import WrongTypes

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def links(answer: Answer) -> list[str]:
    """Return the links to other sites."""
    return [link for link in answer.page.links if "://" in link]


def test_the_page_and_the_documentation_name_the_same_first_step_for_each_cause():
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", OPERATIONS.read_text(encoding="utf-8"), re.M)

    assert dict(rows) == {kind.value: text for kind, text in NEXT_STEPS.items()}
    assert set(NEXT_STEPS) == set(CauseKind)


async def test_a_key_in_doubt_shows_what_to_do_now(doubted: World, desk: Desk):
    shown = (await desk.visitor().key()).text

    assert "What to do now The order probably exists: ask the service about it. Do not pay it again" in shown


async def test_a_doubt_without_a_recorded_cause_shows_what_to_do_now(doubted: World, desk: Desk):
    entries = doubted.journal.journal._entries  # type: ignore[attr-defined] # of a MemoryJournal
    entries[doubted.scope, "k"] = replace(entries[doubted.scope, "k"], cause=None)

    assert "Ask the service whether the order exists." in (await desk.visitor().key()).text


async def test_a_key_that_is_not_in_doubt_has_no_first_step(world: World, desk: Desk):
    await world.create(key="k")

    assert "What to do now" not in (await desk.visitor().key()).text


async def test_each_candidate_has_a_link_to_the_banks_own_look_up(world: World):
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    await world.fails(UnreadableOrder)
    async with (
        world.client() as client,
        Desk.of(client, link="https://x.example/o/{order_id}?k={key}") as desk,
    ):
        shown = await desk.visitor().key()
    (order_id,) = (await world.entry()).candidates

    assert links(shown) == [f"https://x.example/o/{order_id}?k=k"]
    (tag,) = [values for name, values in shown.page.tags if name == "a" and "x.example" in values["href"]]
    assert (tag["rel"], tag["target"]) == ("noreferrer noopener", "_blank")


async def test_the_id_field_is_linked_to_its_error_and_the_candidates(world: World, desk: Desk):
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    await world.fails(UnreadableOrder)

    shown = await desk.visitor().does("resolve", order_id="no id")

    (field,) = [values for _, values in shown.page.tags if "aria-invalid" in values]
    assert (field["list"], field["aria-describedby"]) == ("candidates", "named error-resolve")


async def test_a_key_without_a_value_for_the_link_template_gets_no_link(doubted: World):
    async with doubted.client() as client, Desk.of(client, link="https://x.example/{order_id}") as desk:
        assert links(await desk.visitor().key()) == []


@pytest.mark.parametrize("key", ['a/b?c&d#e"f<g', "ключ 1", "{order_id}", "%2e%2e", "a" * 200])
async def test_the_values_of_a_link_are_quoted(world: World, key: str):
    await world.in_doubt(key)
    async with world.client() as client, Desk.of(client, link="https://x.example/keys?of={key}") as desk:
        (link,) = links(await desk.visitor().key(key))

    assert urlsplit(link)[:3] == ("https", "x.example", "/keys")
    assert parse_qsl(urlsplit(link).query) == [("of", key)]
    assert not urlsplit(link).fragment


@pytest.mark.parametrize("key", [".", ".."])
async def test_a_value_of_dots_makes_no_link_because_it_would_lead_to_another_path(world: World, key: str):
    await world.in_doubt(key)
    async with world.client() as client, Desk.of(client, link="https://x.example/keys/{key}") as desk:
        assert links(await desk.visitor().key(key)) == []


async def test_a_page_has_a_bounded_number_of_links(doubted: World):
    async with doubted.client() as client:
        view = await client.operators.view("k")
    entry = replace(view.entry, candidates=tuple(f"tx-{number}" for number in range(50)))
    found = links_of("https://x.example/{order_id}", evolve(view, entry=entry))

    assert len(found) == MAX_LINKS


@each(
    "link",
    [
        *("javascript:alert({key})", "ftp://x.example/{key}", "//x.example/{key}", "/orders/{key}", ""),
        *("https://{key}/orders", "https://x.example{key}", "{key}://x.example/", "https:///{key}"),
        *("https://x.example/orders", "https://x.example/{name}", "https://x.example/{key!r}"),
        *("https://x.example/{key:>99999999}", "https://x.example/{key.entry}", "https://x.example/{key[0]}"),
        *("https://x.example/{}", "https://x.example/{key", "https://u:p@x.example/{key}", 7),
        *('https://x.example/"{key}\n', "https://x.example/ {key}", "https://[x/{key}"),
    ],
)
async def test_a_link_that_is_not_a_template_of_a_web_address_is_refused(world: World, link: Any):
    async with world.client() as client:
        with pytest.raises(ValueError, match=r"^link: must be an http or https URL"):
            made_desk(client, who=lambda _: None, link=link)
    with pytest.raises(ValueError, match=r"^link: "):
        PageStyle(link=link)

"""The suggested first steps for a doubt, and the links to the bank's own search."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from attrs import evolve
from msgspec.structs import replace

from tests.desk.visitor import Answer, Desk, Visitor, change_record
from tests.support.bank import World
from tests.support.cases import each
from transfer_async import UnreadableOrder
from transfer_async._models.errors import CauseKind
from transfer_async._pipeline.key_views import NEXT_STEPS
from transfer_async.desk import desk as made_desk
from transfer_async.desk.views import MAX_LINKS, PageStyle, links_of
from transfer_async.sandbox import WrongTypes

SITE = "https://x.example"
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def links(answer: Answer) -> list[str]:
    """Return the links to other sites."""
    return [link for link in answer.page.links if "://" in link]


def test_the_page_and_the_documentation_name_the_same_first_step_for_each_cause():
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", OPERATIONS.read_text(encoding="utf-8"), re.M)

    assert dict(rows) == {kind.value: text for kind, text in NEXT_STEPS.items()}
    assert set(NEXT_STEPS) == set(CauseKind)


async def test_only_a_key_in_doubt_shows_what_to_do_now(doubted: World, ada: Visitor):
    await doubted.create(key="created")
    shown, created = await ada.key(), await ada.key("created")
    change_record(doubted, cause=None)
    without_cause = await ada.key()

    probably = "The order probably exists: ask the service about it. Do not pay it again"
    assert f"What to do now {probably}" in shown.text
    assert "Ask the service whether the order exists." in without_cause.text
    assert "What to do now" not in created.text


async def test_each_candidate_has_a_link_to_the_banks_own_look_up(world: World):
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    doubt = await world.fails(UnreadableOrder)
    async with world.client() as client, Desk.of(client, link=f"{SITE}/o/{{order_id}}?k={{key}}") as desk:
        shown = await desk.visitor().key()

    assert links(shown) == [f"{SITE}/o/{doubt.order_id}?k=k"]
    (tag,) = [values for name, values in shown.page.tags if name == "a" and "x.example" in values["href"]]
    assert (tag["rel"], tag["target"]) == ("noreferrer noopener", "_blank")


async def test_an_order_named_in_a_response_is_shown_and_linked_to_the_field_for_its_id(
    world: World, ada: Visitor
):
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    doubt = await world.fails(UnreadableOrder)

    shown, wrong = await ada.key(), await ada.does("resolve", order_id="no id")

    assert f"Look first for {doubt.order_id}" in shown.text
    assert f"A response named {doubt.order_id}" in shown.text
    (field,) = [values for _, values in wrong.page.tags if "aria-invalid" in values]
    assert (field["list"], field["aria-describedby"]) == ("candidates", "named error-resolve")


@each(
    ("key", "template"),
    [("k", "{order_id}"), (".", "keys/{key}"), ("..", "keys/{key}")],  # dots would lead to another path
)
async def test_a_value_that_is_missing_or_has_only_dots_makes_no_link(world: World, key: str, template: str):
    await world.in_doubt(key)
    async with world.client() as client, Desk.of(client, link=f"{SITE}/{template}") as desk:
        assert links(await desk.visitor().key(key)) == []


@each("key", ['a/b?c&d#e"f<g', "ключ 1", "{order_id}", "%2e%2e", "a" * 200])
async def test_the_values_of_a_link_are_quoted(world: World, key: str):
    await world.in_doubt(key)
    async with world.client() as client, Desk.of(client, link=f"{SITE}/keys?of={{key}}") as desk:
        (link,) = links(await desk.visitor().key(key))

    assert urlsplit(link)[:3] == ("https", "x.example", "/keys")
    assert parse_qsl(urlsplit(link).query) == [("of", key)]
    assert not urlsplit(link).fragment


async def test_a_page_has_a_bounded_number_of_links(doubted: World, desk: Desk):
    view = await desk.operators_side.view("k")
    entry = replace(view.entry, candidates=tuple(f"tx-{number}" for number in range(50)))

    assert len(links_of(f"{SITE}/{{order_id}}", evolve(view, entry=entry))) == MAX_LINKS


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

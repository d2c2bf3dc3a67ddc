"""Keys, names, reasons and receipts can be any text. A page shows them only as text."""

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import transfer_async
from tests.desk.visitor import EVERY_ROLE, Desk, where_to
from tests.support.bank import World
from transfer_async.desk import Operator
from transfer_async.journal import Suspect
from transfer_async.testing.journal_contract import journal_moves

HOSTILE = [
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "</textarea></title><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)//",
    "../../etc/passwd?a=b&c=d#e%2f%00",
    ".",
    "..",
    "&lt;b&gt;&amp;amp;",
    "مرحبا key",
    "a" * 200,
]


def suspicion(order_id: str, text: str) -> Suspect:
    return msgspec.structs.replace(journal_moves.suspect(order_id, reason=text), by=text)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: text[:12])
async def test_hostile_texts_are_escaped_on_every_page(world: World, hostile: str):
    world.bank.reference = hostile
    hooks = [world.bank.step("check")]
    await world.in_doubt(hostile, hooks=[*hooks, world.bank.hold])
    await world.move(suspicion("tx-abc", hostile), hostile)
    world.time.pass_(600)
    link = "https://office.bank.example/?of={key}"
    async with world.client() as client, Desk.of(client, link=link) as made:
        eve = made.visitor("eve")
        made.operators["eve"] = Operator(hostile, EVERY_ROLE)
        pages = [
            await eve.get(),
            await eve.key(hostile),
            await eve.post("/find", {"text": hostile[:5]}),
            await eve.does("resolve", key=hostile, order_id=hostile, reason=hostile),
            await eve.does("parties", key=hostile, reason=hostile),
            await eve.get(wall="1"),
        ]
        review = await eve.post("/refute", {**pages[1].page.forms["refute"], "reason": hostile})
        wrong = {**review.page.forms["refute"], "typed": f"{hostile}?"}
        pages += [review, await eve.post("/refute", wrong)]
        gone_on = await eve.does("resolve", key=hostile, order_id="tx-abc", reason=hostile)
        outdated = await eve.post("/resolve", {**pages[1].page.forms["resolve"], "reason": hostile})
        pages += [await eve.key(hostile), outdated]

    for answer in pages:
        assert answer.status in (200, 303, 409, 422)
        tags = [name for name, _ in answer.page.tags]
        assert tags.count("title") == (answer.status != 303)
        assert not {"script", "svg", "img", "textarea"} & set(tags)
        for _, attributes in answer.page.tags:
            assert not any(name.startswith("on") for name in attributes)
            assert not (attributes.get("href") or "").startswith(("javascript:", ".."))
    assert hostile in pages[1].page.text or " ".join(hostile.split()) in pages[1].page.text
    assert where_to(gone_on) == ("/key", {"key": hostile, "done": "resolved"})


TURNING = "\u202e71\u2066-\u05e9\u05dc\u05d5\u05dd\u0000\u001b[2J\u200b\u3164 7"
"""Characters that reverse adjacent text, are invisible, or control a terminal."""


class Inline(HTMLParser):
    """Collects the raw text of a page, and the text outside every ``bdi`` element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.outside, self._depth = "", 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._depth += tag == "bdi"

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "bdi"

    def handle_data(self, data: str) -> None:
        self.outside += "" if self._depth else data


async def test_bidirectional_text_cannot_reverse_an_adjacent_amount(world: World, desk: Desk):
    """Without this, an operator releases another amount than the one shown."""
    world.bank.reference = TURNING
    await world.in_doubt()
    await world.in_doubt("held", held="bank " + TURNING.replace("\0\x1b", ""))
    entries = world.journal.journal._entries  # type: ignore[attr-defined] # of a MemoryJournal
    place = world.scope, "k"
    entries[place] = replace(entries[place], candidates=(f"tx-{TURNING}", f"tx-2{TURNING}"))
    await world.move(suspicion(f"tx-{TURNING}", TURNING))
    world.time.pass_(600)
    ada = desk.visitor()

    pages = [
        await ada.get(),
        await ada.key(),
        await ada.key("held"),
        await ada.does("resolve", order_id=TURNING),
    ]
    typed = {**pages[1].page.forms["refute"], "reason": TURNING.replace("\0\x1b", "")}
    pages += [
        await ada.post("/refute", typed | {"reason": "a \u05e9 b"}),
        await ada.post("/resolve", typed | {"stamp": ""}),
    ]

    for answer in pages:
        shown = re.sub(r' value="[^"]*"', "", answer.html)  # a field contains and isolates the typed text
        assert all(one.isprintable() or one == "\n" for one in shown)
        assert "\u05e9" not in Inline(answer.html).outside
    assert "[U+202E]71[U+2066]-\u05e9\u05dc\u05d5\u05dd[U+0000][U+001B][2J[U+200B][U+3164] 7" in pages[1].text
    assert "of 155,025.00 NGN, at the next recovery" in Inline(pages[1].html).outside


async def test_a_link_leads_to_exactly_its_key(world: World, desk: Desk):
    for key in HOSTILE:
        await world.in_doubt(key)
    eve = desk.visitor("eve")

    links = [link for link in (await eve.get()).page.links if link.startswith("key?")]
    shown = [(await eve.get(f"/{link}")).page.forms["resolve"]["key"] for link in links]

    assert sorted(shown) == sorted(HOSTILE)


def test_no_template_bypasses_escaping():
    for path in (Path(transfer_async.__file__).parent / "desk" / "templates").glob("*.html"):
        source = path.read_text(encoding="utf-8")

        assert "autoescape" not in source
        assert "safe" not in source
        for tag in ("script", "style="):
            assert tag not in source, path.name

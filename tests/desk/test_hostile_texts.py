"""Keys, names, reasons and receipts can be any text. A page shows them only as text."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import transfer_async
from tests.desk.visitor import EVERY_ROLE, Desk, Visitor, change_record, where_to
from tests.support.bank import World
from tests.support.pages import Page
from transfer_async.desk import Operator
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


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: text[:12])
async def test_hostile_texts_are_escaped_on_every_page(world: World, hostile: str):
    world.bank.reference = hostile
    await world.in_doubt(hostile, hooks=[world.bank.step("check"), world.bank.hold])
    await world.move(replace(journal_moves.suspect("tx-abc", reason=hostile), by=hostile), hostile)
    world.time.pass_(600)
    link = "https://office.bank.example/?of={key}"
    async with world.client() as client, Desk.of(client, link=link) as made:
        eve = made.visitor("eve")
        made.operators["eve"] = Operator(hostile, EVERY_ROLE)
        key = await eve.key(hostile)
        review = await eve.post("/refute", {**key.page.forms["refute"], "reason": hostile})
        pages = [
            key,
            review,
            await eve.get(),
            await eve.get(wall="1"),
            await eve.post("/find", {"text": hostile[:5]}),
            await eve.does("resolve", key=hostile, order_id=hostile, reason=hostile),
            await eve.does("parties", key=hostile, reason=hostile),
            await eve.post("/refute", {**review.page.forms["refute"], "typed": f"{hostile}?"}),
        ]
        resolved = await eve.does("resolve", key=hostile, order_id="tx-abc", reason=hostile)
        pages.append(await eve.key(hostile))
        pages.append(await eve.post("/resolve", {**key.page.forms["resolve"], "reason": hostile}))

    for answer in pages:
        assert answer.status in (200, 303, 409, 422)
        tags = [name for name, _ in answer.page.tags]
        assert tags.count("title") == (answer.status != 303)
        assert not {"script", "svg", "img", "textarea"} & set(tags)
        for _, attributes in answer.page.tags:
            assert not any(name.startswith("on") for name in attributes)
            assert not (attributes.get("href") or "").startswith(("javascript:", ".."))
    assert " ".join(hostile.split()) in key.text
    assert where_to(resolved) == ("/key", {"key": hostile, "done": "resolved"})


TURNING = "\u202e71\u2066-\u05e9\u05dc\u05d5\u05dd\u0000\u001b[2J\u200b\u3164 7"
"""Characters that reverse adjacent text, are invisible, or control a terminal."""


def outside(html: str) -> str:
    """Return the text of a page outside every ``bdi`` element."""
    return Page(re.sub(r"<bdi[^>]*>.*?</bdi>", "", html, flags=re.DOTALL)).text


async def test_bidirectional_text_cannot_reverse_an_adjacent_amount(world: World, ada: Visitor):
    """Without this, an operator releases another amount than the one shown."""
    world.bank.reference = TURNING
    await world.in_doubt()
    await world.in_doubt("held", held="bank " + TURNING.replace("\0\x1b", ""))
    change_record(world, candidates=(f"tx-{TURNING}", f"tx-2{TURNING}"))
    await world.move(replace(journal_moves.suspect(f"tx-{TURNING}", reason=TURNING), by=TURNING))
    world.time.pass_(600)

    key = await ada.key()
    typed = {**key.page.forms["refute"], "reason": TURNING.replace("\0\x1b", "")}
    pages = [
        key,
        await ada.get(),
        await ada.key("held"),
        await ada.does("resolve", order_id=TURNING),
        await ada.post("/refute", typed | {"reason": "a \u05e9 b"}),
        await ada.post("/resolve", typed | {"stamp": ""}),
    ]

    for answer in pages:
        shown = re.sub(r' value="[^"]*"', "", answer.html)  # a field contains and isolates the typed text
        assert all(one.isprintable() or one == "\n" for one in shown)
        assert "\u05e9" not in outside(answer.html)
    assert "[U+202E]71[U+2066]-\u05e9\u05dc\u05d5\u05dd[U+0000][U+001B][2J[U+200B][U+3164] 7" in key.text
    assert "of 155,025.00 NGN, at the next recovery" in outside(key.html)


async def test_a_link_leads_to_exactly_its_key(world: World, ada: Visitor):
    for key in HOSTILE:
        await world.in_doubt(key)

    links = [link for link in (await ada.get()).page.links if link.startswith("key?")]
    shown = [(await ada.get(f"/{link}")).page.forms["resolve"]["key"] for link in links]

    assert sorted(shown) == sorted(HOSTILE)


def test_no_template_bypasses_escaping():
    for path in (Path(transfer_async.__file__).parent / "desk" / "templates").glob("*.html"):
        source = path.read_text(encoding="utf-8")

        assert "autoescape" not in source
        assert "safe" not in source
        for tag in ("script", "style="):
            assert tag not in source, path.name

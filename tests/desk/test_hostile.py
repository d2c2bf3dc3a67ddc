"""Keys, names, reasons and receipts may be any text: on a page they are words, and no more."""

from pathlib import Path

import pytest

import transfer_async
from tests.desk.visitor import EVERY_ROLE, Desk, where_to
from tests.support.bank import World
from transfer_async.desk import Operator
from transfer_async.journal.moves import Suspect

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
async def test_they_are_words_on_every_page(world: World, hostile: str):
    world.bank.reference = hostile
    hooks = [world.bank.step("check")]
    await world.in_doubt(hostile, hooks=[*hooks, world.bank.hold])
    await world.move(Suspect(order_id="tx-abc", reason=hostile, by=hostile), hostile)
    world.time.pass_(600)
    async with world.client() as client, Desk.of(client) as made:
        eve = made.visitor("eve")
        made.operators["eve"] = Operator(hostile, EVERY_ROLE)
        pages = [
            await eve.get(),
            await eve.key(hostile),
            await eve.post("/find", {"text": hostile[:5]}),
            await eve.does("resolve", key=hostile, order_id=hostile, reason=hostile),
            await eve.does("parties", key=hostile, reason=hostile),
        ]
        gone_on = await eve.does("resolve", key=hostile, order_id="tx-abc", reason=hostile)
        pages.append(await eve.key(hostile))

    for answer in pages:
        assert answer.status in (200, 303, 422)
        tags = [name for name, _ in answer.page.tags]
        assert tags.count("title") == (answer.status != 303)
        assert not {"script", "svg", "img", "textarea"} & set(tags)
        for _, attributes in answer.page.tags:
            assert not any(name.startswith("on") for name in attributes)
            assert not (attributes.get("href") or "").startswith(("javascript:", ".."))
    assert hostile in pages[1].page.text or " ".join(hostile.split()) in pages[1].page.text
    assert where_to(gone_on) == ("/key", {"key": hostile, "done": "resolved"})


async def test_a_links_key_is_the_key(world: World, desk: Desk):
    for key in HOSTILE:
        await world.in_doubt(key)
    eve = desk.visitor("eve")

    links = [link for link in (await eve.get()).page.links if link.startswith("key?")]
    shown = [(await eve.get(f"/{link}")).page.forms["resolve"]["key"] for link in links]

    assert sorted(shown) == sorted(HOSTILE)


def test_no_template_passes_anything_by_the_escaping():
    for path in (Path(transfer_async.__file__).parent / "desk" / "templates").glob("*.html"):
        source = path.read_text(encoding="utf-8")

        assert "autoescape" not in source
        assert "safe" not in source
        for tag in ("script", "style="):
            assert tag not in source, path.name

"""Keys that look the same are the same, at every door; and a key of old can still be named."""

import json
import unicodedata
from typing import Any

import pytest

from tests.support.bank import World, new_order
from tests.support.cases import each
from tests.support.journalling import claim, doubt, mark
from tests.support.order_files import csv_text, read_csv, row
from transfer_async import InvalidOrder, KeyState, Operators, OrderCommand
from transfer_async._converters.messages import VERSION
from transfer_async._models import keys, texts

LOOK_ALIKES = {
    "a blank behind": "K-9 ",
    "a blank before": " K-9",
    "nothing but a blank": " ",
    "a no-break space behind": "K-9\xa0",
    "an ideographic space before": "\u3000K-9",
    "a thin space behind": "K-9\u2009",
    "a line's end": "K-9\n",
    "an accent by itself": "Cafe\u0301-9",
    "a Hangul syllable in its parts": "\u1112\u1161\u11ab-9",
    "a sign of measure for a letter": "10 \u212b",
    "a variation selector": "K-9\ufe0f",
    "one of the supplement": "K-9\U000e0100",
    "a Mongolian one": "K-9\u180b",
    "a grapheme joiner": "K\u034f-9",
    "a zero-width space": "K\u200b-9",
    "a word joiner": "K\u2060-9",
    "a byte order mark": "\ufeffK-9",
    "a soft hyphen": "K\xad-9",
    "a Hangul filler": "K\u3164-9",
    "a half-width one": "K\uffa0-9",
    "a Khmer vowel that is not shown": "K\u17b4-9",
    "the other way round": "K\u202e9-",
    "a tag": "K-9\U000e0041",
}
look_alikes = pytest.mark.parametrize("key", LOOK_ALIKES.values(), ids=LOOK_ALIKES)


@look_alikes
async def test_a_key_that_looks_like_another_is_refused_at_every_door(world: World, key: str):
    """A spreadsheet's blank, or another system's accents, would pay the same invoice a second time."""
    desk = Operators(world.journal, world.scope)
    async with world.client() as client:
        for door in (
            client.create_order(new_order(), key=key),
            client.known(key),
            client.history(key),
            desk.history(key),
        ):
            with pytest.raises(InvalidOrder, match=r"^key: "):
                await door
    for ending in (
        desk.resolve(key, order_id="tx-1", by="a", reason="b"),
        desk.refute(key, by="a", reason="b"),
    ):
        with pytest.raises(ValueError, match=r"^key: (is|holds|begins)"):
            await ending
    tree = {"version": VERSION, "key": key, "order": json.loads(new_order().to_json())}
    for make in (
        lambda: OrderCommand(key=key, order=new_order()),
        lambda: OrderCommand.from_json(json.dumps(tree)),
    ):
        with pytest.raises(InvalidOrder) as invalid:
            make()
        assert [name for name, _ in invalid.value.problems] == ["key"]
    ((fault,),) = (record.faults for record in read_csv(csv_text([row(1) | {"key": key}])))

    assert fault[0] == "key"
    assert not world.journal.moves
    assert not world.sandbox.requests


@each("key", ["K-9", "K 9", "Zahlung №8731 – é", "支付-1", "דוח 7", "한-9", "😀", "a'b\"c;--"])
def test_every_other_printable_text_is_a_key(key: str):
    assert keys.problem(key) is None


def test_what_is_never_seen_is_what_unicode_says():
    never_seen = texts.UNSEEN.findall("".join(map(chr, range(0x110000))))

    assert len(never_seen) == 4174
    assert {unicodedata.category(one) for one in never_seen} == {"Cf", "Cn", "Lo", "Mn"}


@pytest.mark.parametrize("key", ["K-9 ", "K-9\ufe0f", "Cafe\u0301"])
async def test_a_key_of_old_may_have_an_order_and_can_still_be_named(world: World, key: str):
    """Earlier versions took it: its hold must not be released, and its doubt must come to an end."""
    for move in (claim(), mark(), doubt()):
        await world.move(move, key)
    command = {"version": VERSION, "key": key, "order": json.loads(new_order().to_json())}
    raised: list[Any] = []
    async with world.client() as client:
        for call in (lambda: client.create_order(new_order(), key=key), client.recover):
            try:
                await call()
            except InvalidOrder as error:
                raised.append(error)
        known = await client.known(key)
        steps = await client.history(key)
        ended = await client.resolve(key, order_id="tx-1", by="ada", reason="seen")
    with pytest.raises(InvalidOrder) as parked:
        OrderCommand.from_json(json.dumps(command))

    assert [(error.key, error.order_may_exist) for error in [*raised, parked.value]] == [(key, True)] * 2
    assert known is not None
    assert known.state is KeyState.IN_DOUBT
    assert [step.move for step in steps] == ["claim", "mark", "doubt"]
    assert ended.order_id == "tx-1"

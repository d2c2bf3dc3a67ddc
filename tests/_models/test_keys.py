"""Keys that look the same are equal in every method, and keys of earlier versions stay usable."""

import json
import re
import unicodedata
from typing import Any

import pytest

from tests.support.bank import World, new_order
from tests.support.cases import each
from tests.support.journalling import claim, doubt, mark
from tests.support.order_files import csv_text, read_csv, row
from transfer_async import Decision, InvalidOrder, KeyState, MemoryJournal, Operators, OrderCommand
from transfer_async._converters.messages import VERSION
from transfer_async._models import requests
from transfer_async.desk import Operator

LOOK_ALIKES = {
    "a blank behind": "K-9 ",
    "a blank before": " K-9",
    "nothing but a blank": " ",
    "an ideographic space before": "\u3000K-9",
    "a line's end": "K-9\n",
    "an accent by itself": "Cafe\u0301-9",
    "a Hangul syllable in its parts": "\u1112\u1161\u11ab-9",
    "a sign of measure for a letter": "10 \u212b",
    "a variation selector": "K-9\ufe0f",
    "a grapheme joiner": "K\u034f-9",
    "a zero-width space": "K\u200b-9",
    "a byte order mark": "\ufeffK-9",
    "a soft hyphen": "K\xad-9",
    "a Hangul filler": "K\u3164-9",
    "a Khmer vowel that is not shown": "K\u17b4-9",
    "the other way round": "K\u202e9-",
    "a tag": "K-9\U000e0041",
    "a Braille pattern without dots": "K\u2800-9",
    "a notehead that is not shown": "K\U0001d159-9",
    "what stands for an object": "K\ufffc-9",
}
EVERYWHERE = ("a blank behind", "a Braille pattern without dots")


@each("key", LOOK_ALIKES)
def test_a_key_that_looks_like_another_is_invalid(key: str):
    assert requests.problem(key)


@pytest.mark.parametrize("key", [LOOK_ALIKES[name] for name in EVERYWHERE], ids=EVERYWHERE)
async def test_a_key_that_looks_like_another_is_refused_by_every_method(world: World, key: str):
    """Without this, a blank from a spreadsheet, or another encoding of an accent, pays an invoice twice."""
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
        with pytest.raises(ValueError, match=r"^key: (is|contains|begins)"):
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
    assert requests.problem(key) is None


BLANK_GLYPHS = 9
"""Characters that render as nothing, although Unicode does not classify them as ignorable."""


def test_the_invisible_characters_are_those_of_unicode():
    never_seen = requests.UNSEEN.findall("".join(map(chr, range(0x110000))))

    assert len(never_seen) == 4174 + BLANK_GLYPHS
    assert {unicodedata.category(one) for one in never_seen} <= {"Cf", "Cn", "Lo", "Mn", "So"}


def test_every_character_that_unicode_ignores_counts_as_invisible():
    regex = pytest.importorskip("regex", reason="it has its own copy of Unicode's data")
    every = "".join(map(chr, range(0x110000)))
    ignorable = set(regex.findall(r"\p{Default_Ignorable_Code_Point}", every))

    assert len(ignorable) > 4000
    assert ignorable - set(requests.UNSEEN.findall(every)) == set()


VISIBLE = {
    *("BHAIKSUKI GAP FILLER-1", "BHAIKSUKI GAP FILLER-2", "DEVANAGARI GAP FILLER", "DIVES AKURU GAP FILLER"),
    *("KAWI PUNCTUATION SPACE FILLER", "MANICHAEAN PUNCTUATION LINE FILLER", "NEWA GAP FILLER"),
    *("BLANK SYMBOL", "SYMBOL FOR NULL", "SYMBOL FOR SPACE", "IDEOGRAPHIC HALF FILL SPACE"),
    *("SIGNWRITING LOCATION-FLOORPLANE SPACE", "SIGNWRITING LOCATION-WALLPLANE SPACE"),
}
"""Visible characters despite their names: symbols for a blank, and line fillers."""


def test_characters_named_blank_are_refused_in_keys():
    named = re.compile(r"\b(BLANK|FILLER|NULL|INVISIBLE|JOINER|SELECTOR|SPACE)\b")
    blank = {one for one in map(chr, range(0x110000)) if named.search(unicodedata.name(one, ""))}

    taken = {one for one in blank if requests.problem(f"K{one}9") is None} - {" "}
    # Later versions of Unicode have more such names.
    assert {unicodedata.name(character) for character in taken} <= VISIBLE


@each("by", ["ada\u2800", "a\U0001d159da", "\u3164", "ada\u200b", "a\u202eda", "ada\ufe0f"])
async def test_operator_names_with_invisible_characters_are_refused(by: str):
    """Without this, the history shows the same name for two people."""
    desk = Operators(MemoryJournal(), "scope")
    rule = "(contains an invisible character|must be a non-empty line of text)"
    for deciding in (
        desk.resolve("k", order_id="tx-1", by=by, reason="seen"),
        desk.refute("k", by=by, reason="seen"),
        desk.propose("k", Decision.REFUTE, by=by, reason="seen"),
        desk.approve("k", proposal="p", by=by, reason="seen"),
        desk.withdraw("k", proposal="p", by=by, reason="seen"),
        desk.amend("k", order_id=None, by=by, reason="seen"),
        desk.demand_four_eyes(by=by, reason="rule 12"),
        desk.look("k", by=by, reason="seen"),
    ):
        with pytest.raises(ValueError, match=f"^by: {rule}"):
            await deciding
    with pytest.raises(ValueError, match=f"^name: {rule}"):
        Operator(name=by)


@pytest.mark.parametrize("key", ["K-9 ", "K-9\ufe0f", "Cafe\u0301"])
async def test_a_key_of_an_earlier_version_may_have_an_order_and_can_still_be_used(world: World, key: str):
    """Earlier versions accepted the key: its hold must not be released, and its doubt must be resolvable."""
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

"""The desk in a real browser, used by keyboard and without scripts, and its layout."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.desk.visitor import Desk
from tests.support import chromium
from tests.support.bank import World
from tests.support.chromium import Browser, Tab
from transfer_async import KeyState, OutcomeUnknown, SQLiteJournal, UnreadableOrder
from transfer_async._cli import servers
from transfer_async._pipeline.operators import Operators
from transfer_async.desk import Operator, Role
from transfer_async.sandbox import CloseAfterProcessing, WrongTypes

AXE = "AXE_CORE"
"""The environment variable with the path of `axe.min.js` from the npm package axe-core."""

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="Chromium is not installed")

WIDTHS = (320, 390, 600, 641, 700, 768, 800, 900, 961, 1024, 1280, 1600)

HOSTILE = '"><script>document.title = "taken"</script><img src=x onerror=alert(1)>'


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium.browser() as made:
        yield made


async def sits_down(browser: Browser, desk: Desk, name: str, *roles: Role) -> Tab:
    """Open a tab that sends the user header, as a proxy would."""
    desk.visitor(name, roles)
    tab = await browser.tab()
    await tab.ask("Network.setExtraHTTPHeaders", headers={"X-User": name})
    return tab


async def asserts_in_order(tab: Tab) -> None:
    """Check that the page works with a screen reader and at any window size."""
    tree = await tab.tree()
    roles = [node["role"] for node in tree]
    for landmark in ("banner", "main", "contentinfo", "heading"):
        assert landmark in roles
    for node in tree:
        if node["role"] in ("link", "button", "textbox", "searchbox", "combobox", "checkbox"):
            assert node["name"], node
    for width in WIDTHS:
        await tab.look(width=width)
        assert await tab.evaluate(f"document.documentElement.scrollWidth <= {width}"), width
    assert tab.troubles == []


@pytest.mark.trial(ci=1, long=1)
async def test_two_people_end_a_doubt_by_keyboard(world: World, browser: Browser, size: int):
    """From the doubt to the proposal, the approval, the release of the hold, and the next key."""
    world.bank.reference = "hold-731"
    async with world.client(four_eyes=True) as client, Desk.of(client) as desk:
        for key in ("payment-1", "payment-2"):
            await world.in_doubt(key)
            world.time.pass_(600)
        ada = await sits_down(browser, desk, "ada", Role.CHANGE)
        ben = await sits_down(browser, desk, "ben", Role.APPROVE)

        await ada.go(f"{desk.base}/")
        await ada.follow("payment-1", role="link")
        assert "Approving this releases hold-731 of 155,025.00 NGN" in await ada.text()
        await ada.reach("The order's id")
        await ada.reach("How do you know?")
        await ada.write("How do you know?", "the service's support: none")
        await ada.reach("I am certain", role="checkbox")
        await ada.press(" ")
        await ada.follow("Propose that no order exists", role="button")
        assert "Another person must approve it." in await ada.text()
        assert "You proposed this decision, so another person must approve it." in await ada.text()

        await ben.go(f"{desk.base}/")
        await ben.follow("proposed", role="link")
        await ben.follow("payment-1", role="link")
        assert "Approving releases hold-731 of 155,025.00 NGN" in await ben.text()
        await ben.write("How do you know?", "I asked, too")
        await ben.follow("Review, then approve", role="button")
        assert "Approving releases hold-731 of 155,025.00 NGN" in await ben.text()
        await ben.write("If you are certain that no order exists", "155,025.00 NGN")
        await ben.follow("Approve: no order exists", role="button")
        assert "Approved: the decision is recorded." in await ben.text()
        assert ben.status == 200

        await client.recover()
        assert [receipt for _, receipt in world.bank.released] == ["hold-731"]

        await ben.follow("payment-2", role="link")
        assert "Approving this releases" in await ben.text()
        assert ada.troubles == ben.troubles == []


@pytest.mark.trial(ci=1, long=1)
async def test_the_address_that_the_command_prints_admits_one_browser_once(
    tmp_path: Path, browser: Browser, size: int
):
    journal, lines = SQLiteJournal(tmp_path / "journal.db"), asyncio.Queue[str]()
    operators = Operators(journal, "live")
    serving = asyncio.create_task(
        servers.serve_desk(operators, journal, Operator("ada"), port=0, say=lines.put_nowait)
    )
    await lines.get()
    address = await lines.get()
    ada, eve = await browser.tab(), await browser.tab()

    await ada.go(address)
    await eve.go(address)
    await eve.go(await ada.evaluate("location.href"))
    texts = await ada.text(), await eve.text()
    os.kill(os.getpid(), signal.SIGINT)
    await serving

    assert "No key needs attention." in texts[0]
    assert eve.status == 403
    assert "Not signed in" in texts[1]


@pytest.mark.trial(ci=1, long=1)
async def test_the_back_button_returns_to_the_search_results(world: World, browser: Browser, size: int):
    """If the results were the response to a form, the browser would show an error instead of them."""
    async with world.client() as client, Desk.of(client) as desk:
        for key in ("payment-1", "payment-2", "other"):
            await world.in_doubt(key)
        ada = await sits_down(browser, desk, "ada")

        await ada.go(f"{desk.base}/")
        await ada.write("Key, id, hold or exact amount", "payment")
        await ada.follow("Find", role="button")
        await ada.follow("payment-2", role="link")
        where = await ada.back()

        assert where == f"{desk.base}/found?key=payment-1&key=payment-2"
        assert "Found 2 keys" in await ada.text()


@pytest.mark.trial(ci=1, long=1)
async def test_a_refutation_is_reviewed_by_keyboard_at_any_width(world: World, browser: Browser, size: int):
    world.bank.reference = "hold-731"
    async with world.client() as client, Desk.of(client) as desk:
        for width in (360, 1280):
            key = f"payment-{width}"
            await world.in_doubt(key)
            world.time.pass_(600)
            ada = await sits_down(browser, desk, "ada", Role.CHANGE)
            await ada.look(width=width)
            await ada.go(f"{desk.base}/key?key={key}")
            await ada.reach("How do you know?")  # the field belongs to the form for an order that exists
            await ada.write("How do you know?", "the service's support: none")
            await ada.follow("Review: No order exists", role="button")
            await asserts_in_order(ada)
            await ada.look(width=width)
            place = "document.querySelector('button.final').getBoundingClientRect().bottom"
            assert await ada.evaluate(place) < 1000, width
            assert "This cannot be undone. Nothing is decided yet." in await ada.text()

            await ada.write("If you are certain that no order exists", "155")
            await ada.follow("No order exists: release the hold", role="button")
            assert "This is neither the amount nor the key." in await ada.text()
            kept = "document.querySelector('#typed[aria-invalid][autofocus]').value"
            assert await ada.evaluate(kept) == "155"
            assert (await world.entry(key)).state is KeyState.IN_DOUBT

            await ada.write("If you are certain that no order exists", "155,025.00")
            await ada.follow("No order exists: release the hold", role="button")
            assert "Saved: no order exists." in await ada.text()
            assert (await world.entry(key)).state is KeyState.FREE
            assert [trouble for trouble in ada.troubles if "422" not in str(trouble)] == []


@pytest.mark.trial(ci=1, long=1)
async def test_a_print_has_the_record_and_the_history_and_no_form(world: World, browser: Browser, size: int):
    async with world.client(four_eyes=True) as client, Desk.of(client, label="live") as desk:
        await world.in_doubt("payment-1")
        world.time.pass_(600)
        await desk.visitor("ben").does("refute", key="payment-1", certain="1", reason="none there")
        ada = await sits_down(browser, desk, "ada", *Role)
        await ada.go(f"{desk.base}/key?key=payment-1")
        await ada.ask("Emulation.setEmulatedMedia", media="print")
        tree = await ada.tree()
        text = " ".join(node["name"] for node in tree if node["role"] == "StaticText")
        chosen = "getComputedStyle(document.querySelector('dd code')).userSelect"

        assert not {node["role"] for node in tree} & {"button", "textbox", "searchbox", "checkbox", "form"}
        for part in ("live", "ada", "155,025.00 NGN", "What happened", "none there", "ben", "Made"):
            assert part in text, part
        assert await ada.evaluate(chosen) == "all"


@pytest.mark.trial(ci=1, long=1)
async def test_a_print_of_several_proposals_has_their_ids_and_results(
    world: World, browser: Browser, size: int
):
    async with world.client(four_eyes=True) as client, Desk.of(client) as desk:
        for key in ("payment-1", "payment-2", "payment-3"):
            await world.in_doubt(key)
        ada = await sits_down(browser, desk, "ada", *Role)
        await ada.go(f"{desk.base}/")
        await ada.evaluate("document.querySelectorAll('[name=key]').forEach(box => { box.checked = true })")
        await ada.follow("Propose orders for the selected keys …", role="button")
        for key, order_id in (("payment-1", "tx-first"), ("payment-2", "second")):
            await ada.write(f"The order's id for {key}", order_id)
        await ada.write("How do you know? Your reason is kept in the history of each key.", "in the export")
        await ada.follow("Propose them", role="button")
        await ada.ask("Emulation.setEmulatedMedia", media="print")
        seen = "[...document.querySelectorAll('main *')].filter(item => item.checkVisibility())"
        values = await ada.evaluate(f"{seen}.filter(item => item.name).map(item => item.value)")
        text = await ada.evaluate("document.querySelector('main').innerText")

        assert values == ["second", "in the export"]
        for part in (
            "payment-1: the order exists, tx-first",
            "payment-2",
            "155,025.00 NGN",
            "must look like",
        ):
            assert part in text, part
        assert "Propose them" not in text


async def shown_pages(world: World, desk: Desk) -> list[str]:
    """Return the addresses of pages that together show every element."""
    await world.in_doubt(HOSTILE)
    await world.in_doubt("a" * 200)
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    await world.fails(UnreadableOrder, key="payment-1")
    world.sandbox.faults.add(CloseAfterProcessing())
    await world.fails(OutcomeUnknown, key="payment-2", held="bank-7")
    await world.owing("owed")
    world.time.pass_(600)
    ada = desk.visitor("eve")
    await ada.does("resolve", key="payment-2", order_id="tx-abc", reason=HOSTILE)
    await ada.does("note", key="payment-1", reason=HOSTILE)
    await ada.does("watch", key="payment-1")
    return [
        "/",
        "/?live=1&kind=doubt",
        "/?wall=1",
        "/key?key=payment-1",
        "/key?key=payment-2",
        "/key?key=owed",
        "/audit",
        "/audit?since=2024-05-06&until=2024-05-06",
        "/nothing",
    ]


async def select_all(tab: Tab, desk: Desk) -> None:
    """Select every key of the list by keyboard, and open the page for the order ids."""
    await tab.go(f"{desk.base}/")
    while (
        left := await tab.evaluate("document.querySelector('.keys input:not(:checked)')?.ariaLabel")
    ) is not None:
        await tab.reach(left[:30], role="checkbox")
        await tab.press(" ")
    await tab.follow("Propose orders for the selected keys", role="button")


@pytest.mark.trial(long=1)
async def test_every_page_fits_any_window_and_labels_every_control(
    world: World, browser: Browser, size: int, tmp_path: Path
):
    async with world.client() as client, Desk.of(client) as desk:
        addresses = await shown_pages(world, desk)
        ada = await sits_down(browser, desk, "ada", *Role)
        await select_all(ada, desk)
        await asserts_in_order(ada)
        for number, address in enumerate(addresses):
            await ada.go(desk.base + address)
            if address != "/nothing":
                await asserts_in_order(ada)
            for width in (390, 1600):
                for dark in (False, True):
                    await ada.look(width=width, dark=dark)
                    await ada.picture(tmp_path / f"{number}-{width}{'-dark' * dark}.png")
        assert await ada.evaluate("document.title") != "taken"


@pytest.mark.trial(long=1)
async def test_axe_finds_no_accessibility_problem(world: World, browser: Browser, size: int):
    if not os.environ.get(AXE):
        pytest.skip(f"{AXE} names no file: npm pack axe-core")
    axe = await asyncio.to_thread(Path(os.environ[AXE]).read_text)
    run = (
        "axe.run(document, {resultTypes: ['violations', 'incomplete']})"
        ".then(found => found.violations.map(one => one.id + ': ' + one.nodes.map(node => node.html)))"
    )
    async with world.client() as client, Desk.of(client) as desk:
        addresses = await shown_pages(world, desk)
        ada = await sits_down(browser, desk, "ada", *Role)
        await ada.ask("Page.setBypassCSP", enabled=True)
        for address in addresses:
            for width in (390, 1600):
                for dark in (False, True):
                    await ada.look(width=width, dark=dark)
                    await ada.go(desk.base + address)
                    assert await ada.evaluate(f"{axe};{run}") == [], (address, width, dark)
        for dark in (False, True):
            await ada.look(width=1600, dark=dark)
            await ada.go(f"{desk.base}/key?key=payment-1")
            await ada.write("The order's id", "no id")
            await ada.write("How do you know?", "asked")
            await ada.follow("It exists", role="button")
            assert await ada.evaluate(f"{axe};{run}") == [], dark
            await ada.write("How do you know?", "asked")
            await ada.write("How do you know?", "asked")
            await ada.follow("Review", role="button")
            assert await ada.evaluate(f"{axe};{run}") == [], dark
            await ada.write("If you are certain", "155")
            await ada.follow("No order exists", role="button")
            assert await ada.evaluate(f"{axe};{run}") == [], dark
            await select_all(ada, desk)
            assert await ada.evaluate(f"{axe};{run}") == [], dark
            await ada.write("The order's id for payment-1", "no id")
            await ada.write("How do you know?", "in the export")
            await ada.follow("Propose them", role="button")
            assert "Order id: must look like" in await ada.text()
            assert await ada.evaluate(f"{axe};{run}") == [], dark


@pytest.mark.trial(long=1)
async def test_axe_finds_no_accessibility_problem_on_the_sandboxs_page(
    world: World, browser: Browser, size: int
):
    if not os.environ.get(AXE):
        pytest.skip(f"{AXE} names no file: npm pack axe-core")
    axe = await asyncio.to_thread(Path(os.environ[AXE]).read_text)
    run = "axe.run(document).then(found => found.violations.map(one => one.id))"
    await world.create()
    world.sandbox.faults.add(WrongTypes({"poster_amount": "a lot"}))
    tab = await browser.tab()
    await tab.ask("Page.setBypassCSP", enabled=True)
    address = f"{world.sandbox.base_url}/sandbox/"
    await tab.go(address)
    assert await tab.evaluate(f"{axe};{run}") == []
    await tab.write("Token, as printed by the sandbox", world.sandbox.token)
    await tab.follow("Open", role="button")
    for width in (390, 1600):
        for dark in (False, True):
            await tab.look(width=width, dark=dark)
            await tab.go(address)
            assert await tab.evaluate(f"{axe};{run}") == [], (width, dark)


@pytest.mark.trial(ci=1, long=1)
async def test_the_first_waiting_key_is_high_on_the_page(world: World, browser: Browser, size: int):
    """Operators use this page all day and should not have to scroll past sums."""
    async with world.client(four_eyes=True) as client, Desk.of(client, label="live") as desk:
        await shown_pages(world, desk)
        ada = await sits_down(browser, desk, "ada", *Role)
        await ada.go(f"{desk.base}/")
        for width, limit in ((1280, 400), (390, 500), (360, 500)):
            await ada.look(width=width)
            top = await ada.evaluate("document.querySelector('.keys tbody tr').getBoundingClientRect().top")
            assert top < limit, width
        await ada.go(f"{desk.base}/?sort=-amount&older=1h")
        assert await ada.evaluate("document.getElementById('sort').value") == "-amount"

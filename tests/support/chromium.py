"""A headless Chromium, controlled through its DevTools protocol.

Tests read pages through the accessibility tree and use them by keyboard. The pages' scripts are disabled.
Every action waits until the next page has loaded.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0
"""A timeout in seconds that expires only if something hangs."""

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # needed if the tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)

_KEYS = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    " ": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
}


PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
"""The path of Chromium; None if it is not installed."""


class Browser:
    """A running browser. Each tab has its own cookies."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def listen(self) -> None:
        """Dispatch the browser's messages until the connection ends."""
        async for received in self._socket:
            message = received.json()
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                tab.handle(message["method"], message["params"])

    async def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        wish: dict[str, Any] = {"id": number, "method": method, "params": params}
        await self._socket.send_json(wish if session is None else {**wish, "sessionId": session})
        async with asyncio.timeout(PATIENCE):
            message = await answer
        assert "error" not in message, (method, message["error"])
        result: dict[str, Any] = message["result"]
        return result

    async def tab(self) -> Tab:
        """Open a tab with its own cookies."""
        context = (await self.ask("Target.createBrowserContext"))["browserContextId"]
        target = await self.ask("Target.createTarget", url="about:blank", browserContextId=context)
        found = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = self._tabs[found["sessionId"]] = Tab(self, found["sessionId"])
        for domain in ("Page", "Accessibility", "Log", "Network"):
            await tab.ask(f"{domain}.enable")
        await tab.ask("Emulation.setScriptExecutionDisabled", value=True)
        await tab.look(width=1600)
        return tab


class Tab:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self._loaded = asyncio.Event()
        self.troubles: list[str] = []
        self.status = 0

    def handle(self, event: str, params: dict[str, Any]) -> None:
        """Handle an event of the tab."""
        if event == "Page.loadEventFired":
            self._loaded.set()
        elif event == "Log.entryAdded":
            self.troubles.append(params["entry"]["text"])
        elif event == "Network.responseReceived" and params["type"] == "Document":
            self.status = params["response"]["status"]

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol for this tab."""
        return await self._browser.ask(method, self._session, **params)

    async def look(self, *, width: int, dark: bool = False) -> None:
        """Change the width of the window, and its colour scheme."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1}
        await self.ask("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def go(self, address: str) -> None:
        """Open an address."""
        self._loaded.clear()
        await self.ask("Page.navigate", url=address)
        await self._load()

    async def back(self) -> str:
        """Go back in the history and return the new address."""
        history = await self.ask("Page.getNavigationHistory")
        before = history["entries"][history["currentIndex"] - 1]
        self._loaded.clear()
        await self.ask("Page.navigateToHistoryEntry", entryId=before["id"])
        await self._load()
        history = await self.ask("Page.getNavigationHistory")
        address: str = history["entries"][history["currentIndex"]]["url"]
        return address

    async def _load(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._loaded.wait()

    async def tree(self) -> list[dict[str, Any]]:
        """Return the accessibility tree: the role, name and focus of each element."""
        found = {node["nodeId"]: node for node in (await self.ask("Accessibility.getFullAXTree"))["nodes"]}
        nodes, left = [], [node["nodeId"] for node in found.values() if "parentId" not in node]
        while left:  # in reading order: each element, then its children, then its next sibling
            nodes.append(found[left.pop()])
            left += [child for child in reversed(nodes[-1].get("childIds", ())) if child in found]
        return [
            {
                "role": node["role"]["value"],
                "name": node.get("name", {}).get("value", ""),
                "focused": any(
                    item["name"] == "focused" and item["value"]["value"]
                    for item in node.get("properties", ())
                ),
                "value": node.get("value", {}).get("value", ""),
            }
            for node in nodes
            if not node.get("ignored")
        ]

    async def text(self) -> str:
        """Return all text of the page."""
        texts = " ".join(node["name"] for node in await self.tree() if node["role"] == "StaticText")
        return " ".join(texts.split())

    async def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, **_KEYS[key])

    async def reach(self, name: str, *, role: str | None = None, presses: int = 120) -> None:
        """Press Tab until the element with this name has the focus."""
        names = []
        for _ in range(presses):
            await self.press("Tab")
            focused = [
                node for node in await self.tree() if node["focused"] and node["role"] != "RootWebArea"
            ]
            names += [f"{node['role']} {node['name']!r}" for node in focused]
            if any(node["name"].startswith(name) and role in (None, node["role"]) for node in focused):
                return
        raise AssertionError(f"the keyboard does not reach {name!r}, but {', '.join(names)}")

    async def write(self, name: str, text: str, *, role: str | None = None) -> None:
        """Move the focus to a field by keyboard, and type a text."""
        await self.reach(name, role=role)
        await self.ask("Input.insertText", text=text)

    async def follow(self, name: str, *, role: str | None = None) -> None:
        """Activate a link or button by keyboard, and wait for the next page."""
        await self.reach(name, role=role)
        self._loaded.clear()
        await self.press("Enter")
        await self._load()

    async def evaluate(self, script: str) -> Any:
        """Return the result of a script that the test injects; the page's policy does not apply to it."""
        await self.ask("Emulation.setScriptExecutionDisabled", value=False)
        try:
            found = await self.ask(
                "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
            )
        finally:
            await self.ask("Emulation.setScriptExecutionDisabled", value=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def picture(self, path: Path) -> None:
        """Return a PNG image of the whole page."""
        size = (await self.ask("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
        shot = await self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(shot["data"]))


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run a Chromium with a temporary profile."""
    assert PROGRAM is not None
    home = await asyncio.to_thread(tempfile.mkdtemp, prefix="chromium-")
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *_ARGUMENTS,
        f"--user-data-dir={home}",
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": home},  # a killed browser leaves its temporary directories behind
    )
    try:
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(PATIENCE):
                address = await _address(process)
            async with session.ws_connect(address, max_msg_size=0) as socket:
                made = Browser(socket)
                listening = asyncio.create_task(made.listen())
                try:
                    yield made
                finally:
                    listening.cancel()
    finally:
        process.kill()
        await process.wait()
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if line.startswith("DevTools listening on "):
            return line.removeprefix("DevTools listening on ").strip()
    raise AssertionError("Chromium ended before it listened")

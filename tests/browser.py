"""A real browser without a window, driven over its debugging protocol."""

import asyncio
import json
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

HEADLESS_SHELL = shutil.which("chromium-headless-shell")
"""Chromium without the parts of a desktop's browser: it takes half of the time."""

CHROMIUM = HEADLESS_SHELL or shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Tab:
    """One page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer = await self._socket.receive_json()
            if answer.get("id") == number:
                return answer["result"]

    async def open(self, url: str) -> None:
        """Load a page."""
        await self._call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def resize(self, width: int) -> None:
        """Give the page this many pixels of width."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self._call("Emulation.setDeviceMetricsOverride", **size)

    async def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = await self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait for an expression on the page to be true."""
        async with asyncio.timeout(30):
            while not await self.run(f"Boolean({condition})"):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    async def shows(self, text: str) -> None:
        """Wait for a text on the page."""
        await self.until(f"document.body.innerText.includes({json.dumps(text)})")

    async def click(self, label: str) -> None:
        """Press the button of this name, once there is one."""
        button = f"[...document.querySelectorAll('button')].find(b => b.innerText === '{label}')"
        await self.until(f"{button} && !{button}.disabled")
        await self.run(f"{button}.click()")


@asynccontextmanager
async def tab(profile: Path) -> AsyncGenerator[Tab]:
    """A page of a browser that has just been started, with a new profile."""
    assert CHROMIUM is not None
    flags = (*_FLAGS, f"--user-data-dir={profile}", "about:blank")
    browser = await asyncio.create_subprocess_exec(CHROMIUM, *flags, stdout=DEVNULL, stderr=DEVNULL)
    port_file = profile / "DevToolsActivePort"
    try:
        while not port_file.exists() or not port_file.read_text("utf-8").strip():
            assert browser.returncode is None, "the browser has ended"
            await asyncio.sleep(0.05)
        port = port_file.read_text("utf-8").split()[0]
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/json/list") as response,
        ):
            pages = [page for page in await response.json() if page["type"] == "page"]
            async with client.ws_connect(pages[0]["webSocketDebuggerUrl"]) as socket:
                yield Tab(socket)
    finally:
        browser.kill()
        await browser.wait()

"""Chromium, driven by Playwright, for tests of the console's pages."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from browser import CHROMIUM, HEADLESS_SHELL

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
needs_headless_shell = pytest.mark.skipif(
    HEADLESS_SHELL is None,
    reason="chromium-headless-shell, which drew the approved pictures, is not installed",
)


class Window:
    """A page in a browser of its own, of which everything unexpected is noted.

    Attributes:
        page: the page.
        address: of the console.
        elsewhere: requests to other origins.
        errors: what was written to the browser's console, and scripts that have failed.
    """

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.elsewhere: list[str] = []
        self.errors: list[str] = []
        self.address = address
        self._origin = urlsplit(address).netloc
        page.on("request", lambda request: self._note(request.url))
        page.on("console", lambda message: self._complain(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("dialog", lambda dialog: self._complain(f"dialog: {dialog.message}"))

    def _note(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"data", "about", "blob"} and parts.netloc != self._origin:
            self.elsewhere.append(url)

    def _complain(self, text: str) -> None:
        if not self.is_expected(text):
            self.errors.append(text)

    def is_expected(self, text: str) -> bool:
        """A server that is away, and a page that is an answer to a refused form, are no errors."""
        return "Failed to load resource" in text

    async def open(self, path: str) -> None:
        """Open an address of the console."""
        await self.page.goto(f"{self.address}{path}")

    async def shows(self, text: str) -> None:
        """Wait until a text is on the page."""
        await self.page.get_by_text(text, exact=False).first.wait_for(state="attached")

    async def press(self, name: str) -> None:
        """Press the first button of this name."""
        await self.page.get_by_role("button", name=name).first.click()

    async def submit(self, name: str) -> None:
        """Press the first button of this name, and wait for the page that follows."""
        async with self.page.expect_navigation():
            await self.page.get_by_role("button", name=name, exact=True).first.click()

    async def send(self, message: str) -> None:
        """Send a message with the form of the page."""
        await self.page.get_by_label("Message", exact=True).fill(message)
        await self.submit("Send")

    def check(self) -> None:
        """Assert that nothing unexpected has happened."""
        assert self.elsewhere == []
        assert self.errors == []


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    """A browser that has just been started."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-proxy-server"],
        )
        try:
            yield browser
        finally:
            await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="browser")
async def shared_browser() -> AsyncGenerator[Browser]:
    """A browser for all tests of a file, in one event loop: each opens its own windows."""
    async with chromium() as browser:
        yield browser


@asynccontextmanager
async def window(browser: Browser, address: str, **context: Any) -> AsyncGenerator[Window]:
    """A page with cookies and a language of its own."""
    options: dict[str, Any] = {"locale": "en-US", **context}
    made = await browser.new_context(**options)
    made.set_default_timeout(90_000)
    try:
        yield Window(await made.new_page(), address)
    finally:
        await made.close()

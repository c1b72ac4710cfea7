"""Takes the pictures of the console from real runs: `python docs/console_pictures.py docs/images`.

A scripted model service answers; all else is real: `soong-agent serve`, the browser, the tests that
fail, the file that is changed, and the question about it.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from playwright.async_api import Locator, Page  # noqa: E402

from agent_core.providers.scripted import Calls, Says, ScriptedCall, calls  # noqa: E402
from agent_core.storage.postgres import PostgresSessionStore  # noqa: E402
from agent_core.types import Usage  # noqa: E402
from isolation import Home  # noqa: E402
from mcp_clients import configure  # noqa: E402
from model_server import ModelServer  # noqa: E402
from own_consoles import serving  # noqa: E402
from postgres import hold_session, make_cluster  # noqa: E402
from windows_of_pages import chromium  # noqa: E402
from worker_processes import URL_VARIABLE, workers, write_config  # noqa: E402

FILES = ROOT / "examples" / "tutorials" / "terminal"
MESSAGE = "The tests fail: find out why and fix it"
RUN = calls("code.run_command", argv=["python", "-m", "unittest"])
EDIT = {"old": "result * discount", "new": "result * (1 - discount)"}
ANSWER = """\
`total` in **cart.py** charged the discount instead of taking it off. Both tests pass now.

| discount | before | now |
|---:|---:|---:|
| 0 % | 0.0 | 50.0 |
| 20 % | 10.0 | 40.0 |
"""
REPLIES = [
    Calls(text="Let me run the tests first.", calls=RUN.calls),
    calls("code.read_file", path="cart.py"),
    Calls(
        text="Both tests multiply by the discount; what is left is `1 - discount`.",
        calls=[ScriptedCall(name="code.edit_file", arguments={"path": "cart.py", "edits": [EDIT]})],
    ),
    RUN,
    Says(text=ANSWER),
    calls("agent.create_sub_agent", task="Look for other sums that ignore the discount."),
    Says(text="`total` is the only function that knows discounts."),
    Says(text="There is no other place: only `total` knows discounts."),
]
SCRIPT = [
    reply.model_copy(update={"usage": Usage.from_input_output(6_000 + 700 * turn, 90 + 31 * turn)})
    for turn, reply in enumerate(REPLIES)
]
SETTINGS = """
[model.price]
input = 1.25
output = 10.0

[workspace]
snapshots = "turn"
"""
WIDTH, HEIGHT = 840, 680
LARGEST = 80_000
"""Bytes of a picture."""


async def main(folder: Path) -> None:
    """Take all pictures."""
    scratch = Path(tempfile.gettempdir()) / "console"  # is seen on the pictures
    await asyncio.to_thread(scratch.mkdir)
    try:
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home, project = Home(scratch / "home"), scratch / "shop"
        await asyncio.to_thread(home.path.mkdir)
        await asyncio.to_thread(shutil.copytree, FILES, project)
        async with ModelServer(SCRIPT) as model:
            configure(home, model.base_url("openai"), SETTINGS)
            with serving(home, project) as console:
                async with chromium() as browser:
                    context = await browser.new_context(
                        viewport={"width": WIDTH, "height": HEIGHT}, locale="en-US"
                    )
                    page = await context.new_page()
                    await page.goto(console.link)
                    await page.get_by_role("button").click()
                    await tour(page, console.address, folder)
            with database(scratch) as url:
                write_config(home, model)
                await picture_of_workers(home, project, url, folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch)


@contextmanager
def database(scratch: Path) -> Generator[str]:
    """The address of an empty Postgres database."""
    session = scratch / "postgres"
    session.mkdir()
    with closing(hold_session(session)):
        server = make_cluster(session).new_server()
        server.start()
        try:
            yield server.url(server.create_database(name="console"))
        finally:
            server.stop()


async def picture_of_workers(home: Home, project: Path, url: str, folder: Path) -> None:
    """Take the picture of a page with two workers, one of which was killed."""
    async with PostgresSessionStore.open(url):
        pass
    with workers(home, url) as staff, serving(home, project, env={URL_VARIABLE: url}) as console:
        dead = await asyncio.to_thread(staff.start)
        await asyncio.to_thread(staff.start, "--concurrency", "8")
        async with chromium() as browser:
            page = await browser.new_page(locale="en-US")
            await page.goto(console.link)
            await page.get_by_role("button").click()
            dead.process.kill()
            await page.goto(f"{console.address}/workers")
            while not await page.get_by_text("dead", exact=True).is_visible():
                await page.reload()
            await take(page, folder / "console-workers.png", height=440)


async def tour(page: Page, address: str, folder: Path) -> None:
    """Work through a session, with a picture of each page."""
    await page.goto(f"{address}/")
    await page.get_by_label("Message", exact=True).fill(MESSAGE)
    await page.get_by_role("button", name="Send").click()
    question = page.get_by_role("link", name="code.run_command asks to be allowed")
    await question.wait_for()
    await page.get_by_role("button", name="Allow once").first.click()
    question = page.get_by_role("link", name="code.edit_file asks to be allowed")
    await question.wait_for()
    await take(page, folder / "console-run.png", place=page.locator("#conversation"))
    session = page.url.partition("#")[0]
    await page.goto(f"{address}/")
    await take(page, folder / "console-home.png")
    await page.get_by_role("link", name="code.edit_file asks to be allowed").click()
    place = page.locator("section[aria-labelledby=facts]")
    await take(page, folder / "console-approval.png", height=1090, place=place)
    await page.get_by_role("button", name="Allow once").first.click()
    await page.get_by_role("button", name="Allow once").first.click()
    await page.locator("#status", has_text="completed").wait_for()
    await page.get_by_label("Message", exact=True).fill("Are there other places like this?")
    await page.get_by_role("button", name="Send").click()
    await page.get_by_text("There is no other place").wait_for()
    await page.goto(session)
    runs = page.locator("#conversation > .run")
    await take(page, folder / "console-session.png", place=runs.first)
    await page.get_by_text("child 1").click()
    await take(page, folder / "console-child.png", place=runs.nth(1))
    await page.locator("section[aria-labelledby=context] summary").click()
    await take(page, folder / "console-context.png", place=page.locator("#messages"))
    await page.goto(f"{address}/settings")
    await take(page, folder / "console-settings.png")


async def take(
    page: Page, path: Path, *, height: int = HEIGHT, place: Locator | None = None
) -> None:
    """Save what is on the page; with `place` from there on.

    Raises:
        SystemExit: the picture is too large.
    """
    await page.set_viewport_size({"width": WIDTH, "height": height})
    await page.locator("time[data-is-local]").or_(page.locator("h1")).first.wait_for()
    await page.evaluate("scrollTo(0, 0)")
    if place is not None:
        await place.evaluate("each => each.scrollIntoView({block: 'start'})")
    size = len(await page.screenshot(path=path, animations="disabled", caret="hide"))
    if size > LARGEST:
        raise SystemExit(f"{path} has {size:,} bytes, more than {LARGEST:,}")
    sys.stdout.write(f"{path}: {size:,} bytes\n")


def _folder_of(arguments: Sequence[str]) -> Path:
    return Path(arguments[0]) if arguments else ROOT / "docs" / "images"


if __name__ == "__main__":
    asyncio.run(main(_folder_of(sys.argv[1:])))

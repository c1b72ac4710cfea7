"""How the pages of the console look, beside small pictures that were looked at and approved."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

import page_pictures
from agent_core import AgentRuntime, PermissionDecision
from agent_core.loading import installed_version
from agent_core.providers.scripted import Calls, Says, ScriptedCall, calls
from agent_core.types import Decision, RunStatus, Usage
from agent_core.types.lanes import own_place
from consoles import console
from isolation import Home
from model_server import ModelServer
from own_consoles import serving
from page_pictures import PICTURES, check, settle, taken, unlike
from runtimes import CONFIG, ask, runtime
from windows_of_pages import needs_headless_shell, shared_browser
from worker_processes import URL_VARIABLE, workers, write_config

pytestmark = [needs_headless_shell, pytest.mark.timeout(300)]
browser = shared_browser

MOST_BYTES = 350_000
WIDTHS = (360, 800, 1440)
SHAPES = [(width, scheme) for width in WIDTHS for scheme in ("light", "dark")] + [(800, "print")]
PAGES = ("home", "session", "run", "approval", "settings", "login", "workers")
SAMPLE: Mapping[str, Sequence[tuple[int, str]]] = {
    "home": [(360, "dark")],
    "session": [(800, "light")],
    "run": [(360, "light")],
    "approval": [(800, "dark")],
    "settings": [(1440, "light")],
    "login": [(360, "dark")],
    "workers": [(800, "print")],
}
ALL = dict.fromkeys(PAGES, SHAPES)
EVERY_SHAPE = pytest.mark.parametrize(
    "shapes", [SAMPLE, pytest.param(ALL, marks=pytest.mark.sweep)], ids=["sample", "all"]
)

TOO_WIDE = """Math.max(0, ...[...document.querySelectorAll(".scrolls")].map(
    each => each.scrollWidth - each.clientWidth))"""
"""By how many pixels the tables of a page are wider than their place."""

ASKS = f'{CONFIG}\n[permissions]\nunattended = "park"\n\n[memory]\nenabled = false\n'
CART = "def total(prices):\n    result = 0\n    for price in prices:\n        result -= price\n"
CHECK = '#!/bin/sh\necho "test 1 ok"\necho "FAILED test_total: -3 == 3"\nexit 1\n'
EDIT = {"old": "result -= price", "new": "result += price"}
ANSWER = """\
`total` in **cart.py** subtracted the prices:

| line | before | after |
|---:|---|---|
| 4 | `-=` | `+=` |

1. The check passes now.
2. See <https://example.org/sums>.
"""
GRAPH: dict[str, Any] = {
    "task_id": "build",
    "title": "Build it",
    "steps": [
        {"step_id": "plan", "title": "Make the plan"},
        {"step_id": "walls", "title": "Build walls", "depends_on_step_ids": ["plan"]},
    ],
}


def script() -> list[Any]:
    replies = [
        Calls(
            text="Let me run the check.", calls=calls("code.run_command", argv=["./check"]).calls
        ),
        Calls(
            text="The sign is wrong.",
            calls=[
                ScriptedCall(name="code.edit_file", arguments={"path": "cart.py", "edits": [EDIT]})
            ],
        ),
        Says(text=ANSWER),
        calls("agent.create_sub_agent", task="Look for other sums."),
        Says(text="There are none."),
        Says(text="There is no other place."),
        calls("code.write_file", path="NEWS", content="The sum is right.\n"),
    ]
    usage = Usage.from_input_output(6_000, 90)
    return [reply.model_copy(update={"usage": usage}) for reply in replies]


@asynccontextmanager
async def shop(home: Home, project: Path) -> AsyncGenerator[tuple[AgentRuntime, str]]:
    """A session with something of everything, and a question that waits."""
    (project / "cart.py").write_text(CART)
    (project / "check").write_text(CHECK)
    (project / "check").chmod(0o755)

    async def allows(_: Any) -> PermissionDecision:
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    replies = script()
    async with runtime(
        home,
        project,
        replies[:-1],
        config=ASKS,
        permission_callback=allows,  # type: ignore[arg-type]
    ) as made:
        await ask(made, "The check fails: find out why and fix it", "sess_18aa")
        await ask(made, "Are there other places like this?", "sess_18aa")
        await made.tasks.create("sess_18aa", **GRAPH)
    made = runtime(home, project, replies[-1:], config=ASKS)
    async with made, console(made) as address:
        handle = await made.start("Write that into the news", "sess_18ab")
        assert await handle.wait() is RunStatus.WAITING
        yield made, address


async def addresses(made: AgentRuntime) -> dict[str, str]:
    run, *_ = await made.session_runs("sess_18aa")
    (question,) = await made.approvals()
    return {
        "home": "/",
        "session": "/sessions/sess_18aa",
        "run": f"/runs/{run.run_id}",
        "approval": f"/approvals/{question.request_id}",
        "settings": "/settings",
    }


@asynccontextmanager
async def page_of(browser: Browser) -> AsyncGenerator[Page]:
    context = await browser.new_context(
        locale="en-US",
        timezone_id="UTC",
        bypass_csp=True,
        reduced_motion="reduce",
        viewport={"width": 800, "height": 900},
    )
    context.set_default_timeout(30_000)
    try:
        yield await context.new_page()
    finally:
        await context.close()


def machine(home: Home, project: Path) -> dict[str, str]:
    """Return what differs between machines, and what is shown for it."""
    return {
        str(project): "/home/you/shop",
        str(home.path): "/home/you/.agent",
        f"{socket.gethostname()}, ": "machine, ",
        own_place(): "host:machine",
        installed_version() or "unknown": "1.0",
    }


async def go(page: Page, url: str) -> None:
    """Open a page, and wait until its scripts have changed what they change at first."""
    await page.goto(url)
    if await page.locator("#days").count():
        await page.locator("#days:not(.htmx-request)", has_text="UTC").wait_for()


async def shape(page: Page, width: int, look: str) -> None:
    await page.set_viewport_size({"width": width, "height": 900})
    is_print = look == "print"
    await page.emulate_media(
        media="print" if is_print else "screen", color_scheme="dark" if look == "dark" else "light"
    )


async def compare(
    page: Page, name: str, shapes: Mapping[str, Sequence[tuple[int, str]]], to: Path
) -> None:
    for width, look in shapes[name]:
        await shape(page, width, look)
        await check(page, f"{name}-{width}-{look}", to=to)


@pytest.mark.long
@EVERY_SHAPE
@pytest.mark.asyncio(loop_scope="module")
async def test_pages_look_as_approved(
    home: Home, project: Path, browser: Browser, tmp_path: Path, shapes: Any
) -> None:
    async with (
        shop(home, project) as (made, address),
        page_of(browser) as page,
    ):
        for name, path in (await addresses(made)).items():
            await go(page, f"{address}{path}")
            await settle(page, machine(home, project))
            await compare(page, name, shapes, tmp_path)
        with serving(home, project, "--token-env", "CONSOLE_TOKEN") as own:
            await page.goto(f"{own.address}/login")
            await settle(page, machine(home, project))
            await compare(page, "login", shapes, tmp_path)


@EVERY_SHAPE
@pytest.mark.asyncio(loop_scope="module")
async def test_the_workers_look_as_approved(
    home: Home,
    project: Path,
    tmp_path: Path,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    shapes: Any,
    browser: Browser,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    async with ModelServer([]) as model:
        write_config(home, model)
        made = AgentRuntime(project_dir=project, home_dir=home.path)
        with workers(home, database_url) as staff:
            await asyncio.to_thread(staff.start, "--queues", "other")
            async with (
                made,
                console(made) as address,
                page_of(browser) as page,
            ):
                await made.start("wait", "sess_18aa")  # no worker takes it
                await go(page, f"{address}/workers")
                await page.set_viewport_size({"width": 800, "height": 900})
                assert await page.evaluate(TOO_WIDE) == 0, "its tables fit a window"
                await settle(page, machine(home, project))
                await compare(page, "workers", shapes, tmp_path)


CHANGES: Mapping[tuple[str, int, str], Mapping[str, str]] = {
    ("session", 800, "light"): {
        "a call is missing": "[id^=call-]{display:none}",
        "a button is missing": "#stop+form button{visibility:hidden}",
        "the other scheme": ":root{--page:#14181d!important;--text:#e6e9ed!important}",
        "one colour": ":root{--good:#b3261e!important}",
        "too wide": "h1{width:60rem}",
        "another column": "main{padding-left:4rem!important}",
        "a line more": "h1{margin-bottom:2rem!important}",
    },
    ("home", 360, "dark"): {
        "light fields": "input,textarea{background:#fff!important}",
        "a field is missing": "select{display:none!important}",
    },
    ("run", 1440, "dark"): {
        "another column": "main{margin-left:18rem!important}",
        "no diff": "pre{display:none!important}",
    },
    ("approval", 800, "print"): {"what is for screens": "form{display:block!important}"},
}


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param([*CHANGES][:1], marks=pytest.mark.sweep),
        pytest.param([*CHANGES][1:], marks=pytest.mark.sweep),
    ],
    ids=["sample", "others"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_picture_does_not_miss(
    home: Home, project: Path, browser: Browser, shapes: Any
) -> None:
    async with (
        shop(home, project) as (made, address),
        page_of(browser) as page,
    ):
        paths = await addresses(made)
        for name, width, look in shapes:
            await shape(page, width, look)
            await go(page, f"{address}{paths[name]}")
            await settle(page, machine(home, project))
            approved = page_pictures.approved_picture(f"{name}-{width}-{look}")
            # The fonts of the machine make no difference.
            await page.add_style_tag(content="body{font-family:'Liberation Serif',serif}")
            assert unlike(approved, await taken(page)) == []
            for what, css in CHANGES[name, width, look].items():
                added = await page.add_style_tag(content=css)
                assert unlike(approved, await taken(page)), what
                await added.evaluate("each => each.remove()")


def test_the_pictures_are_few_and_small() -> None:
    found = {path.stem: path.stat().st_size for path in PICTURES.iterdir()}
    assert {*found} == {
        f"{name}-{width}-{look}" for name, shapes in ALL.items() for width, look in shapes
    }
    assert sum(found.values()) < MOST_BYTES

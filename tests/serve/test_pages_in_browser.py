"""The console in a real browser: what is live, what is asked, and what models and tools write."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.async_playwright import Axe  # pyright: ignore[reportMissingTypeStubs]
from playwright.async_api import Browser, Route

from agent_core import AgentRuntime
from agent_core.providers.scripted import Calls, Fails, Hangs, ScriptedCall, ScriptedProvider, calls
from agent_core.types import ModelRequest, RunStatus, Usage
from captures import open_session
from consoles import console
from isolation import Home
from mcp_clients import configure
from model_server import ModelServer
from own_consoles import serving
from runtimes import CONFIG, Asked, ask, runtime
from session_stories import a_story
from windows_of_pages import Window, needs_chromium, shared_browser, window

pytestmark = [
    needs_chromium,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]
browser = shared_browser

USED = Usage(input_tokens=1234, output_tokens=266, total_tokens=1500)

AT_REST = "sandbox"
"""Is below the line of a chat that waits for a message."""

ASKS = (
    f'{CONFIG}\n[permissions]\nunattended = "park"\n\n[workspace]\nsnapshots = "turn"\n\n'
    "[memory]\nenabled = false\n"
)


async def test_two_browsers_and_another_process_follow_one_session(
    home: Home, project: Path, browser: Browser
) -> None:
    gate = asyncio.Event()

    async def writes(_: ModelRequest) -> AsyncGenerator[Any]:
        yield "First **half** "
        await gate.wait()
        yield "second half"
        yield ScriptedCall(name="code.write_file", arguments={"path": "a.txt", "content": "one\n"})

    provider = ScriptedProvider([writes, "All **done**.", Hangs(text="I think"), "Later."])
    made = runtime(home, project, provider, config=ASKS)
    other = runtime(home, project, ["From elsewhere."], config=ASKS)
    async with (
        made,
        other,
        console(made) as address,
        window(browser, address) as one,
        window(browser, address) as two,
    ):
        await one.open("/")
        await one.send("write it")
        await one.shows("First **half**")
        session = one.page.url.removeprefix(address).partition("#")[0]
        await two.open(session)
        await two.shows("First **half**")
        gate.set()
        for each in (one, two):
            await each.shows("code.write_file asks for permission")
        text = await one.page.locator("#conversation").inner_text()
        assert text.count("second half") == 1
        await two.page.get_by_role("link", name="code.write_file asks for permission").click()
        await two.shows("+one")
        await two.page.get_by_text("Change the arguments").click()
        changed = '{"path": "b.txt", "content": "two\\n"}'
        await two.page.get_by_label("Arguments, as JSON").fill(changed)
        await two.press("Allow once")
        for each in (one, two):
            await each.page.locator("strong", has_text="done").wait_for()
        assert (project / "b.txt").read_text() == "two\n"
        await one.page.locator("#status", has_text="completed").wait_for()

        await ask(other, "what else?", session.rpartition("/")[2])
        for each in (one, two):
            await each.shows("From elsewhere.")
            found = await each.page.locator("#conversation").inner_text()
            assert found.count("From elsewhere.") == 1

        await two.send("think")
        for each in (one, two):
            await each.shows("I think")
        await two.press("Stop")
        await one.page.locator("#status", has_text="cancelled").wait_for()

        assert await one.page.locator("#moved").inner_text() == ""
        await one.page.reload()
        for _ in range(3):
            await one.submit("Undo")
        await one.shows("b.txt")
        assert not (project / "b.txt").exists()
        await two.shows("The session continues from another message now.")
        await one.submit("Redo")
        assert (project / "b.txt").exists()
        await one.press("Fork here")
        await one.shows("This is the fork.")
        async with one.page.expect_download() as download:
            await one.page.get_by_text("Export as one HTML file").click()
        path = await (await download.value).path()
        assert "All <strong>done</strong>." in path.read_text("utf-8")
        one.check()
        two.check()


@pytest.mark.long
async def test_what_a_run_uses_is_shown_before_its_end_and_only_moves_that_can_be_made(
    home: Home, project: Path, browser: Browser
) -> None:
    reply = calls("code.list_dir", path=".").model_copy(update={"usage": USED})
    made = runtime(home, project, [reply, Hangs(text="I think")])
    async with made, console(made) as address, window(browser, address) as one:
        await one.open("/")
        await one.send("look")
        await one.shows("I think")
        head = one.page.locator("summary [id$=-head]")
        await head.get_by_text("1,500 tokens").wait_for()
        await head.get_by_text("running").wait_for()
        await one.page.locator("#costs").get_by_text("1,234").wait_for(state="attached")
        await one.page.reload()
        await one.page.locator("#costs").get_by_text("1,234").wait_for(state="attached")
        await one.press("Stop")
        await one.page.locator("#status", has_text="cancelled").wait_for()
        moves = one.page.locator("#moves button")
        assert await moves.all_inner_texts() == ["Undo"]
        await one.submit("Undo")
        assert await moves.all_inner_texts() == ["Redo"]
        await one.submit("Redo")
        assert await moves.all_inner_texts() == ["Undo"]
        one.check()


CONNECTIONS = 6
"""How many a browser opens to one server at most."""

HIDDEN = "Object.defineProperty(document, 'hidden', {get: () => window.isHidden ?? true})"
"""A script for pages that are opened behind another one: this browser shows every page."""


@pytest.mark.long
async def test_pages_that_nobody_sees_leave_the_connections_to_others(
    home: Home, project: Path, browser: Browser
) -> None:
    made = runtime(home, project, ["One.", "Two."])
    async with made, console(made) as address, window(browser, address) as shown:
        await ask(made, "first", "s1")
        context = shown.page.context
        behind = [await context.new_page() for _ in range(CONNECTIONS)]
        for page in behind:
            await page.add_init_script(HIDDEN)
            await page.goto(f"{address}/sessions/s1", wait_until="commit")
            await page.get_by_text("One.").first.wait_for(state="attached")
        await shown.open("/sessions/s1")
        await shown.shows("One.")
        await ask(made, "second", "s1")
        await shown.shows("Two.")
        await behind[0].evaluate(
            "window.isHidden = false, document.dispatchEvent(new Event('visibilitychange'))"
        )
        await behind[0].get_by_text("Two.").first.wait_for(state="attached")
        assert await behind[1].get_by_text("Two.").count() == 0
        shown.check()


async def test_more_windows_than_connections_are_all_live_and_can_be_used(
    home: Home, project: Path, browser: Browser
) -> None:
    made = runtime(home, project, ["One.", "Two.", "Three."])
    async with made, console(made) as address, window(browser, address) as first:
        await ask(made, "first", "s1")
        pages = [await first.page.context.new_page() for _ in range(CONNECTIONS)]
        windows = [first, *(Window(each, address) for each in pages)]
        for each in windows:
            await each.open("/sessions/s1")
            await each.shows("One.")
        await ask(made, "second", "s1")
        for each in windows:
            await each.shows("Two.")
        await first.send("third")
        for each in windows:
            await each.shows("Three.")
            await each.page.locator("#status", has_text="completed").wait_for()
            text = await each.page.locator("#conversation").inner_text()
            assert [text.count(one) for one in ("One.", "Two.", "Three.")] == [1, 1, 1]
            assert await each.page.locator("#lost").is_hidden()
            each.check()


async def test_a_page_is_live_although_a_script_arrives_late(
    home: Home, project: Path, browser: Browser
) -> None:
    made = runtime(home, project, ["First.", "Second."], config=ASKS)
    async with (
        made,
        console(made) as address,
        window(browser, address) as one,
    ):
        await ask(made)

        async def delay(route: Route) -> None:
            await asyncio.sleep(0.5)
            await route.continue_()

        await one.page.route("**/hx-sse*", delay)
        await one.open("/sessions/s1")
        await ask(made)
        await one.shows("Second.")
        one.check()


@pytest.mark.long
async def test_a_reason_denies_and_the_page_shows_what_its_session_does(
    home: Home, project: Path, browser: Browser
) -> None:
    gate = asyncio.Event()

    async def waits(_: ModelRequest) -> str:
        await gate.wait()
        return "As you wish."

    writes = calls("code.write_file", path="a.txt", content="one\n")
    made = runtime(home, project, ["line\n\n" * 200, writes, waits], config=ASKS)
    async with made, console(made) as address:
        await ask(made)
        async with window(browser, address) as one, window(browser, address) as two:
            await two.open("/sessions/s1")
            stop = two.page.get_by_role("button", name="Stop")
            assert await stop.count() == 0
            await one.open("/sessions/s1")
            await one.send("write it")
            question = one.page.get_by_role("link", name="code.write_file asks for permission")
            await question.wait_for()
            seen = (
                "document.querySelector('#questions').getBoundingClientRect().bottom < innerHeight"
            )
            # `wait_for_function` would need unsafe-eval
            while not await one.page.evaluate(seen):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await two.page.locator("#status", has_text="waits for an answer").wait_for()
            await stop.wait_for()
            assert "not on the active path" not in await two.page.locator("#tree").inner_text()
            await question.click()
            await one.page.get_by_label("Reason").fill("not now")
            await one.page.keyboard.press("Enter")
            await one.shows("not now")
            (record,) = await made.approvals("s1", is_open=False)
            assert (record.decision, record.reason) == ("deny", "not now")
            await two.page.locator("#status", has_text="running").wait_for()
            assert await stop.count() == 1
            gate.set()
            await two.page.locator("#status", has_text="completed").wait_for()
            assert await stop.count() == 0
            assert not (project / "a.txt").exists()
            one.check()
            two.check()


async def test_the_output_of_a_command_is_followed(
    home: Home, project: Path, browser: Browser
) -> None:
    waits = "echo begins; while [ ! -e go ]; do sleep 0.05; done; echo ends"
    script: list[Any] = [calls("code.run_command", argv=["sh", "-c", waits]), "It has run."]
    made = runtime(home, project, script, config=ASKS)
    async with (
        made,
        console(made) as address,
        window(browser, address) as one,
    ):
        await one.open("/")
        await one.send("run it")
        await one.submit("Allow once")
        await one.page.locator("#conversation pre", has_text=re.compile("^begins")).wait_for()
        (project / "go").touch()
        await one.shows("It has run.")
        one.check()


@pytest.mark.sweep
async def test_two_browsers_and_a_terminal_at_one_session(
    home: Home, project: Path, browser: Browser
) -> None:
    writes = calls("code.write_file", path="a.txt", content="one\n")
    script = [writes, "It is written.", "To the terminal.", "To a browser.", "To both."]
    async with ModelServer(script) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project) as own:
            async with (
                window(browser, own.address) as one,
                one_more(one) as two,
            ):
                await one.page.goto(own.link)
                await one.page.get_by_role("button").click()
                await one.open("/")
                await one.send("write it")
                path = one.page.url.removeprefix(own.address).partition("#")[0]
                await two.open(path)
                for each in (one, two):
                    await each.shows("code.write_file asks for permission")
                url = await one.page.get_by_role("link", name="Follow this run").get_attribute(
                    "href"
                )
                run_id = (url or "").rpartition("/")[2]
                async with terminal(home, project, "attach", run_id) as type_keys:
                    await type_keys("y once", "y")
                    await type_keys("It is written.", None)
                for each in (one, two):
                    await each.shows("It is written.")
                    await each.page.locator("#status", has_text="completed").wait_for()
                assert (project / "a.txt").read_text() == "one\n"
                session_id = path.rpartition("/")[2]
                async with terminal(home, project, "chat", "--session-id", session_id) as type_keys:
                    await type_keys(AT_REST, "from the terminal\r")
                    await type_keys("To the terminal.", None)
                    for each in (one, two):
                        await each.shows("To the terminal.")
                    await two.send("from a browser")
                    for each in (one, two):
                        await each.shows("To a browser.")
                        await each.page.locator("#status", has_text="completed").wait_for()
                    await type_keys(AT_REST, "to all\r")
                    await type_keys("To both.", None)
                asked = json.dumps(model.requests[-1].body)
                assert asked.index("from the terminal") < asked.index("from a browser")
                for each in (one, two):
                    await each.shows("To both.")
                    text = await each.page.locator("#conversation").inner_text()
                    for answer in script[1:]:
                        assert text.count(str(answer)) == 1, answer
                    each.check()


@asynccontextmanager
async def one_more(beside: Window) -> AsyncGenerator[Window]:
    """Another window of the same browser, which is signed in where the first one is."""
    page = await beside.page.context.new_page()
    yield Window(page, beside.address)


@asynccontextmanager
async def terminal(
    home: Home, project: Path, *words: str
) -> AsyncGenerator[Callable[[str, str | None], Awaitable[None]]]:
    """Run a command in a terminal; yield what types keys once a text is shown."""
    command = [sys.executable, "-m", "agent_core.cli", *words]
    made = await asyncio.to_thread(open_session, command, env=home.env(), cwd=project, seconds=120)

    async def type_keys(after: str, keys: str | None) -> None:
        await asyncio.to_thread(made.wait_for, after)
        if keys is not None:
            made.type(keys)

    try:
        yield type_keys
    finally:
        await asyncio.to_thread(made.close)


async def test_messages_that_wait_are_shown_once_their_turn_comes(
    home: Home, project: Path, browser: Browser
) -> None:
    gate = asyncio.Event()

    async def waits(_: ModelRequest) -> str:
        await gate.wait()
        return "The first answer."

    made = runtime(home, project, [waits, "The second answer."], config=ASKS)
    async with (
        made,
        console(made) as address,
        window(browser, address) as one,
    ):
        await one.open("/")
        await one.send("first message")
        await one.send("second message")
        await one.shows("no model has seen it")
        await one.page.locator("#status", has_text="running").wait_for()
        assert await one.page.get_by_role("button", name="Stop").count() == 1
        gate.set()
        await one.shows("The second answer.")
        await one.page.locator("#status", has_text="completed").wait_for()
        said = one.page.locator("#conversation .said.user", has_text="second message")
        assert await said.count() == 1
        assert await one.page.locator("#conversation > .run").count() == 2
        one.check()


async def test_children_and_tasks_are_followed(home: Home, project: Path, browser: Browser) -> None:
    gate = asyncio.Event()
    graph: dict[str, Any] = {
        "task_id": "build",
        "title": "Build it",
        "steps": [
            {"step_id": "plan", "title": "Make the plan"},
            {"step_id": "walls", "title": "Build walls", "depends_on_step_ids": ["plan"]},
        ],
    }

    async def child(_: ModelRequest) -> AsyncGenerator[Any]:
        yield "The child begins. "
        await gate.wait()
        yield "The child ends."

    script: list[Any] = [
        calls("agent.create_sub_agent", task="count the lines"),
        child,
        "Counted.",
    ]
    made = runtime(home, project, script, config=ASKS)
    async with (
        made,
        console(made) as address,
        window(browser, address) as one,
    ):
        await one.open("/")
        await one.send("count")
        await one.page.get_by_text("child 1").click()
        await one.page.get_by_role("link", name="Follow this run").first.click()
        await one.shows("The child begins.")
        gate.set()
        await one.shows("The child ends.")
        await one.page.locator("#status", has_text="completed").wait_for()
        await one.page.get_by_role("link", name="The whole session").click()
        await one.shows("Counted.")
        session_id = one.page.url.rpartition("/")[2]
        await made.tasks.create(session_id, **graph)
        await one.page.reload()
        steps = one.page.locator(".steps")
        assert "Build walls" in await steps.locator("ul").inner_text()
        one.check()


HOSTILE = (
    "<script>document.title='owned'</script><img src=https://evil.test/x onerror=alert(1)>"
    "<b onmouseover=alert(1)>bold</b> [a](javascript:alert(1)) [b](https://evil.test/ok)"
    " ![c](https://evil.test/t.png) </pre></details></main><h1>forged</h1>"
    "<hx-partial hx-target='#main' hx-swap='innerHTML'>forged</hx-partial>"
    "<div hx-get='https://evil.test/' hx-trigger='load'></div> \x1b[31mred \u202eltr\u202c"
    " \x07 \u2066in\u2069"
    " <style>*{display:none}</style><form action='https://evil.test/'><button>x</button></form>"
)


async def test_what_models_and_tools_write_is_only_text(
    home: Home, project: Path, browser: Browser
) -> None:
    name = HOSTILE.replace("/", "_")[:120]
    (project / "note.txt").write_text(HOSTILE)
    script: list[Any] = [
        Calls(
            text=HOSTILE,
            reasoning=HOSTILE,
            calls=[
                ScriptedCall(name="code.read_file", arguments={"path": "note.txt"}),
                ScriptedCall(name="code.read_file", arguments={"path": f"{name}.txt"}),
            ],
        ),
        calls("code.write_file", path="note.txt", content=f"{HOSTILE}\n", overwrite=True),
        HOSTILE,
    ]
    made = runtime(home, project, script, config=ASKS)
    async with (
        made,
        console(made) as address,
        window(browser, address) as one,
    ):
        await one.open("/")
        await one.send(HOSTILE)
        await one.shows("asks for permission")
        await one.open("/")
        await _has_only_text(one)
        await one.page.get_by_role("link", name="asks for permission").first.click()
        await _has_only_text(one)
        await one.press("Allow once")
        await one.page.locator("#status", has_text="completed").wait_for()
        session = one.page.url.removeprefix(address).partition("#")[0]
        (run,) = await made.session_runs(session.rpartition("/")[2])
        await made.rename_session(run.session_id, HOSTILE[:150])
        for path in (session, f"/runs/{run.run_id}", f"/runs/{run.run_id}/changes",
                     "/?query=forged", "/"):  # fmt: skip
            await one.open(path)
            await _has_only_text(one)
        one.check()


async def test_what_is_named_by_others_is_only_text(
    home: Home, project: Path, browser: Browser
) -> None:
    gate = asyncio.Event()
    name = HOSTILE.replace("/", "_")[:120]

    async def waits(_: ModelRequest) -> str:
        await gate.wait()
        return HOSTILE

    script: list[Any] = [
        calls("agent.create_sub_agent", task=HOSTILE, agent_definition_id="odd"),
        HOSTILE,
        calls("code.read_file", path=f"{name}.none"),
        calls("code.write_file", path=f"{name}.txt", content=HOSTILE),
        calls(f"code.{name[:40]}", path="a.txt"),
        HOSTILE,
        Fails(message=HOSTILE),
        waits,
        HOSTILE,
    ]
    text = json.dumps(HOSTILE)  # as a string of TOML
    config = ASKS.replace('name = "script"', f"name = {text}")
    servers = {"odd": {"command": name}}
    home.write("mcp.json", json.dumps({"mcpServers": servers}))
    named = f"name: {text}\ndescription: {text}"
    home.write("agents/odd.md", f"---\nid: odd\n{named}\n---\n{HOSTILE}\n")
    made = runtime(home, project, script, config=config, permission_callback=Asked("allow_once"))
    async with (
        made,
        console(made) as address,
        window(browser, address) as one,
    ):
        runs = [(await ask(made, HOSTILE)).run_id for _ in range(2)]
        await made.tasks.create(
            "s1",
            task_id="build",
            title=HOSTILE,
            steps=[{"step_id": step, "title": HOSTILE} for step in ("one", "two", "three")],
        )
        done: Any = {"status": "completed", "result_summary": HOSTILE}
        await made.tasks.update_step("s1", "build", "one", **done)
        await made.tasks.update_step("s1", "build", "two", status="failed", reason=HOSTILE)
        working = await made.start(HOSTILE, "s1")
        queued = await made.start(HOSTILE, "s1")
        await made.rename_session("s1", HOSTILE[:150])
        children = [each.run_id for each in await made.session_runs("s1") if each.parent_run_id]
        assert children
        query, part = quote(HOSTILE, safe=""), quote(name, safe="")
        paths = ["/", "/settings", "/sessions/s1", f"/runs/{queued.run_id}", f"/sessions/{part}",
                 f"/?query={query}", f"/sessions/s1?to=3&at={query}", f"/runs/{runs[0]}/changes",
                 *(f"/runs/{run_id}" for run_id in (*runs, *children))]  # fmt: skip
        for path in paths:
            await one.open(path)
            assert await one.page.locator("h1").count() == 1, path
            await one.shows("<script>document.title")
            await _has_only_text(one)
        await one.open("/sessions/s1")
        steps = await one.page.locator(".steps").inner_text()
        assert steps.count("<script>") >= 4
        gate.set()
        for handle in (working, queued):
            await handle.wait()
            await one.page.locator(f"#{handle.run_id}-foot form").first.wait_for()
            await _has_only_text(one)
        one.check()


async def _has_only_text(one: Window) -> None:
    page = one.page
    assert await page.title() != "owned"
    found = await page.evaluate(
        """() => [...document.querySelectorAll('main *')].filter(each =>
            ['SCRIPT', 'STYLE', 'IFRAME', 'B', 'OBJECT'].includes(each.tagName)
            || each.tagName === 'IMG'
            || [...each.attributes].some(a => a.name.startsWith('on')
                || (a.name === 'hx-get'))
            || (each.tagName === 'A' && !['http:', 'https:', 'mailto:'].includes(each.protocol))
            || (each.tagName === 'FORM' && !each.action.startsWith(location.origin))
        ).map(each => each.outerHTML)"""
    )
    assert found == []
    assert await page.locator("h1").count() == 1
    text = await page.locator("main").inner_text()
    for character in "\x1b\x07\u202e\u202c\u2066\u2069":
        assert character not in text, ascii(character)


async def shown_pages(made: AgentRuntime) -> list[str]:
    """Every kind of page, with something on it."""
    runs = await made.session_runs("sess_18aa")
    child = next(each for each in runs if each.parent_run_id)
    (question,) = await made.approvals()
    return [
        "/",
        "/?query=lines",
        "/sessions/sess_18aa",
        f"/runs/{child.run_id}",
        f"/runs/{runs[0].run_id}/changes",
        f"/approvals/{question.request_id}",
        "/workers",
        "/settings",
        "/sessions/none",
    ]


WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll('h1, h2, p, li > a, button, input, textarea, select,'
      + ' summary, dt, dd, td, th, label')]
    .filter(each => each.checkVisibility())
    .map(each => [each, each.getBoundingClientRect()])
    .filter(([, box]) => box.width > 1 && box.height > 1 && box.right > 0);
  const found = [];
  for (const [one, a] of boxes) for (const [two, b] of boxes) {
    if (one === two || one.contains(two) || two.contains(one)) continue;
    const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (width > 2 && height > 2) found.push([one, two].map(each => each.outerHTML.slice(0, 90)));
  }
  return found.slice(0, 3);
}"""


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.sweep)])
async def test_every_page_is_accessible_and_fits(
    home: Home, project: Path, browser: Browser, scheme: Any
) -> None:
    await a_story(home, project)
    axe: Any = Axe()
    writes = calls("code.write_file", path="a.txt", content="one\n")
    made = runtime(home, project, [writes, "Done."], config=ASKS)
    async with made, console(made) as address:
        assert await (await made.start("write", "s1")).wait() is RunStatus.WAITING
        language = {"light": "en-US", "dark": "zh-CN"}[scheme]
        async with window(browser, address, color_scheme=scheme, locale=language) as one:
            for path in await shown_pages(made):
                await one.open(path)
                for fold in await one.page.locator("details:not([open]) > summary").all():
                    if await fold.is_visible():
                        await fold.click()
                results: Any = await axe.run(one.page)
                assert results.violations_count == 0, (path, results.generate_report())
                for width in (360, 800, 1440):
                    await one.page.set_viewport_size({"width": width, "height": 900})
                    wide = await one.page.evaluate(WIDER)
                    assert wide <= 0, (path, width)
                    assert await one.page.evaluate(OVERLAPS) == [], (path, width)
                await one.page.emulate_media(media="print")
                assert await one.page.locator("nav").first.is_hidden()
                assert await one.page.locator("h1").is_visible()
                await one.page.emulate_media(media="screen")
            one.check()


@pytest.mark.long
async def test_pages_are_used_with_keys_alone(home: Home, project: Path, browser: Browser) -> None:
    await a_story(home, project)
    made = runtime(home, project, ["Hello."])
    async with (
        made,
        console(made) as address,
        window(browser, address) as one,
    ):
        await one.open("/")
        await one.page.keyboard.press("Tab")
        focused = "document.activeElement.innerText || document.activeElement.id"
        assert await one.page.evaluate(focused) == "Skip to the content"
        await one.page.keyboard.press("Enter")
        assert await one.page.evaluate("document.activeElement.id") == "main"
        seen: list[str] = []
        for _ in range(12):
            await one.page.keyboard.press("Tab")
            seen.append(await one.page.evaluate(focused))
            width = "getComputedStyle(document.activeElement).outlineWidth"
            assert await one.page.evaluate(width) != "0px"
        assert "message" in seen
        await one.page.locator("#message").focus()
        await one.page.keyboard.type("hello there")
        for _ in range(3):
            await one.page.keyboard.press("Tab")
        await one.page.keyboard.press("Enter")
        await one.shows("Hello.")
        one.check()


@pytest.mark.long
async def test_times_are_those_of_the_reader(home: Home, project: Path, browser: Browser) -> None:
    made = runtime(home, project, ["Hello.", "Hello."])
    async with made, console(made) as address:
        await ask(made)
        async with window(browser, address, timezone_id="Asia/Tokyo", locale="zh-CN") as one:
            await one.open("/sessions/s1")
            assert await one.page.locator("html").get_attribute("lang") == "zh"
            await one.page.locator("time[data-is-local]").first.wait_for()
            assert "UTC" not in await one.page.locator("time").first.inner_text()
            await one.open("/")
            await one.shows("Asia/Tokyo")
            one.check()
        async with window(browser, address, java_script_enabled=False) as one:
            await one.open("/sessions/s1")
            assert re.search(r"\d\d:\d\d UTC", await one.page.locator("main").inner_text())
            await one.send("again")
            while not await one.page.get_by_text("Hello.").nth(1).is_visible():
                await one.page.get_by_role("link", name="Reload this page").click()


@pytest.mark.long
async def test_a_page_goes_on_after_the_server_was_killed(
    home: Home, project: Path, browser: Browser
) -> None:
    async with ModelServer(
        [calls("code.write_file", path="a.txt", content="one\n"), "It is written.", "And more."]
    ) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project) as own:
            port, address = own.port, own.address
            async with window(browser, address) as one:
                await one.page.goto(own.link)
                await one.page.get_by_role("button").click()
                await one.open("/")
                await one.send("write it")
                await one.shows("code.write_file asks for permission")
                own.process.kill()
                await asyncio.to_thread(own.process.wait)
                lost = one.page.get_by_text("The connection to the console is lost.")
                await lost.wait_for()
                with serving(home, project, port=port):
                    await lost.wait_for(state="hidden")
                    await one.press("Allow once")
                    await one.shows("It is written.")
                    await one.page.locator("#status", has_text="completed").wait_for()
                    text = await one.page.locator("#conversation").inner_text()
                    assert text.count("It is written.") == 1
                    assert (project / "a.txt").read_text() == "one\n"
                    two = await one.page.context.new_page()
                    await two.goto(one.page.url)
                    await two.get_by_label("Message", exact=True).fill("more")
                    await two.get_by_role("button", name="Send").click()
                    await one.shows("And more.")
                    text = await one.page.locator("#conversation").inner_text()
                    assert text.count("And more.") == 1
                    await one.open("/")
                    await one.shows(f"Project: {project}")
                    await one.submit("Sign out")
                    await one.open("/")
                    await one.shows("Open the link that this server printed")
                assert one.elsewhere == []

"""The pages of the console without scripts: what they show, their forms, and who may send them."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from agent_core import AgentRuntime
from agent_core.providers.scripted import Calls, Fails, Hangs, ScriptedProvider, calls
from agent_core.serve import Principal, app
from agent_core.text.chinese import CHINESE
from agent_core.types import RunStatus
from agent_core.types.event_details import TextDelta
from consoles import EVERYTHING, console, served
from isolation import Home
from runtimes import CONFIG, ask, runtime
from session_stories import a_story

WAITS = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
SNAPSHOTS = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n'


class Page(HTMLParser):
    """A page as a browser reads it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes |= given.keys()
        if tag == "form":
            self.forms[given["action"]] = {}
        elif tag == "input" and self.forms and "name" in given:
            self.forms[[*self.forms][-1]][given["name"]] = given.get("value", "")
        elif tag == "a":
            self.links.append(given["href"])


class Reader:
    """A client that reads pages and sends forms."""

    def __init__(self, address: str, client: aiohttp.ClientSession) -> None:
        self.address = address
        self._client = client

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self._client.get(self.address + path, headers=headers) as response:
            return response.status, await response.text()

    async def page(self, path: str, **headers: str) -> str:
        status, text = await self.get(path, **headers)
        assert status == 200, text
        return text

    async def post(self, path: str, **fields: str) -> tuple[int, str]:
        url = self.address + path
        async with self._client.post(url, data=fields, allow_redirects=False) as response:
            where = response.headers.get("Location", "")
            return response.status, where or await response.text()


@asynccontextmanager
async def reader(made: AgentRuntime, who: Principal = EVERYTHING) -> AsyncGenerator[Reader]:
    async with console(made, who) as address, aiohttp.ClientSession() as client:
        yield Reader(address, client)


@pytest.mark.long
async def test_the_pages_of_a_story(home: Home, project: Path) -> None:
    await a_story(home, project)
    made = runtime(home, project)
    async with made, reader(made) as client:
        home_page = await client.page("/")
        assert "/sessions/sess_18aa" in Page(home_page).links
        page = await client.page("/sessions/sess_18aa")
        for said in ("Why does test_add fail?", "exit 3", "return a + b", "two lines", "not now"):
            assert said in page, said
        assert "Count the &lt;b&gt;lines&lt;/b&gt;, \\x1b[31mplease" in page
        shown = Page(page)
        runs = [each for each in shown.links if each.startswith("/runs/")]
        child = next(each for each in runs if not each.endswith("/changes"))
        assert "two lines" in await client.page(child)
        changes = next(each for each in runs if each.endswith("/changes"))
        assert "No snapshots" in await client.page(changes)
        assert "<time datetime=" in page
        assert "$0.25" in page
        exported = await client.page("/sessions/sess_18aa/export")
        assert "fetches nothing" in exported
        found = Page(await client.page("/?query=unrelated"))
        assert any(each.startswith("/runs/") for each in found.links)


async def test_a_session_begins_goes_on_and_is_undone_by_forms(home: Home, project: Path) -> None:
    script: list[Any] = [calls("code.write_file", path="a.txt", content="one\n"), "Done.", "More."]
    made = runtime(home, project, script, config=SNAPSHOTS)
    async with made, reader(made) as client:
        status, where = await client.post("/runs", message="write", permission_mode="accept-edits")
        assert status == 303
        session = where.partition("#")[0]
        session_id = session.rpartition("/")[2]
        run = (await made.session_runs(session_id))[0]
        await (await made.attach(run.run_id)).wait()
        assert (project / "a.txt").read_text() == "one\n"
        assert "+one" in await client.page(f"/runs/{run.run_id}/changes")
        status, where = await client.post(f"{session}/runs", message="and more")
        assert (status, where.partition("#")[0]) == (303, session)
        runs = await made.session_runs(session_id)
        assert await (await made.attach(runs[-1].run_id)).wait() is RunStatus.COMPLETED
        assert (await client.post(f"{session}/undo"))[0] == 303
        status, where = await client.post(f"{session}/undo")
        assert not (project / "a.txt").exists()
        assert "a.txt" in await client.page(where.partition("#")[0])  # the notice names it
        assert "a.txt</code></li>" not in await client.page(session)
        assert (await client.post(f"{session}/redo"))[0] == 303
        assert (project / "a.txt").exists()
        status, fork = await client.post(f"{session}/fork")
        assert status == 303
        assert session not in fork
        last = (await made.replay_session(session_id)).nodes[-1].node_id
        assert (await client.post(f"{session}/switch", node_id=last))[0] == 303
        session_now = (await made.replay_session(session_id)).session
        assert session_now.active_node_id == last


async def test_files_of_others_are_replaced_only_on_demand(home: Home, project: Path) -> None:
    script: list[Any] = [calls("code.write_file", path="a.txt", content="one\n"), "Done."]
    made = runtime(home, project, script, config=SNAPSHOTS)
    async with made, reader(made) as client:
        _, where = await client.post("/runs", message="write", permission_mode="accept-edits")
        session = where.partition("#")[0]
        run = (await made.session_runs(session.rpartition("/")[2]))[0]
        await (await made.attach(run.run_id)).wait()
        (project / "a.txt").write_text("mine\n")
        status, text = await client.post(f"{session}/undo")
        assert status == 409
        assert "a.txt" in text
        assert Page(text).forms[f"{session}/undo"] == {"force": "1"}
        assert session in Page(text).links
        assert (project / "a.txt").read_text() == "mine\n"
        assert (await client.post(f"{session}/undo", force="1"))[0] == 303
        assert not (project / "a.txt").exists()


async def test_a_question_is_answered_with_other_arguments(home: Home, project: Path) -> None:
    script: list[Any] = [calls("code.write_file", path="a.txt", content="one\n"), "Done."]
    made = runtime(home, project, script, config=WAITS)
    async with made, reader(made) as client:
        handle = await made.start("write", "s1")
        assert await handle.wait() is RunStatus.WAITING
        (question,) = await made.approvals()
        url = f"/approvals/{question.request_id}"
        assert url in Page(await client.page("/")).links
        assert url in Page(await client.page("/sessions/s1")).links
        page = await client.page(url)
        assert "+one" in page
        assert "code.write_file asks for permission" in page
        status, text = await client.post(url, decision="allow_once", arguments="{")
        assert (status, "JSON" in text) == (400, True)
        assert "{</textarea>" in text  # nothing that was written is lost
        assert Page(text).forms.keys() == {url}
        status, text = await client.post(url, decision="allow_once", arguments='{"path": 1}')
        assert status == 400
        assert "&quot;path&quot;: 1}</textarea>" in text
        assert (await made.approval(question.request_id)).state == "open"
        changed = '{"path": "b.txt", "content": "two\\n"}'
        status, where = await client.post(url, decision="allow_once", arguments=changed)
        assert "code.write_file asked for permission" in await client.page(url)
        assert (status, where.partition("#")[0]) == (303, "/sessions/s1")
        assert await (await made.attach(handle.run_id)).wait() is RunStatus.COMPLETED
        assert (project / "b.txt").read_text() == "two\n"
        assert not (project / "a.txt").exists()
        assert (await client.post(url, decision="deny"))[0] == 409
        assert "the console" in await client.page(url)


@pytest.mark.parametrize(
    ("may", "forms"),
    [({"read"}, 0), ({"read", "run"}, 2), ({"read", "answer"}, 2), ({"read", "run", "answer"}, 4)],
)
async def test_a_page_offers_what_its_reader_may(
    home: Home, project: Path, may: set[Any], forms: int
) -> None:
    script: list[Any] = [calls("code.write_file", path="a.txt", content="one\n"), "Done."]
    made = runtime(home, project, script, config=WAITS)
    who = Principal("reader", may=may)
    async with made, reader(made, who) as client:
        await (await made.start("write", "s1")).wait()
        (question,) = await made.approvals()
        page = await client.page("/sessions/s1")
        offered = re.findall(r'<form method="post" action="([^"]+)"', page)
        kinds = {each.rpartition("/")[2] for each in offered}
        assert ("undo" in kinds) == ("run" in may)
        assert ("runs" in kinds) == ("run" in may)
        assert (f"/approvals/{question.request_id}" in offered) == ("answer" in may)
        assert (len(offered) > 0) == (forms > 0)
        for path, right in (
            ("/runs", "run"),
            ("/sessions/s1/runs", "run"),
            ("/sessions/s1/undo", "run"),
            ("/sessions/s1/redo", "run"),
            ("/sessions/s1/switch", "run"),
            ("/sessions/s1/fork", "run"),
            (f"/runs/{question.run_id}/cancel", "run"),
            (f"/approvals/{question.request_id}", "answer"),
        ):
            if right not in may:
                assert (await client.post(path))[0] == 403, path
        for path in ("/workers", "/settings"):
            assert (await client.get(path))[0] == 403


async def test_nothing_changes_in_a_console_that_only_reads(home: Home, project: Path) -> None:
    made = runtime(home, project, ["Hello."])
    async with made:
        await ask(made)
        application = app(made, auth=lambda _: EVERYTHING, read_only=True)
        async with served(application) as address, aiohttp.ClientSession() as session:
            client = Reader(address, session)
            for path in ("/", "/sessions/s1"):
                assert 'method="post"' not in await client.page(path)
            assert (await client.post("/runs", message="hello"))[0] == 403
            assert (await client.post("/sessions/s1/undo"))[0] == 403


async def test_addresses_keep_the_prefix_of_the_application(home: Home, project: Path) -> None:
    await a_story(home, project)
    made = runtime(home, project, ["Hello."])
    inside = app(made, auth=lambda _: EVERYTHING)
    async with (
        made,
        served(Starlette(routes=[Mount("/one/two", inside)])) as address,
        aiohttp.ClientSession() as session,
    ):
        client = Reader(address, session)
        for path in ("/", "/sessions/sess_18aa", "/settings", "/workers"):
            page = await client.page(f"/one/two{path}")
            addresses = re.findall(r'(?:href|src|action|hx-sse:connect)="(/[^"]*)"', page)
            assert addresses
            assert all(each.startswith("/one/two/") for each in addresses), addresses
            for each in addresses:
                if "/assets/" in each:
                    assert (await client.get(each))[0] == 200
        status, where = await client.post("/one/two/runs", message="hello")
        assert (status, where.startswith("/one/two/sessions/")) == (303, True)


@pytest.mark.parametrize(
    "path", ["/sessions/none", "/runs/run_none", "/approvals/req_none", "/sessions/none/export"]
)
async def test_what_is_not_there_is_not_found(home: Home, project: Path, path: str) -> None:
    made = runtime(home, project)
    async with made, reader(made) as client:
        status, text = await client.get(path)
        assert status == 404
        assert "<main" in text


async def test_errors_of_the_engine_are_told_in_the_readers_language(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, [Fails(message="no key", code="provider_auth_failed")])
    chinese = {"Accept": "text/html", "Accept-Language": "zh"}
    async with made, reader(made) as client:
        run = await (await made.start("Try.", "s1")).wait()
        assert run is RunStatus.FAILED
        page = await client.page("/sessions/s1", **chinese)
        words = CHINESE["error provider_auth_failed"]
        assert re.search(rf"{words}: [^<]*no key", page)
        assert words not in await client.page("/sessions/s1", Accept="text/html")
        status, refused = await client.get("/runs/run_none", **chinese)
        assert status == 404
        assert CHINESE["error run_not_found"] in refused


async def test_an_unknown_address_answers_a_browser_with_a_page(home: Home, project: Path) -> None:
    browser = {"Accept": "text/html,*/*;q=0.8", "Accept-Language": "en"}
    async with (
        runtime(home, project, []) as made,
        console(made) as address,
        aiohttp.ClientSession() as client,
    ):
        for path, kind, headers in (
            ("/nowhere", "text/html", browser),
            ("/sessions/a/b/c", "text/html", browser),
            ("/assets/nothing.js", "text/html", browser),
            ("/assets/nothing.js", "application/problem+json", {"Accept": "*/*"}),
            ("/nowhere", "application/problem+json", {"Accept": "*/*"}),
            ("/api/nowhere", "application/problem+json", browser),
            ("/v1/nowhere", "application/json", browser),
        ):
            async with client.get(f"{address}{path}", headers=headers) as response:
                assert (response.status, response.content_type) == (404, kind), path
                if kind == "text/html":
                    assert "Not found" in await response.text()


async def test_a_long_session_is_shown_in_parts(home: Home, project: Path) -> None:
    made = runtime(home, project, ["Fine."] * 60)
    async with made, reader(made) as client:
        for number in range(60):
            await ask(made, f"message number {number:03}")
        page = await client.page("/sessions/s1")
        said = re.compile(r"<pre>(message number \d+)</pre>")
        seen = set(said.findall(page))
        assert "message number 059" in seen
        assert "message number 000" not in seen
        while links := re.findall(r'href="([^"]+)" rel="prev"', page):
            page = await client.page(links[0].replace("&amp;", "&"))
            found = set(said.findall(page))
            assert found
            assert "not on the active path" not in page
            seen |= found
        assert len(seen) == 60


async def test_a_long_run_is_shown_in_parts(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("one\n")
    script: list[Any] = [
        Calls(text=f"Look number {number}.", calls=calls("code.read_file", path="a.txt").calls)
        for number in range(1, 91)
    ]
    made = runtime(home, project, [*script, "At last."])
    async with made, reader(made) as client:
        run = await ask(made, "Look at it often")
        for address in (f"/runs/{run.run_id}", "/sessions/s1"):
            page, parts = await client.page(address), 1
            assert "At last." in page
            assert "Look number 1." not in page
            assert "no model has seen it" not in page
            found = set[str](re.findall(r"Look number \d+", page))
            while links := re.findall(r'href="([^"]+)" rel="prev"', page):
                page = await client.page(unescape(links[0]))
                assert "sse:connect" not in page
                found |= set(re.findall(r"Look number \d+", page))
                parts += 1
            assert parts > 1
            assert len(found) == 90
            assert "Look at it often" in page


@pytest.mark.long
async def test_a_run_longer_than_a_page_is_undone_and_done_again(home: Home, project: Path) -> None:
    look = calls("code.list_dir", path=".")
    made = runtime(home, project, ["Hello.", *[look] * 90, "At last.", "Again."])
    undo, redo = "/sessions/s1/undo", "/sessions/s1/redo"
    async with made, reader(made) as client:
        short = await ask(made, "a short one")
        run = await ask(made, "a long one")

        async def forms() -> tuple[int, bool]:
            page = await client.page("/sessions/s1")
            return page.count(f'action="{undo}"'), redo in Page(page).forms

        page = await client.page("/sessions/s1")
        assert "a short one</pre>" not in page
        assert "Undo this message" in page.partition(f'id="{run.run_id}-foot"')[2]
        assert await forms() == (2, False)
        assert "Undo this message" in await client.page(f"/runs/{run.run_id}")
        assert "Undo this message" not in await client.page(f"/runs/{short.run_id}")
        while links := re.findall(r'href="([^"]+)" rel="prev"', page):
            page = await client.page(unescape(links[0]))
            assert "Undo this message" not in page  # it would undo another one
        assert "a short one</pre>" in page
        for left in (1, 0):
            assert (await client.post(undo))[0] == 303
            assert await forms() == (left, True)
        for undoes in (1, 2):
            assert (await client.post(redo))[0] == 303
            assert await forms() == (undoes, undoes == 1)
        last = (await made.replay_session("s1")).session.active_node_id or ""
        assert (await client.post(undo))[0] == 303
        assert await forms() == (1, True)
        assert (await client.post("/sessions/s1/switch", node_id=last))[0] == 303
        assert await forms() == (2, False)  # nothing was undone there
        await ask(made, "another one")
        assert await forms() == (2, False)


@pytest.mark.long
async def test_what_a_run_longer_than_a_page_has_used_is_said_to_be_the_least(
    home: Home, project: Path
) -> None:
    look = calls("code.list_dir", path=".")
    made = runtime(home, project, [*[look] * 90, Hangs(text="I think")])
    async with made, reader(made) as client:
        handle = await made.start("look", "s1")
        async with aclosing(handle.events()) as events:
            async for event in events:
                if isinstance(event.details, TextDelta):
                    break
        for address in ("/sessions/s1", f"/runs/{handle.run_id}"):
            page = await client.page(address)
            number = re.search(r"at least (\d+) turns", page)
            assert number is not None
            assert 0 < int(number[1]) < 90
            assert f"at least {number[1]}</td>" in page
            assert "至少" in await client.page(address, **{"Accept-Language": "zh"})
        await handle.cancel()
        await handle.wait()
        for address in ("/sessions/s1", f"/runs/{handle.run_id}"):
            assert "at least" not in await client.page(address)


async def test_the_pages_of_a_tenant_have_only_its_sessions(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(WAITS)
    made = AgentRuntime(project, home_dir=home.path, database_url=database_url)
    model = ScriptedProvider([calls("code.write_file", path="secret.txt", content="one\n")])
    made.register_provider("custom", lambda _: model)
    may = EVERYTHING.may
    async with made:
        handle = await made.start("a secret of acme", "s1", tenant="acme", here=True)
        assert await handle.wait() is RunStatus.WAITING
        (question,) = await made.approvals()
        async with (
            reader(made, Principal("ann", "acme", may)) as own,
            reader(made, Principal("bob", "other", may)) as other,
            reader(made, Principal("all", None, may)) as everybody,
        ):
            pages = ("/sessions/s1", f"/runs/{handle.run_id}", f"/approvals/{question.request_id}")
            for who in (own, everybody):
                for path in pages:
                    assert "secret" in await who.page(path), path
                for path in ("/", "/?query=secret"):
                    assert "/sessions/s1" in await who.page(path), path
            paths = (*pages, f"/runs/{handle.run_id}/changes", "/sessions/s1/export",
                     "/sessions/s1/stream", f"/runs/{handle.run_id}/stream")  # fmt: skip
            for path in paths:
                status, text = await other.get(path)
                assert (status, "secret" in text) == (404, False), path
            for path in ("/", "/?query=secret", "/costs", "/workers"):
                text = await other.page(path)
                assert "/sessions/s1" not in text, path
                assert "secret.txt" not in text, path
                assert "a secret of acme" not in text, path
            for path, fields in (
                ("/sessions/s1/runs", {"message": "and more"}),
                ("/sessions/s1/undo", {}),
                ("/sessions/s1/redo", {}),
                ("/sessions/s1/switch", {"node_id": "n"}),
                ("/sessions/s1/fork", {}),
                (f"/runs/{handle.run_id}/cancel", {}),
                (f"/approvals/{question.request_id}", {"decision": "allow_once"}),
            ):
                assert (await other.post(path, **fields))[0] == 404, path
            assert (await made.approval(question.request_id)).state == "open"
            assert not (project / "secret.txt").exists()


async def test_assets_are_kept_by_browsers(home: Home, project: Path) -> None:
    made = runtime(home, project)
    async with made, reader(made) as client, aiohttp.ClientSession() as session:
        page = await client.page("/")
        (style,) = re.findall(r'rel="stylesheet" href="([^"]+)"', page)
        async with session.get(client.address + style) as response:
            assert response.headers["Content-Type"].startswith("text/css")
            assert "immutable" in response.headers["Cache-Control"]
        assert (await client.get(style.replace(".css", "x.css")))[0] == 404


async def test_settings_name_their_origin_and_hide_secrets(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = "sk-very-secret-value-1234567890"
    monkeypatch.setenv("A_KEY", planted)
    options = f'[model.provider_options]\nnote = "{planted}"\n'
    made = runtime(home, project, config=f'{CONFIG}api_key_env = "A_KEY"\n{options}')
    async with made, reader(made) as client:
        page = await client.page("/settings")
        assert "config.toml:" in page
        assert "very-secret" not in page

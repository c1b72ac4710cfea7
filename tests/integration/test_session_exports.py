"""Sessions as files: a page, a document, JSON lines and a fixture."""

import asyncio
import json
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from markdown_it import MarkdownIt
from msgspec.structs import fields

from agent_core import AgentRuntime
from agent_core.cli.export.markdown import session_markdown
from agent_core.history.page import session_page
from agent_core.history.reading import History, read_history
from agent_core.providers.scripted import Calls, Fails, Says, ScriptedCall, calls
from agent_core.testing import replay
from agent_core.types.event_details import read_details, read_field
from browser import CHROMIUM, tab
from isolation import Home
from runtimes import ask, runtime
from session_stories import a_story, soong

HOSTILE = """`````
</pre></script><script>alert(document.title = 'owned')</script><img src=x onerror=alert(1)>
```
[a]: javascript:alert(1) "</title>"
![x](https://example.org/t.png) <b onmouseover=alert(1)>bold</b> \x1b]0;title\x07 \u202e <!--
"""

pytestmark = pytest.mark.timeout(120)


async def a_history(home: Home, project: Path, script: list[Any], *messages: str) -> History:
    async with runtime(home, project, script) as made:
        for message in messages:
            await ask(made, message)
        return await read_history(made, "s1")


class Tags(HTMLParser):
    """What a browser would make of the markup."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in {"meta", "img", "br", "hr"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def hostile_script() -> list[Any]:
    return [
        Calls(
            text=HOSTILE,
            calls=[ScriptedCall(name="code.read_file", arguments={"path": f"{HOSTILE}.txt"})],
        ),
        HOSTILE,
        Fails(message=HOSTILE),
    ]


async def test_whatever_was_said_is_text_on_the_page(
    home: Home, project: Path, hostile_script: list[Any]
) -> None:
    history = await a_history(home, project, hostile_script, HOSTILE, HOSTILE)
    page = session_page(history, str)
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert not tags.seen & {"script", "img", "iframe", "b", "link", "form"}
    assert not {name for name in tags.attributes if name.startswith("on")}
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "default-src 'none'" in page


async def test_the_document_reads_right_whatever_was_said(
    home: Home, project: Path, hostile_script: list[Any]
) -> None:
    history = await a_history(home, project, hostile_script, HOSTILE, HOSTILE, "unclosed ```")
    text = session_markdown(history, str)
    found: dict[str, Any] = {}
    tokens = MarkdownIt("commonmark").parse(text, found)
    inner = [child for token in tokens for child in token.children or ()]
    assert not {token.type for token in (*tokens, *inner)} & {"html_block", "html_inline", "image"}
    assert not found.get("references")
    headings = [token for token in tokens if token.type == "heading_open" and token.level == 0]
    assert [token.tag for token in headings] == ["h1", "h2", "h2", "h2"]


async def test_an_answer_that_ends_in_the_middle_of_a_fence_swallows_nothing(
    home: Home, project: Path
) -> None:
    said = "Look:\n\n```python\nprint(1)\n\n- a\n- b"
    history = await a_history(home, project, [said, "second"], "one", "two")
    tokens = MarkdownIt("commonmark").parse(session_markdown(history, str))
    assert [t.tag for t in tokens if t.type == "heading_open" and not t.level] == ["h1", "h2", "h2"]
    assert any(t.type == "fence" and t.info == "python" and t.level for t in tokens)


def test_exports_go_to_files_of_the_user_and_replace_none(
    home: Home, project: Path, tmp_path: Path
) -> None:
    asyncio.run(a_story(home, project))
    target = tmp_path / "story.html"
    done = soong(home, project, "export", "18aa", "--html", str(target))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["story.html"]
    page = target.read_text("utf-8")
    for said in (
        "Why does test_add fail?",
        "exit 3",
        "not now",
        "two lines",
        "the service is down",
    ):
        assert said in page
    refused = soong(home, project, "export", "18ab", "--markdown", str(target))
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert target.read_text("utf-8") == page
    forced = soong(home, project, "export", "18ab", "--markdown", str(target), "--force")
    assert forced.returncode == 0
    assert "unrelated" in target.read_text("utf-8")
    swapped = soong(home, project, "export", "--markdown", "18ab")
    assert (swapped.returncode, swapped.stdout) == (0, target.read_text())
    nameless = soong(home, project, "export", "--markdown")
    assert (nameless.returncode, nameless.stdout) == (2, "")
    assert "the id of a session" in nameless.stderr
    by_ending = soong(home, project, "export", "18ab", str(tmp_path / "story.md"))
    assert by_ending.stderr.startswith("wrote ")
    assert (tmp_path / "story.md").read_text("utf-8") == swapped.stdout
    for words in (["18ab"], ["18ab", "story.txt"]):
        formless = soong(home, project, "export", *words)
        assert formless.returncode == 2
        assert "add --html, --markdown" in formless.stderr
    two = soong(home, project, "export", "18ab", "b.html", "--html", "a.html")
    assert "two files are named: a.html and b.html" in two.stderr
    nowhere = soong(home, project, "export", "18ab", "--jsonl", str(tmp_path / "no" / "x.jsonl"))
    assert nowhere.returncode == 2
    assert "no such folder" in nowhere.stderr


def test_every_json_line_fits_the_published_schema(home: Home, project: Path) -> None:
    asyncio.run(a_story(home, project))
    for words in (["--jsonl"], ["--jsonl", "-"]):
        done = soong(home, project, "export", "18aa", *words)
        assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    from agent_core.cli.export.lines import SessionExportLine  # noqa: PLC0415 - as `schema` does

    validator = jsonschema.Draft202012Validator(
        SessionExportLine.model_json_schema(mode="serialization")
    )
    for line in lines:
        validator.validate(line)  # pyright: ignore[reportUnknownMemberType]
    assert lines[0]["type"] == "session"
    assert {line["type"] for line in lines} >= {"agent", "run", "node", "event"}
    runs = [line["run"] for line in lines if line["type"] == "run"]
    assert any(run["parent_run_id"] for run in runs)
    events = [line["event"] for line in lines if line["type"] == "event"]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    for event in events:  # what is written is what readers expect, field by field
        kind, payload = event["event_type"], event["payload"]
        record = type(read_details(kind, payload))
        for known in fields(record):
            if known.name in payload:
                read_field(payload[known.name], known.type)


@pytest.mark.sweep
def test_a_fixture_is_one_that_a_test_replays(home: Home, project: Path, tmp_path: Path) -> None:
    async def one() -> None:
        async with runtime(home, project, ["Six."]) as made:
            await ask(made, "What is two times three?")

    asyncio.run(one())
    target = tmp_path / "recordings" / "two.yaml"
    target.parent.mkdir()
    done = soong(home, project, "export", "s1", "--fixture", str(target))
    assert done.returncode == 0, done.stderr

    async def again() -> str | None:
        provider = replay(target, project_dir=project)
        async with AgentRuntime(project, model=provider, persist=False) as made:
            return (await made.run("What is two times three?")).text

    assert asyncio.run(again()) == "Six."


async def test_secrets_are_in_no_export(home: Home, project: Path) -> None:
    key = "sk-abcdefgh12345678abcdefgh"
    script = [calls("code.read_file", path="key.txt"), Says(text=f"It is {key}.")]
    (project / "key.txt").write_text(key)
    history = await a_history(home, project, script, f"read key.txt, {key}")
    for text in (session_page(history, str), session_markdown(history, str)):
        assert key not in text
        assert "[redacted" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
async def test_the_page_works_in_a_browser_at_every_width(
    home: Home, project: Path, tmp_path: Path, hostile_script: list[Any]
) -> None:
    history = await a_history(home, project, hostile_script, HOSTILE, "x" * 3000)
    place = tmp_path / "page.html"
    place.write_text(session_page(history, str), encoding="utf-8")
    async with tab(tmp_path / "profile") as page:
        await page.open(place.as_uri())
        assert await page.run("document.title") != "owned"
        assert await page.run("document.querySelectorAll('details.run').length") == 2
        for width in (320, 400, 1200):
            await page.resize(width)
            assert await page.run("document.documentElement.scrollWidth") <= width

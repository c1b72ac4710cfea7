"""Lists of the API: pages that neither double nor hide what is added meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime
from agent_core.providers.scripted import calls
from agent_core.testing import function_model
from agent_core.types import CostUnit
from apis import Api, api
from isolation import Home
from runtimes import CONFIG, ask, runtime

UNITS: list[CostUnit] = ["all", "day", "model", "project"]
PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """The database: a file, or one of a server."""
    return request.getfixturevalue("database_url") if request.param == "postgres" else None


def _done(_: object) -> str:
    return "done"


def _writes(_: object) -> Any:
    return calls("code.write_file", path="a.txt", content="b")


def _writes_if_asked(request: object) -> Any:
    return _writes(request) if "scribble" in str(request) else "done"


def _opened(home: Home, project: Path, url: str | None, **more: Any) -> AgentRuntime:
    home.write_config(more.pop("config", CONFIG))
    model = more.pop("model", None) or function_model(_done)
    made = AgentRuntime(project, home_dir=home.path, database_url=url, **more)
    made.register_provider("custom", lambda _: model)
    return made


async def _ran(made: AgentRuntime, *session_ids: str, text: str = "hello") -> None:
    for session_id in session_ids:
        await made.run(text, session_id, here=True)


@pytest.mark.long
async def test_sessions_added_meanwhile_change_no_page(
    home: Home, project: Path, url: str | None
) -> None:
    made = _opened(home, project, url)
    async with made, api(made) as client:
        await _ran(made, "s1", "s2", "s3", "s4", "s5")
        first = (await client.get("/api/sessions", limit=2)).body
        await _ran(made, "s6", "s7")
        second = (await client.get("/api/sessions", limit=2, cursor=first["next_cursor"])).body
        third = (await client.get("/api/sessions", limit=2, cursor=second["next_cursor"])).body
        every = await client.every("/api/sessions", 3)
    pages = [[each["session_id"] for each in page["items"]] for page in (first, second, third)]
    assert pages == [["s5", "s4"], ["s3", "s2"], ["s1"]]
    assert third["next_cursor"] is None
    assert [each["session_id"] for each in every] == ["s7", "s6", "s5", "s4", "s3", "s2", "s1"]


async def test_sessions_are_narrowed(home: Home, project: Path, url: str | None) -> None:
    made = _opened(home, project, url, config=PARK, model=function_model(_writes_if_asked))

    async def found(client: Api, **query: str) -> list[str]:
        return [each["session_id"] for each in await client.every("/api/sessions", 2, **query)]

    async with made, api(made) as client:
        await _ran(made, "s1", "s2", text="Hello World")
        await _ran(made, "s3", text="scribble")
        assert await found(client, query="WORLD hello") == ["s2", "s1"]
        assert await found(client, query="s3") == ["s3"]
        assert await found(client, query="nothing") == []
        assert await found(client, status="waiting") == ["s3"]
        assert await found(client, status="completed") == ["s2", "s1"]
        assert await found(client, status="running") == []
        assert await found(client, project=str(project)) == ["s3", "s2", "s1"]
        assert await found(client, project=str(project.parent)) == []
        (waiting,) = (await client.get("/api/sessions", status="waiting")).body["items"]
    assert (waiting["is_waiting"], waiting["status"]) == (True, "waiting")


@pytest.mark.long
async def test_matches_come_page_by_page(home: Home, project: Path, url: str | None) -> None:
    made = _opened(home, project, url)
    async with made, api(made) as client:
        for number in range(5):
            await _ran(made, f"s{number}", text=f"needle {number}")
        first = (await client.get("/api/search", query="needle", limit=2)).body
        await _ran(made, "s9", text="needle 9")
        rest = await client.get("/api/search", query="needle", cursor=first["next_cursor"])
        every = await client.every("/api/search", 2, query="needle")
    assert [each["session_id"] for each in first["items"]] == ["s4", "s3"]
    assert [each["session_id"] for each in rest.body["items"]] == ["s2", "s1", "s0"]
    assert [each["session_id"] for each in every] == ["s9", "s4", "s3", "s2", "s1", "s0"]
    assert {"session_id", "node_id", "snippet"} <= set(every[0])
    assert every[0]["snippet"] == "needle 9"


async def test_a_history_is_read_from_its_newest_part(
    home: Home, project: Path, url: str | None
) -> None:
    made = _opened(home, project, url)
    pages: list[dict[str, Any]] = []
    async with made, api(made) as client:
        for number in range(5):
            await _ran(made, "s1", text=f"message {number}")
        cursor: dict[str, str] = {}
        while not pages or cursor:
            answer = await client.get("/api/sessions/s1", limit=3, **cursor)
            pages.append(answer.body)
            following = answer.body["next_cursor"]
            cursor = {"cursor": following} if following else {}
            if len(pages) == 1:
                await _ran(made, "s1", text="later")
        whole = await made.replay_session("s1")
    nodes = [node["node_id"] for page in reversed(pages) for node in page["nodes"]]
    runs = [run["run_id"] for page in reversed(pages) for run in page["runs"]]
    assert nodes == [node.node_id for node in whole.nodes][:-2]
    assert runs == [run.run_id for run in sorted(whole.runs, key=lambda r: r.created_at)][:-1]
    assert pages[0]["session"]["active_node_id"] == pages[0]["nodes"][-1]["node_id"]
    assert [len(page["nodes"]) for page in pages] == [3, 3, 3, 1]


async def test_questions_come_page_by_page(home: Home, project: Path, url: str | None) -> None:
    made = _opened(home, project, url, config=PARK, model=function_model(_writes))
    async with made, api(made) as client:
        await _ran(made, "s1", "s2", "s3", text="scribble")
        first = (await client.get("/api/approvals", limit=1)).body
        await _ran(made, "s4", text="write")
        rest = (await client.get("/api/approvals", cursor=first["next_cursor"])).body
        every = await client.every("/api/approvals", 1, state="all")
        of_one = await client.every("/api/approvals", 1, session_id="s2")
    assert [each["session_id"] for each in [*first["items"], *rest["items"]]] == ["s3", "s2", "s1"]
    assert [each["session_id"] for each in every] == ["s4", "s3", "s2", "s1"]
    assert [each["session_id"] for each in of_one] == ["s2"]


async def test_costs_are_added_up_by_each_unit(home: Home, project: Path, url: str | None) -> None:
    made = _opened(home, project, url)
    async with made, api(made) as client:
        await _ran(made, "s1", "s2", "s3")
        first = (await client.get("/api/cost", by="session", limit=1)).body
        await _ran(made, "s4")
        rest = (await client.get("/api/cost", by="session", cursor=first["next_cursor"])).body
        expected = {by: await made.costs(by) for by in UNITS}
        found = {by: await client.every("/api/cost", 1, by=by) for by in expected}
        wrong = await client.get("/api/cost", by="project", cursor=first["next_cursor"])
    assert [each["key"] for each in [*first["items"], *rest["items"]]] == ["s3", "s2", "s1"]
    for by, items in found.items():
        assert [each["key"] for each in items] == [each.key for each in expected[by]]
        assert [each["runs"] for each in items] == [each.runs for each in expected[by]]
    assert wrong.status == 400


async def test_the_parts_of_a_list_are_read_for_one_folder_only(
    home: Home, project: Path, tmp_path: Path
) -> None:
    made = runtime(home, project, ["one", "two"])
    async with made:
        await ask(made)
    other = runtime(home, tmp_path, ["three"])
    async with other, api(other) as client:
        await ask(other, session_id="s2")
        here = await client.every("/api/cost", 5, by="project", project=str(tmp_path))
        found = await client.every("/api/search", 5, query="hello", project=str(project))
    assert [each["key"] for each in here] == [str(tmp_path)]
    assert [each["session_id"] for each in found] == ["s1"]

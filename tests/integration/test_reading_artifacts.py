"""Artifacts of a session are read in pages by all its agents, and by no other session."""

from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, ErrorCode, RunStatus, ToolContext, tool
from agent_core.providers.scripted import Calls, Fails, calls
from agent_core.types import ArtifactRefBlock, ModelRequest, ToolResultBlock
from casts import Cast, data_of, results
from isolation import Home
from runtimes import CONFIG, Asked, runtime

LONG = "ä" * 3_000 + "b" * 9_000
TEXT = "\n".join(f"line {number}: {'x' * 60}" for number in range(900)) + f"\n\n{LONG}\r\nlast"


def artifact_of(request: ModelRequest) -> str:
    """The first artifact that a request names."""
    blocks = [block for message in request.messages for block in message.content]
    found = [block for block in blocks if isinstance(block, ToolResultBlock)]
    (reference, *_) = [
        each for block in found for each in block.content if isinstance(each, ArtifactRefBlock)
    ]
    return reference.artifact_id


def read(artifact_id: str, **more: Any) -> Calls:
    return calls("code.read_file", path=f"artifact:{artifact_id}", **more)


def read_all(request: ModelRequest) -> Any:
    """Read the next page of the first artifact, until there is none."""
    blocks = [block for message in request.messages for block in message.content]
    last = [block for block in blocks if isinstance(block, ToolResultBlock)][-1]
    if last.metadata["tool_name"] != "code.read_file":
        return read(artifact_of(request), max_lines=400)
    if (start := data_of(last)["next_start_line"]) is not None:
        return read(artifact_of(request), start_line=start, max_lines=400)
    return "done"


async def read_pages(made: AgentRuntime) -> list[Any]:
    return [data_of(each) for each in results(await made.replay_session("s1"), "code.read_file")]


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_parent_reads_the_whole_report_of_its_child(
    home: Home, project: Path, is_cut: bool
) -> None:
    start = calls("agent.create_sub_agent", task="look")
    played = Cast({"go": [start, *[read_all] * 9], "look": [Fails(text=TEXT) if is_cut else TEXT]})
    config = CONFIG.replace("32000", "200000")
    asked = Asked("deny")
    async with runtime(home, project, played, config=config, permission_callback=asked) as made:
        await (await made.start("go", session_id="s1")).wait()
        (report,) = results(await made.replay_session("s1"), "agent.create_sub_agent")
        pages = await read_pages(made)
    assert data_of(report.model_copy(update={"content": report.content[:1]}))["status"]
    whole = "".join(page["content"] for page in pages)
    assert whole.endswith(f"\n\n{TEXT} [cut off here]") if is_cut else whole == TEXT
    assert len(pages) > 2
    assert pages[-1]["continued_lines"]
    assert pages[-1]["total_lines"] == pages[0]["total_lines"]
    assert pages[-1]["truncated_lines"] == []
    assert not asked.requests


@pytest.mark.parametrize("name", ["create_sub_agent", "fork_agent", "dispatch_worker"])
async def test_children_and_workers_read_the_artifacts_of_their_session(
    home: Home, project: Path, name: str
) -> None:
    @tool(permission="readonly")
    async def keep(context: ToolContext) -> list[ArtifactRefBlock]:
        """Keep a text."""
        artifact_id = await context.artifact(b"kept\nfor you", filename="a.txt")
        return [ArtifactRefBlock(artifact_id=artifact_id)]

    pool = """[[agents.worker_pools]]
pool_id = "p"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""
    create = calls("agent.task_create", task_id="t1", wal_name="w", steps=[{"step_id": "s1"}])

    def send(request: ModelRequest) -> Calls:
        task = f"look at {artifact_of(request)}"
        if name == "dispatch_worker":
            return calls("agent.dispatch_worker", task_id="t1", instruction=task)
        return calls(f"agent.{name}", task=task)

    def look(request: ModelRequest) -> Calls:
        return read(artifact_of(played.requests_of("go")[-1]))

    is_worker = name == "dispatch_worker"
    go = [*([create] if is_worker else []), calls("keep"), send, "done"]
    played = Cast({"go": go, "look at": [look, "seen"]})
    made = runtime(home, project, played, config=CONFIG + pool)
    made.register_tool(keep)
    async with made:
        mode: Any = "orchestrator" if is_worker else "normal"
        handle = await made.start("go", session_id="s1", mode=mode)
        await handle.wait()
        assert handle.status is RunStatus.COMPLETED
        (request,) = played.requests_of("look at")[1:]
    blocks = [block for message in request.messages for block in message.content]
    page = data_of([block for block in blocks if isinstance(block, ToolResultBlock)][-1])
    assert page["content"] == "kept\nfor you"


async def test_an_artifact_of_another_session_is_not_found(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def keep(context: ToolContext) -> str:
        """Keep a text."""
        return await context.artifact(b"mine", filename="a.txt")

    kept: list[str] = []
    played = Cast({
        "go": [calls("keep"), "done"],
        "steal": [lambda _: read(kept[0]), read("art_nothing"), read(""), read("../s"), "done"],
    })  # fmt: skip
    made = runtime(home, project, played)
    made.register_tool(keep)
    async with made:
        await (await made.start("go", session_id="s2")).wait()
        (result,) = results(await made.replay_session("s2"), "keep")
        kept.append(getattr(result.content[0], "text", ""))
        assert kept[0].startswith("art_")
        await (await made.start("steal", session_id="s1")).wait()
        refused = results(await made.replay_session("s1"), "code.read_file")
    assert len(refused) == 4
    for each in refused:
        assert each.error is not None
        assert each.error.code is ErrorCode.ARTIFACT_NOT_FOUND


async def test_an_artifact_that_is_no_text_is_named_as_binary(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def keep(context: ToolContext) -> list[ArtifactRefBlock]:
        """Keep bytes."""
        artifact_id = await context.artifact(bytes(range(256)), filename="a.bin")
        return [ArtifactRefBlock(artifact_id=artifact_id)]

    played = Cast({"go": [calls("keep"), lambda request: read(artifact_of(request)), "done"]})
    made = runtime(home, project, played)
    made.register_tool(keep)
    async with made:
        await (await made.start("go", session_id="s1")).wait()
        (page,) = await read_pages(made)
    assert page["binary"]
    assert page["content"] == ""


async def test_a_step_names_only_artifacts_that_can_be_opened(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def keep(context: ToolContext) -> list[ArtifactRefBlock]:
        """Keep a text."""
        artifact_id = await context.artifact(b"kept", filename="a.txt")
        return [ArtifactRefBlock(artifact_id=artifact_id)]

    def update(*artifact_ids: str) -> Calls:
        return calls(
            "agent.task_update_step",
            task_id="t1",
            step_id="s1",
            status="completed",
            result_summary="ok",
            artifact_ids=list(artifact_ids),
        )

    pool = """[[agents.worker_pools]]
pool_id = "p"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
allowed_tools = ["keep"]
"""
    create = calls("agent.task_create", task_id="t1", wal_name="w", steps=[{"step_id": "s1"}])
    send = calls("agent.dispatch_worker", task_id="t1", instruction="work")
    claim = calls("agent.task_claim_step", task_id="t1", step_id="s1")
    wrong, log = update("art_nothing"), project / ".soong-agent" / "tasks" / "s1" / "w.wal.jsonl"
    lines: list[str] = []

    def count(request: ModelRequest) -> Calls:
        lines.extend(log.read_text().splitlines())
        return update(artifact_of(request))

    worker = [calls("keep"), claim, wrong, count, "done"]
    played = Cast({"go": [create, send, "done"], "work": worker})
    made = runtime(home, project, played, config=CONFIG + pool)
    made.register_tool(keep)
    async with made:
        await (await made.start("go", session_id="s1", mode="orchestrator")).wait()
    messages = played.requests_of("work")[-1].messages
    blocks = [block for message in messages for block in message.content]
    refused, done = [block for block in blocks if isinstance(block, ToolResultBlock)][-2:]
    assert refused.error is not None
    assert refused.error.code is ErrorCode.ARTIFACT_NOT_FOUND
    assert "art_nothing" in refused.error.message
    assert "task_step_completed" not in "".join(lines)
    assert data_of(done)["step"]["artifact_ids"][0].startswith("art_")

"""Compaction in whole runtimes: beside a run, inside of one, stale, failed, and for a long time."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from agent_core import AgentRuntime, ErrorCode, EventType, ModelRequest, RunStatus
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedProvider, calls
from agent_core.text import estimate_text
from agent_core.types import AgentType, ModelEvent, NodeType, RuntimeEvent, TextBlock, Usage
from isolation import Home, program_file
from runtimes import ask, collect, runtime
from sweeps import kept

CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 16384

[memory]
enabled = false
"""
SMALL = CONFIG + "\n[compact]\nkeep_recent_tokens = 400\nreserve_tokens = 12000\n"

Reply = str | Says | Calls | Fails | Hangs
Answer = Callable[[ModelRequest], Reply]


def is_compact(request: ModelRequest) -> bool:
    return request.metadata.get("purpose") == "compact"


def texts(request: ModelRequest) -> list[str]:
    return [b.text for m in request.messages for b in m.content if isinstance(b, TextBlock)]


def said(request: ModelRequest) -> str:
    return "\n".join(texts(request))


def split(main: Answer, compact: Answer) -> ScriptedProvider:
    return ScriptedProvider(lambda r: compact(r) if is_compact(r) else main(r))


def summarised(_: ModelRequest) -> Reply:
    return Says(
        text='{"summary": "## Goal\\nshorter, in as many words as a summary needs", "more": 1}',
        usage=Usage(input_tokens=7, total_tokens=7),
    )


def long_answer(_: ModelRequest) -> Reply:
    return "blah " * 400


async def events_of(made: AgentRuntime, session_id: str = "s1") -> list[RuntimeEvent]:
    found: list[RuntimeEvent] = []
    start: int | None = 1
    while start is not None:
        page = await made.replay_session(session_id, from_seq=start)
        found += page.events
        start = page.next_seq
    return found


def of_type(events: list[RuntimeEvent], *types: EventType) -> list[RuntimeEvent]:
    return [event for event in events if event.event_type in types]


async def until_told(made: AgentRuntime, kind: EventType, count: int = 1) -> list[RuntimeEvent]:
    while len(found := of_type(await events_of(made), kind)) < count:  # noqa: ASYNC110 - rows
        await asyncio.sleep(0.02)
    return found


async def grown(made: AgentRuntime, turns: int = 12) -> None:
    """Talk until the history is long."""
    for number in range(turns):
        handle = await ask(made, f"question {number}: please always answer in prose")
        assert handle.status is RunStatus.COMPLETED


async def test_m1_a_long_history_is_summarised_beside_the_run(home: Home, project: Path) -> None:
    provider = split(long_answer, summarised)
    async with runtime(home, project, provider, config=SMALL) as made:
        await grown(made)
        (told, *_) = await until_told(made, EventType.COMPACT_COMPLETED)
        handle = await ask(made, "and now?")
        page = await made.replay_session("s1")
        child = await handle._sessions.replay_run(str(told.payload["child_run_id"]))
    assert handle.status is RunStatus.COMPLETED
    assert told.payload["stale"] is False
    node = next(node for node in page.nodes if node.node_type is NodeType.COMPACTION)
    assert node.text.endswith("## Goal\nshorter, in as many words as a summary needs")
    assert node.metadata["tokens_before"] > 400
    kept = node.metadata["details"]["kept"]
    assert kept["goal"]["text"] == "question 0: please always answer in prose"
    last = [r for r in provider.requests if not is_compact(r)][-1]
    assert texts(last)[0].startswith("<compaction_summary>\n<kept>\nFirst goal of the user:")
    (agent,) = child.agents
    assert (agent.agent_type, agent.metadata["purpose"]) == (AgentType.FORK, "compact")
    assert child.runs[0].metadata["purpose"] == "compact"


async def test_m1_the_loop_does_not_wait_for_the_summary(home: Home, project: Path) -> None:
    provider = split(long_answer, lambda _: Hangs())
    async with runtime(home, project, provider, config=SMALL) as made:
        made_services = made._home.opened
        await grown(made)
        assert len(of_type(await events_of(made), EventType.COMPACT_STARTED)) == 1
        assert [is_compact(r) for r in provider.requests].count(True) == 1
        assert made_services is not None
        await made_services.runs.jobs.cancel("s1")
        first = (await made.replay_session("s1")).nodes[0]
        assert not of_type(await events_of(made), EventType.COMPACT_COMPLETED)
        await made.switch_node("s1", first.node_id)


async def test_a_summary_is_asked_to_pay_attention_to_what_the_user_names(
    home: Home, project: Path
) -> None:
    provider = split(long_answer, summarised)
    async with runtime(home, project, provider, config=SMALL + "auto_background = false\n") as made:
        await grown(made)
        focus = "the decisions, and don't lose $names"
        await (await made.compact_session("s1", instructions=focus)).result()
        asked = [texts(request)[0] for request in provider.requests if is_compact(request)]
    assert asked
    assert all(f"<focus>\n{focus}\n</focus>" in text for text in asked)


async def test_m4_the_compact_agent_has_no_tools(home: Home, project: Path) -> None:
    def compact(request: ModelRequest) -> Reply:
        if len(request.messages) == 1:
            return calls("agent.create_sub_agent", task="x")
        return '{"summary": "done without, in as many words as a summary needs"}'

    provider = split(long_answer, compact)
    async with runtime(home, project, provider, config=SMALL) as made:
        await grown(made)
        await until_told(made, EventType.COMPACT_COMPLETED)
    asked = [r for r in provider.requests if is_compact(r)]
    assert all(r.tools == [] for r in asked)
    result = asked[1].messages[-1].content[0]
    assert result.type == "tool_result"
    assert result.error is not None
    assert result.error.code is ErrorCode.TOOL_NOT_AVAILABLE


async def test_m5_a_summary_of_a_path_that_was_left_is_stale(home: Home, project: Path) -> None:
    go_on = asyncio.Event()
    inner = split(long_answer, summarised)

    class Slow(ScriptedProvider):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
            if is_compact(request):
                await go_on.wait()
            async for event in inner.stream(request):
                yield event

    async with runtime(home, project, Slow([]), config=SMALL) as made:
        await grown(made)
        first = (await made.replay_session("s1")).nodes[0]
        record = await made.switch_node("s1", first.node_id)
        go_on.set()
        (told,) = await until_told(made, EventType.COMPACT_COMPLETED)
        page = await made.replay_session("s1")
    assert told.payload["stale"] is True
    assert page.session.active_node_id == record.active_node_id == first.node_id
    assert not [node for node in page.nodes if node.node_type is NodeType.COMPACTION]


async def test_m2_a_path_that_does_not_fit_waits_for_its_summary(home: Home, project: Path) -> None:
    def main(request: ModelRequest) -> Reply:
        if "the last straw" in said(request) and "<compaction_summary>" not in said(request):
            return Fails(code=ErrorCode.PROMPT_TOO_LONG, message="too long")
        return long_answer(request)

    provider = split(main, summarised)
    config = SMALL + "auto_background = false\n"
    async with runtime(home, project, provider, config=config) as made:
        await grown(made, 6)
        handle = await made.start("the last straw", session_id="s1")
        events = await collect(handle)
        path = await made.get_node_path((await made.list_sessions())[0].active_node_id or "")
    assert handle.status is RunStatus.COMPLETED
    kinds = [event.event_type for event in events]
    started, done = kinds.index(EventType.COMPACT_STARTED), kinds.index(EventType.COMPACT_COMPLETED)
    assert started < done < kinds.index(EventType.LOOP_COMPLETED)
    assert events[started].payload["reason"] == "recovery"
    assert [node.node_type for node in path[-3:]] == [
        NodeType.MESSAGE,
        NodeType.COMPACTION,
        NodeType.MESSAGE,
    ]


@pytest.mark.parametrize(
    "answer",
    kept(
        [Fails(message="no"), '{"summary": ""}', '{"summary": "' + "x" * 60_000 + '"}'],
        Fails(message="no"),
    ),
)
async def test_a_compaction_that_fails_harms_nothing(
    home: Home, project: Path, answer: Reply
) -> None:
    provider = split(long_answer, lambda _: answer)
    async with runtime(home, project, provider, config=SMALL) as made:
        await grown(made)
        failed = await until_told(made, EventType.COMPACT_FAILED)
        assert (await ask(made, "still here?")).status is RunStatus.COMPLETED
    assert not re.search("Traceback", str(failed))


@pytest.mark.long
async def test_a_compaction_without_a_usable_model_is_a_failed_run(
    home: Home, project: Path
) -> None:
    profile = '{ provider = "openai", name = "small", api_key_env = "NO_SUCH_KEY" }'
    config = f"{SMALL}model_profile = {profile}\n"
    async with runtime(home, project, split(long_answer, summarised), config=config) as made:
        await grown(made)
        (failed, *_) = await until_told(made, EventType.COMPACT_FAILED)
        services = await made._home.services()
        run = await services.store.run(failed.payload["child_run_id"])
    assert run is not None
    assert run.status is RunStatus.FAILED


@pytest.mark.sweep
async def test_m3_the_compact_agent_is_hidden_and_can_be_inspected(
    home: Home, project: Path
) -> None:
    def main(request: ModelRequest) -> Reply:
        if "which agents" in said(request) and request.messages[-1].role == "user":
            return calls("agent.list_agent_definitions")
        return long_answer(request)

    async with runtime(home, project, split(main, summarised), config=SMALL) as made:
        handles = [await ask(made, f"which agents? {number}") for number in range(12)]
        (told, *_) = await until_told(made, EventType.COMPACT_COMPLETED)
        (started, *_) = of_type(await events_of(made), EventType.COMPACT_STARTED)
        parent = next(handle for handle in handles if handle.run_id == started.run_id)
        inside = await parent.inspect_child(str(told.payload["child_run_id"]))
        listed = [
            result
            for node in (await made.replay_session("s1")).nodes
            for result in node.results
            if "default_fork_agent" in str(result)
        ]
    assert inside.agent.metadata["purpose"] == inside.run.metadata["purpose"] == "compact"
    assert inside.requests[0].tools == []
    assert listed
    assert "compact" not in str(listed).lower()


async def test_a_cancelled_run_takes_its_summary_with_it(home: Home, project: Path) -> None:
    def main(request: ModelRequest) -> Reply:
        return Hangs() if "stop here" in said(request) else long_answer(request)

    provider = split(main, lambda _: Hangs())
    config = SMALL.replace("reserve_tokens = 12000", "reserve_tokens = 9500")
    async with runtime(home, project, provider, config=config) as made:
        await grown(made, 9)
        assert not any(map(is_compact, provider.requests))
        handle = await made.start("stop here " + "word " * 1_200, session_id="s1")
        while not any(map(is_compact, provider.requests)):  # noqa: ASYNC110 - a request
            await asyncio.sleep(0.02)
        await handle.cancel()
        while (await made.list_sessions())[0].owner is not None:  # noqa: ASYNC110 - a row
            await asyncio.sleep(0.02)
        (told,) = of_type(await events_of(made), EventType.COMPACT_STARTED)
        inside = await handle.inspect_child(str(told.payload["child_run_id"]))
    assert inside.run.status is RunStatus.CANCELLED
    assert not of_type(inside.events, EventType.COMPACT_COMPLETED)


_VICTIM = """
import asyncio, os, signal, sys
from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs, ScriptedProvider

def reply(request):
    if request.metadata.get("purpose") == "compact":
        os.kill(os.getpid(), signal.SIGKILL)
    return "blah " * 400

async def main():
    runtime = AgentRuntime(project_dir=sys.argv[1])
    runtime.register_provider("custom", lambda model: ScriptedProvider(reply))
    async with runtime:
        for number in range(20):
            await (await runtime.start(f"question {number}", session_id="s1")).wait()

asyncio.run(main())
"""


async def test_a_summary_whose_process_is_killed_leaves_only_its_run(
    home: Home, project: Path
) -> None:
    home.write_config(SMALL)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, program_file(_VICTIM), str(project), env=home.env()
    )
    assert await victim.wait() == -9
    async with runtime(home, project, split(long_answer, summarised), config=SMALL) as made:
        (told,) = of_type(await events_of(made), EventType.COMPACT_STARTED)
        page = await made.replay_session("s1")
        killed = await made.replay_run(str(told.payload["child_run_id"]))
        assert killed.runs[0].status is RunStatus.FAILED
        assert killed.runs[0].metadata["reason"] == "owner_lost"
        assert not [node for node in page.nodes if node.node_type is NodeType.COMPACTION]
        assert (await ask(made, "and now?")).status is RunStatus.COMPLETED
        assert await until_told(made, EventType.COMPACT_COMPLETED)


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("turns", [35, pytest.param(300, marks=pytest.mark.sweep)])
async def test_many_turns_on_a_small_window_lose_neither_goal_nor_rule(
    home: Home, project: Path, turns: int
) -> None:
    (project / "a.txt").write_text("line of text\n" * 150, encoding="utf-8")
    goal = "Build a boat that floats."
    rules = [f"Rule {number}: never forget number {number}." for number in range(0, turns, 20)]

    def main(request: ModelRequest) -> Reply:
        last = request.messages[-1]
        if last.role == "user" and "question" in said(request).rpartition("turn ")[2]:
            return calls("code.read_file", path="a.txt")
        return "A somewhat longer answer about this. " * 20

    provider = split(main, summarised)
    config = CONFIG.replace("16384", "8192")
    async with runtime(home, project, provider, config=config) as made:
        for turn in range(turns):
            text = f"turn {turn}: " + ("a question" if turn % 3 == 0 else "please go on")
            if turn == 0:
                text = goal
            if turn % 20 == 0:
                text += f" Rule {turn}: never forget number {turn}."
            handle = await ask(made, text)
            assert handle.status is RunStatus.COMPLETED, (turn, handle.error)
        events = await events_of(made)
        kept = [
            Path(artifact.path).read_text(encoding="utf-8")
            for artifact in await made._home.opened.store.artifacts(session_id="s1")  # pyright: ignore[reportOptionalMemberAccess]
            if artifact.kind == "compaction"
        ]
    built = of_type(events, EventType.CONTEXT_BUILT)
    assert len(built) > 1.3 * turns
    over = [e.payload for e in built if e.payload["use"]["total"] > e.payload["budget"]["prompt"]]
    assert over == []
    assert [e.payload["dropped_node_ids"] for e in built if e.payload["dropped_node_ids"]] == []
    done = [e for e in of_type(events, EventType.COMPACT_COMPLETED) if not e.payload["stale"]]
    assert len(done) > turns / 30
    for request in filter(is_compact, provider.requests):
        instructions = "".join(block.content for block in request.system)
        assert estimate_text(instructions + said(request)) < 8192 - 2048
    last = said([r for r in provider.requests if not is_compact(r)][-1])
    assert goal in last
    assert [rule for rule in rules if rule not in last + "".join(kept[-1:])] == []

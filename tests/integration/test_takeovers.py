"""A run whose process has died goes on in another one, from where it was."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_core import RunStatus, tool
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.runtime.services import Services
from agent_core.runtime.session_history import unanswered_calls
from agent_core.types import (
    Claim,
    EventType,
    ModelRequest,
    Node,
    NodeType,
    Role,
    RunChange,
    RunRecord,
    TextBlock,
)
from isolation import Home
from judging import judged, owners_are_dead
from loop_parts import spoken
from rows import a_batch, a_node, an_event
from runtimes import CONFIG
from sweeps import sampled
from takeovers import carried_out, die, queue, services_of

SCRIPT = """[
    calls("note", text="one"),
    Calls(calls=[ScriptedCall(name="note", arguments={"text": f"p{n}"}) for n in (1, 2)]),
    calls("note", text="three"),
    "done",
]"""


def noter(project: Path) -> Any:
    @tool(permission="write")
    async def note(text: str) -> str:
        """Writes a line into a file."""
        with (project / "effects.txt").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        return f"noted {text}"

    return note


def effects(project: Path) -> list[str]:
    file = project / "effects.txt"
    return file.read_text().split() if file.exists() else []


def go_on(request: ModelRequest) -> Any:
    """The next step of the script, by what has been answered."""
    answers = [b for m in request.messages for b in m.content if b.type == "tool_result"]
    pair = [ScriptedCall(name="note", arguments={"text": f"p{n}"}) for n in (1, 2)]
    steps = {0: calls("note", text="one"), 1: Calls(calls=pair), 3: calls("note", text="three")}
    return steps.get(len(answers), "done")


async def history(services: Services) -> tuple[RunRecord, list[Node], list[EventType]]:
    replay = await services.store.run_history("run_1")
    page = await services.store.page("s1")
    assert page.session.active_node_id is not None
    path = await services.store.path(page.session.active_node_id)
    numbers = [event.run_seq for event in replay.events]
    assert numbers == list(range(1, len(numbers) + 1))
    return replay.runs[0], path, [event.event_type for event in replay.events]


DELTA_OF = 'event.event_type == "model_text_delta" and event.payload["text"].strip() == "{}"'
CLOSING = {EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED}


@pytest.mark.long
@pytest.mark.parametrize("stop_at", sampled([1, 3, 7, 9, 13, 17, 24, 32], keep=2))
async def test_a_run_killed_at_any_event_goes_on_and_repeats_no_effect(
    home: Home, project: Path, stop_at: int
) -> None:
    home.write_config(CONFIG)
    await die(home, project, SCRIPT, stop_at=stop_at)
    provider = ScriptedProvider(go_on)
    async with services_of(home.path, project, provider, noter(project)) as services:
        assert await judged(services.store, owners_are_dead).close_lost_runs() == []
        queued = await services.store.run("run_1")
        assert queued is not None
        run = await services.runs.pipeline.take(queued)
        if run is not None:
            await run.ended.wait()
        record, path, events = await history(services)
    assert record.status is RunStatus.COMPLETED
    assert [event for event in events if event in CLOSING] == [EventType.RUN_COMPLETED]
    words = spoken(path)
    assert words.count("user: go") == 1
    assert words[-1] == "assistant: done"
    written = effects(project)
    assert len(written) == len(set(written)), "an effect was repeated"
    if run is not None and record.takeovers:
        assert record.takeovers == 1
        assert events.count(EventType.RUN_TAKEN_OVER) == 1


async def taken_over(
    home: Home, project: Path, script: Any
) -> tuple[ScriptedProvider, RunRecord, list[Node], list[EventType], Any]:
    provider = ScriptedProvider(script)
    async with services_of(home.path, project, provider, noter(project)) as services:
        run = await carried_out(services)
        record, path, events = await history(services)
    return provider, record, path, events, run.outcome


async def test_a_call_that_was_under_way_has_an_unknown_effect_and_the_next_one_is_made(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG)
    await die(home, project, SCRIPT, in_tool='if text == "p1": os.kill(os.getpid(), 9)')
    _, record, path, _, _ = await taken_over(home, project, go_on)
    assert record.status is RunStatus.COMPLETED
    assert effects(project) == ["one", "p1", "p2", "three"]
    reasons = [result.metadata.get("reason") for node in path for result in node.results]
    assert reasons == [None, "interrupted_effect_unknown", None, None]


async def die_after(services: Services, *nodes: Node) -> None:
    """Leave the run as a process does that has died after these nodes."""
    await queue(services)
    dead = Claim("own_dead.elsewhere", lease=timedelta(0))
    await services.store.take_run("run_1", dead, max_takeovers=3)
    parent = None
    for node in nodes:
        node = node.model_copy(update={"parent_id": parent})
        completed = an_event(
            EventType.MODEL_COMPLETED, {"usage": {"output_tokens": 5, "total_tokens": 5}}
        )
        rows = [node, completed] if node.role is Role.ASSISTANT else [node]
        running = RunChange(status=RunStatus.RUNNING)
        await services.store.append(
            a_batch(*rows, active_node_id=node.node_id, run=running, owner=dead.owner)
        )
        parent = node.node_id


def said(node_id: str, text: str, role: Role = Role.ASSISTANT, **values: Any) -> Node:
    return a_node(node_id, content=[TextBlock(text=text)], role=role, **values)


async def test_an_answer_that_is_there_is_not_asked_for_again(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    provider = ScriptedProvider(["another answer"])
    async with services_of(home.path, project, provider) as services:
        answer = said("n2", "the answer", metadata={"stop_reason": "end_turn"})
        await die_after(services, said("n1", "go", Role.USER), answer)
        run = await carried_out(services)
        record, path, events = await history(services)
    assert provider.requests == []
    assert spoken(path) == ["user: go", "assistant: the answer"]
    assert run.outcome is not None
    assert run.outcome.text == "the answer"
    assert (record.turn_count, record.usage.output_tokens) == (1, 5)
    assert events[-1] is EventType.RUN_COMPLETED


@pytest.mark.sweep
async def test_the_pieces_of_an_answer_are_put_together_over_a_death(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG)
    cut_off = said("n2", "It was ", metadata={"stop_reason": "max_tokens"})
    note = {"node_type": NodeType.SYSTEM_NOTE, "metadata": {"reason": "max_output_tokens"}}
    for nodes in ([cut_off], [cut_off, said("n3", "go on", Role.USER, **note)]):
        async with services_of(home.path, project, ["the end"]) as services:
            await die_after(services, said("n1", "go", Role.USER), *nodes)
            run = await carried_out(services)
            record, _, _ = await history(services)
            assert run.outcome is not None
            assert run.outcome.text == "It was the end"
            assert record.turn_count == 2
            await services.sessions.delete("s1")


async def test_a_message_that_was_not_stored_is_stored_once(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    note = {"node_type": NodeType.SYSTEM_NOTE, "metadata": {"reason": "permission_mode"}}
    for nodes in ([], [said("n1", "plan mode", Role.USER, **note)]):
        async with services_of(home.path, project, ["done"]) as services:
            await die_after(services, *nodes)
            run = await carried_out(services)
            _, path, _ = await history(services)
            assert run.status is RunStatus.COMPLETED
            assert spoken(path) == ["user: go", "assistant: done"]
            await services.sessions.delete("s1")


@pytest.mark.sweep
async def test_a_typed_answer_is_of_its_type_in_the_next_process(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    options = f", options=StoredOptions(output_schema={schema!r}, output_name='number')"
    await die(
        home,
        project,
        '[calls("note", text="one"), Hangs(text="hm")]',
        options=options,
        stop_when=DELTA_OF.format("hm"),
    )
    _, record, _, _, outcome = await taken_over(home, project, ['{"m": 1}', '{"n": 3}'])
    assert record.status is RunStatus.COMPLETED
    assert outcome.output == {"n": 3}


@pytest.mark.long
async def test_the_time_and_the_tool_calls_of_a_dead_process_are_paid(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG)
    options = ", options=StoredOptions(budget=Budget(wall_s=300, tool_calls=2))"
    in_tool = 'await asyncio.sleep(0.6); os.kill(os.getpid(), 9 if text == "two" else 0)'
    script = '[calls("note", text="one"), calls("note", text="two")]'
    await die(home, project, script, options=options, in_tool=in_tool)
    later = ScriptedProvider([calls("note", text="three"), "done"])
    async with services_of(home.path, project, later, noter(project)) as services:
        run = await carried_out(services)
        (use,) = await services.store.budget_uses(["run_1"])
    assert use.spent["tool_calls"] == 2
    assert use.spent["wall_s"] >= 0.6
    assert run.outcome is not None
    assert run.outcome.error is not None
    assert run.outcome.error.code == "budget_exceeded"
    assert effects(project) == ["one", "two"]


async def test_what_was_cancelled_without_an_owner_ends_without_a_model(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG)
    await die(home, project, SCRIPT, in_tool='if text == "p1": os.kill(os.getpid(), 9)')
    provider = ScriptedProvider(go_on)
    async with services_of(home.path, project, provider) as services:
        await services.store.request_cancel("run_1")
        queued = await services.store.run("run_1")
        assert queued is not None
        run = await services.runs.pipeline.take(queued)
        assert run is not None
        await run.ended.wait()
        record, path, events = await history(services)
    assert provider.requests == []
    assert record.status is RunStatus.CANCELLED
    assert [event for event in events if event in CLOSING] == [EventType.RUN_CANCELLED]
    assert unanswered_calls(path) == {}


@pytest.mark.long
async def test_a_run_that_kills_its_processes_fails_in_the_end(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    script = '[calls("note", text="x")]'
    for is_new in (True, False, False):
        await die(home, project, script, in_tool="os.kill(os.getpid(), 9)", is_new=is_new)
    home.write_config(CONFIG + "\n[worker]\nmax_takeovers = 1\n")  # the others had 3
    async with services_of(home.path, project, ScriptedProvider(go_on)) as services:
        queued = await services.store.run("run_1")
        assert queued is not None
        assert await services.runs.pipeline.take(queued) is None
        record, _, events = await history(services)
        assert record.error is not None
        assert "3 processes died" in record.error.message
        assert "at most 1 time ([worker] max_takeovers)" in record.error.message
        assert [event for event in events if event in CLOSING] == [EventType.RUN_FAILED]
        await queue(services, "again", run_id="run_2")
        assert (await carried_out(services, "run_2")).status is RunStatus.COMPLETED

"""Agents that a run starts, in a whole runtime: sub agents, forks and what their parent gets."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentDefinition,
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    RunHandle,
    RunStatus,
    StorageError,
    ToolContext,
    tool,
)
from agent_core.history.questions import request_facts
from agent_core.providers.estimates import estimate_tools
from agent_core.providers.scripted import Calls, Fails, Hangs, calls
from agent_core.types import ReplayResult, RuntimeEvent, Usage
from casts import Cast, data_of, last_answers, results, says, system_of, text_of, together
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import sampled

DEFINITION = """---
id: {id}
name: {id} of mine
description: Looks at things.
{more}---
{body}
"""


def define(home: Home, definition_id: str, *, more: str = "", body: str = "Look hard.") -> None:
    text = DEFINITION.format(id=definition_id, more=more, body=body)
    home.write(f"agents/{definition_id}.md", text)


def sub(task: str, **more: Any) -> Calls:
    return calls("agent.create_sub_agent", task=task, **more)


def fork(task: str, **more: Any) -> Calls:
    return calls("agent.fork_agent", task=task, **more)


async def go(made: AgentRuntime, text: str = "go", **options: Any) -> RunHandle:
    handle = await made.start(text, session_id="s1", **options)
    await handle.wait()
    return handle


async def answers(made: AgentRuntime, name: str) -> list[Any]:
    return [data_of(each) for each in results(await made.replay_session("s1"), f"agent.{name}")]


async def listed(made: AgentRuntime) -> dict[str, Any]:
    """What `agent.list_agent_definitions` says, by id."""
    await go(made)
    (answer,) = await answers(made, "list_agent_definitions")
    return {each["agent_definition_id"]: each for each in answer["agent_definitions"]}


LISTING = {"go": [calls("agent.list_agent_definitions"), "done"]}


async def test_i1_the_built_in_definitions_are_listed_without_the_one_that_compacts(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, Cast(LISTING)) as made:
        found = await listed(made)
    assert set(found) == {"default_sub_agent", "default_fork_agent", "default_worker_agent"}
    assert {each["source"] for each in found.values()} == {"builtin"}
    assert all(each["name"] and each["description"] for each in found.values())


async def test_i2_a_users_definition_gives_its_body_to_the_system_prompt(
    home: Home, project: Path
) -> None:
    define(home, "reviewer", body="Review with care.")
    played = Cast({"go": [sub("look", agent_definition_id="reviewer"), "done"], "look": ["seen"]})
    async with runtime(home, project, played) as made:
        await go(made)
    (request,) = played.requests_of("look")
    blocks = {block.block_id: block for block in request.system}
    assert "Review with care." in blocks["agent_definition"].content
    assert blocks["agent_definition"].dynamic
    leads = played.requests_of("go")
    assert all("Review with care." not in system_of(each) for each in leads)


async def test_i3_a_suggested_tool_that_does_not_exist_is_refused_at_the_start(
    home: Home, project: Path
) -> None:
    define(home, "reviewer", more="suggested_tools: [code.read_file, code.telepathy]\n")
    with pytest.raises(ConfigError, match=r"reviewer.*code\.telepathy") as caught:
        async with runtime(home, project, []):
            pass
    assert caught.value.code is ErrorCode.INVALID_AGENT_DEFINITION


async def test_i4_two_files_with_one_id_are_refused_and_both_named(
    home: Home, project: Path
) -> None:
    define(home, "reviewer")
    home.write("agents/other.md", DEFINITION.format(id="reviewer", more="", body="x"))
    with pytest.raises(ConfigError, match=r"other\.md.*reviewer\.md|reviewer\.md.*other\.md") as e:
        async with runtime(home, project, []):
            pass
    assert e.value.code is ErrorCode.DUPLICATE_AGENT_DEFINITION


async def test_i5_a_user_may_override_a_built_in_definition_as_a_whole(
    home: Home, project: Path
) -> None:
    define(home, "default_sub_agent", more="overrides: builtin:default_sub_agent\n", body="Mine.")
    played = Cast({"go": [sub("look"), "done"], "look": ["seen"]})
    async with runtime(home, project, played) as made:
        await go(made)
    (request,) = played.requests_of("look")
    assert "Mine." in system_of(request)
    assert "You are a sub agent." not in system_of(request)


async def test_i6_code_may_override_a_users_definition(home: Home, project: Path) -> None:
    define(home, "reviewer")
    made = runtime(home, project, Cast(LISTING))
    made.register_agent_definition(
        AgentDefinition(
            agent_definition_id="reviewer",
            name="From code",
            description="d",
            overrides="user:reviewer",
        )
    )
    async with made:
        found = await listed(made)
    assert (found["reviewer"]["source"], found["reviewer"]["name"]) == ("code", "From code")


async def test_a_definition_that_hides_another_by_accident_is_refused_when_it_is_registered(
    home: Home, project: Path
) -> None:
    define(home, "reviewer")
    plain = AgentDefinition(agent_definition_id="reviewer", name="n", description="d")
    missing = plain.model_copy(
        update={"agent_definition_id": "mine", "overrides": "user:mine"},
    )
    async with runtime(home, project, Cast(LISTING)) as made:
        with pytest.raises(ConfigError) as hidden:
            made.register_agent_definition(plain)
        with pytest.raises(ConfigError) as overriding:
            made.register_agent_definition(missing)
        assert set(await listed(made)) >= {"reviewer"}
    assert hidden.value.code is ErrorCode.DUPLICATE_AGENT_DEFINITION
    assert overriding.value.code is ErrorCode.INVALID_AGENT_OVERRIDE


async def test_i7_a_sub_agent_without_a_definition_is_the_default_one(
    home: Home, project: Path
) -> None:
    played = Cast(
        {
            "go": [sub("find x", context="x is blue", constraints=["be quick", "be kind"]), "done"],
            "find x": ["found"],
        }
    )
    async with runtime(home, project, played) as made:
        handle = await go(made)
        (result,) = await answers(made, "create_sub_agent")
        child_run_id = result["metadata"]["child_run_id"]
        child = await handle.inspect_child(child_run_id)
    assert result["status"] == "completed"
    assert result["summary"] == "found"
    assert (result["findings"], result["artifacts"], result["proposed_actions"]) == ([], [], [])
    assert "step_id" not in result
    assert child.agent.agent_definition_id == "default_sub_agent"
    assert child.agent.agent_type == "sub"
    assert child.agent.parent_agent_id == handle.agent_id
    assert child.agent.result == result
    assert (child.run.parent_run_id, child.run.status) == (handle.run_id, RunStatus.COMPLETED)
    assert [node.role for node in child.nodes] == ["user", "assistant"]
    assert child.nodes[0].parent_id is None
    assert "x is blue" in child.nodes[0].text
    assert "- be quick\n- be kind" in child.nodes[0].text
    (request,) = child.requests
    assert request.metadata["exact"]
    (asked,) = played.requests_of("find x")
    assert "go" not in [text_of(message) for message in asked.messages]


@pytest.mark.parametrize("inline", ["system", "instructions", "system_prompt", "body"])
async def test_i7_nobody_can_pass_system_instructions_inline(
    home: Home, project: Path, inline: str
) -> None:
    played = Cast({"go": [sub("find x", **{inline: "Obey me."}), "done"]})
    async with runtime(home, project, played) as made:
        await go(made)
        (result,) = results(await made.replay_session("s1"), "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR


async def test_i8_allowed_tools_narrow_a_child_to_these_and_what_it_needs(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go": [sub("look", allowed_tools=["code.read_file"]), "done"],
        "look": [calls("code.write_file", path="a.txt", content="x"), "no"],
    })  # fmt: skip
    async with runtime(home, project, played, permission_callback=Asked("allow_once")) as made:
        handle = await go(made)
        child = await inspected(made, handle)
    first = played.requests_of("look")[0]
    assert {tool.name for tool in first.tools} == {"code.read_file"}
    (denied,) = [result for node in child.nodes for result in node.results]
    assert denied.error is not None
    assert denied.error.code is ErrorCode.TOOL_NOT_AVAILABLE
    assert not (project / "a.txt").exists()


def started(replay: ReplayResult) -> list[str]:
    """The ids of child runs."""
    created = (e for e in replay.events if e.event_type is EventType.CHILD_AGENT_CREATED)
    return [event.payload["child_run_id"] for event in created]


async def inspected(made: AgentRuntime, handle: RunHandle) -> Any:
    (run_id,) = started(await made.replay_session("s1"))
    return await handle.inspect_child(run_id)


@pytest.mark.parametrize(
    "name",
    ["code.telepathy", "agent.create_sub_agent", "internal.recall_memory", "agent.task_create"],
)
async def test_i9_a_tool_that_does_not_exist_or_is_excluded_starts_no_child(
    home: Home, project: Path, name: str
) -> None:
    played = Cast({"go": [sub("look", allowed_tools=["code.read_file", name]), "done"]})
    async with runtime(home, project, played) as made:
        await go(made)
        replay = await made.replay_session("s1")
    (result,) = results(replay, "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR
    assert result.error.details["tools"] == [name]
    assert started(replay) == []
    assert played.requests_of("go")
    assert len(played.requests) == 2


async def test_i9_a_tool_the_user_has_disabled_is_no_tool_for_a_child(
    home: Home, project: Path
) -> None:
    config = CONFIG + '[tools]\ndisabled = ["code.search"]\n'
    played = Cast({"go": [sub("look", allowed_tools=["code.search"]), "done"]})
    async with runtime(home, project, played, config=config) as made:
        await go(made)
        (result,) = results(await made.replay_session("s1"), "agent.create_sub_agent")
    assert result.is_error


async def test_i10_a_childs_question_names_the_child_and_its_parent(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go": [sub("write"), "done"],
        "write": [calls("code.write_file", path="a.txt", content="x"), "written"],
    })  # fmt: skip
    asked = Asked("allow_once")
    async with runtime(home, project, played, permission_callback=asked) as made:
        handle = await go(made)
        child = await inspected(made, handle)
    (request,) = asked.requests
    assert (request.agent_id, request.run_id) == (child.agent.agent_id, child.run.run_id)
    assert (request.parent_agent_id, request.parent_run_id) == (handle.agent_id, handle.run_id)
    assert request.agent_role == "sub"
    assert (project / "a.txt").read_text() == "x"
    definition = child.agent.agent_definition_id
    assert definition is not None
    assert request.metadata["agent_definition"] == definition
    assert request.metadata["agent_task"] == "write"
    facts = dict(request_facts(request))
    assert facts["agent"].startswith(f"sub {definition}, {request.agent_id}, child of run ")
    assert facts["its task"] == "write"
    asked_by_parent = Asked("allow_once")
    alone = Cast({"alone": [calls("code.write_file", path="b.txt", content="x"), "written"]})
    async with runtime(home, project, alone, permission_callback=asked_by_parent) as made:
        await made.run("alone", session_id="s2")
    (request,) = asked_by_parent.requests
    assert not request.metadata.keys() & {"agent_definition", "agent_task"}


async def test_the_task_in_a_question_is_one_short_line(home: Home, project: Path) -> None:
    task = "write\nthe file " + "long " * 200 + "end"
    played = Cast({
        "go": [sub(task), "done"],
        task: [calls("code.write_file", path="a.txt", content="x"), "written"],
    })  # fmt: skip
    asked = Asked("deny")
    async with runtime(home, project, played, permission_callback=asked) as made:
        await go(made)
    (request,) = asked.requests
    shown = request.metadata["agent_task"]
    assert shown.startswith("write the file long")
    assert len(shown) <= 250


async def test_d9_a_child_that_fails_does_not_cancel_the_one_beside_it(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go": [together(sub("one breaks"), sub("one works")), "done"],
        "one breaks": [Fails(message="no luck")],
        "one works": ["fine"],
    })  # fmt: skip
    async with runtime(home, project, played) as made:
        handle = await go(made)
        replay = await made.replay_session("s1")
    failed, worked = results(replay, "agent.create_sub_agent")
    assert handle.status is RunStatus.COMPLETED
    assert failed.error is not None
    assert failed.error.code is ErrorCode.PROVIDER_ERROR
    assert "no luck" in failed.error.message
    assert data_of(failed)["status"] == "failed"
    assert not worked.is_error
    assert data_of(worked)["summary"] == "fine"
    back = played.requests_of("go")[1]
    assert [each["status"] for each in last_answers(back)] == ["failed", "completed"]


async def test_children_of_one_turn_run_side_by_side(home: Home, project: Path) -> None:
    meeting = asyncio.Barrier(3)

    @tool(permission="readonly")
    async def meet() -> str:
        """Wait for the others."""
        await meeting.wait()
        return "met"

    played = Cast({
        "go": [together(*(sub(f"child {n}") for n in range(3))), "done"],
        "child": [calls("meet"), "done"],
    })  # fmt: skip
    made = runtime(home, project, played)
    made.register_tool(meet)
    async with made, asyncio.timeout(50):
        handle = await go(made)
    assert handle.status is RunStatus.COMPLETED


async def test_a_fork_goes_on_from_the_conversation_before_the_call(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go on": [together(fork("split this off")), "done"],
        "split this off": ["split"],
        "begin": ["I begin"],
    })  # fmt: skip
    async with runtime(home, project, played) as made:
        await go(made, "begin")
        handle = await go(made, "go on")
        child = await inspected(made, handle)
        path = await made.get_node_path(child.nodes[-1].node_id)
        replay = await made.replay_session("s1")
    words = [node.text for node in path]
    assert words[:3] == ["begin", "I begin", "go on"]
    assert "split this off" in words[3]
    assert words[4] == "split"
    assert child.agent.agent_type == "fork"
    assert child.agent.fork_from_node_id == path[2].node_id
    assert child.nodes[0].parent_id == path[2].node_id
    (asked,) = played.requests_of("split this off")
    assert not any("agent." in definition.name for definition in asked.tools)
    assert replay.session.active_node_id not in {node.node_id for node in child.nodes}


@pytest.mark.parametrize("mode", ["sub", "fork"])
async def test_children_cannot_start_children(home: Home, project: Path, mode: str) -> None:
    start = sub if mode == "sub" else fork
    played = Cast({"go": [start("look"), "done"], "look": [sub("deeper"), "no"]})
    async with runtime(home, project, played) as made:
        handle = await go(made)
        child = await inspected(made, handle)
    (refused,) = [result for node in child.nodes for result in node.results]
    assert refused.error is not None
    assert refused.error.code is ErrorCode.TOOL_NOT_AVAILABLE


SHAPE = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


async def test_an_answer_of_the_expected_shape_is_given_back_as_data(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go": [sub("count", expected_output_schema=SHAPE), "done"],
        "count": ['```json\n{"answer": 42}\n```'],
    })  # fmt: skip
    async with runtime(home, project, played) as made:
        await go(made)
        (result,) = await answers(made, "create_sub_agent")
    assert result["metadata"]["output"] == {"answer": 42}
    assert '"answer"' in text_of(played.requests_of("count")[0].messages[-1])


async def test_a_misshapen_answer_gets_one_turn_to_be_mended(home: Home, project: Path) -> None:
    played = Cast({
        "go": [sub("count", expected_output_schema=SHAPE), "done"],
        "count": ["forty-two", '{"answer": 42}'],
    })  # fmt: skip
    async with runtime(home, project, played) as made:
        handle = await go(made)
        (result,) = await answers(made, "create_sub_agent")
        child = await inspected(made, handle)
    for shown, sent in zip(child.requests, played.requests_of("count"), strict=True):
        assert (shown.output, shown.tools) == (sent.output, sent.tools)
    assert result["metadata"]["output"] == {"answer": 42}
    assert result["metadata"]["turns"] == 2
    assert [node.node_type for node in child.nodes].count("system_note") == 1


async def test_an_answer_that_stays_misshapen_is_an_error_and_is_told(
    home: Home, project: Path
) -> None:
    played = Cast({
        "go": [sub("count", expected_output_schema=SHAPE), "done"],
        "count": ["forty-two", '{"answer": "42"}', "never asked"],
    })  # fmt: skip
    async with runtime(home, project, played) as made:
        handle = await go(made)
        replay = await made.replay_session("s1")
    (result,) = results(replay, "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is ErrorCode.SCHEMA_ERROR
    assert "$.answer" in result.error.message
    assert len(played.requests_of("count")) == 2
    kinds = [event.event_type for event in replay.events]
    assert EventType.CHILD_RESULT_SCHEMA_VALIDATION_FAILED in kinds
    assert handle.status is RunStatus.COMPLETED


async def test_a_schema_that_is_none_starts_no_child(home: Home, project: Path) -> None:
    played = Cast({"go": [sub("count", expected_output_schema={"type": "number!"}), "done"]})
    async with runtime(home, project, played) as made:
        await go(made)
        replay = await made.replay_session("s1")
    (result,) = results(replay, "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR
    assert started(replay) == []


async def test_an_answer_in_the_form_of_a_result_is_taken_apart(home: Home, project: Path) -> None:
    said = '{"summary": "two bugs", "findings": ["a", "b"], "proposed_actions": ["fix a"]}'
    played = Cast({"go": [sub("look"), "done"], "look": [said]})
    async with runtime(home, project, played) as made:
        await go(made)
        (result,) = await answers(made, "create_sub_agent")
    assert result["summary"] == "two bugs"
    assert result["findings"] == ["a", "b"]
    assert result["proposed_actions"] == ["fix a"]


async def test_a_child_that_takes_too_long_is_stopped_and_its_parent_goes_on(
    home: Home, project: Path
) -> None:
    played = Cast({"go": [sub("wait", timeout_ms=500), "done"], "wait": [Hangs(text="hm")]})
    async with runtime(home, project, played) as made:
        handle = await go(made)
        child = await inspected(made, handle)
        replay = await made.replay_session("s1")
    (result,) = results(replay, "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is ErrorCode.TIMEOUT
    assert handle.status is RunStatus.COMPLETED
    assert child.run.status is RunStatus.CANCELLED
    told = [e for e in replay.events if e.event_type.startswith("child_agent")]
    assert [event.event_type for event in told] == [
        "child_agent_created",
        "child_agent_cancel_requested",
        "child_agent_cancelled",
    ]
    assert told[1].payload["reason"] == "timeout"
    assert EventType.TOOL_TIMEOUT in [event.event_type for event in replay.events]


@pytest.mark.parametrize("timeout_ms", sampled([10**15, 1_001, 0, -1, True, 1.5], keep=2))
async def test_a_time_that_no_child_may_have_starts_none(
    home: Home, project: Path, timeout_ms: Any
) -> None:
    config = CONFIG + "[agents]\nmax_child_timeout_ms = 1000\n"
    played = Cast({"go": [sub("look", timeout_ms=timeout_ms), "done"]})
    async with runtime(home, project, played, config=config) as made:
        await go(made)
        replay = await made.replay_session("s1")
    (result,) = results(replay, "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR
    assert "timeout_ms" in str(result.error)
    if timeout_ms > 1_000:
        assert "max_child_timeout_ms" in result.error.message
    assert started(replay) == []


async def test_cancelling_the_parent_cancels_its_children(home: Home, project: Path) -> None:
    played = Cast({"go": [together(sub("wait"), sub("wait")), "done"], "wait": [Hangs()]})
    async with runtime(home, project, played) as made:
        handle = await made.start("go", session_id="s1")
        await played.called(3)
        async with asyncio.timeout(50):
            outcome = await handle.cancel()
        replay = await made.replay_session("s1")
        children = [await handle.inspect_child(run_id) for run_id in started(replay)]
    assert outcome.status is RunStatus.CANCELLED
    assert [child.run.status for child in children] == [RunStatus.CANCELLED] * 2
    kinds = [event.event_type for event in replay.events]
    assert kinds.count(EventType.CHILD_AGENT_CANCEL_REQUESTED) == 2
    assert kinds.count(EventType.CHILD_AGENT_CANCELLED) == 2
    assert all(result.is_error for result in results(replay, "agent.create_sub_agent"))


async def test_a_child_that_does_not_let_go_is_left_behind_in_time(
    home: Home, project: Path
) -> None:
    release = asyncio.Event()

    @tool(permission="readonly")
    async def cling() -> str:
        """Do not let go."""
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "at last"

    config = CONFIG + "[agents]\nchild_cancel_timeout_ms = 50\nmax_children_per_run = 1\n"
    played = Cast({
        "go": [sub("cling", timeout_ms=700), sub("cling"), "done"],
        "cling": [calls("cling"), "done"],
    })  # fmt: skip
    made = runtime(home, project, played, config=config)
    made.register_tool(cling)
    async with made:
        handle = await go(made)
        replay = await made.replay_session("s1")
        release.set()
    late, refused = results(replay, "agent.create_sub_agent")
    assert late.error is not None
    assert late.error.code is ErrorCode.TIMEOUT
    assert refused.error is not None
    assert refused.error.code is ErrorCode.CHILD_AGENT_LIMIT_EXCEEDED, "its place is still taken"
    kinds = [event.event_type for event in replay.events]
    assert EventType.CHILD_AGENT_CANCEL_TIMEOUT in kinds
    assert handle.status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("setting", "scope"),
    [("max_children_per_run", "run"), ("max_concurrent_children_per_session", "session")],
)
async def test_more_children_than_may_run_at_once_are_refused(
    home: Home, project: Path, setting: str, scope: str
) -> None:
    refused = asyncio.Event()

    @tool(permission="readonly")
    async def wait() -> str:
        """Keep a place until the third child has been refused."""
        await refused.wait()
        return "free"

    played = Cast({
        "go": [together(*(sub("look") for _ in range(3))), sub("look"), "done"],
        "look": [calls("wait"), "seen"],
    })  # fmt: skip
    limits = f"{CONFIG}[agents]\n{setting} = 2\n"
    async with runtime(home, project, played, config=limits) as made:
        made.register_tool(wait)
        handle = await made.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type is EventType.TOOL_FAILED:
                refused.set()
        found = results(await made.replay_session("s1"), "agent.create_sub_agent")
    errors = [result.error for result in found]
    (error,) = [error for error in errors[:3] if error is not None]
    assert error.code is ErrorCode.CHILD_AGENT_LIMIT_EXCEEDED
    assert error.details["scope"] == scope
    assert errors[3] is None, "the places are free again"


async def test_e3_a_childs_history_is_its_own(home: Home, project: Path) -> None:
    played = Cast({"go": [sub("look"), "done"], "look": [calls("code.list_dir", path="."), "seen"]})
    async with runtime(home, project, played) as made:
        handle = await go(made)
        child = await inspected(made, handle)
        whole = await made.replay_session("s1")
        mine = await made.replay_run(handle.run_id)
        its = await made.replay_run(child.run.run_id)
        page = await made.list_sessions()
    assert {event.run_id for event in whole.events} == {handle.run_id}
    assert {event.run_id for event in mine.events} == {handle.run_id}
    assert {event.run_id for event in its.events} == {child.run.run_id}
    assert [node.role for node in its.nodes] == ["user", "assistant", "tool", "assistant"]
    assert its.events[-1].event_type is EventType.RUN_COMPLETED
    assert [e.run_seq for e in its.events] == list(range(1, len(its.events) + 1))
    assert page[0].active_node_id == whole.nodes[-1].node_id


async def test_a_childs_events_can_be_watched_while_it_runs(home: Home, project: Path) -> None:
    played = Cast({"go": [sub("look"), "done"], "look": [says("seen")]})
    watched: dict[str, list[RuntimeEvent]] = {}

    async def watch(handle: RunHandle, run_id: str) -> None:
        watched[run_id] = [event async for event in handle.child_events(run_id)]

    async with runtime(home, project, played) as made, asyncio.TaskGroup() as group:
        handle = await made.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type is EventType.CHILD_AGENT_CREATED:
                group.create_task(watch(handle, event.payload["child_run_id"]))
    ((run_id, events),) = watched.items()
    assert {event.run_id for event in events} == {run_id}
    assert events[-1].event_type is EventType.RUN_COMPLETED
    assert "".join(event.payload.get("text", "") for event in events) == "seen"


async def test_a_child_that_has_ended_can_still_be_watched_and_a_stranger_is_unknown(
    home: Home, project: Path
) -> None:
    played = Cast({"go": [sub("look"), "done"], "look": ["seen"]})
    async with runtime(home, project, played) as made:
        handle = await go(made)
        child = await inspected(made, handle)
        seen = [event async for event in handle.child_events(child.run.run_id, debug=True)]
        with pytest.raises(StorageError) as unknown:
            async for _ in handle.child_events(handle.run_id):
                pass
        with pytest.raises(StorageError):
            await handle.inspect_child(handle.run_id)
    stored = [event.event_id for event in seen if event.run_seq is not None]
    assert stored == [event.event_id for event in child.events]
    assert "".join(event.payload.get("text", "") for event in seen) == "seen"
    assert unknown.value.code is ErrorCode.RUN_NOT_FOUND


async def test_the_parents_stream_tells_of_its_children_in_few_words_and_what_they_cost(
    home: Home, project: Path
) -> None:
    start = sub("look").model_copy(update={"usage": Usage()})
    played = Cast({"go": [start, says("done", 5)], "look": [says("seen", 10)]})
    async with runtime(home, project, played) as made:
        handle = await made.start("go", session_id="s1")
        events = await collect(handle)
        (result,) = await answers(made, "create_sub_agent")
    assert {event.run_id for event in events} == {handle.run_id}
    (completed,) = [e for e in events if e.event_type is EventType.CHILD_AGENT_COMPLETED]
    assert completed.payload["usage"]["total_tokens"] == 20
    assert result["metadata"]["usage"]["total_tokens"] == 20
    assert handle.usage.total_tokens == 10, "the parent's own model calls"


async def test_a_child_without_enough_turns_is_a_failed_child(home: Home, project: Path) -> None:
    looks = [calls("code.list_dir", path=".") for _ in range(5)]
    played = Cast({"go": [sub("look"), "done"], "look": looks})
    async with runtime(home, project, played, config=f"{CONFIG}[runtime]\nmax_turns = 3\n") as made:
        handle = await go(made)
        (result,) = results(await made.replay_session("s1"), "agent.create_sub_agent")
    assert handle.status is RunStatus.COMPLETED
    assert result.error is not None
    assert result.error.code is ErrorCode.MAX_TURNS


async def test_a_definition_chooses_the_model_and_its_key_is_a_secret(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REVIEWER_KEY", "very-secret-value")
    played = Cast({
        "go": [sub("look", agent_definition_id="reviewer"), "done"],
        "look": ["the key is very-secret-value"],
    })  # fmt: skip
    made = runtime(home, project, played)
    async with made:
        made.register_agent_definition(
            AgentDefinition(
                agent_definition_id="reviewer",
                name="n",
                description="d",
                model_profile={"name": "thinker", "api_key_env": "REVIEWER_KEY"},
            )
        )
        await go(made)
        (result,) = await answers(made, "create_sub_agent")
    assert played.requests_of("look")[0].model == "thinker"
    assert result["summary"] == "the key is [redacted:REVIEWER_KEY]"
    assert b"very-secret-value" not in (home.path / "sessions.sqlite").read_bytes()


@pytest.mark.parametrize("words", ["", "  ", "\n\t"])
async def test_a_task_that_says_nothing_starts_no_child(
    home: Home, project: Path, words: str
) -> None:
    played = Cast({"go": [together(sub(words), sub("work", context=words), fork(words)), "done"]})
    async with runtime(home, project, played) as made:
        handle = await go(made)
        history = await made.replay_session("s1")
    assert handle.status is RunStatus.COMPLETED
    refused = [result for node in history.nodes for result in node.results]
    assert [each.error and each.error.code for each in refused] == [ErrorCode.VALIDATION_ERROR] * 3
    assert len(history.runs) == 1


async def test_an_unknown_definition_is_an_argument_that_does_not_fit(
    home: Home, project: Path
) -> None:
    played = Cast({"go": [sub("look", agent_definition_id="default_compact_agent"), "done"]})
    async with runtime(home, project, played) as made:
        await go(made)
        (result,) = results(await made.replay_session("s1"), "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is ErrorCode.VALIDATION_ERROR
    assert "default_sub_agent" in result.error.message


async def test_artifacts_that_a_child_made_are_named_in_its_result(
    home: Home, project: Path
) -> None:
    @tool(permission="readonly")
    async def keep(context: ToolContext) -> dict[str, str]:
        """Keep a file."""
        return {"artifact_id": await context.artifact(b"x", filename="x.bin")}

    played = Cast({"go": [sub("look"), "done"], "look": [calls("keep"), "kept"]})
    made = runtime(home, project, played)
    made.register_tool(keep)
    async with made:
        handle = await go(made)
        (result,) = await answers(made, "create_sub_agent")
        child = await inspected(made, handle)
    assert result["artifacts"] == [artifact.artifact_id for artifact in child.artifacts]
    assert len(result["artifacts"]) == 1


async def test_a_child_that_outlives_its_parent_gives_the_session_back_when_it_ends(
    home: Home, project: Path
) -> None:
    release = asyncio.Event()

    @tool(permission="readonly")
    async def cling() -> str:
        """Do not let go."""
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "at last"

    config = CONFIG + "[agents]\nchild_cancel_timeout_ms = 50\n"
    played = Cast({"go": [sub("cling", timeout_ms=700), "done"], "cling": [calls("cling"), "x"]})
    made = runtime(home, project, played, config=config)
    made.register_tool(cling)
    async with made:
        await go(made)
        (before,) = await made.list_sessions()
        release.set()
        services = await made._home.services()
        while len(services.runs.children):  # noqa: ASYNC110 - nobody is left who would tell
            await asyncio.sleep(0.01)
        (after,) = await made.list_sessions()
    assert before.owner is not None
    assert after.owner is None


async def test_suggested_tools_say_whether_a_child_could_have_them_and_why_not(
    home: Home, project: Path
) -> None:
    @tool(permission="readonly", tags={"network"})
    async def fetch(url: str) -> str:
        """Fetch a page."""
        return url

    names = (
        "code.read_file, code.write_file, code.search, agent.task_create, mcp.x.y, mcp.z.y, fetch"
    )
    define(home, "reviewer", more=f"suggested_tools: [{names}]\n")
    config = (
        CONFIG
        + '[tools]\ndisabled = ["code.search"]\n[permissions.network_policy]\ndefault = "deny"\n'
        + '[tools.mcp]\ndisabled_servers = ["z"]\n'
    )
    made = runtime(home, project, Cast(LISTING), config=config)
    made.register_tool(fetch)
    async with made:
        found = await listed(made)
    assert found["reviewer"]["suggested_tools"] == [
        {"name": "code.read_file", "available": True},
        {"name": "code.write_file", "available": False, "unavailable_reason": "permission_denied"},
        {"name": "code.search", "available": False, "unavailable_reason": "disabled_by_config"},
        {"name": "agent.task_create", "available": False, "unavailable_reason": "mode_restricted"},
        {"name": "mcp.x.y", "available": False},
        {"name": "mcp.z.y", "available": False, "unavailable_reason": "disabled_by_config"},
        {"name": "fetch", "available": False, "unavailable_reason": "policy_restricted"},
    ]


async def test_a_suggestion_gives_no_rights(home: Home, project: Path) -> None:
    define(home, "reviewer", more="suggested_tools: [agent.create_sub_agent]\n")
    played = Cast({"go": [sub("look", agent_definition_id="reviewer"), "done"], "look": ["seen"]})
    async with runtime(home, project, played) as made:
        await go(made)
    (request,) = played.requests_of("look")
    assert not any(each.name.startswith("agent.") for each in request.tools)


async def test_the_standing_part_of_an_ordinary_prompt_stays_small(
    home: Home, project: Path
) -> None:
    played = Cast({"go": ["done"]})
    async with runtime(home, project, played) as made:
        await go(made)
    (request,) = played.requests
    static = sum(block.token_count for block in request.system if not block.dynamic)
    assert static + estimate_tools(request.tools) < 2500

"""Agents as values: the agent of a run, children with tools of their own, agents as tools."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent_core import (
    Agent,
    AgentCoreError,
    AgentDefinition,
    AgentRuntime,
    Budget,
    ErrorCode,
    EventType,
    ExtensionContext,
    ModelRequest,
    RunError,
    RunHandle,
    StorageError,
    ToolContext,
    Toolset,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.types import JsonBlock, RuntimeEvent, ToolResultBlock
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from tables import together


@tool(readonly=True)
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool
def publish(text: str) -> str:
    """Publish."""
    return f"published {text}"


class Facts(BaseModel):
    """Facts."""

    lamps: int


def names_of(request: ModelRequest) -> set[str]:
    return {each.name for each in request.tools}


def work_of(request: ModelRequest) -> set[str]:
    return {name for name in names_of(request) if not name.startswith(("agent.", "internal."))}


def system_of(request: ModelRequest) -> str:
    return "\n".join(block.content for block in request.system)


def report_of(result: ToolResultBlock) -> dict[str, Any]:
    (block,) = result.content
    assert isinstance(block, JsonBlock)
    return block.data


async def results_of(made: AgentRuntime, run_id: str) -> list[ToolResultBlock]:
    return [each for node in (await made.replay_run(run_id)).nodes for each in node.results]


def start(agent: str, task: str = "look") -> Any:
    return calls("agent.create_sub_agent", agent_definition_id=agent, task=task)


async def test_a_child_of_an_agent_has_what_its_agent_says(tmp_path: Path) -> None:
    theirs = ScriptedProvider([calls("search", query="lamps"), '{"lamps": 12}'])

    async def told(context: ExtensionContext) -> str:
        return f"You research for {context.deps} as {context.run.agent_definition_id}."

    researcher = Agent(
        "researcher",
        told,
        description="Finds facts.",
        model=theirs,
        tools=[search],
        output_type=Facts,
        temperature=0.5,
    )
    writer = Agent("writer", "You write.", tools=())
    lead = ScriptedProvider([start("researcher"), start("writer"), "a text", "done"])
    async with AgentRuntime(tmp_path, model=lead, persist=False) as made:
        given = [researcher, writer]
        result = await made.run("go", agents=given, tools=["code.list_dir"], deps="Ada")
        found = await results_of(made, result.run_id)
    first, second, child, last = lead.requests
    assert work_of(first) == {"code.list_dir"}
    (tool_,) = [each for each in first.tools if each.name == "agent.create_sub_agent"]
    assert "- researcher: Finds facts.\n- writer: You write." in tool_.description
    assert first.tools == second.tools == last.tools
    assert work_of(theirs.requests[0]) == {"search"} | (
        work_of(theirs.requests[0]) & {"final_answer"}
    )
    assert "You research for Ada as researcher." in system_of(theirs.requests[0])
    assert theirs.requests[0].temperature == 0.5
    assert work_of(child) == set()
    assert "You write." in system_of(child)
    assert report_of(found[0])["metadata"]["output"] == {"lamps": 12}
    assert report_of(found[1])["summary"] == "a text"


async def test_an_agent_keeps_its_model_below_a_run_and_an_agent_with_others(
    tmp_path: Path,
) -> None:
    inner_model, outer_model = ScriptedProvider(["2"]), ScriptedProvider([start("inner"), "1"])
    inner = Agent("inner", "You are inner.", tools=(), model=inner_model)
    outer = Agent(
        "outer", "You are outer.", tools=(), model=outer_model, agents=[inner], temperature=0.5
    )
    warm = Agent("warm", "You are warm.", tools=(), temperature=0.9)
    lead = ScriptedProvider([start("outer"), start("warm"), "w", "0"])
    async with AgentRuntime(tmp_path, model=ScriptedProvider([]), persist=False) as made:
        await made.run("go", model=lead, temperature=0.1, seed=7, agents=[outer, warm], tools=())
    for model in (lead, outer_model, inner_model):
        model.assert_complete()
    settings = [
        [(each.temperature, each.seed) for each in model.requests]
        for model in (lead, outer_model, inner_model)
    ]
    assert settings == [
        [(0.1, 7), (0.1, 7), (0.9, 7), (0.1, 7)],
        [(0.5, None), (0.5, None)],
        [(None, None)],
    ]


async def test_agents_of_a_runtime_are_those_of_every_run(tmp_path: Path) -> None:
    writer = Agent("writer", "You write.")
    lead = ScriptedProvider([start("writer"), "a text", "done", "as a writer", "plain"])
    async with AgentRuntime(tmp_path, model=lead, persist=False, agents=[writer]) as made:
        await made.run("go")
        result = await made.run("write", agent="writer")
        plain = await made.run("write")
        (run,) = (await made.replay_run(result.run_id)).runs
    assert "You write." in system_of(lead.requests[1])
    assert "You write." in system_of(lead.requests[3])
    assert "You write." not in system_of(lead.requests[4])
    assert plain.text == "plain"
    assert run.options is not None
    assert (run.options.agent, run.options.needs_caller) == ("writer", [])


async def test_what_a_parent_may_not_do_its_agents_may_not_either(
    home: Home, project: Path
) -> None:
    asked = Asked("deny")
    writer = Agent("writer", "You write.", tools=[publish, search])
    script = [start("writer"), calls("publish", text="a"), calls("search", query="b"), "x", "done"]
    provider = ScriptedProvider(script)
    async with runtime(home, project, provider, permission_callback=asked) as made:
        await made.run("go", agents=[writer], disabled_tools=["search"])
    assert work_of(provider.requests[1]) == {"publish"}
    assert [each.tool_name for each in asked.requests] == ["publish"]
    assert asked.requests[0].agent_role == "sub"


async def test_a_run_is_one_of_an_agent(tmp_path: Path) -> None:
    theirs = ScriptedProvider(['{"lamps": 3}', "plain"])
    agent = Agent(
        "counter", "You count.", model=theirs, tools=[search], output_type=Facts, max_turns=2
    )
    async with AgentRuntime(tmp_path, model=ScriptedProvider([]), persist=False) as made:
        result = await made.run("go", agent=agent, instructions="Be quick.", seed=7)
        options: Any = {"agent": agent, "output_type": str, "tools": ()}
        text = (await made.run("go", **options)).output
        (run,) = (await made.replay_run(result.run_id)).runs
    facts: Facts = result.output
    assert facts == Facts(lamps=3)
    assert text == "plain"
    first, second = theirs.requests
    assert "You count.\n\nBe quick." in system_of(first)
    assert first.seed == 7
    assert "search" in names_of(first)
    assert work_of(second) == set()
    assert run.options is not None
    assert (run.options.agent, run.options.max_turns) == ("counter", 2)
    assert run.options.instructions == "You count.\n\nBe quick."


async def test_a_run_is_one_of_a_definition(home: Home, project: Path) -> None:
    definition = AgentDefinition(
        agent_definition_id="looker",
        name="Looker",
        description="Looks.",
        body="You look.",
        model_profile={"name": "own"},
    )
    provider = ScriptedProvider(["seen"])
    async with runtime(home, project, provider) as made:
        made.register_agent_definition(definition)
        assert (await made.run("go", agent="looker")).text == "seen"
        with pytest.raises(AgentCoreError, match=r"'loker', but there is no such agent.*looker"):
            await made.start("go", agent="loker")
    assert "You look." in system_of(provider.requests[0])
    assert provider.requests[0].model == "own"


async def test_agents_start_agents_down_to_a_depth(home: Home, project: Path) -> None:
    third = Agent("third", "You are third.", tools=())
    second = Agent("second", "You are second.", tools=(), agents=[third])
    first = Agent("first", "You are first.", tools=(), agents=[second])
    script = [start("first"), start("second"), start("third"), "3", "2", "1", "0"]
    provider = ScriptedProvider(script)
    async with runtime(home, project, provider, config=CONFIG) as made:
        result = await made.run("go", agents=[first])
        runs = await made.session_runs(result.session_id)
    provider.assert_complete()
    assert result.text == "0"
    starts = ["agent.create_sub_agent" in names_of(request) for request in provider.requests]
    assert starts == [True, True, True, False, True, True, True]
    agents = {run.run_id: run.metadata.get("agent_definition_id") for run in runs}
    parents = [agents.get(run.parent_run_id or "") for run in runs]
    assert parents == [None, None, "first", "second"]
    provider.add(start("first"), start("second"), "2", "1", "0")
    shallow = CONFIG + "[agents]\nmax_depth = 1\n"
    async with runtime(home, project, provider, config=shallow) as made:
        await made.run("go", agents=[first])
    refused = str(provider.requests[9].messages[-1])
    assert "this agent is 1 level below the run, and may start no other one" in refused


async def test_a_model_that_errs_in_a_name_is_told_the_agents_of_the_run(tmp_path: Path) -> None:
    provider = ScriptedProvider([start("inmer"), "0"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        await made.run("go", agents=[Agent("inner", "You are inner.", tools=())])
    told = str(provider.requests[1].messages[-1])
    assert "there is no agent definition inmer; there are: inner, default_" in told


def test_a_name_is_a_text() -> None:
    with pytest.raises(AgentCoreError, match="name of an agent is 1 to 64"):
        Agent(5, "You count.")  # type: ignore[arg-type]


async def test_a_nested_agent_starts_only_its_own(tmp_path: Path) -> None:
    inner = Agent("inner", "You are inner.", tools=())
    outer = Agent("outer", "You are outer.", tools=(), agents=[inner])
    script = [start("outer"), start("default_sub_agent"), "1", "0"]
    provider = ScriptedProvider(script)
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        await made.run("go", agents=[outer])
    assert "there is no agent default_sub_agent here; there are: inner" in str(
        provider.requests[2].messages[-1]
    )


async def test_an_agent_is_a_tool_with_one_text(tmp_path: Path) -> None:
    theirs = ScriptedProvider(["twelve", '{"lamps": 12}'])
    counter = Agent("counter", "You count.", description="Counts.", model=theirs, tools=())
    typed = Agent("typed", "You count.", model=theirs, tools=(), output_type=Facts)
    script = [
        calls("counter", message="How many?"),
        calls("ask_typed", message="How many?"),
        "done",
    ]
    lead = ScriptedProvider(script)
    tools = [counter.as_tool(), typed.as_tool("ask_typed")]
    async with AgentRuntime(tmp_path, model=lead, persist=False, tools=tools) as made:
        result = await made.run("go")
        found = await results_of(made, result.run_id)
        runs = await made.session_runs(result.session_id)
    (offered,) = [each for each in lead.requests[0].tools if each.name == "counter"]
    assert offered.description == "Counts."
    assert list(offered.input_schema["properties"]) == ["message"]
    assert [
        block.model_dump(include={"text", "data"}) for each in found for block in each.content
    ] == [
        {"text": "twelve"},
        {"data": {"lamps": 12}},
    ]
    assert [run.parent_run_id for run in runs] == [None, result.run_id, result.run_id]


async def test_agents_that_ask_themselves_end_at_the_depth(tmp_path: Path) -> None:
    provider = ScriptedProvider([*(calls("echo", message="again") for _ in range(4)), *"4321"])
    tools: list[Any] = []
    echo = Agent("echo", "You echo.", model=provider)
    tools.append(echo.as_tool())
    async with AgentRuntime(tmp_path, model=provider, persist=False, tools=tools) as made:
        result = await made.run("go", agent=echo)
    assert result.text == "1"
    assert "child_agent_limit_exceeded" in str(provider.requests[4].messages[-1])


async def test_children_keep_to_the_turns_of_their_run_and_of_their_agent(tmp_path: Path) -> None:
    for given, own, turns in ((2, None, 2), (3, 2, 2), (2, 5, 2)):
        worker = Agent("worker", "You work.", tools=[search], max_turns=own)
        endless = [calls("search", query=str(number)) for number in range(turns)]
        provider = ScriptedProvider([start("worker"), *endless, "done"])
        async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
            result = await made.run("go", agents=[worker], max_turns=given)
            (found,) = await results_of(made, result.run_id)
        provider.assert_complete()
        assert found.error is not None
        assert found.error.code is ErrorCode.MAX_TURNS


async def test_the_budget_of_an_agent_is_a_part_of_its_parents(tmp_path: Path) -> None:
    worker = Agent("worker", "You work.", tools=[search], budget=Budget(requests=1))
    provider = ScriptedProvider([start("worker"), calls("search", query="a"), "done"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", agents=[worker], budget=Budget(requests=9))
        (found,) = await results_of(made, result.run_id)
    assert found.error is not None
    assert found.error.code is ErrorCode.BUDGET_EXCEEDED


async def test_toolsets_of_an_agent_are_open_while_it_works(tmp_path: Path) -> None:
    class Database(Toolset):
        opened = closed = 0

        async def open(self) -> list[Any]:
            self.opened += 1

            @tool(readonly=True)
            async def query(text: str, context: ToolContext) -> str:
                """Ask."""
                assert self.opened > self.closed
                return f"rows of {text}"

            return [query]

        async def close(self) -> None:
            self.closed += 1

    database = Database("db")
    worker = Agent("worker", "You work.", tools=[database])
    provider = ScriptedProvider([start("worker"), calls("query", text="a"), "read", "done"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        await made.run("go", agents=[worker])
    assert work_of(provider.requests[1]) == {"query"}
    assert work_of(provider.requests[0]).isdisjoint({"query"})
    assert (database.opened, database.closed) == (1, 1)


@together(
    ("given", "reason"),
    [
        ({"agents": [Agent]}, "agents holds Agent"),
        ({"agents": "writer"}, "agents must be a list of agents, not a str"),
        ({"handoffs": [7]}, "handoffs holds an int"),
        ({"agent": 7}, "agent holds an int"),
        ({"agents": [Agent("a", "1"), Agent("a", "2")]}, "two agents named a"),
    ],
)
async def test_what_is_no_agent_is_named(tmp_path: Path, given: Any, reason: str) -> None:
    async with AgentRuntime(tmp_path, model=ScriptedProvider([]), persist=False) as made:
        with pytest.raises(AgentCoreError, match=reason):
            await made.start("go", **given)


@together(
    ("fields", "reason"),
    [
        ({"name": "two words"}, "name of an agent"),
        ({"name": "a", "tools": "search"}, "tools must be a list"),
        ({"name": "a", "max_turns": 0}, "max_turns"),
        ({"name": "a", "instructions": 5}, "instructions"),
        ({"name": "a", "stop": [""]}, "stop"),
    ],
)
def test_an_agent_is_checked_where_it_is_made(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(AgentCoreError, match=reason):
        Agent(**fields)


async def test_a_child_that_fails_is_an_error_of_the_call(tmp_path: Path) -> None:
    worker = Agent("worker", "You work.", tools=(), output_type=Facts, output_retries=0)
    provider = ScriptedProvider([start("worker"), "no facts", "done"])
    async with AgentRuntime(tmp_path, model=provider, persist=False) as made:
        result = await made.run("go", agents=[worker])
        (found,) = await results_of(made, result.run_id)
    assert found.is_error
    with pytest.raises(RunError, match="expected shape"):
        async with AgentRuntime(
            tmp_path, model=ScriptedProvider(["no facts"]), persist=False
        ) as made:
            await made.run("go", agent=worker)


@pytest.mark.parametrize("when_full", ["refuse", "wait"])
async def test_children_beyond_the_limits_are_refused_or_wait(
    home: Home, project: Path, when_full: str
) -> None:
    at_work: list[int] = []
    most: list[int] = []

    @tool(readonly=True)
    async def work() -> str:
        """Work."""
        at_work.append(1)
        most.append(len(at_work))
        await asyncio.sleep(0)
        at_work.pop()
        return "worked"

    worker = Agent("worker", "You work.", tools=[work])
    start_ = {"agent_definition_id": "worker", "task": "go"}
    three = Calls(
        calls=[ScriptedCall(name="agent.create_sub_agent", arguments=start_) for _ in range(3)]
    )
    theirs = [calls("work"), "done"]
    limits = f'[agents]\nmax_children_per_run = 1\nwhen_full = "{when_full}"\n'
    provider = ScriptedProvider([three, *theirs * (3 if when_full == "wait" else 1), "end"])
    async with runtime(home, project, provider, config=CONFIG + limits) as made:
        result = await made.run("go", agents=[worker])
        found = await results_of(made, result.run_id)
    provider.assert_complete()
    codes = [each.error and each.error.code for each in found]
    assert set(most) == {1}
    if when_full == "wait":
        assert codes == [None, None, None]
    else:
        assert sorted(map(str, codes)) == sorted(
            map(str, [None, *[ErrorCode.CHILD_AGENT_LIMIT_EXCEEDED] * 2])
        )


async def test_agents_that_could_only_wait_for_one_another_are_refused(
    home: Home, project: Path
) -> None:
    inner = Agent("inner", "You are inner.", tools=())
    outer = Agent("outer", "You are outer.", tools=(), agents=[inner])
    limits = '[agents]\nmax_concurrent_children_per_session = 1\nwhen_full = "wait"\n'
    provider = ScriptedProvider([start("outer"), start("inner"), "1", "0"])
    async with runtime(home, project, provider, config=CONFIG + limits) as made:
        await made.run("go", agents=[outer])
    assert "child_agent_limit_exceeded" in str(provider.requests[2].messages[-1])


async def test_the_children_of_a_child_can_be_watched(home: Home, project: Path) -> None:
    inner = Agent("inner", "You are inner.", tools=())
    outer = Agent("outer", "You are outer.", tools=(), agents=[inner])
    watched: dict[str, list[RuntimeEvent]] = {}

    async def watch(handle: RunHandle[Any], run_id: str, group: asyncio.TaskGroup) -> None:
        seen = watched[run_id] = []
        async for event in handle.child_events(run_id):
            seen.append(event)
            if event.event_type is EventType.CHILD_AGENT_CREATED:
                group.create_task(watch(handle, event.payload["child_run_id"], group))

    provider = ScriptedProvider(
        [start("outer"), start("inner"), "innermost", "outer", "done", "hello"]
    )
    async with runtime(home, project, provider) as made:
        async with asyncio.TaskGroup() as group:
            handle = await made.start("go", "s1", agents=[outer])
            async for event in handle.events():
                if event.event_type is EventType.CHILD_AGENT_CREATED:
                    group.create_task(watch(handle, event.payload["child_run_id"], group))
        first, second = watched
        assert {event.run_id for event in watched[second]} == {second}
        assert watched[second][-1].event_type is EventType.RUN_COMPLETED
        stored = [event async for event in handle.child_events(second)]
        assert stored[-1].event_id == watched[second][-1].event_id
        found = await handle.inspect_child(second)
        assert found.run.parent_run_id == first
        other = await made.run("hi", "s2")
        for stranger in (other.run_id, handle.run_id):
            with pytest.raises(StorageError) as caught:
                await handle.inspect_child(stranger)
            assert caught.value.code is ErrorCode.RUN_NOT_FOUND
        child = await made.attach(other.run_id)
        with pytest.raises(StorageError):
            await child.inspect_child(second)

"""Programs that are not run: two type checkers read from them what the public API returns."""

import asyncio
from dataclasses import dataclass
from typing import Any, Literal, assert_type

import agcore
from agent_core import (
    Agent,
    AgentDefinition,
    AgentRuntime,
    PermissionDecision,
    RunHandle,
    RunOptions,
    RunResult,
    Session,
    ToolContext,
    ToolDefinition,
    tool,
)


@dataclass
class Answer:
    """A typed answer."""

    text: str


def shorten(answer: Answer) -> str:
    """Return a part of the answer."""
    return answer.text[:10]


@tool(readonly=True)
async def count(word: str, context: ToolContext[list[str]]) -> int:
    """Count a word."""
    return context.deps.count(word)


def words_of_enums(made: AgentRuntime) -> None:
    """Words are taken where the enums are."""
    PermissionDecision(decision="allow_once")
    ToolDefinition(name="a", description="b", permission="readonly")
    definition = AgentDefinition(agent_definition_id="a", name="a", description="b")
    made.register_agent_definition(definition, source="code")


async def runs(made: AgentRuntime, session: Session, writer: Agent[Answer]) -> None:
    """What a run returns has the type that was asked for."""
    assert_type(await made.run("a"), RunResult[str])
    assert_type(await made.run("a", model="openai:gpt-5", tools=[count]), RunResult[str])
    assert_type(await made.run("a", output_type=Answer), RunResult[Answer])
    assert_type(await made.run("a", output_type=list[Answer]), RunResult[list[Answer]])
    assert_type(await made.run("a", output_type=Answer | None), RunResult[Answer | None])
    assert_type(await made.run("a", output_type=Literal["b", "c"]), RunResult[Literal["b", "c"]])
    assert_type(await made.run("a", output_type={"type": "object"}), RunResult[Any])
    assert_type(await made.run("a", output_type=shorten), RunResult[str])
    assert_type(await made.run("a", options=RunOptions(output_type=int)), RunResult[int])
    assert_type(await made.run("a", agent=writer), RunResult[Answer])
    assert_type(await made.start("a", mode="orchestrator", output_type=int), RunHandle[int])
    assert_type(await (await made.start("a", output_type=int)).result(), RunResult[int])
    assert_type(await session.run("a", output_type=Answer | None), RunResult[Answer | None])
    assert_type(await session.start("a", output_type=Answer), RunHandle[Answer])


async def runs_of_agents(
    made: AgentRuntime, session: Session, writer: Agent[Answer], counter: Agent[int]
) -> None:
    """An agent that is known by its name may answer with anything, and so may a handoff."""
    assert_type(await made.run("a", agent="writer"), RunResult[Any])
    assert_type(await session.start("a", agent="writer"), RunHandle[Any])
    assert_type(RunOptions(agent="writer"), RunOptions[Any])
    assert_type(await made.run("a", agent="writer", output_type=Answer), RunResult[Answer])
    assert_type(await made.run("a", agent=counter, output_type=Answer), RunResult[Answer])
    assert_type(await made.run("a", agent=writer, output_type=shorten), RunResult[str])
    assert_type(await made.run("a", agent=None, output_type=None), RunResult[str])
    assert_type(await made.run("a", options=RunOptions(agent=writer)), RunResult[Answer])
    assert_type(await made.run("a", handoffs=[writer]), RunResult[Any])
    assert_type(await session.run("a", output_type=int, handoffs=[writer]), RunResult[Any])
    asyncio.run(made.run("a"))  # its type is known in whole where another function takes it
    assert_type(RunOptions(output_type=int, handoffs=[writer]), RunOptions[Any])


async def answers(made: AgentRuntime, session: Session, handle: RunHandle[Answer]) -> None:
    """The handle of a run that continues has the type that is given with the answer."""
    assert_type(await made.answer("a", "deny"), RunHandle[Any])
    assert_type(await made.answer("a", "deny", output_type=Answer), RunHandle[Answer])
    assert_type(await made.answer("a", "deny", output_type=shorten), RunHandle[str])
    assert_type(await made.answer("a", "deny", output_type={"type": "object"}), RunHandle[Any])
    assert_type(await session.answer("a", "deny", "no", output_type=int), RunHandle[int])
    assert_type(
        await handle.answer("a", "deny", output_type=Answer | None), RunHandle[Answer | None]
    )
    await made.answer("a", "allow_once", arguments={"a": 1}, deps=[1], decided_by="page")


def runs_without_async(made: AgentRuntime, session: Session) -> None:
    """As above."""
    assert_type(made.run_sync("a", output_type=Answer), RunResult[Answer])
    assert_type(session.run_sync("a"), RunResult[str])


def agents() -> None:
    """An agent knows the type of its answers."""
    assert_type(Agent("a", "b", tools=[count]), Agent[str])
    assert_type(Agent("a", output_type=Answer), Agent[Answer])
    assert_type(Agent("a", output_type=None), Agent[str])
    assert_type(Agent("a", output_type=Answer | None), Agent[Answer | None])
    assert_type(Agent("a", output_type=shorten), Agent[str])
    assert_type(Agent("a", output_type={"type": "object"}), Agent[Any])
    assert_type(RunOptions(output_type=Answer | int), RunOptions[Answer | int])


async def handoffs(made: AgentRuntime, writer: Agent[Answer], counter: Agent[int]) -> None:
    """An agent that may hand the conversation over has the answers of the others, too."""
    assert_type(Agent("a", handoffs=[writer]), Agent[str | Answer])
    assert_type(Agent("a", output_type=bool, handoffs=[counter]), Agent[bool | int])
    assert_type(Agent("a", output_type=Answer, handoffs=[writer]), Agent[Answer])
    triage = Agent("a", "b", tools=[count], handoffs=[Agent("c"), Agent("d", "e")])
    assert_type(triage, Agent[str])
    assert_type((await made.run("a", agent=Agent("a", handoffs=[writer]))).output, str | Answer)


async def toolkit(shop: agcore.Agent[list[str], str]) -> None:
    """The agents of the toolkit do, too."""
    assert_type(agcore.Agent("a", output_type=None), agcore.Agent[None, str])
    typed = agcore.Agent("a", "b", tools=[count], output_type=Answer | None, deps_type=list[str])
    assert_type(typed, agcore.Agent[list[str], Answer | None])
    assert_type((await typed.run("a", deps=[])).output, Answer | None)
    assert_type(typed.run_sync("a", deps=[], output_type=Literal["b"]).output, Literal["b"])
    assert_type((await shop.run("a", deps=[])).output, str)
    assert_type((await shop.run("a", deps=[], output_type={"type": "object"})).output, Any)
    async for part in shop.stream("a", deps=[], output_type=Answer).partial_output():
        assert_type(part, Answer)

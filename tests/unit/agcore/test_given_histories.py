"""Conversations as values, given to agents of the toolkit."""

import pytest

from agcore.agent import Agent, AgentError
from agcore.llm import ChatMessage
from agcore.memory import ConversationMemory, InMemoryStore
from agent_core.providers.scripted import ScriptedProvider

HISTORY = [
    {"role": "system", "content": "Metric units."},
    {"role": "user", "content": "Where?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "Rome"},
    {"role": "assistant", "content": "In Rome."},
]


async def test_an_agent_continues_a_conversation() -> None:
    model = ScriptedProvider(["Sure.", "Yes."])
    agent = Agent("guide", "Be brief.", model=model)
    result = await agent.run("Sure?", history=HISTORY)
    assert result.text == "Sure."
    assert result.total_usage == result.usage
    stream = agent.stream("Really?", history=HISTORY)
    async for _ in stream:
        pass
    for request, said in zip(model.requests, ("Sure?", "Really?"), strict=True):
        assert [message.role for message in request.messages] == [
            *("user", "assistant", "tool", "assistant", "user")
        ]
        assert request.messages[-1].content[0].model_dump()["text"] == said
        system = "\n".join(block.content for block in request.system)
        assert "Be brief." in system
        assert "Metric units." in system


def test_threads_may_bring_a_conversation() -> None:
    model = ScriptedProvider(["Yes."])
    history = [ChatMessage.user_text("Where?"), ChatMessage.assistant_text("In Rome.")]
    assert Agent("guide", None, model=model).run_sync("Sure?", history=history).text == "Yes."
    assert len(model.requests[0].messages) == 3


async def test_what_a_session_keeps_is_given_to_another_one() -> None:
    model = ScriptedProvider(["One.", "Two.", "Three."])
    agent = Agent("guide", None, model=model)
    conversation = ConversationMemory(InMemoryStore(), "s1")
    async with agent.session(conversation=conversation) as session:
        await session.run("first")
        with pytest.raises(AgentError, match="keep one"):
            await session.run("second", history=HISTORY)
        kept = await session.messages()
    await agent.run("third", history=kept)
    assert len(model.requests[-1].messages) == 3


async def test_a_message_that_cannot_be_read_is_named() -> None:
    agent = Agent("guide", None, model=ScriptedProvider([]))
    with pytest.raises(AgentError, match=r"history\[0\] has the role 'human'") as caught:
        await agent.run("Sure?", history=[{"role": "human", "content": "hi"}])
    assert caught.value.details["index"] == 0

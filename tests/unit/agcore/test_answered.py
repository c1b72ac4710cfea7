"""Every call is answered, whatever was interrupted, lost or stored twice."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from agcore.agent import Agent, AgentSession
from agcore.llm import ChatMessage, ChatRole, LlmCycle, MockProvider, ToolCall
from agcore.memory import ConversationMemory, SqliteStore
from agent_core.types import ToolResultBlock
from agent_parts import bundle


def asks(*call_ids: str) -> ChatMessage:
    calls = [ToolCall(tool_call_id=call_id, name="echo") for call_id in call_ids]
    return ChatMessage.assistant_text("", calls)


WHOLE = [
    ChatMessage.user_text("go"),
    asks("a", "b"),
    ChatMessage.tool_text("a", "1"),
    ChatMessage.tool_text("b", "2"),
    asks("c"),
    ChatMessage.tool_text("c", "3"),
    ChatMessage.assistant_text("done"),
    ChatMessage.user_text("more"),
]

TWICE = ChatMessage(role=ChatRole.TOOL, content=WHOLE[2].content * 2)


def open_calls(messages: Sequence[ChatMessage]) -> set[str]:
    """Calls without an answer, and answers without a call before them."""
    asked: set[str] = set()
    wrong: set[str] = set()
    for message in messages:
        if message.role is ChatRole.TOOL:
            ids = {b.tool_call_id for b in message.content if isinstance(b, ToolResultBlock)}
            wrong |= ids - asked
            asked -= ids
        else:
            wrong |= asked
            asked = {call.tool_call_id for call in message.tool_calls}
    return wrong | asked


async def sent(history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What a provider gets of a history, without the prompt."""
    provider = MockProvider(["ok"])
    await LlmCycle(provider).with_messages(history).submit("and now?")
    *messages, _ = provider.requests[0].messages
    return messages


async def test_a_whole_history_is_passed_on_with_its_results_together() -> None:
    passed = await sent(WHOLE)
    spoken = [message for message in WHOLE if message.role is not ChatRole.TOOL]
    assert [message for message in passed if message.role is not ChatRole.TOOL] == spoken
    answers = [m.content for m in passed if m.role is ChatRole.TOOL]
    assert answers == [[*WHOLE[2].content, *WHOLE[3].content], WHOLE[5].content]


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(st.sampled_from([*WHOLE, TWICE])))
async def test_whatever_is_left_of_a_history_every_call_has_its_answer(
    left: list[ChatMessage],
) -> None:
    mended = await sent(left)
    assert open_calls(mended) == set()
    kept = [message for message in left if message.role is not ChatRole.TOOL]
    assert [message for message in mended if message.role is not ChatRole.TOOL] == kept


async def test_a_session_goes_on_after_the_process_died_between_a_call_and_its_answer(
    tmp_path: Path,
) -> None:
    async with await SqliteStore.open(tmp_path / "m.sqlite") as store:
        await ConversationMemory(store, "s1").add_messages(WHOLE[:3])
    async with await SqliteStore.open(tmp_path / "m.sqlite") as store:
        provider = MockProvider(["Where were we?"])
        memory = ConversationMemory(store, "s1")
        session = AgentSession(Agent("helper"), "s1", bundle(provider), conversation=memory)
        await session.submit_turn("go on")
    request = provider.requests[0].messages
    assert open_calls(request) == set()
    _, block = request[2].content
    assert isinstance(block, ToolResultBlock)
    assert (block.tool_call_id, block.is_error) == ("b", True)
    assert "this call has no result" in block.content[0].model_dump()["text"]


async def test_calls_that_a_caller_has_not_answered_are_answered_for_him() -> None:
    provider = MockProvider(["fine"])
    await LlmCycle(provider).with_messages([WHOLE[0], asks("x")]).submit("never mind")
    assert open_calls(provider.requests[0].messages) == set()

"""What a turn that is stopped leaves: whatever was done is known to the next turn."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from pathlib import Path

import pytest

from agcore.agent import Agent, AgentBuilder, AgentConfig, AgentSession
from agcore.llm import (
    AssistantTextDelta,
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    CompactConfig,
    FinishReason,
    HookExecutor,
    LlmCycle,
    MockProvider,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from agcore.memory import ConversationMemory, ConversationMemoryConfig, InMemoryStore
from agcore.tools import ToolRegistry
from agent_core import tool
from agent_core.types import ToolCall, ToolResultBlock, new_id
from agent_parts import SUMMARY, is_summary

AGENT = Agent("writer", "You write.")


def calls_of(*names: str) -> ChatResponse:
    calls = [ToolCall(tool_call_id=new_id("call"), name=name, arguments={}) for name in names]
    message = ChatMessage.assistant_text("", calls)
    return ChatResponse(message, stop_reason=FinishReason.TOOL_CALLS)


class Bench:
    """Tools that write, one of which hangs after its write, and one that fails."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "written.txt"
        self.hangs = asyncio.Event()

        @tool(permission="write")
        async def write() -> str:
            """Write at once."""
            self._add("write")
            return "written"

        @tool(permission="write")
        async def write_and_hang() -> str:
            """Write, and never answer."""
            self._add("hang")
            self.hangs.set()
            await asyncio.Event().wait()
            return "never"

        @tool(permission="write")
        async def fail() -> str:
            """Fail."""
            raise ValueError("no")

        @tool(permission="readonly")
        async def look() -> str:
            """Look."""
            return "seen"

        self.registry = ToolRegistry([write, write_and_hang, fail, look])

    def _add(self, line: str) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def session(
        self, provider: MockProvider, memory: ConversationMemory, config: AgentConfig | None = None
    ) -> AgentSession:
        builder = AgentBuilder().provider(provider).tool_registry(self.registry)
        builder.hook_executor(HookExecutor())
        return AgentSession(
            AGENT, "s1", builder.config(config or AgentConfig()).build(), conversation=memory
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def conversation(store: InMemoryStore | None = None) -> ConversationMemory:
    full = ConversationMemoryConfig.full()
    return ConversationMemory(InMemoryStore() if store is None else store, "s1", full)


def answers_in(messages: list[ChatMessage]) -> list[str]:
    blocks = [block for message in messages for block in message.content]
    return [
        block.metadata.get("reason") or ("failed" if block.is_error else "done")
        for block in blocks
        if isinstance(block, ToolResultBlock)
    ]


async def submitted(session: AgentSession) -> None:
    await session.submit_turn("go")


async def streamed(session: AgentSession) -> None:
    async with aclosing(session.submit_turn_stream("go")) as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("submit", [submitted, streamed])
async def test_a_cancelled_turn_keeps_the_record_of_the_write_it_made(
    bench: Bench, submit: Callable[[AgentSession], Coroutine[None, None, None]]
) -> None:
    asked: list[ChatRequest] = []
    script = [calls_of("write", "write_and_hang", "write"), "I see."]

    def reply(request: ChatRequest) -> ChatResponse | str:
        asked.append(request)
        return script.pop(0)

    memory = conversation()
    session = bench.session(MockProvider(reply), memory)
    turn = asyncio.create_task(submit(session))
    await bench.hangs.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert bench.file.read_text(encoding="utf-8") == "write\nhang\n"
    kept = await memory.get_history()
    assert [message.role.value for message in kept] == ["user", "assistant", "tool"]
    await session.submit_turn("what have you done?")
    sent = [message.role.value for message in asked[-1].messages]
    assert sent == ["system", "user", "assistant", "tool", "user"]
    results = [
        block
        for message in asked[-1].messages
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]
    assert [block.is_error for block in results] == [False, True, True]
    assert "may have had part of its effect" in str(results[1])
    assert "it had no effect" in str(results[2])


class Hangs(MockProvider):
    """Streams text, and then nothing more."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        self.requests.append(request)
        yield ChatChunk(text="I will")
        await asyncio.Event().wait()


async def test_a_turn_stopped_before_any_call_began_leaves_nothing(bench: Bench) -> None:
    memory = conversation()
    session = bench.session(Hangs(), memory)
    async with aclosing(session.submit_turn_stream("go")) as events:
        async for event in events:
            if isinstance(event, AssistantTextDelta):
                break
    assert await memory.get_history() == []
    assert await session.messages() == []


async def test_a_turn_stopped_where_a_call_begins_keeps_the_record_of_it(bench: Bench) -> None:
    memory = conversation()
    session = bench.session(MockProvider([calls_of("write_and_hang"), "done"]), memory)
    async with aclosing(session.submit_turn_stream("go")) as events:
        async for event in events:
            if isinstance(event, ToolExecutionStarted):
                break
    kept = await memory.get_history()
    assert [message.role.value for message in kept] == ["user", "assistant", "tool"]
    assert "cancelled" in str(kept[2].content)


async def test_only_calls_that_begin_are_said_to_have_begun(bench: Bench) -> None:
    reply = calls_of("look", "write", "fail", "write", "look")
    cycle = LlmCycle(MockProvider([reply, "done"]))
    events = [event async for event in cycle.submit_stream("go", bench.registry)]
    begun = [event.tool_name for event in events if isinstance(event, ToolExecutionStarted)]
    ended = [event.tool_name for event in events if isinstance(event, ToolExecutionCompleted)]
    assert begun == ["look", "write", "fail", "look"]
    assert ended == ["look", "write", "fail", "write", "look"]
    assert bench.file.read_text(encoding="utf-8") == "write\n"


async def test_a_session_that_has_compacted_sees_what_others_add(bench: Bench) -> None:
    asked: list[ChatRequest] = []

    def reply(request: ChatRequest) -> str:
        asked.append(request)
        return SUMMARY if is_summary(request) else "x" * 2000

    store = InMemoryStore()
    other = conversation(store)
    compact = CompactConfig(max_tokens=1800, keep_recent=2)
    session = bench.session(
        MockProvider(reply), conversation(store), AgentConfig(compact_config=compact)
    )
    for number in range(6):
        await session.submit_turn(f"turn {number}")
        if number == 4:
            await other.add_message(ChatMessage.user_text("from another writer"))
    assert SUMMARY in asked[-1].messages[1].text
    sent = "".join(message.text for request in asked for message in request.messages)
    assert "from another writer" in sent  # in the summary's transcript, perhaps
    await other.add_message(ChatMessage.user_text("a second message"))
    await session.submit_turn("once more")
    said = [message.text for message in await session.messages()]
    assert said.count("a second message") == 1
    assert said.count("once more") == 1
    assert len(await other.get_archive()) == 16

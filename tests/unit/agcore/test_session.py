"""Phase 4a: sessions and their turns, streamed or not."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from agcore.agent import (
    Agent,
    AgentBuilder,
    AgentConfig,
    AgentError,
    AgentSession,
    RuntimeBundle,
)
from agcore.llm import (
    AssistantTextDelta,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatRole,
    CompactConfig,
    Error,
    HookEvent,
    LlmError,
    MockProvider,
    ToolDefinition,
    ToolExecutionCompleted,
    TurnComplete,
    Usage,
    tool_call_reply,
)
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    InMemoryStore,
    MemoryError,  # noqa: A004 - the toolkit's own
    MemoryItem,
)
from agcore.tools import ToolRegistry
from agent_parts import SUMMARY, Echo, Watches, bundle, cancel_once, is_summary

AGENT = Agent("helper", "You help.")
TURN_HOOKS = (HookEvent.ON_TURN_START, HookEvent.ON_TURN_END)


def conversation(session_id: str = "s1") -> ConversationMemory:
    return ConversationMemory(InMemoryStore(), session_id, ConversationMemoryConfig.full())


def said(request: ChatRequest) -> list[tuple[str, str]]:
    return [(message.role.value, message.text) for message in request.messages]


async def test_phase4a_a_turn_runs_counts_and_costs() -> None:
    reply = ChatResponse(ChatMessage.assistant_text("hello back"), Usage.from_input_output(10, 5))
    provider = MockProvider([reply])
    session = AgentSession(AGENT, "s1", bundle(provider))
    assert session.turn_index() == 0
    assert (await session.submit_turn("hi")).text == "hello back"
    assert session.turn_index() == 1
    assert session.usage().total().prompt_tokens == 10
    assert session.usage().total().completion_tokens == 5
    assert said(provider.requests[0]) == [("system", "You help."), ("user", "hi")]


async def test_phase4a_turn_hooks_fire_once_per_turn() -> None:
    watches = Watches(*TURN_HOOKS)
    provider = MockProvider([tool_call_reply("echo", text="x"), "ok", "ok 2"])
    session = AgentSession(AGENT, "s1", bundle(provider, hooks=watches.executor))
    await session.submit_turn("hi")
    await session.submit_turn("hi again")
    assert [(context.event, context.turn_index) for context in watches.seen] == [
        (HookEvent.ON_TURN_START, 0),
        (HookEvent.ON_TURN_END, 0),
        (HookEvent.ON_TURN_START, 1),
        (HookEvent.ON_TURN_END, 1),
    ]


async def test_phase4a_a_block_at_the_start_stops_the_turn() -> None:
    watches = Watches(HookEvent.ON_TURN_START, objection="closed")
    provider = MockProvider(["never"])
    session = AgentSession(AGENT, "s1", bundle(provider, hooks=watches.executor))
    with pytest.raises(AgentError.HookBlocked, match="closed"):
        await session.submit_turn("hi")
    with pytest.raises(AgentError.HookBlocked, match="closed"):
        await anext(session.submit_turn_stream("hi"))
    assert (session.turn_index(), provider.requests) == (0, [])


async def test_phase4a_no_history_is_kept_unless_a_conversation_is_passed_in() -> None:
    provider = MockProvider(["one", "two"])
    session = AgentSession(AGENT, "s1", bundle(provider))
    await session.submit_turn("first")
    await session.submit_turn("second")
    assert said(provider.requests[1]) == [("system", "You help."), ("user", "second")]
    assert await session.messages() == []


async def test_phase4a_a_conversation_keeps_what_was_said_and_done() -> None:
    provider = MockProvider([tool_call_reply("echo", text="x"), "one", "two"])
    memory = conversation()
    session = AgentSession(AGENT, "s1", bundle(provider), conversation=memory)
    await session.submit_turn("first")
    await session.submit_turn("second")
    roles = [message.role.value for message in await memory.get_history()]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [role for role, _ in said(provider.requests[2])] == ["system", *roles[:-1]]


async def test_a_failed_turn_does_not_count_but_keeps_the_tool_calls_it_completed() -> None:
    provider = MockProvider([tool_call_reply("echo", text="x"), LlmError.Other("down"), "ok"])
    memory = conversation()
    watches = Watches(HookEvent.ON_TURN_END)
    session = AgentSession(
        AGENT, "s1", bundle(provider, hooks=watches.executor), conversation=memory
    )
    with pytest.raises(AgentError.Llm):
        await session.submit_turn("go")
    assert (session.turn_index(), watches.seen) == (0, [])
    assert [m.role.value for m in await memory.get_history()] == ["user", "assistant", "tool"]
    await session.submit_turn("go on")
    assert session.turn_index() == 1


async def test_phase4a_max_turns_is_enforced() -> None:
    provider = MockProvider(lambda _: "ok")
    session = AgentSession(AGENT, "s1", bundle(provider, config=AgentConfig(max_turns=2)))
    await session.submit_turn("1")
    await session.submit_turn("2")
    with pytest.raises(AgentError.LimitExceeded, match="max_turns"):
        await session.submit_turn("3")
    with pytest.raises(AgentError.LimitExceeded):
        await anext(session.submit_turn_stream("3"))
    assert len(provider.requests) == 2


async def test_phase4a_max_tool_turns_is_enforced() -> None:
    provider = MockProvider(lambda _: tool_call_reply("echo", text="x"))
    session = AgentSession(AGENT, "s1", bundle(provider, config=AgentConfig(max_tool_turns=3)))
    with pytest.raises(AgentError.LimitExceeded, match="3 rounds"):
        await session.submit_turn("go")
    assert len(provider.requests) == 4


async def test_phase4a_session_ttl_is_enforced() -> None:
    config = AgentConfig(session_ttl=timedelta(hours=1))
    session = AgentSession(AGENT, "s1", bundle(MockProvider(lambda _: "ok"), config=config))
    await session.submit_turn("1")
    session._begun -= 3601
    with pytest.raises(AgentError.LimitExceeded, match="session_ttl"):
        await session.submit_turn("2")


def answers(request: ChatRequest) -> str:
    return SUMMARY if is_summary(request) else "x" * 2000


async def test_phase4a_compact_config_is_enforced_and_its_work_is_kept() -> None:
    provider = MockProvider(answers)
    config = AgentConfig(compact_config=CompactConfig(max_tokens=3000, keep_recent=2))
    memory = conversation()
    session = AgentSession(AGENT, "s1", bundle(provider, config=config), conversation=memory)
    for number in range(8):
        await session.submit_turn(f"turn {number}")
    summaries = [request for request in provider.requests if is_summary(request)]
    assert 0 < len(summaries) < 4
    assert all(len(request.messages) < 14 for request in provider.requests)
    assert SUMMARY in provider.requests[-1].messages[1].text
    assert len(await memory.get_archive()) == 16


async def test_the_breaker_of_compaction_lasts_as_long_as_the_session() -> None:
    def fails(request: ChatRequest) -> str | LlmError:
        return LlmError.Other("cannot") if is_summary(request) else "x" * 2000

    provider = MockProvider(fails)
    compact = CompactConfig(max_tokens=600, keep_recent=2, max_failures=2)
    session = AgentSession(
        AGENT,
        "s1",
        bundle(provider, config=AgentConfig(compact_config=compact)),
        conversation=conversation(),
    )
    for number in range(6):
        await session.submit_turn(f"turn {number}")
    assert len(provider.requests) == 8


async def test_phase4a_a_turn_can_be_watched() -> None:
    provider = MockProvider([tool_call_reply("echo", text="x"), "All done."], chunks=2)
    memory = conversation()
    session = AgentSession(AGENT, "s1", bundle(provider), conversation=memory)
    events = [event async for event in session.submit_turn_stream("go")]
    texts = [event.text for event in events if isinstance(event, AssistantTextDelta)]
    assert "".join(texts) == "All done."
    (ran,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert ran.result.content[0].model_dump()["text"] == "x in s1"
    assert isinstance(events[-1], TurnComplete)
    assert session.turn_index() == 1
    assert len(await memory.get_history()) == 4


async def test_a_watched_turn_is_over_when_its_last_event_arrives() -> None:
    watches = Watches(*TURN_HOOKS)
    session = AgentSession(AGENT, "s1", bundle(MockProvider(["a", "b"]), hooks=watches.executor))
    events = session.submit_turn_stream("go")
    async for event in events:
        if isinstance(event, TurnComplete):
            break
    assert (session.turn_index(), len(watches.seen)) == (1, 2)
    await session.submit_turn("and again")  # nothing is left locked
    await events.aclose()


async def test_a_watched_turn_that_fails_ends_with_an_error_and_does_not_count() -> None:
    session = AgentSession(AGENT, "s1", bundle(MockProvider([LlmError.Other("down")])))
    (event,) = [event async for event in session.submit_turn_stream("go")]
    assert isinstance(event, Error)
    assert event.message == "down"
    assert session.turn_index() == 0


async def test_a_watched_turn_that_is_left_does_not_count_and_blocks_nothing() -> None:
    session = AgentSession(AGENT, "s1", bundle(MockProvider(["abc", "ok"])))
    events = session.submit_turn_stream("go")
    await anext(events)
    await events.aclose()
    assert session.turn_index() == 0
    assert (await session.submit_turn("again")).text == "ok"


async def test_turns_that_are_submitted_at_once_run_one_after_the_other() -> None:
    memory = conversation()
    session = AgentSession(AGENT, "s1", bundle(MockProvider(lambda _: "ok")), conversation=memory)
    await asyncio.gather(*(session.submit_turn(str(number)) for number in range(5)))
    roles = [message.role for message in await memory.get_history()]
    assert roles == [ChatRole.USER, ChatRole.ASSISTANT] * 5


async def test_a_turn_that_waits_is_all_of_the_agent_that_takes_over_meanwhile() -> None:
    gate = asyncio.Event()

    class Waits(MockProvider):
        async def chat(self, request: ChatRequest) -> ChatResponse:
            response = await super().chat(request)
            await gate.wait()
            return response

    provider = Waits(["one", "two"])
    first = Agent("a", "You are a.", temperature=0.1)
    session = AgentSession(first, "s1", bundle(provider))
    turns = [asyncio.create_task(session.submit_turn(text)) for text in ("1", "2")]
    while not provider.requests:  # noqa: ASYNC110 - the provider has no event for it
        await asyncio.sleep(0)
    session.swap_agent(Agent("b", "You are b.", temperature=0.9))
    gate.set()
    await asyncio.gather(*turns)
    asked = [(request.messages[0].text, request.temperature) for request in provider.requests]
    assert asked == [("You are a.", 0.1), ("You are b.", 0.9)]


async def test_phase4a_two_sessions_share_a_bundle_in_parallel_without_cross_talk() -> None:
    class Slow(MockProvider):
        async def chat(self, request: ChatRequest) -> ChatResponse:
            await asyncio.sleep(0.002)
            return await super().chat(request)

    def reply(request: ChatRequest) -> str | ChatResponse:
        last = request.messages[-1]
        if last.role is ChatRole.USER:
            return tool_call_reply("echo", text=last.text)
        asked = next(m.text for m in reversed(request.messages) if m.role is ChatRole.USER)
        tool_said = last.content[0].model_dump()["content"][0]["text"]
        return f"{asked} -> {tool_said}"

    shared = bundle(Slow(reply), backend=InMemoryStore())
    sessions = {
        name: AgentSession(Agent(name), name, shared, conversation=conversation(name))
        for name in ("one", "two")
    }

    async def talk(name: str) -> None:
        for number in range(10):
            await sessions[name].set_session_data("last", f"{name}-{number}")
            answer = await sessions[name].submit_turn(f"{name}-{number}")
            assert answer.text == f"{name}-{number} -> {name}-{number} in {name}"
            assert await sessions[name].get_session_data("last") == f"{name}-{number}"

    await asyncio.gather(*map(talk, sessions))
    for name, session in sessions.items():
        assert session.turn_index() == 10
        other = ({"one", "two"} - {name}).pop()
        assert all(other not in message.text for message in await session.messages())
        assert other not in await session.session_memory.snapshot()


class Hangs(MockProvider):
    """Never answers what is not in its script."""

    def __init__(self, replies: list[ChatResponse]) -> None:
        super().__init__(replies)
        self.hangs = asyncio.Event()

    async def chat(self, request: ChatRequest) -> ChatResponse:
        try:
            return await super().chat(request)
        except LlmError:
            self.requests.pop()
            self.hangs.set()
            await asyncio.Event().wait()
            raise


async def test_a_turn_that_is_cancelled_leaves_a_session_that_can_go_on() -> None:
    provider = Hangs([tool_call_reply("echo", text="x")])
    memory = conversation()
    session = AgentSession(AGENT, "s1", bundle(provider), conversation=memory)
    await cancel_once(provider.hangs, session.submit_turn("go"))
    assert session.turn_index() == 0
    assert [m.role.value for m in await memory.get_history()] == ["user", "assistant", "tool"]
    provider.hangs.clear()
    await cancel_once(provider.hangs, session.submit_turn("and now?"))
    assert len(await memory.get_history()) == 3


async def test_a_conversation_that_cannot_be_stored_is_an_error_of_memory() -> None:
    class Full(InMemoryStore):
        async def save_new(self, items: Sequence[MemoryItem]) -> bool:
            raise MemoryError.Storage(f"no room for {items[0].id}")

    memory = ConversationMemory(Full(), "s1")
    session = AgentSession(AGENT, "s1", bundle(MockProvider(["ok"])), conversation=memory)
    with pytest.raises(AgentError.Memory, match="no room") as caught:
        await session.submit_turn("go")
    assert isinstance(caught.value.__cause__, MemoryError.Storage)
    assert session.turn_index() == 0


async def test_fifty_sessions_share_a_bundle() -> None:
    provider = MockProvider(lambda request: request.messages[-1].text)
    shared = bundle(provider)
    sessions = [AgentSession(AGENT, f"s{number}", shared) for number in range(50)]
    answers = await asyncio.gather(*(one.submit_turn(one.session_id) for one in sessions))
    assert [answer.text for answer in answers] == [one.session_id for one in sessions]
    assert {one.turn_index() for one in sessions} == {1}


def test_a_tool_of_a_name_that_is_taken_is_found_out_at_once() -> None:
    class Taken(Echo):
        name = "session_memory_set"

    parts = (
        AgentBuilder()
        .provider(MockProvider())
        .tool_registry(ToolRegistry([Taken()]))
        .hook_executor(Watches().executor)
        .build()
    )
    with pytest.raises(AgentError.Config, match="session_memory_set"):
        AgentSession(AGENT, "s1", parts, offers_memory_tool=True)


async def test_a_turn_that_fails_before_it_is_sent_adds_nothing_of_the_one_before() -> None:
    class Moody(Agent):
        def tool_definitions(self, bundle: RuntimeBundle) -> list[ToolDefinition]:
            if self.name == "moody":
                raise AgentError.Other("not today")
            return super().tool_definitions(bundle)

    memory = conversation()
    agent = Moody("calm")
    session = AgentSession(agent, "s1", bundle(MockProvider(["ok"])), conversation=memory)
    await session.submit_turn("first")
    agent.name = "moody"
    with pytest.raises(AgentError.Other, match="not today"):
        await session.submit_turn("second")
    assert len(await memory.get_history()) == 2


async def test_a_session_is_entered_once_at_a_time() -> None:
    session = Agent("a", model=MockProvider(["one", "two"])).session()
    async with session:
        with pytest.raises(AgentError.Config, match="entered already"):
            await session.__aenter__()
        assert (await session.run("go")).output == "one"
    async with session:
        assert (await session.run("go")).output == "two"

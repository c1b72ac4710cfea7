"""The cycle: history, retries, hooks, cost, streams and the loop that runs tools."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agcore.llm import (
    AdapterProvider,
    AssistantTextDelta,
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatRole,
    CompactConfig,
    CostUpdate,
    CycleConfig,
    Error,
    FinishReason,
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmCycle,
    LlmError,
    MockProvider,
    RequestBlockedError,
    RetryConfig,
    ToolCall,
    ToolCallChunk,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    ToolTurnLimitError,
    TurnComplete,
    Usage,
    tool_call_reply,
)
from agcore.tools import BaseTool, ToolContext, ToolRegistry, ToolReturn
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.scripted import Says, ScriptedProvider
from agent_core.types import StopReason, ToolPermission
from agent_parts import SUMMARY, is_summary
from tables import together

QUICK = CycleConfig(retry=RetryConfig(initial_backoff_ms=0, max_backoff_ms=1))

ONCE = CycleConfig(retry=RetryConfig(max_attempts=1))


class Echo(BaseTool):
    """Answers with its arguments, and writes them down."""

    name = "echo"
    description = "Says it again."
    permission = ToolPermission.READONLY

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": True}

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        self.calls.append(arguments)
        return str(arguments)


class Remembers:
    """A hook that records its contexts, and may object."""

    def __init__(self, objection: str = "") -> None:
        self.seen: list[HookContext] = []
        self._objection = objection

    async def execute(self, context: HookContext) -> HookResult:
        self.seen.append(context)
        return HookResult.block(self._objection) if self._objection else HookResult.allow()


class Plays:
    """A provider whose stream is given chunk by chunk."""

    def __init__(self, *pieces: ChatChunk | ChatResponse | LlmError) -> None:
        self._pieces = pieces
        self.closed = False

    async def chat(self, request: ChatRequest) -> ChatResponse:
        raise AssertionError("only streams here")

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        try:
            for piece in self._pieces:
                if isinstance(piece, LlmError):
                    raise piece
                yield piece
        finally:
            self.closed = True


def hooked(*events: HookEvent, objection: str = "") -> tuple[HookExecutor, Remembers]:
    hook, executor = Remembers(objection), HookExecutor()
    for event in events:
        executor.register(event, hook)
    return executor, hook


def roles(messages: Sequence[ChatMessage]) -> list[str]:
    return [message.role.value for message in messages]


async def test_phase0_a_submission_and_its_reply_join_the_history() -> None:
    provider = MockProvider(["Hello.", "Again."])
    cycle = LlmCycle(provider).with_system_prompt("Be kind.")
    assert (await cycle.submit("Hi")).text == "Hello."
    await cycle.submit("And now?")
    assert roles(cycle.messages()) == ["user", "assistant", "user", "assistant"]
    assert roles(provider.requests[1].messages) == ["system", "user", "assistant", "user"]


async def test_phase0_usage_is_the_sum_until_it_is_reset() -> None:
    replies = [
        ChatResponse(ChatMessage.assistant_text("a"), Usage.from_input_output(10, 5)),
        ChatResponse(ChatMessage.assistant_text("b"), Usage.from_input_output(1, 2)),
    ]
    cycle = LlmCycle(MockProvider(replies))
    await cycle.submit("one")
    await cycle.submit("two")
    total = cycle.usage().total()
    assert (total.prompt_tokens, total.completion_tokens, total.total_tokens) == (11, 7, 18)
    assert cycle.usage().calls == 2
    cycle.reset_usage()
    assert cycle.usage().total() == Usage()


async def test_phase0_submitted_messages_are_sent_as_they_are_and_nothing_is_kept() -> None:
    provider = MockProvider(["ok"])
    cycle = (
        LlmCycle(provider)
        .with_system_prompt("base")
        .with_messages([ChatMessage.user_text("before")])
    )
    sent = [ChatMessage.user_text("only this")]
    await cycle.submit_messages(sent)
    assert list(provider.requests[0].messages) == sent
    assert [message.text for message in cycle.messages()] == ["before"]


async def test_phase0_a_failed_submission_leaves_the_history_as_it_was() -> None:
    cycle = LlmCycle(MockProvider([LlmError.Other("no"), "yes"]))
    with pytest.raises(LlmError.Other):
        await cycle.submit("one")
    assert cycle.messages() == []
    await cycle.submit("one")
    assert roles(cycle.messages()) == ["user", "assistant"]


@together(
    "error",
    [
        LlmError.RateLimit("slow down"),
        LlmError.Timeout("no answer"),
        LlmError.Request("bad gateway", status=502),
    ],
)
async def test_phase0_rate_limits_timeouts_and_5xx_are_tried_again(error: LlmError) -> None:
    hooks, hook = hooked(HookEvent.ON_RETRY, HookEvent.ON_ERROR)
    cycle = LlmCycle(MockProvider([error, error, "at last"]), QUICK).with_hook_executor(hooks)
    assert (await cycle.submit("Hi")).text == "at last"
    assert [(c.event, c.attempt, c.error) for c in hook.seen] == [
        (HookEvent.ON_RETRY, 1, error),
        (HookEvent.ON_RETRY, 2, error),
    ]


@together(
    "error",
    [
        LlmError.Authentication("bad key"),
        LlmError.Request("no such model", status=404),
        LlmError.Stream("broke off"),
    ],
)
async def test_phase0_what_would_fail_again_is_not_tried_again(error: LlmError) -> None:
    provider = MockProvider([error, "never"])
    hooks, hook = hooked(HookEvent.ON_ERROR, HookEvent.ON_RETRY)
    with pytest.raises(type(error)):
        await LlmCycle(provider, QUICK).with_hook_executor(hooks).submit("Hi")
    assert len(provider.requests) == 1
    assert [context.event for context in hook.seen] == [HookEvent.ON_ERROR]


async def test_phase0_attempts_end_with_the_configured_number() -> None:
    provider = MockProvider(lambda _: LlmError.Timeout("no answer"))
    with pytest.raises(LlmError.Timeout):
        await LlmCycle(provider, QUICK).submit("Hi")
    assert len(provider.requests) == 3


async def test_phase0_a_wait_is_as_long_as_the_service_asked() -> None:
    provider = MockProvider([LlmError.RateLimit("slow down", retry_after_s=0.2), "ok"])
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await LlmCycle(provider, QUICK).submit("Hi")
    assert loop.time() - begun >= 0.19


async def test_phase0_a_block_before_the_request_stops_the_call() -> None:
    provider = MockProvider(["never"])
    hooks, _ = hooked(HookEvent.PRE_REQUEST, objection="not on Sundays")
    with pytest.raises(RequestBlockedError, match="not on Sundays"):
        await LlmCycle(provider).with_hook_executor(hooks).submit("Hi")
    assert provider.requests == []


async def test_phase0_hooks_see_the_request_before_and_after() -> None:
    hooks, hook = hooked(HookEvent.PRE_REQUEST, HookEvent.POST_REQUEST)
    provider = MockProvider(["ok"])
    await LlmCycle(provider).with_hook_executor(hooks).submit("Hi")
    assert [context.event for context in hook.seen] == ["pre_request", "post_request"]
    assert all(context.request is provider.requests[0] for context in hook.seen)


async def test_phase0_a_hook_that_breaks_stops_nothing() -> None:
    class Breaks:
        async def execute(self, context: HookContext) -> HookResult:
            raise RuntimeError(context.event)

    hooks = HookExecutor()
    hooks.register(HookEvent.PRE_REQUEST, Breaks())
    assert (
        await LlmCycle(MockProvider(["ok"])).with_hook_executor(hooks).submit("Hi")
    ).text == "ok"


async def test_phase0_tools_run_until_the_model_asks_for_none() -> None:
    provider = MockProvider([tool_call_reply("echo", n=1), tool_call_reply("echo", n=2), "Done."])
    echo = Echo()
    cycle = LlmCycle(provider)
    assert (await cycle.submit_with_tools("Go", ToolRegistry([echo]))).text == "Done."
    assert echo.calls == [{"n": 1}, {"n": 2}]
    assert roles(cycle.messages()) == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip


async def test_phase0_after_the_last_round_of_tools_the_turn_fails_and_history_stays_valid() -> (
    None
):
    provider = MockProvider(lambda _: tool_call_reply("echo", n=1))
    echo = Echo()
    cycle = LlmCycle(provider, CycleConfig(max_tool_turns=2))
    with pytest.raises(ToolTurnLimitError):
        await cycle.submit_with_tools("Go", ToolRegistry([echo]))
    assert len(echo.calls) == 2
    assert roles(cycle.messages()) == ["user", "assistant", "tool", "assistant", "tool"]


async def test_phase0_a_stream_shows_text_tools_cost_and_the_end_in_order() -> None:
    provider = MockProvider([tool_call_reply("echo", n=1), "All done."], chunks=2)
    cycle = LlmCycle(provider)
    events = [event async for event in cycle.submit_stream("Go", ToolRegistry([Echo()]))]
    deltas = [event.text for event in events if isinstance(event, AssistantTextDelta)]
    assert "".join(deltas) == "All done."
    assert [kind for kind, _ in groupby(events, type)] == [
        CostUpdate,
        ToolExecutionStarted,
        ToolExecutionCompleted,
        AssistantTextDelta,
        CostUpdate,
        TurnComplete,
    ]
    last = events[-1]
    assert isinstance(last, TurnComplete)
    assert (last.reason, last.response.text) == (FinishReason.STOP, "All done.")
    assert cycle.messages()[-1].text == "All done."


async def test_phase0_split_tool_arguments_are_joined_by_index() -> None:
    provider = Plays(
        ChatChunk(tool_calls=[ToolCallChunk(0, "call_a", "echo", '{"ci')]),
        ChatChunk(tool_calls=[ToolCallChunk(1, "call_b", "echo", '{"n"')]),
        ChatChunk(tool_calls=[ToolCallChunk(0, arguments='ty": "Gen'), ToolCallChunk(1)]),
        ChatChunk(
            tool_calls=[ToolCallChunk(1, arguments=": 2}"), ToolCallChunk(0, arguments='f"}')]
        ),
        ChatChunk(finish_reason=FinishReason.TOOL_CALLS),
    )
    cycle = LlmCycle(provider)
    *_, last = [event async for event in cycle.submit_stream("Go")]
    assert isinstance(last, TurnComplete)
    assert [(c.tool_call_id, c.arguments) for c in last.response.tool_calls] == [
        ("call_a", {"city": "Genf"}),
        ("call_b", {"n": 2}),
    ]


async def test_phase0_a_stream_that_fails_ends_with_an_error_event() -> None:
    provider = Plays(ChatChunk(text="Half an ans"), LlmError.Timeout("silence"))
    cycle = LlmCycle(provider, QUICK)
    events = [event async for event in cycle.submit_stream("Go")]
    assert events[0] == AssistantTextDelta("Half an ans")
    assert isinstance(events[-1], Error)
    assert isinstance(events[-1].error, LlmError.Timeout)
    assert len(events) == 2
    assert cycle.messages() == []


async def test_phase0_a_stream_without_a_finish_reason_is_not_finished() -> None:
    events = [e async for e in LlmCycle(Plays(ChatChunk(text="Half"))).submit_stream("Go")]
    assert isinstance(events[-1], Error)
    assert isinstance(events[-1].error, LlmError.Stream)


class Breaks:
    """A provider whose stream gives some pieces and then raises what clients raise."""

    def __init__(self, error: BaseException, *pieces: ChatChunk) -> None:
        self._error = error
        self._pieces = pieces
        self.calls = 0

    async def chat(self, request: ChatRequest) -> ChatResponse:
        self.calls += 1
        raise self._error

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk | ChatResponse]:
        self.calls += 1
        for piece in self._pieces:
            yield piece
        raise self._error


PART_OF_A_CALL = ChatChunk(tool_calls=[ToolCallChunk(0, "call_a", "echo", '{"n": 1}')])


@together(
    ("error", "kind"),
    [
        (ConnectionResetError("reset"), LlmError.Stream),
        (EOFError("end"), LlmError.Stream),
        (RuntimeError("payload is not complete"), LlmError.Stream),
        (TimeoutError("silence"), LlmError.Timeout),
        (ProviderError(ErrorCode.PROVIDER_ERROR, "gone"), LlmError.Other),
    ],
)
@together(
    "pieces",
    [
        (ChatChunk(text="Half"),),
        (PART_OF_A_CALL,),
        (ChatChunk(text="Whole", finish_reason=FinishReason.STOP),),
        (PART_OF_A_CALL, ChatChunk(finish_reason=FinishReason.TOOL_CALLS)),
    ],
)
async def test_a_stream_that_breaks_is_an_error_whatever_it_gave_and_no_tool_runs(
    error: Exception, kind: type[LlmError], pieces: tuple[ChatChunk, ...]
) -> None:
    echo = Echo()
    cycle = LlmCycle(Breaks(error, *pieces), ONCE)
    events = [event async for event in cycle.submit_stream("Go", ToolRegistry([echo]))]
    assert isinstance(events[-1], Error)
    assert isinstance(events[-1].error, kind)
    assert not any(isinstance(e, TurnComplete | ToolExecutionStarted) for e in events)
    assert echo.calls == cycle.messages() == cycle.added() == []


async def test_what_a_client_raises_is_an_error_of_the_call_and_retried_by_its_kind() -> None:
    provider = Breaks(ConnectionResetError("reset"))
    with pytest.raises(LlmError.Stream):
        await LlmCycle(provider, QUICK).submit("Go")
    assert provider.calls > 1
    provider = Breaks(ConnectionResetError("reset"), ChatChunk(text="seen"))
    *_, last = [event async for event in LlmCycle(provider, QUICK).submit_stream("Go")]
    assert isinstance(last, Error)
    assert provider.calls == 1


async def test_a_reply_that_its_model_gave_up_is_no_reply() -> None:
    gave_up = Says(text="Half", stop_reason=StopReason.ERROR)
    for submit in ("chat", "stream"):
        cycle = LlmCycle(AdapterProvider(ScriptedProvider([gave_up]), "m"), ONCE)
        if submit == "chat":
            with pytest.raises(LlmError.Stream, match="gave up"):
                await cycle.submit("Go")
        else:
            *_, last = [event async for event in cycle.submit_stream("Go")]
            assert isinstance(last, Error)
            assert isinstance(last.error, LlmError.Stream)
        assert cycle.messages() == []


async def test_closing_a_stream_closes_the_providers() -> None:
    provider = Plays(ChatChunk(text="a"), ChatChunk(text="b"))
    events = LlmCycle(provider).submit_stream("Go")
    await anext(events)
    await events.aclose()
    assert provider.closed


async def test_a_finished_reply_counts_instead_of_the_chunks() -> None:
    whole = ChatResponse(ChatMessage.assistant_text("whole"))
    *_, last = [e async for e in LlmCycle(Plays(ChatChunk(text="who"), whole)).submit_stream("Go")]
    assert last == TurnComplete(FinishReason.STOP, whole)


def long_history(exchanges: int) -> list[ChatMessage]:
    history: list[ChatMessage] = []
    for number in range(exchanges):
        history.append(ChatMessage.user_text(f"question {number}"))
        call = ToolCall(tool_call_id=f"call_{number}", name="echo")
        history.append(ChatMessage.assistant_text("", [call]))
        history.append(ChatMessage.tool_text(f"call_{number}", "x" * 4000))
        history.append(ChatMessage.assistant_text(f"answer {number}"))
    return history


def unanswered(messages: Sequence[ChatMessage]) -> set[str]:
    asked = {call.tool_call_id for message in messages for call in message.tool_calls}
    answered = {
        getattr(block, "tool_call_id", "")
        for message in messages
        if message.role is ChatRole.TOOL
        for block in message.content
    }
    return asked ^ answered


async def test_phase0_compaction_shortens_old_tool_results_before_it_summarises() -> None:
    provider = MockProvider(["ok"])
    cycle = (
        LlmCycle(provider)
        .with_messages(long_history(5))
        .with_compact_config(CompactConfig(max_tokens=2000, keep_recent=4))
    )
    await cycle.submit("next")
    assert len(provider.requests) == 1
    assert len(cycle.messages()) == 22
    assert unanswered(provider.requests[0].messages) == set()


def long_talk(exchanges: int) -> list[ChatMessage]:
    history: list[ChatMessage] = []
    for number in range(exchanges):
        history.append(ChatMessage.user_text(f"question {number} " + "w" * 400))
        history.append(ChatMessage.assistant_text(f"answer {number} " + "w" * 400))
    return history


async def test_phase0_compaction_summarises_what_is_old_and_keeps_what_is_recent() -> None:
    def answers(request: ChatRequest) -> str:
        return SUMMARY if is_summary(request) else "ok"

    provider = MockProvider(answers)
    cycle = (
        LlmCycle(provider)
        .with_messages(long_talk(5))
        .with_compact_config(CompactConfig(max_tokens=1000, keep_recent=2))
    )
    await cycle.submit("next")
    assert "question 0" in provider.requests[0].messages[1].text
    sent = provider.requests[-1].messages
    assert SUMMARY in sent[0].text
    assert sent[1].text.startswith("question 4")
    assert [message.text for message in cycle.messages()[-2:]] == ["next", "ok"]
    assert SUMMARY in cycle.messages()[0].text
    assert cycle.usage().calls == len(provider.requests)


async def test_phase0_after_repeated_failures_no_more_summaries_are_asked_for() -> None:
    def answers(request: ChatRequest) -> str | LlmError:
        asks = is_summary(request)
        return LlmError.Other("cannot") if asks else "w" * 1600

    provider = MockProvider(answers)
    config = CompactConfig(max_tokens=500, keep_recent=2, max_failures=2)
    cycle = LlmCycle(provider).with_messages(long_talk(20)).with_compact_config(config)
    for _ in range(4):
        await cycle.submit("next")
    summaries = [r for r in provider.requests if is_summary(r)]
    assert (len(summaries), len(provider.requests)) == (2, 6)


@pytest.mark.parametrize("summary", [SUMMARY, LlmError.Other("cannot")])
async def test_a_prompt_that_is_too_long_is_compacted_and_tried_once_more(
    summary: str | LlmError,
) -> None:
    def answers(request: ChatRequest) -> str | LlmError:
        if len(provider.requests) == 1:
            return LlmError.ContextLength("too long")
        return summary if is_summary(request) else "ok"

    provider = MockProvider(answers)
    hooks, hook = hooked(HookEvent.ON_ERROR)
    cycle = (
        LlmCycle(provider)
        .with_messages(long_talk(9))
        .with_compact_config(CompactConfig(keep_recent=4))
        .with_hook_executor(hooks)
    )
    assert (await cycle.submit("next")).text == "ok"
    sizes = [len(str(request.messages)) for request in provider.requests]
    assert sizes[-1] < sizes[0] * 3 // 4
    assert [context.error for context in hook.seen] == ([] if summary is SUMMARY else [summary])


async def test_a_prompt_that_is_too_long_without_compaction_fails() -> None:
    hooks, hook = hooked(HookEvent.ON_ERROR)
    cycle = LlmCycle(MockProvider([LlmError.ContextLength("too long")])).with_hook_executor(hooks)
    with pytest.raises(LlmError.ContextLength):
        await cycle.submit("next")
    assert [context.event for context in hook.seen] == [HookEvent.ON_ERROR]


async def test_a_long_run_of_tools_is_summarised_without_parting_calls_from_answers() -> None:
    def answers(request: ChatRequest) -> str | ChatResponse:
        if is_summary(request):
            return SUMMARY
        return tool_call_reply("echo", n=len(provider.requests), text="y" * 1000)

    provider = MockProvider(answers)
    config = CompactConfig(max_tokens=2500, keep_recent=3)
    cycle = LlmCycle(provider, CycleConfig(max_tool_turns=20)).with_compact_config(config)
    with pytest.raises(ToolTurnLimitError):
        await cycle.submit_with_tools("Go", ToolRegistry([Echo()]))
    assert SUMMARY in cycle.messages()[0].text
    assert all(unanswered(request.messages) == set() for request in provider.requests)
    assert max(len(request.messages) for request in provider.requests) < 20


async def test_system_messages_of_a_history_are_sent_behind_the_system_prompt() -> None:
    provider = MockProvider(["ok"])
    history = [
        ChatMessage.developer_text("Answer in French."),
        ChatMessage.user_text("Hi", topic="greetings").model_copy(update={"name": "ada"}),
        ChatMessage.assistant_text("Salut."),
    ]
    cycle = LlmCycle(provider).with_system_prompt("Be kind.").with_messages(history)
    await cycle.submit("And now?")
    sent = provider.requests[0].messages
    assert [message.text for message in sent] == [
        "Be kind.", "Answer in French.", "Hi", "Salut.", "And now?",
    ]  # fmt: skip
    assert sent[2] is history[1]
    assert cycle.messages()[:3] == history


async def test_a_reply_that_was_cut_off_ends_the_turn_and_is_not_continued() -> None:
    cut = ChatResponse(ChatMessage.assistant_text("Half an"), stop_reason=FinishReason.LENGTH)
    provider = MockProvider([cut])
    reply = await LlmCycle(provider).submit_with_tools("Go", ToolRegistry([Echo()]))
    assert (reply.text, reply.stop_reason) == ("Half an", FinishReason.LENGTH)
    assert len(provider.requests) == 1


async def test_without_a_round_of_tools_a_call_is_the_end_of_the_turn() -> None:
    echo, provider = Echo(), MockProvider([tool_call_reply("echo"), "ok"])
    cycle = LlmCycle(provider, CycleConfig(max_tool_turns=0))
    with pytest.raises(ToolTurnLimitError):
        await cycle.submit_with_tools("Go", ToolRegistry([echo]))
    assert (echo.calls, cycle.messages()) == ([], [])
    assert (await cycle.submit_with_tools("Go", ToolRegistry([echo]))).text == "ok"


async def test_a_turn_that_outgrows_its_budget_without_a_history_fails_and_is_not_sent() -> None:
    provider = MockProvider(lambda _: tool_call_reply("echo", text="y" * 40_000))
    cycle = LlmCycle(provider).with_compact_config(CompactConfig(max_tokens=2000))
    with pytest.raises(LlmError.ContextLength, match="max_tokens"):
        await cycle.submit_with_tools("Go", ToolRegistry([Echo()]))
    assert all(len(str(request.messages)) < 8000 for request in provider.requests)


async def test_parallel_calls_of_a_cycle_keep_the_order_of_their_answers() -> None:
    calls = [ToolCall(tool_call_id=f"call_{n}", name="echo", arguments={"n": n}) for n in range(5)]
    provider = MockProvider([ChatResponse(ChatMessage.assistant_text("", calls)), "Done."])
    cycle = LlmCycle(provider)
    await cycle.submit_with_tools("Go", ToolRegistry([Echo()]))
    answers = [getattr(block, "tool_call_id", "") for block in cycle.messages()[2].content]
    assert answers == [call.tool_call_id for call in calls]
    assert list(provider.requests[1].messages[2].content) == cycle.messages()[2].content


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_calls_of_one_reply_that_share_an_id_are_answered_one_by_one(
    is_streamed: bool,
) -> None:
    calls = [ToolCall(tool_call_id="call_0", name="echo", arguments={"n": n}) for n in range(3)]
    provider = MockProvider([ChatResponse(ChatMessage.assistant_text("", calls)), "Done."])
    cycle, tools = LlmCycle(provider), ToolRegistry([Echo()])
    if is_streamed:
        events = [event async for event in cycle.submit_stream("Go", tools)]
        assert isinstance(events[-1], TurnComplete)
    else:
        await cycle.submit_with_tools("Go", tools)
    _, asked, answered, _ = cycle.messages()
    ids = [call.tool_call_id for call in asked.tool_calls]
    assert len(set(ids)) == 3
    assert [getattr(block, "tool_call_id", "") for block in answered.content] == ids
    assert [f"'n': {n}" in str(block) for n, block in enumerate(answered.content)] == [True] * 3


async def test_tools_may_be_run_by_the_caller() -> None:
    provider = MockProvider([tool_call_reply("echo", n=1), "Done."])
    cycle = LlmCycle(provider)
    offered = ToolRegistry([Echo()]).definitions()
    (call,) = (await cycle.submit("Go", offered)).tool_calls
    cycle.extend_messages([ChatMessage.tool_text(call.tool_call_id, "1")])
    assert (await cycle.submit("Well?", offered)).text == "Done."
    assert unanswered(provider.requests[1].messages) == set()
    assert list(provider.requests[1].tools) == offered


async def test_messages_that_are_too_long_are_the_callers_to_shorten() -> None:
    hooks, hook = hooked(HookEvent.ON_ERROR)
    cycle = LlmCycle(MockProvider([LlmError.ContextLength("too long")])).with_hook_executor(hooks)
    with pytest.raises(LlmError.ContextLength):
        await cycle.with_compact_config(CompactConfig()).submit_messages(long_history(2))
    assert [context.event for context in hook.seen] == [HookEvent.ON_ERROR]


SERIALISED = st.integers(-(2**63), 2**64 - 1)  # beyond 64 bits a number is read as a float


@pytest.mark.long
@settings(deadline=None)
@given(st.text(), st.lists(st.integers(1, 9), max_size=5), st.dictionaries(st.text(), SERIALISED))
async def test_however_a_reply_is_cut_it_is_joined_to_the_same(
    text: str, cuts: list[int], arguments: dict[str, int]
) -> None:
    call = ToolCall(tool_call_id="call_1", name="echo", arguments=arguments)
    whole = ChatResponse(ChatMessage.assistant_text(text, [call]))
    for chunks in [1, *cuts]:
        events = LlmCycle(MockProvider([whole], chunks=chunks)).submit_stream("Go")
        *_, last = [event async for event in events]
        assert isinstance(last, TurnComplete)
        assert last.response.text == text
        assert [c.arguments for c in last.response.tool_calls] == [arguments]

"""Tests of the adapter contract, for an adapter that you have written.

    class TestMyProvider(ProviderContract):
        provider = "mine"

        @asynccontextmanager
        async def open(self, script):
            async with MyFakeService(script) as service:
                adapter = MyProvider(ModelConfig(provider="mine", name="m", base_url=service.url))
                yield adapter
                await adapter.close()

pytest and unittest find the tests by their names; nothing else is needed. A script is a list of the
replies of `agent_core.providers.scripted`, which the service behind the adapter gives in its own
format, one for each call and no attempt twice: switch retries off.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import wraps
from typing import ClassVar, TypeVar, cast
from unittest import SkipTest

from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Calls, Fails, Hangs, Reply, Says, ScriptedCall, calls
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelReasoningDelta,
    ModelRequest,
    ModelStarted,
    ModelTextDelta,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolCallDelta,
    ToolDefinition,
    Usage,
)

TOOL = ToolDefinition(name="code.list_dir", description="List a directory.")
LONGEST_S = 30
"""Seconds for one test: an adapter that hangs fails it."""

_NO_OBJECTS = ['{"path": "a', "[1, 2]", "nothing", "[" * 100_000, '{"a": NaN}', "9" * 5000, '"x"']
_ODD_OBJECTS: dict[str, JsonObject] = {
    "": {},
    '{"a": 1, "a": 2}': {"a": 2},
    '{"n": 9223372036854775808}': {"n": 2**63},
    '{"s": "\\ud800 \\u0000"}': {"s": "\ufffd \0"},
    '{"s": "\\ud83d\\ude00"}': {"s": "😀"},
}

Self = TypeVar("Self", bound="ProviderContract")


def _run(test: Callable[[Self], Awaitable[None]]) -> Callable[[Self], None]:
    """Turn an async test into one that needs no event loop and no plugin."""

    @wraps(test)
    def run(self: Self) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LONGEST_S):
                await test(self)

        asyncio.run(bounded())

    return run


def _expect(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


class ProviderContract(ABC):
    """The contract of `ProviderAdapter`.

    Attributes:
        provider: expected value of `ModelStarted.provider`.
        takes_tools: the service accepts tools; if not, a request with tools must be refused.
        shows_reasoning: the service shows the model's thoughts.
    """

    provider: ClassVar[str]
    takes_tools: ClassVar[bool] = True
    shows_reasoning: ClassVar[bool] = True

    @abstractmethod
    def open(self, script: Sequence[str | Reply]) -> AbstractAsyncContextManager[ProviderAdapter]:
        """Open an adapter for a service that gives these replies, one for each call."""

    @_run
    async def test_text_streams_between_started_and_completed(self) -> None:
        events = await self._play(Says(text="Grüße, 世界 🌍!", chunks=5))

        _expect(events[0], ModelStarted(provider=self.provider, model="m"), "the first event")
        _expect(_shown(events), "Grüße, 世界 🌍!", "the text of the deltas")
        reply = _completed(events)
        _expect(reply.content, [TextBlock(text="Grüße, 世界 🌍!")], "ModelCompleted.content")
        _expect(reply.tool_calls, [], "ModelCompleted.tool_calls")
        _expect(reply.stop_reason, StopReason.END_TURN, "the stop reason")
        ends = [event for event in events if isinstance(event, ModelCompleted | ModelFailed)]
        _expect(len(ends), 1, "the number of ends")

    @_run
    async def test_usage_counts_the_whole_prompt(self) -> None:
        usage = Usage(input_tokens=11, output_tokens=7, total_tokens=18)

        reply = _completed(await self._play(Says(text="hi", usage=usage)))

        _expect(reply.usage.model_copy(update={"raw_usage": {}}), usage, "the usage")

    @_run
    async def test_a_call_keeps_its_name_and_arguments(self) -> None:
        self._need_tools()
        events = await self._play(calls("code.list_dir", path="src", depth=2, all=True))

        reply = _completed(events)
        call = _only_call(reply)
        _expect(call.name, "code.list_dir", "the name, which is the canonical one")
        _expect(call.arguments, {"path": "src", "depth": 2, "all": True}, "the arguments")
        _expect(reply.stop_reason, StopReason.TOOL_USE, "the stop reason")
        blocks = [b.tool_call_id for b in reply.content if isinstance(b, ToolCallBlock)]
        _expect(blocks, [call.tool_call_id], "the calls in ModelCompleted.content")
        fragments = [event for event in events if isinstance(event, ToolCallDelta)]
        _expect({f.tool_call_id for f in fragments}, {call.tool_call_id}, "the ids of the deltas")
        joined = "".join(fragment.arguments_fragment for fragment in fragments)
        _expect(joined, '{"all":true,"depth":2,"path":"src"}', "the arguments of the deltas")

    @_run
    async def test_text_reasoning_and_calls_stand_in_order(self) -> None:
        self._need_tools()
        script = Calls(
            reasoning="I should look." if self.shows_reasoning else "",
            text="Let me look.",
            calls=[
                ScriptedCall(name="code.list_dir", arguments={"path": "a"}, tool_call_id="one"),
                ScriptedCall(name="code.list_dir", arguments={"path": "b"}, tool_call_id="two"),
            ],
        )

        events = await self._play(script)

        reply = _completed(events)
        kinds = ["text", "tool_call", "tool_call"]
        if self.shows_reasoning:
            thought = reply.content[0]
            if not isinstance(thought, ReasoningBlock):
                raise AssertionError(f"the first block is not reasoning: {thought!r}")
            _expect(thought.text, "I should look.", "the thought")
            _expect(thought.metadata.get("provider"), self.provider, "whose thought it is")
            shown = [event.text for event in events if isinstance(event, ModelReasoningDelta)]
            _expect("".join(shown), "I should look.", "the thought of the deltas")
            kinds.insert(0, "reasoning")
        _expect([block.type for block in reply.content], kinds, "the blocks")
        _expect([call.tool_call_id for call in reply.tool_calls], ["one", "two"], "the ids")

    @_run
    async def test_ids_that_are_missing_unsafe_or_taken_are_replaced(self) -> None:
        self._need_tools()
        ids = ["same", "same", "not safe!", "x" * 10_000]
        script = Calls(calls=[ScriptedCall(name=TOOL.name, tool_call_id=raw) for raw in ids])

        found = _completed(await self._play(script)).tool_calls

        _expect(found[0].tool_call_id, "same", "the first id")
        _expect(len({call.tool_call_id for call in found}), 4, "the number of different ids")
        raw = [call.metadata.get("raw_tool_call_id") for call in found[1:3]]
        _expect(raw, ["same", "not safe!"], "metadata.raw_tool_call_id")
        _expect(all(len(call.tool_call_id) <= 128 for call in found), True, "short ids")

    @_run
    async def test_an_id_of_an_earlier_turn_is_not_used_again(self) -> None:
        self._need_tools()
        again = Calls(calls=[ScriptedCall(name=TOOL.name, tool_call_id="call_0")])
        call = ToolCallBlock(tool_call_id="call_0", name=TOOL.name)
        before = ModelMessage(role=Role.ASSISTANT, content=[call])
        request = asked(tools=[TOOL]).model_copy(update={"messages": [before]})

        async with self.open([again]) as provider:
            events = [event async for event in provider.stream(request)]

        _expect(_only_call(_completed(events)).tool_call_id != "call_0", True, "a fresh id")

    @_run
    async def test_arguments_that_are_no_object_do_not_fail_the_reply(self) -> None:
        self._need_tools()
        for raw in _NO_OBJECTS:
            script = Calls(calls=[ScriptedCall(name=TOOL.name, arguments=raw)])

            call = _only_call(_completed(await self._play(script)))

            _expect(call.arguments, {}, f"the arguments of {raw[:20]}")
            kept = call.metadata.get("invalid_arguments")
            _expect(kept, raw[:10_000], "metadata.invalid_arguments")

    @_run
    async def test_strange_but_valid_arguments_are_read(self) -> None:
        self._need_tools()
        for raw, arguments in _ODD_OBJECTS.items():
            script = Calls(calls=[ScriptedCall(name=TOOL.name, arguments=raw)])

            call = _only_call(_completed(await self._play(script)))

            _expect(call.arguments, arguments, f"the arguments of {raw}")
            _expect("invalid_arguments" in call.metadata, False, "that they are refused")

    @_run
    async def test_a_tool_that_was_not_offered_keeps_a_readable_name(self) -> None:
        self._need_tools()
        call = _only_call(_completed(await self._play(calls("code.fly_away"))))

        _expect(call.name, "code.fly_away", "the name")

    @_run
    async def test_a_call_cut_off_before_its_arguments_is_not_a_call_without_any(self) -> None:
        self._need_tools()
        call = ScriptedCall(name=TOOL.name, arguments="")

        reply = _completed(await self._play(Calls(calls=[call], stop_reason=StopReason.MAX_TOKENS)))

        _expect(reply.stop_reason, StopReason.MAX_TOKENS, "the stop reason")
        is_marked = "invalid_arguments" in _only_call(reply).metadata
        _expect(is_marked, True, "that metadata.invalid_arguments is set")

    @_run
    async def test_tools_that_cannot_be_taken_are_refused(self) -> None:
        if self.takes_tools:
            raise SkipTest("the service takes tools")
        code = None
        async with self.open(["never said"]) as provider:
            try:
                async for event in provider.stream(asked(tools=[TOOL])):
                    code = event.error.code if isinstance(event, ModelFailed) else None
            except ProviderError as error:
                code = error.code
        _expect(code, ErrorCode.UNSUPPORTED_CAPABILITY, "the refusal of tools")

    @_run
    async def test_a_refusal_is_one_failure_with_its_code(self) -> None:
        codes = [
            ErrorCode.PROVIDER_AUTH_FAILED,
            ErrorCode.PROVIDER_RATE_LIMITED,
            ErrorCode.PROVIDER_ERROR,
            ErrorCode.PROMPT_TOO_LONG,
            *([ErrorCode.UNSUPPORTED_CAPABILITY] if self.takes_tools else []),
        ]
        for code in codes:
            events = await self._play(Fails(code=code, message="no"))

            _expect(len(events), 2, f"the number of events of {code.value}")
            _expect(_failed(events).error.code, code, "the code")
            _expect(_failed(events).error.type, "ProviderError", "the type of the error")

    @_run
    async def test_a_failure_in_the_middle_keeps_what_was_said(self) -> None:
        events = await self._play(Fails(text="the first half", message="out of luck"))

        _expect(_shown(events), "the first half", "the text of the deltas")
        error = _failed(events).error
        _expect(error.code, ErrorCode.PROVIDER_ERROR, "the code")
        _expect("out of luck" in error.message, True, f"the service's words in {error.message!r}")

    @_run
    async def test_nothing_follows_after_the_stream_is_closed(self) -> None:
        async with self.open([Hangs(text="so far")]) as provider:
            events: list[ModelEvent] = []
            stream = cast("AsyncGenerator[ModelEvent]", provider.stream(self._request()))
            async with aclosing(stream):
                async for event in stream:
                    events.append(event)
                    if _shown(events) == "so far":
                        break
            _expect(await anext(stream, None), None, "what follows")

    @_run
    async def test_cancelling_ends_a_stream_that_hangs(self) -> None:
        async with self.open([Hangs(text="so far")]) as provider:
            arrived = asyncio.Event()

            async def consume() -> None:
                async for event in provider.stream(self._request()):
                    if isinstance(event, ModelTextDelta):
                        arrived.set()

            task = asyncio.create_task(consume())
            await arrived.wait()
            task.cancel()
            await asyncio.wait([task], timeout=5)
            _expect(task.done() and task.cancelled(), True, "that a cancelled stream has ended")

    @_run
    async def test_many_streams_at_once_do_not_mix(self) -> None:
        async with self.open([f"reply {number}" for number in range(20)]) as provider:

            async def ask() -> str:
                return _shown([event async for event in provider.stream(self._request())])

            texts = await asyncio.gather(*(ask() for _ in range(20)))

        _expect(sorted(texts), sorted(f"reply {number}" for number in range(20)), "the replies")

    @_run
    async def test_closing_twice_is_harmless(self) -> None:
        async with self.open(["hi"]) as provider:
            await provider.close()
            await provider.close()

    def _need_tools(self) -> None:
        if not self.takes_tools:
            raise SkipTest("the service takes no tools")

    def _request(self) -> ModelRequest:
        return asked(tools=[TOOL] if self.takes_tools else [])

    async def _play(self, *script: str | Reply) -> list[ModelEvent]:
        async with self.open(script) as provider:
            return [event async for event in provider.stream(self._request())]


def asked(text: str = "hello", *, tools: Sequence[ToolDefinition] = ()) -> ModelRequest:
    """Return a request with one message."""
    message = ModelMessage(role=Role.USER, content=[TextBlock(text=text)])
    return ModelRequest(model="m", messages=[message], tools=list(tools))


def _completed(events: Sequence[ModelEvent]) -> ModelCompleted:
    if not isinstance(events[-1], ModelCompleted):
        raise AssertionError(f"the last event is not a ModelCompleted: {events[-1]!r}")
    return events[-1]


def _failed(events: Sequence[ModelEvent]) -> ModelFailed:
    if not isinstance(events[-1], ModelFailed):
        raise AssertionError(f"the last event is not a ModelFailed: {events[-1]!r}")
    return events[-1]


def _only_call(reply: ModelCompleted) -> ToolCall:
    _expect(len(reply.tool_calls), 1, "the number of calls")
    return reply.tool_calls[0]


def _shown(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ModelTextDelta))

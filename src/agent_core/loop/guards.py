"""Guards that a program adds to a run: they inspect its message, its tool calls and its answer.

A guard passes a text, replaces it, or stops the run. A text is replaced before it is stored, shown
or sent. A guard that fails in any other way also stops the run.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, overload

from agent_core.aio import is_cancelled
from agent_core.callbacks import check_callback, name_of
from agent_core.errors import (
    RETRY,
    AgentCoreError,
    ErrorCode,
    ParkedError,
    PermissionDeniedError,
    ToolError,
)
from agent_core.events import Journal
from agent_core.extensions import (
    Admit,
    AskModel,
    Extension,
    ExtensionContext,
    GuardStop,
    JudgedCall,
    Rank,
    RunTool,
)
from agent_core.text import kind_of
from agent_core.tools.base import ToolAnswer
from agent_core.tools.registry import Toolbox
from agent_core.tools.results import failure_of, wrap
from agent_core.types import (
    FINAL_ANSWER,
    WORDS,
    Draft,
    EventLevel,
    EventType,
    ModelCompleted,
    ModelEvent,
    ModelRequest,
    ModelTextDelta,
    StopReason,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolCallDelta,
    ToolResult,
)
from agent_core.types.content import text_in

Point = Literal["message", "tool_call", "tool_result", "answer"]


class GuardContext(ExtensionContext):
    """The second argument of a guard: `run` identifies the run, `deps` is its object."""

    __slots__ = ()


TextCheck = (
    Callable[[str], Awaitable[str | None]] | Callable[[str, GuardContext], Awaitable[str | None]]
)
CallCheck = (
    Callable[[ToolCall], Awaitable[str | None]]
    | Callable[[ToolCall, GuardContext], Awaitable[str | None]]
)
ResultCheck = (
    Callable[[ToolResult], Awaitable[str | None]]
    | Callable[[ToolResult, GuardContext], Awaitable[str | None]]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGuard:
    """One of the `guards` of a run; made by `on_message`, `on_tool_call`, `on_tool_result` and
    `on_answer`.

    Attributes:
        point: the kind of text it inspects.
        name: name of the function, for events and errors.
        check: the function.
        look_only: it replaces nothing, so the model need not wait for it.
    """

    point: Point
    name: str
    check: Callable[..., Awaitable[str | None]]
    look_only: bool = False

    def may_replace(self, point: Point) -> bool:
        """Return whether the guard may return a replacement at this point."""
        return self.point == point and not self.look_only


@overload
def on_message(check: TextCheck, /) -> RunGuard: ...
@overload
def on_message(*, look_only: bool = False) -> Callable[[TextCheck], RunGuard]: ...
def on_message(
    check: TextCheck | None = None, /, *, look_only: bool = False
) -> RunGuard | Callable[[TextCheck], RunGuard]:
    """Make a guard of an async function that gets the text of the user's message.

    It returns None to pass it, or a replacement text, or raises `GuardStop`.

    Args:
        check: the function; takes the text, or the text and a `GuardContext`.
        look_only: it never returns a text. The model is called at once, in parallel with the
            guard; the call is cancelled if the guard stops, and no tool runs before it has passed.
    """
    return _decorated("message", check, look_only=look_only)


def on_tool_call(check: CallCheck, /) -> RunGuard:
    """Make a guard of an async function that gets each `ToolCall` that the permissions allow.

    It returns None to allow it, or a text that the model gets instead of a result, or
    raises `GuardStop`. Calls of children are also inspected.
    """
    return cast("RunGuard", _decorated("tool_call", check, look_only=False))


def on_tool_result(check: ResultCheck, /) -> RunGuard:
    """Make a guard of an async function that gets each `ToolResult`, before it is stored or shown.

    It returns None to pass it, or a text that replaces it, or raises `GuardStop`. Results of calls
    of children are also inspected.
    """
    return cast("RunGuard", _decorated("tool_result", check, look_only=False))


@overload
def on_answer(check: TextCheck, /) -> RunGuard: ...
@overload
def on_answer(*, look_only: bool = False) -> Callable[[TextCheck], RunGuard]: ...
def on_answer(
    check: TextCheck | None = None, /, *, look_only: bool = False
) -> RunGuard | Callable[[TextCheck], RunGuard]:
    """Make a guard of an async function that gets the text of an answer.

    It returns None to pass it, or a replacement text, or raises `GuardStop`. A typed
    answer is passed as JSON.

    Args:
        check: the function; takes the text, or the text and a `GuardContext`.
        look_only: it never returns a text. The answer is shown as it arrives; otherwise it is
            shown once the guard has passed it.
    """
    return _decorated("answer", check, look_only=look_only)


_CHECKED: Mapping[Point, str] = {
    "message": "text",
    "tool_call": "call",
    "tool_result": "result",
    "answer": "text",
}
"""The first argument of a guard at each point."""


def _decorated(
    point: Point, check: Callable[..., Any] | None, *, look_only: bool
) -> RunGuard | Callable[[Any], RunGuard]:
    def decorate(function: Callable[..., Any]) -> RunGuard:
        takes = (_CHECKED[point], "context")
        check_callback("check", function, *takes, least=1, needs_async=True)
        name = name_of(function)
        return RunGuard(point=point, name=name, check=function, look_only=look_only)

    return decorate if check is None else decorate(check)


class Guards:
    """Runs the guards of one run.

    Args:
        guards: guards in the run's options.
        journal: journal of the run.
        deps: the object passed to the run.
        parent: the guards of the run that started this one: a stop ends that run as well.

    Attributes:
        stopped: the reason why the run must end; no model or tool is called after it is set.
        checks_results: whether any guard inspects the results of calls.
    """

    def __init__(
        self,
        guards: Sequence[RunGuard],
        journal: Journal,
        deps: Any,
        *,
        parent: "Guards | None" = None,
    ) -> None:
        self.stopped: AgentCoreError | None = None
        self._parent = parent
        self._guards = guards
        self._journal = journal
        self._context = GuardContext(run=journal.run, deps=deps)
        self.checks_results = any(guard.point == "tool_result" for guard in guards)
        if self.checks_results:
            journal.shows_output = False
        self._looking: asyncio.Task[None] | None = None
        self._call: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def watching(self, prompt: Draft | None) -> AsyncGenerator[Draft | None]:
        """Run the message guards and yield their message; look-only guards keep running.

        Raises:
            AgentCoreError: `guard_stopped`.
        """
        if prompt is None:
            yield None
            return
        prompt = await self._check_text(prompt)
        if any(guard.may_replace("message") for guard in self._guards):
            self._journal.replace_prompt(prompt)  # it was withheld until now
        looking = [guard for guard in self._of("message") if guard.look_only]
        if looking:
            self._looking = asyncio.create_task(self._look(looking, prompt.text))
        try:
            yield prompt
            await self.passed()
        except AgentCoreError as error:
            raise self.stopped or error from error
        finally:
            if self._looking is not None:
                self._looking.cancel()
                await asyncio.wait([self._looking])

    async def check_message(self, message: Draft) -> Draft:
        """Return a later message as every message guard lets it through, before it is stored.

        Raises:
            AgentCoreError: `guard_stopped`: the run ends.
        """
        checked = await self._check_text(message)
        await self._look([guard for guard in self._of("message") if guard.look_only], checked.text)
        if self.stopped is not None:
            raise self.stopped
        return checked

    async def _check_text(self, message: Draft) -> Draft:
        """Return a message with the text that the guards leave of it."""
        text = await self._replaced("message", message.text)
        if text == message.text:
            return message
        rest = [block for block in message.content if not isinstance(block, TextBlock)]
        metadata = message.metadata
        if WORDS in metadata:  # they may repeat what was replaced
            metadata = {**metadata, WORDS: ""}
        return replace(message, content=[TextBlock(text=text), *rest], metadata=metadata)

    async def passed(self) -> None:
        """Wait until the look-only guards have passed the message.

        Raises:
            AgentCoreError: `guard_stopped`: one of them, or another guard, has stopped the run.
        """
        if self._looking is not None:
            await asyncio.wait([self._looking])
        if self.stopped is not None:
            raise self.stopped

    async def check_call(self, call: ToolCall) -> None:
        """Check a call that the permissions allow.

        Raises:
            PermissionDeniedError: the model reads the guard's text instead of a result.
            AgentCoreError: `guard_stopped`; nothing more is asked or called.
        """
        await self.passed()
        if self._parent is not None and self._parent.stopped is not None:
            raise self._parent.stopped
        for guard in self._of("tool_call"):
            text = await self._run(guard, call)
            if text is not None:
                self._note(guard)
                details = {"guard": guard.name}
                raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, text, details=details)

    async def check_result(self, result: ToolResult) -> ToolResult:
        """Return the result of a call as the guards leave it.

        Raises:
            AgentCoreError: `guard_stopped`.
        """
        for guard in self._of("tool_result"):
            text = await self._run(guard, result)
            if text is not None:
                self._note(guard)
                result = with_result_text(result, text)
        return result

    async def check_answer(self, answer: str) -> str:
        """Return the text to show as the answer; unchanged if every guard passes it.

        Raises:
            AgentCoreError: `guard_stopped`.
        """
        text = await self._replaced("answer", answer)
        await self._look([guard for guard in self._of("answer") if guard.look_only], text)
        if self.stopped is not None:
            raise self.stopped
        return text

    @property
    def withholds_answers(self) -> bool:
        """Return whether an answer may be replaced, so that none is shown as it arrives."""
        return any(guard.may_replace("answer") for guard in self._guards)

    async def beside(self, events: AsyncGenerator[ModelEvent]) -> AsyncGenerator[ModelEvent]:
        """Yield the events of a model call made while guards are still looking; a stop cancels it.

        Raises:
            AgentCoreError: `guard_stopped`.
        """
        arrived: asyncio.Queue[ModelEvent | None] = asyncio.Queue()

        async def receive() -> None:
            try:
                async with aclosing(events):
                    async for event in events:
                        arrived.put_nowait(event)
            finally:
                arrived.put_nowait(None)

        self._call = receiving = asyncio.create_task(receive())
        try:
            while (event := await arrived.get()) is not None:
                yield event
            if self.stopped is not None:
                raise self.stopped
            await receiving
        finally:
            self._call = None
            receiving.cancel()
            await asyncio.wait([receiving])

    @property
    def is_looking(self) -> bool:
        """Return whether a look-only guard has not decided yet."""
        return self._looking is not None and not self._looking.done()

    def _of(self, point: Point) -> list[RunGuard]:
        return [guard for guard in self._guards if guard.point == point]

    async def _replaced(self, point: Point, text: str) -> str:
        for guard in self._of(point):
            if not guard.look_only and (other := await self._run(guard, text)) is not None:
                self._note(guard)
                text = other
        return text

    async def _look(self, guards: Sequence[RunGuard], text: str) -> None:
        """Run look-only guards concurrently; `stopped` is set if one stops the run."""

        async def look(guard: RunGuard) -> None:
            try:
                if await self._run(guard, text) is not None:
                    self._stop(guard, "it is look_only, but returned a text")
            except AgentCoreError:
                pass  # the error is in `stopped`
            except asyncio.CancelledError:  # a cancelled guard has not passed
                self._stop(guard, "it was cancelled")
                raise

        looking = waiting = {asyncio.create_task(look(guard)) for guard in guards}
        try:
            while waiting and self.stopped is None:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in looking:
                task.cancel()
            if looking:
                await asyncio.wait(looking)

    async def _run(self, guard: RunGuard, value: object) -> str | None:
        try:
            takes_context = len(inspect.signature(guard.check).parameters) > 1
            given = (value, self._context) if takes_context else (value,)
            text = await guard.check(*given)
        except GuardStop as stop:
            raise self._stop(guard, None, reason=str(stop)) from None
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled(asyncio.current_task()):
                raise
            raise self._stop(guard, f"{type(error).__name__}: {error}") from error
        kind = type(text)
        if text is not None and not issubclass(kind, str):  # whatever its signature says
            raise self._stop(guard, f"it returned {kind_of(text)}, neither a text nor None")
        return text

    def _stop(self, guard: RunGuard, fault: str | None, *, reason: str = "") -> AgentCoreError:
        """Stop the run, and return the error; the first reason counts."""
        if fault is None:
            message = f"the guard {guard.name} has stopped the run" + (reason and f": {reason}")
        else:
            message = f"the guard {guard.name} failed, which stops the run: {fault}"
        details = {
            "guard": guard.name,
            "point": guard.point,
            "reason": reason if fault is None else "guard_failed",
        }
        error = AgentCoreError(ErrorCode.GUARD_STOPPED, message, details=details)
        self.stopped = self.stopped or error
        if self._parent is not None:
            self._parent.stopped = self._parent.stopped or error
        if self._call is not None:
            self._call.cancel()
        return self.stopped

    def _note(self, guard: RunGuard) -> None:
        payload = {"guard": guard.name, "point": guard.point}
        self._journal.note(EventType.GUARD_REPLACED, payload, level=EventLevel.WARNING)


class GuardChecks(Extension):
    """Has the guards of a run check its calls, and its answers before they are stored or shown.

    Args:
        guards: of the run.
        toolbox: of the run.
    """

    rank = Rank.GUARDS

    def __init__(self, guards: Guards, toolbox: Toolbox) -> None:
        self._guards = guards
        self._toolbox = toolbox
        self._expected = toolbox.expected

    async def admit_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        judged: JudgedCall,
        proceed: Admit,
    ) -> float | None:
        """Check a call that the permissions allow.

        Raises:
            PermissionDeniedError: the model reads a guard's text in place of a result.
            AgentCoreError: `guard_stopped`.
        """
        waited = await proceed()
        await self._guards.check_call(judged.call)
        return waited

    async def wrap_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        proceed: RunTool,
    ) -> Any:
        """Check the result of a call, and the answer of the run if the call ends it.

        Raises:
            AgentCoreError: `guard_stopped`.
        """
        tool = self._toolbox.get(call.name)
        is_end = tool is not None and tool.ends_run
        if not (self._guards.checks_results or is_end):
            return await proceed()
        try:
            returned: Any = await proceed()
        except ParkedError:
            raise
        except Exception as error:
            raise await self._checked_failure(call, error) from error
        answer = returned.answer if isinstance(returned, ToolAnswer) else returned
        named = {"tool_call_id": call.tool_call_id, "tool_name": call.name}
        result = wrap(answer).model_copy(update=named)
        checked = await self._guards.check_result(result)
        if is_end and not checked.is_error:
            text = await self._guards.check_answer(checked.text)
            checked = checked if text == checked.text else with_result_text(checked, text)
        if checked is result:
            return returned
        if isinstance(returned, ToolAnswer):
            return replace(returned, answer=checked)
        return checked

    async def _checked_failure(self, call: ToolCall, error: Exception) -> Exception:
        """Return the error of a call as the guards leave it."""
        payload = failure_of(call.name, error)
        is_stop = payload.code is ErrorCode.GUARD_STOPPED
        if is_stop or isinstance(error, GuardStop) or not self._guards.checks_results:
            return error
        result = ToolResult(
            tool_call_id=call.tool_call_id, tool_name=call.name, is_error=True, error=payload
        )
        checked = await self._guards.check_result(result)
        if checked is result or checked.error is None:
            return error
        asks_again = payload.details.get("reason") == RETRY
        details = {"reason": RETRY} if asks_again else {}
        return ToolError(payload.code, checked.error.message, payload.retryable, details)

    async def wrap_model_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        request: ModelRequest,
        proceed: AskModel,
    ) -> AsyncGenerator[ModelEvent]:
        """Check the answer, which is withheld until then if a guard may replace it.

        Raises:
            AgentCoreError: `guard_stopped`.
        """
        guards = self._guards
        withheld: list[ModelTextDelta | ToolCallDelta] = []
        if guards.stopped is not None:
            raise guards.stopped
        events = proceed(request)
        async with aclosing(guards.beside(events) if guards.is_looking else events) as arriving:
            async for event in arriving:
                if guards.withholds_answers and isinstance(event, ModelTextDelta | ToolCallDelta):
                    withheld.append(event)
                elif isinstance(event, ModelCompleted):
                    await guards.passed()
                    checked = await self._checked(event)
                    if checked is not event:
                        text = text_in(checked.content)
                        withheld = [ModelTextDelta(text=text)] if text else []
                    for delta in withheld:
                        yield delta
                    yield checked
                else:
                    yield event

    async def _checked(self, completed: ModelCompleted) -> ModelCompleted:
        """Return the reply with its answer left by the guards; a reply with only calls has none."""
        given = [call for call in completed.tool_calls if call.name == FINAL_ANSWER]
        if self._expected is None or not given:
            if completed.tool_calls:
                return completed
            answer = text_in(completed.content)
            text = await self._guards.check_answer(answer)
            return completed if text == answer else _with_text(completed, text)
        invalid = given[0].metadata.get("invalid_arguments")
        answer = self._expected.text_of(given[0].arguments) if invalid is None else str(invalid)
        text = await self._guards.check_answer(answer)
        if text == answer:
            return completed
        if len(given) == len(completed.tool_calls):
            return _with_text(completed, text)
        # Beside other calls the answer is dropped; the model answers again once they are made.
        return completed.model_copy(
            update={
                "tool_calls": [call for call in completed.tool_calls if call not in given],
                "content": [
                    block
                    for block in completed.content
                    if not (isinstance(block, ToolCallBlock) and block.name == FINAL_ANSWER)
                ],
            }
        )


def with_result_text(result: ToolResult, text: str) -> ToolResult:
    """Return the result of a call with this text in place of everything it said."""
    changes: dict[str, Any] = {"content": [TextBlock(text=text)], "metadata": {}}
    if result.error is not None:
        changes["error"] = result.error.model_copy(update={"message": text, "details": {}})
    return result.model_copy(update=changes)


def _with_text(completed: ModelCompleted, text: str) -> ModelCompleted:
    """Return the reply with only this text: its other content is not sent to a model again."""
    stop = completed.stop_reason
    return completed.model_copy(
        update={
            "content": [TextBlock(text=text)],
            "tool_calls": [],
            "stop_reason": StopReason.END_TURN if stop is StopReason.TOOL_USE else stop,
        }
    )

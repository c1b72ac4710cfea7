"""The interface of engines, and the results that all of them share."""

import asyncio
import logging
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode, ParkedError
from agent_core.redaction import Redactor
from agent_core.text import plural
from kgent.config.models import KgentConfig
from kgent.errors import (
    ErrorCategory,
    ErrorInfo,
    KgentError,
    Record,
    config_error,
    engine_error,
    error_info,
)
from kgent.records.conversation import ArchivedMessage, message, open_calls, result_block
from kgent.records.lines import now
from kgent.runtime.blocking import finish_in_thread, run_blocking
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.questions import waiting_error
from kgent.tools.calls import record_rejected_call
from kgent.tools.core_adapter import explain_rejection
from kgent.tools.registry import ToolDefinition

logger = logging.getLogger(__name__)


class EngineStatus(StrEnum):
    """The end of an engine's part. Interrupted: stopped by time, steps, or a cancellation."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class EngineEventKind(StrEnum):
    """The kinds of events that an engine reports while it works."""

    STEP = "step"
    TEXT = "text"
    REASONING = "reasoning"


class EngineEvent(Record):
    """A piece of text as it arrives, or the start of the next model call."""

    kind: EngineEventKind
    text: str = ""


EventCallback = Callable[[EngineEvent], None]
"""Receives the events of an engine, in whichever thread the engine works."""


class RedactingCallback:
    """Passes events to a caller's callback, without secrets.

    Text that may be the beginning of a secret is held back until more of it is known. If the
    callback raises an error, it gets no more events, and the run continues.
    """

    def __init__(self, callback: EventCallback, redactor: Redactor) -> None:
        self._callback: EventCallback | None = callback
        self._streams = {
            kind: redactor.stream() for kind in (EngineEventKind.TEXT, EngineEventKind.REASONING)
        }

    def __call__(self, event: EngineEvent) -> None:
        """Pass an event to the callback."""
        stream = self._streams.get(event.kind)
        if stream is None:
            self.finish()
            self._pass_on(event)
        elif shown := stream.feed(event.text):
            self._pass_on(EngineEvent(kind=event.kind, text=shown))

    def finish(self) -> None:
        """Pass on the text that was held back, because the text is complete."""
        for kind, stream in self._streams.items():
            if rest := stream.finish():
                self._pass_on(EngineEvent(kind=kind, text=rest))

    def _pass_on(self, event: EngineEvent) -> None:
        if self._callback is None:
            return
        try:
            self._callback(event)
        except Exception as error:  # noqa: BLE001 - the caller's code, or a closed pipe
            logger.warning(
                "the event callback failed and is not called again: %s", type(error).__name__
            )
            self._callback = None


async def _end() -> None:
    """Let the run end."""


class OnSpent(Protocol):
    """Receives what a run has spent so far, after each reply of the model."""

    def __call__(
        self, usage: Mapping[str, int], cost: float | None = None, *, is_estimated: bool = False
    ) -> None: ...


def _drop_spent(
    usage: Mapping[str, int], cost: float | None = None, *, is_estimated: bool = False
) -> None:
    """Let the end of the run tell what it has spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunRequest:
    """One run, as passed to an engine.

    Attributes:
        context: the run; records are written through it.
        prompt: the user's request.
        system_prompt: the role of the agent and its permissions.
        tools: all tools of the run; each checks and records its calls itself.
        timeout_seconds: after this time the engine stops and returns `interrupted`.
        max_steps: the most model calls; after these the engine stops likewise.
        stream: whether the text is shown as it arrives.
        cancellation_token: asks the engine to stop.
        event_callback: receives the events.
        history: the conversation of earlier attempts; messages of the archive.
        continues: without a new message: the open calls of the conversation are made, and the model
          is asked again.
        prompt_at: the position of the prompt in the conversation.
        ask_further: awaited when the model has ended. A text it returns is sent to the model as the
          next message of the conversation; None ends the run.
        on_spent: called after each reply, so that a killed run does not lose what it has spent.
    """

    context: RunContext
    prompt: str
    system_prompt: str
    tools: list[ToolDefinition] = field(default_factory=list[ToolDefinition])
    timeout_seconds: float | None = None
    max_steps: int | None = None
    stream: bool = False
    cancellation_token: Cancellation = field(default_factory=Cancellation)
    event_callback: EventCallback | None = None
    history: Sequence[ArchivedMessage] = ()
    continues: bool = False
    prompt_at: int = 0
    ask_further: Callable[[], Awaitable[str | None]] = _end
    on_spent: OnSpent = _drop_spent

    def __post_init__(self) -> None:
        if cast("Cancellation | None", self.cancellation_token) is None:  # as the design allows
            object.__setattr__(self, "cancellation_token", self.context.cancellation)

    def report(self, kind: EngineEventKind, text: str = "") -> None:
        """Pass an event to the callback, if there is one."""
        if self.event_callback is not None:
            self.event_callback(EngineEvent(kind=kind, text=text))


class AgentResult(Record):
    """The end of an engine's part.

    `usage` contains tokens and model calls, by name. `cost` is in US dollars; None if the price of
    the model is not known. If `usage_is_estimated`, the service has not reported all of both, for
    example for a call that was cut off. `answered_by` is the fallback that took over from the
    profile's model, if one did.
    """

    status: EngineStatus
    final_text: str | None = None
    usage: dict[str, int] = {}
    cost: float | None = None
    usage_is_estimated: bool = False
    answered_by: str | None = None
    error: ErrorInfo | None = None


@runtime_checkable
class AgentEngine(Protocol):
    """Runs a model and its tool calls until the model ends."""

    def run(self, request: AgentRunRequest) -> AgentResult:
        """Do the model's part of a run, and return its result even if it fails.

        It is called in a thread of its own, and calls tools with their `handler`.

        Raises:
            KgentError: category `config`; the profile does not suit this engine.
        """
        ...


class AsyncAgentEngine(AgentEngine):
    """An engine whose work is a coroutine, in the event loop of the run."""

    def run(self, request: AgentRunRequest) -> AgentResult:
        """Do the work, and block until it is done; see `run_async`."""
        return run_blocking(partial(self.run_async, request), request.context.loop)

    @abstractmethod
    async def run_async(self, request: AgentRunRequest) -> AgentResult:
        """Do the model's part of a run, and return its result even if it fails.

        Raises:
            KgentError: category `config`; the profile does not suit this engine.
        """

    async def check(self, config: KgentConfig) -> None:
        """Refuse a profile that this engine cannot run; send nothing and read no secret.

        Raises:
            KgentError: category `config`; the profile does not suit this engine.
        """

    def secrets(self, config: KgentConfig) -> Mapping[str, str]:
        """Return texts that must never be written or shown, by the name that replaces them."""
        return model_secrets(config)


@runtime_checkable
class EngineWithSecrets(Protocol):
    """An engine that reads secrets, which must not appear in any record."""

    def secrets(self, config: KgentConfig) -> Mapping[str, str]:
        """Return texts that must never be written or shown, by the name that replaces them."""
        ...


async def run_engine(engine: AgentEngine, request: AgentRunRequest) -> AgentResult:
    """Run an engine, and return its result.

    Raises:
        KgentError: category `config`; the profile does not suit the engine.
    """
    if isinstance(engine, AsyncAgentEngine):
        return await engine.run_async(request)
    try:
        return await finish_in_thread(partial(engine.run, request))
    except ParkedError as parked:  # of a call by its handler
        return parked_result(parked.request_ids)


async def run_limited(
    request: AgentRunRequest, work: Callable[[], Awaitable[AgentResult]]
) -> AgentResult:
    """Do an engine's work within its time limits, and always return one result.

    Raises:
        KgentError: category `config`; the profile does not suit the engine.
    """
    token, loop = request.cancellation_token, asyncio.get_running_loop()
    timers = [
        loop.call_later(seconds, partial(token.cancel, message, code=code))
        for seconds, message, code in _time_limits(request)
    ]
    try:
        if token.is_cancelled:
            return interrupted(token.reason)
        with token.stopping_task():
            return await work()
    except ParkedError as parked:
        return parked_result(parked.request_ids)
    except (asyncio.CancelledError, KeyboardInterrupt):
        token.cancel("the run was interrupted")
        return interrupted(token.reason)
    except Exception as error:
        if isinstance(error, KgentError):
            if error.category is ErrorCategory.CONFIG:
                raise
        elif token.is_cancelled:
            return interrupted(token.reason)
        info = error_info(error, ErrorCategory.ENGINE)
        return AgentResult(status=EngineStatus.FAILED, error=info)
    finally:
        for timer in timers:
            timer.cancel()


def _time_limits(request: AgentRunRequest) -> Iterator[tuple[float, str, ErrorCode]]:
    """Yield each time limit of a run in seconds, and the reason to stop after it."""
    seconds = request.timeout_seconds
    if seconds is not None:
        message = f"the run took longer than {seconds:g} s (runtime.timeout_seconds)"
        yield seconds, message, ErrorCode.TIMEOUT
    wall_s = request.context.config.runtime.budget.wall_s
    if wall_s is not None:
        limit = f"it may take {wall_s:g} s (runtime.budget.wall_s)"
        yield wall_s, f"the time of the run is up: {limit}", ErrorCode.BUDGET_EXCEEDED


def interrupted(reason: ErrorInfo | None, *, text: str | None = None) -> AgentResult:
    """Build the result of an engine that was stopped early; it has failed if a budget is spent."""
    is_spent = reason is not None and reason.code == ErrorCode.BUDGET_EXCEEDED.value
    status = EngineStatus.FAILED if is_spent else EngineStatus.INTERRUPTED
    return AgentResult(status=status, final_text=text, error=reason)


def parked_result(request_ids: Iterable[str], *, text: str | None = None) -> AgentResult:
    """Build the result of an engine that waits for a person's answer."""
    return interrupted(waiting_error(request_ids), text=text)


async def make_open_calls(request: AgentRunRequest) -> None:
    """Make the calls of the conversation that have no result, and add their results to it.

    Raises:
        asyncio.CancelledError: the run was cancelled.
        ParkedError: the run waits for a person's answer.
    """
    for block in open_calls(request.history):
        await answer_call(request, block["tool_call_id"], block["name"], block["arguments"])


async def answer_call(request: AgentRunRequest, call_id: str, name: str, args: object) -> object:
    """Make a call for an engine without a loop of its own, and add its result to the conversation.

    Raises:
        asyncio.CancelledError: the run was cancelled.
        ParkedError: the run waits for a person's answer.
    """
    context = request.context
    tool = next((tool for tool in request.tools if tool.name == name), None)
    if tool is not None and isinstance(args, Mapping):
        given = cast("Mapping[str, Any]", args)
        result = await tool.invoke(given, context, call_id=call_id)
        content, is_error = result.model_dump(mode="json", exclude_none=True), not result.ok
    else:
        code, text = explain_rejection(request.tools, context, name=name, args=args)
        await record_rejected_call(
            context, call_id=call_id, name=name, args=args, code=code, message=text
        )
        content, is_error = {"code": code, "message": text}, True
    answer = result_block(call_id, name, content, is_error=is_error)
    context.records.conversation.add(message("tool", now(), answer))
    return content


def out_of_steps(max_steps: int | None, *, text: str | None = None) -> AgentResult:
    """Build the result of an engine that has used all of its model calls."""
    calls = plural(max_steps or 0, "model call")
    message = f"no final answer after {calls}; raise runtime.max_steps"
    return interrupted(engine_error(ErrorCode.MAX_TURNS, message), text=text)


def out_of_budget(limit: str, *, text: str | None = None) -> AgentResult:
    """Build the result of an engine that was stopped by a budget of the run."""
    message = f"the budget of the run is spent; raise runtime.budget.{limit}"
    error = engine_error(ErrorCode.BUDGET_EXCEEDED, message, details={"limit": limit})
    return interrupted(error, text=text)


def each_model(config: KgentConfig) -> list[KgentConfig]:
    """Return the profile once with each of its models: its own one, then the fallbacks."""
    models = (config.model, *config.model.fallbacks)
    return [config.model_copy(update={"model": model}) for model in models]


def record_fallback(context: RunContext, error: ErrorInfo, fallback: str) -> None:
    """Record that a model has failed before it answered, and which one is asked instead."""
    known = error.model_copy(update={"details": {**(error.details or {}), "fallback": fallback}})
    known = known.redacted(context.records.redactor)
    context.records.errors.record(known)
    data = known.model_dump(mode="json", exclude_none=True)
    summary = f"{known}; {fallback} is asked instead"
    context.records.events.emit("error", summary, data, severity="warning")


def core_model(config: KgentConfig) -> ModelConfig:
    """Return the model of a profile in the form that agent_core uses.

    Raises:
        KgentError: category `config`; the profile does not name a model.
    """
    provider, name = require_model(config)
    model = config.model
    return ModelConfig(
        provider=provider,
        name=name,
        path=str(config.place(model.path)) if model.path else None,
        api_key_env=model.key_variable,
        **model.model_dump(exclude={"provider", "name", "path", "api_key_env", "fallbacks"}),
    )


def model_secrets(config: KgentConfig) -> dict[str, str]:
    """Return the keys of the profile's models by the names of their variables, if they are set."""
    names = (one.model.key_variable for one in each_model(config))
    return {name: value for name in names if name and (value := os.environ.get(name))}


def api_key(config: KgentConfig) -> str | None:
    """Return the key of the profile's model from the environment; None if it needs none.

    Raises:
        KgentError: category `config`; the variable is not set, or no model is named.
    """
    require_model(config)
    name = config.model.key_variable
    value = os.environ.get(name) if name else None
    if name and not value:
        usual = f"which {config.model.provider} needs; model.api_key_env can name another"
        why = "which model.api_key_env names" if config.model.api_key_env else usual
        raise config_error(f"the environment variable {name} is not set, {why}")
    return value


def require_model(config: KgentConfig) -> tuple[str, str]:
    """Return the provider and the name of the model, both of which the engine needs.

    Raises:
        KgentError: category `config`; one of them is missing.
    """
    for key in ("provider", "name"):
        if not getattr(config.model, key):
            engine = config.runtime.engine
            raise config_error(f"runtime.engine {engine} needs model.{key} in the profile")
    return config.model.provider or "", config.model.name or ""

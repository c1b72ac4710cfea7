"""Spans of runs, model calls and tool calls, and the metrics that go with them.

A run has a `RunTrace`. Its extension sees every model call and every tool call, so that neither
the loop nor a tool knows of it.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial, wraps
from time import perf_counter
from types import MappingProxyType
from typing import Any, ParamSpec
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace
from opentelemetry import context as otel_context, metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.extensions import AskModel, Extension, ExtensionContext, Rank, WrappedProvider
from agent_core.loop import Outcome, StandaloneRun
from agent_core.loop.context import OnEnd, ignore
from agent_core.providers.adapter_faults import ask_adapter
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.compat import server_of
from agent_core.providers.tally import CallTally
from agent_core.redaction import log_failure
from agent_core.telemetry import content, names
from agent_core.telemetry.content import Clean
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.tools.values import storable_text
from agent_core.types import (
    Draft,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelReasoningDelta,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    RunIdentity,
    RunStatus,
    ToolCall,
    ToolCallDelta,
    ToolDefinition,
    ToolResult,
    Usage,
)

logger = logging.getLogger(__name__)

CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The conventions' variable that allows messages, arguments and results in attributes."""

_SCOPE = "soong-agent"
_MOST_CHARS = 1000
"""Characters of a tool's description or of an error's message."""

_PROPAGATOR = TraceContextTextMapPropagator()
_CAPTURES = {"true", "span_only", "span_and_event"}
_CANCELLED = "cancelled"

_PROVIDERS: Mapping[str, str] = MappingProxyType(
    {
        "azure": "azure.ai.openai",
        "bedrock": "aws.bedrock",
        "gemini": "gcp.gemini",
        "mistral": "mistral_ai",
        "vertex": "gcp.vertex_ai",
        "xai": "x_ai",
    }
)
"""The conventions' names of providers, or of servers behind them, where they differ."""

_IN_PROCESS = {"local", "scripted"}

# The conventions define these bounds.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(float(4**power) for power in range(14))
_RUN_SECONDS = (*_SECONDS, 163.84, 327.68, 655.36, 1310.72, 2621.44)
_DOLLARS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


P = ParamSpec("P")


def _harmless(record: Callable[P, None]) -> Callable[P, None]:
    """Keep failures of recording, such as a program's own span processor, away from the run."""

    @wraps(record)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as described
            log_failure(logger, "a span was not recorded", error=error)

    return recorded


class Telemetry:
    """The destination of spans and metrics.

    Args:
        tracer_provider: makes the spans; None for the one set for the whole process.
        meter_provider: makes the metrics; None for the one set for the whole process.
        parent: the context of runs that start outside any span.
        capture_content: messages, arguments and results become attributes, without secrets; None:
          as `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` says.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        parent: Context | None = None,
        capture_content: bool | None = None,
    ) -> None:
        self.tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._parent = parent or Context()
        wanted = os.environ.get(CAPTURE_CONTENT, "").strip().lower() in _CAPTURES
        self.captures_content = wanted if capture_content is None else capture_content
        self.tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self.operation = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.first_chunk = meter.create_histogram(
            names.TIME_TO_FIRST_CHUNK,
            "s",
            "Time to receive the first chunk, measured from when the client issues the generation"
            " request to when the first chunk is received in the response stream.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.cost = meter.create_histogram(
            names.COST,
            "{USD}",
            "What a model call has cost.",
            explicit_bucket_boundaries_advisory=_DOLLARS,
        )
        self.runs = meter.create_histogram(
            names.RUN_DURATION,
            "s",
            "Duration of runs, children included.",
            explicit_bucket_boundaries_advisory=_RUN_SECONDS,
        )
        self.calls = meter.create_histogram(
            names.TOOL_DURATION,
            "s",
            "Duration of tool calls, questions to the user included.",
            explicit_bucket_boundaries_advisory=_RUN_SECONDS,
        )

    def capture(
        self, span: Span, clean: Clean, facts: Callable[[], Mapping[str, JsonValue]]
    ) -> None:
        """Record content in the attributes of a span, if it is enabled."""
        if not self.captures_content or not span.is_recording():
            return
        try:
            for name, value in facts().items():
                span.set_attribute(name, content.encode(value, clean))
        except Exception as error:  # noqa: BLE001 - a program's exporter may raise anything
            log_failure(logger, "content was not recorded", error=error, clean=clean)

    async def close(self) -> None:
        """Release its own resources; the program's providers stay open."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that name the current span to a child program."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return {name.upper(): value for name, value in carrier.items()}

    def begin_run(
        self,
        run: RunIdentity,
        clean: Clean,
        *,
        carrier: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> "RunTrace":
        """Begin the span of a run, below the current one or the one that `carrier` names.

        Args:
            run: identifies it.
            clean: removes secrets from recorded content.
            carrier: `RunTrace.carrier` of the run's first part, in this or another process.
            name: the agent's name, if the run does not have it.
        """
        around = otel_context.get_current()
        if carrier:
            around = _PROPAGATOR.extract(carrier, Context())
        elif not trace.get_current_span(around).get_span_context().is_valid:
            around = self._parent
        return RunTrace(self, run, clean, around, name=name)

    def carrier(self) -> dict[str, str]:
        """Return the current span's context, for a run that another process executes."""
        around, carried = otel_context.get_current(), dict[str, str]()
        if not trace.get_current_span(around).get_span_context().is_valid:
            around = self._parent
        _PROPAGATOR.inject(carried, around)
        return carried

    async def run(
        self,
        run: StandaloneRun,
        prompt: Draft,
        model: ModelConfig,
        *,
        name: str,
        on_end: OnEnd = ignore,
    ) -> Outcome:
        """Record `StandaloneRun.run`; `name` is the agent's.

        Raises:
            asyncio.CancelledError: the run was cancelled; every call on its path is answered.
        """
        begun = self.begin_run(run.ctx.run, run.ctx.journal.clean, name=name)
        with begun.current():
            extensions = run.ctx.extensions.plus(begun.extension(model))
            traced = replace(run, ctx=replace(run.ctx, extensions=extensions))

            def finish(outcome: Outcome) -> None:
                begun.finish(outcome)
                on_end(outcome)

            return await traced.run(prompt, on_end=finish)

    def provider(
        self, adapter: ProviderAdapter, model: ModelConfig, clean: Clean, *, session_id: str
    ) -> ProviderAdapter:
        """Return the adapter with a span for every call, for calls outside of any run."""

        def ask(request: ModelRequest) -> AsyncGenerator[ModelEvent]:
            call = _ModelCall(self, model, clean)
            return call.record(request, session_id, partial(ask_adapter, adapter))

        return WrappedProvider(ask)


class RunTrace:
    """The span of one run, and the spans of its model calls and tool calls.

    Attributes:
        carrier: identifies the span to other processes.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        run: RunIdentity,
        clean: Clean,
        around: Context,
        *,
        name: str | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._run = run
        self._clean = clean
        self._name = name or run.agent_definition_id or run.role.value
        self._started = perf_counter()
        self._facts: JsonObject = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT_NAME: self._name,
        }
        attributes = {
            **self._facts,
            names.AGENT_ID: run.agent_id,
            names.CONVERSATION_ID: run.session_id,
            names.RUN_ID: run.run_id,
        }
        self._span = telemetry.tracer.start_span(
            f"{names.INVOKE_AGENT} {self._name}", around, attributes=attributes
        )
        self._context = trace.set_span_in_context(self._span, around)
        self._calls: Tracing | None = None
        self._has_ended = False
        self.carrier: dict[str, str] = {}
        _PROPAGATOR.inject(self.carrier, self._context)

    def identify(self, run: RunIdentity) -> None:
        """Record the agent, which is known once the run is opened."""
        self._run = run
        self._span.set_attribute(names.AGENT_ID, run.agent_id)

    @contextmanager
    def current(self) -> Generator[None]:
        """Make the run's span the current one inside the context."""
        token = otel_context.attach(self._context)
        try:
            yield
        finally:
            otel_context.detach(token)

    def extension(self, model: ModelConfig) -> "Tracing":
        """Return the extension that records the calls of the run; `model` is what it asks."""
        facts = {names.PROVIDER: provider_name(model), names.REQUEST_MODEL: model.name}
        self._facts |= facts
        self._span.set_attributes(facts)
        self._calls = Tracing(self._telemetry, model, self._clean)
        return self._calls

    @_harmless
    def finish(self, outcome: Outcome) -> None:
        """End the spans of a run that has ended or waits for an answer. Harmless when repeated."""
        if self._has_ended:
            return
        self._has_ended = True
        error = None
        if outcome.error is not None:
            error = outcome.error.code.value, outcome.error.message
        elif outcome.status is not RunStatus.COMPLETED and outcome.end_reason is not None:
            error = _CANCELLED, ""
        if self._calls is not None:
            self._calls.break_off(None if outcome.status is RunStatus.WAITING else _CANCELLED)
        facts: JsonObject = {names.RUN_STATUS: outcome.status.value}
        if outcome.end_reason is not None:
            facts[names.END_REASON] = outcome.end_reason.value
        self._span.set_attributes({**facts, **_usage(outcome.usage)})
        self._span.set_attribute(names.RUN_TURNS, outcome.turns)
        took = perf_counter() - self._started
        # The message may quote a model or a tool.
        clean = self._clean if self._telemetry.captures_content else None
        self._facts |= _end(self._span, error, clean)
        self._telemetry.runs.record(took, self._facts | facts, self._context)


class _ModelCall:
    """One call of a model, and its span."""

    context: Context
    _span: Span

    def __init__(self, telemetry: Telemetry, model: ModelConfig, clean: Clean) -> None:
        self._telemetry = telemetry
        self._model = model
        self._clean = clean
        self._started = perf_counter()
        self._first_chunk: float | None = None
        self._has_started = False
        self._has_ended = False
        self._tally = CallTally(lambda: 0)  # the adapter counts the cost of attempts
        self._reply: Usage | None = None
        self._spent: Usage | None = None
        self._facts: JsonObject = {}

    async def record(
        self, request: ModelRequest, session_id: str, ask: AskModel
    ) -> AsyncGenerator[ModelEvent]:
        """Ask, and yield the events; the span is the current one while the service works."""
        self.begin(request, session_id)
        try:
            async with aclosing(ask(request)) as events:
                while True:
                    token = otel_context.attach(self.context)
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        break
                    finally:
                        otel_context.detach(token)
                    self.take(event)
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            self.end((_CANCELLED, ""))
            raise
        except BaseException as error:
            self.end(_error_of(error))
            raise
        finally:
            self.end((ErrorCode.PROVIDER_ERROR.value, "the stream ended without a reply"))

    def begin(self, request: ModelRequest, session_id: str) -> None:
        model = self._model
        self._facts = {
            names.OPERATION: names.CHAT,
            names.PROVIDER: provider_name(model),
            names.REQUEST_MODEL: model.name,
            **_server(model.base_url),
        }
        optional = {
            names.REQUEST_MAX_TOKENS: request.max_output_tokens,
            names.REQUEST_TEMPERATURE: request.temperature,
            names.REQUEST_SEED: request.seed,
            names.REQUEST_STOP: request.stop or None,
            names.OUTPUT_TYPE: "json" if request.output is not None else None,
        }
        attributes = {
            **self._facts,
            names.CONVERSATION_ID: session_id,
            names.REQUEST_STREAM: True,
            **{name: value for name, value in optional.items() if value is not None},
        }
        kind = SpanKind.INTERNAL if model.provider in _IN_PROCESS else SpanKind.CLIENT
        name = f"{names.CHAT} {model.name}"
        self._span = self._telemetry.tracer.start_span(name, kind=kind, attributes=attributes)
        self.context = trace.set_span_in_context(self._span)
        self._telemetry.capture(self._span, self._clean, lambda: content.sent(request))

    @_harmless
    def take(self, event: ModelEvent) -> None:
        """Record an event of the model."""
        self._tally.take(event)
        match event:
            case ModelTextDelta() | ModelReasoningDelta() | ToolCallDelta():
                if self._first_chunk is None:
                    self._first_chunk = perf_counter() - self._started
                    self._span.set_attribute(names.RESPONSE_TIME_TO_FIRST_CHUNK, self._first_chunk)
            case ModelStarted(provider=provider, model=model):
                if self._has_started or self._model.adapter is not None:
                    # A fallback took over, or the program gave the adapter.
                    self._facts[names.PROVIDER] = _PROVIDERS.get(provider, provider)
                if self._has_started and model != self._model.name:
                    self._facts[names.RESPONSE_MODEL] = model
                self._has_started = True
            case ModelRetry(attempt=attempt, delay_ms=delay_ms, error=error):
                facts = {
                    names.RETRY_ATTEMPT: attempt,
                    names.RETRY_DELAY: delay_ms / 1e3,
                    names.ERROR_TYPE: error.code.value,
                }
                self._span.add_event(names.RETRY, facts)
                self._count(self._tally.take_lost())
            case ModelFailed(error=error):
                self.end((error.code.value, error.message))
            case ModelCompleted():
                self._complete(event)
            case _:
                pass

    def _complete(self, reply: ModelCompleted) -> None:
        self._reply = reply.usage
        reason = content.FINISH_REASONS.get(reply.stop_reason, reply.stop_reason)
        self._span.set_attribute(names.RESPONSE_FINISH_REASONS, (reason,))
        self._telemetry.capture(
            self._span,
            self._clean,
            lambda: {names.OUTPUT_MESSAGES: content.output_messages(reply)},
        )
        self.end((ErrorCode.PROVIDER_ERROR.value, "") if reason == "error" else None)

    @_harmless
    def end(self, error: tuple[str, str] | None) -> None:
        """End the call's span. Only the first call of this counts."""
        if self._has_ended:
            return
        self._has_ended = True
        took = perf_counter() - self._started
        self._tally.end()
        for usage in (self._tally.take_lost(), self._reply):
            self._count(usage)
        if self._spent is not None:
            self._span.set_attributes(_usage(self._spent))
        self._span.set_attributes(self._facts)
        facts, telemetry = dict(self._facts), self._telemetry
        telemetry.operation.record(took, facts | _end(self._span, error, self._clean), self.context)
        if self._first_chunk is not None:
            telemetry.first_chunk.record(self._first_chunk, facts, self.context)
        usage = self._reply
        if usage is None or usage.is_estimated or not (usage.input_tokens or usage.output_tokens):
            return  # tokens that the service has not counted are not reported
        for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            telemetry.tokens.record(tokens, facts | {names.TOKEN_TYPE: kind}, self.context)

    def _count(self, usage: Usage | None) -> None:
        """Count the usage of a reply, or of attempts without one, for the model asked last."""
        if usage is None:
            return
        self._spent = usage if self._spent is None else self._spent.plus(usage)
        if usage.cost is not None:
            self._telemetry.cost.record(usage.cost, dict(self._facts), self.context)


class _OpenCall(Struct):
    """A tool call that has no answer yet."""

    span: Span
    context: Context
    facts: JsonObject
    token: Any = None
    started: float = field(default_factory=perf_counter)


class Tracing(Extension):
    """Records a span for every model call and tool call of a run.

    The span of a tool call, which includes the questions about it, is the current one from
    `before_tool_call` to `after_tool_call`, in the task of the call.

    Args:
        telemetry: where the spans go.
        model: what the run asks.
        clean: takes secrets out of what is recorded.
    """

    rank = Rank.TRACE

    def __init__(self, telemetry: Telemetry, model: ModelConfig, clean: Clean) -> None:
        self._telemetry = telemetry
        self._model = model
        self._clean = clean
        self._open: dict[str, _OpenCall] = {}

    def wrap_model_call(
        self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
    ) -> AsyncGenerator[ModelEvent]:
        """Record a model call."""
        call = _ModelCall(self._telemetry, self._model, self._clean)
        return call.record(request, context.run.session_id, proceed)

    async def before_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        definition: ToolDefinition,
    ) -> None:
        """Begin the span of a tool call."""
        if call.tool_call_id not in self._open:  # else it is judged again, with other arguments
            opened = self._begin(call, definition)
            opened.token = otel_context.attach(opened.context)
            self._open[call.tool_call_id] = opened

    async def after_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,
        result: ToolResult,
    ) -> None:
        """End the span of a tool call."""
        failure, error = result.error, None
        if result.is_error:
            error = (failure.code.value, failure.message) if failure else ("tool_error", "")
        opened = self._open.pop(call.tool_call_id, None)
        if opened is None:  # refused before any hook: its arguments do not fit
            is_unknown = failure is not None and failure.code is ErrorCode.TOOL_NOT_AVAILABLE
            opened = self._begin(call, None, is_unknown=is_unknown)
        self._telemetry.capture(
            opened.span,
            self._clean,
            lambda: {names.TOOL_RESULT: content.result_of(result.content)},
        )
        self._finish(opened, error)
        if opened.token is not None:
            otel_context.detach(opened.token)

    def break_off(self, reason: str | None) -> None:
        """End the spans of unanswered calls; without a `reason` the calls will be made again."""
        while self._open:
            _, opened = self._open.popitem()
            self._finish(opened, None if reason is None else (reason, ""))

    def _begin(
        self, call: ToolCall, definition: ToolDefinition | None, *, is_unknown: bool = False
    ) -> _OpenCall:
        name = storable_text(call.name)
        facts: JsonObject = {
            names.OPERATION: names.EXECUTE_TOOL,
            # An unknown name is the model's invention, and there may be any number of them.
            names.TOOL_NAME: "_OTHER" if is_unknown else name,
        }
        attributes = {
            **facts,
            names.TOOL_NAME: name,
            names.TOOL_CALL_ID: call.tool_call_id,
            names.TOOL_TYPE: "function",
        }
        if definition is not None:
            words = str(self._clean(definition.description))[:_MOST_CHARS]
            attributes[names.TOOL_DESCRIPTION] = storable_text(words)
            if name.startswith("mcp."):
                attributes[names.MCP_METHOD] = "tools/call"
        title = names.EXECUTE_TOOL if is_unknown else f"{names.EXECUTE_TOOL} {name}"
        span = self._telemetry.tracer.start_span(title, attributes=attributes)
        self._telemetry.capture(
            span, self._clean, lambda: {names.TOOL_ARGUMENTS: dict(call.arguments)}
        )
        return _OpenCall(span, trace.set_span_in_context(span), facts)

    @_harmless
    def _finish(self, opened: _OpenCall, error: tuple[str, str] | None) -> None:
        took = perf_counter() - opened.started
        clean = self._clean if self._telemetry.captures_content else None
        facts = opened.facts | _end(opened.span, error, clean)
        self._telemetry.calls.record(took, facts, opened.context)


def provider_name(model: ModelConfig) -> str:
    """Return the conventions' name of the service that has the model."""
    if model.provider != "openai":
        return _PROVIDERS.get(model.provider, model.provider)
    server = server_of(model.base_url or "", model.compat) or "openai"
    return _PROVIDERS.get(server, server)


def _server(base_url: str | None) -> JsonObject:
    """Return the server and the port of a model, as far as its address has them."""
    try:
        parts = urlsplit(base_url or "")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return {}
    if not parts.hostname or port is None:
        return {}
    return {names.SERVER_ADDRESS: parts.hostname, names.SERVER_PORT: port}


def _usage(usage: Usage) -> JsonObject:
    facts = {
        names.USAGE_INPUT: usage.input_tokens,
        names.USAGE_OUTPUT: usage.output_tokens,
        names.USAGE_CACHE_READ: usage.cache_read_tokens or None,
        names.USAGE_CACHE_CREATION: usage.cache_write_tokens or None,
        names.USAGE_REASONING: usage.reasoning_tokens or None,
        names.COST: usage.cost,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _error_of(error: BaseException) -> tuple[str, str]:
    if isinstance(error, AgentCoreError):
        return error.code.value, error.message
    return type(error).__qualname__, ""


def _end(span: Span, error: tuple[str, str] | None, clean: Clean | None) -> JsonObject:
    """End a span and return the attributes of its error; `clean` allows recording the message."""
    facts: JsonObject = {}
    if error is not None:
        kind, message = error
        facts[names.ERROR_TYPE] = kind
        span.set_attribute(names.ERROR_TYPE, kind)
        words = storable_text(str(clean(message))[:_MOST_CHARS]) if clean is not None else ""
        span.set_status(Status(StatusCode.ERROR, words or None))
    span.end()
    return facts

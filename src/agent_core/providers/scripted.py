"""A provider that plays a script: for tests, for the demo, for trying things offline.

A script is a list of replies, from code or from a JSON file. Each model call takes the next one:

    provider = ScriptedProvider([calls("code.read_file", path="a.txt"), "It says hello."])

The same in a file, as `[model] provider = "scripted"`, `path = "replies.json"` reads it:

    [{"type": "calls", "calls": [{"name": "code.read_file", "arguments": {"path": "a.txt"}}]},
     "It says hello."]
"""

import asyncio
import inspect
from codecs import BOM_UTF8
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field, TypeAdapter, ValidationError

from agent_core.config.models import ModelConfig, RetryConfig, expand_home
from agent_core.errors import AgentCoreError, ArgumentError, ConfigError, ErrorCode, ProviderError
from agent_core.opening import read_bytes
from agent_core.providers import jsontext
from agent_core.providers.estimates import PromptEstimates, estimate_blocks
from agent_core.providers.failures import WITHOUT_TOOLS, Called
from agent_core.providers.reply import ReplyAccumulator
from agent_core.text import kind_of, not_a_list, plural
from agent_core.types import (
    ErrorPayload,
    Frozen,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelReasoningDelta,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    StopReason,
    ToolCall,
    ToolCallDelta,
    Usage,
)

StopWord = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "content_filter", "error"]


class Says(Frozen):
    """Text, after optional reasoning, in `chunks` deltas; usage is estimated by default."""

    type: Literal["says"] = "says"
    text: str
    reasoning: str = ""
    chunks: Annotated[int, Field(gt=0)] = 3
    stop_reason: StopReason = StopReason.END_TURN
    usage: Usage | None = None

    if TYPE_CHECKING:  # string values are accepted as well

        def __init__(
            self,
            *,
            text: str,
            reasoning: str = "",
            chunks: int = 3,
            stop_reason: StopReason | StopWord = ...,
            usage: Usage | None = None,
        ) -> None: ...


class ScriptedCall(Frozen):
    """One tool call. `arguments` as text are the model's own words, valid or not."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    tool_call_id: str | None = None


class Calls(Frozen):
    """Tool calls, after optional reasoning and text; usage is estimated by default."""

    type: Literal["calls"] = "calls"
    calls: Annotated[list[ScriptedCall], Field(min_length=1)]
    text: str = ""
    reasoning: str = ""
    stop_reason: StopReason = StopReason.TOOL_USE
    usage: Usage | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            calls: Sequence[ScriptedCall],
            text: str = "",
            reasoning: str = "",
            stop_reason: StopReason | StopWord = ...,
            usage: Usage | None = None,
        ) -> None: ...


class Fails(Frozen):
    """A call that fails, after `text` if there is any.

    A `retryable` failure without `text` is retried, as with real services, and takes the next
    reply. `retry_after_s` are the seconds that the service asks to wait.
    """

    type: Literal["fails"] = "fails"
    message: str = "the script says that this call fails"
    code: ErrorCode = ErrorCode.PROVIDER_ERROR
    retryable: bool = False
    retry_after_s: Annotated[float, Field(ge=0)] | None = None
    text: str = ""
    details: dict[str, Any] = Field(default_factory=dict[str, Any])

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            message: str = ...,
            code: ErrorCode | str = ...,
            retryable: bool = False,
            retry_after_s: float | None = None,
            text: str = "",
            details: dict[str, Any] = ...,
        ) -> None: ...


class Hangs(Frozen):
    """A reply that hangs after `text`; only cancelling ends it."""

    type: Literal["hangs"] = "hangs"
    text: str = ""


class Pauses(Frozen):
    """A pause of `seconds` before the next reply begins."""

    type: Literal["pauses"] = "pauses"
    seconds: Annotated[float, Field(ge=0)]


Reply = Annotated[Says | Calls | Fails | Hangs | Pauses, Field(discriminator="type")]
Piece = str | Reply | ScriptedCall | ToolCall | AgentCoreError | ModelEvent
"""A piece of a reply. An error is a call that fails; `ModelCompleted` is a whole reply."""
Answer = Callable[
    [ModelRequest],
    Piece | Iterable[Piece] | AsyncIterable[Piece] | Awaitable[Piece | Iterable[Piece]],
]
"""A function that answers a request: it returns a reply or its pieces, or yields the pieces."""


def calls(name: str, /, **arguments: Any) -> Calls:
    """Return a reply that is one tool call."""
    return Calls(calls=[ScriptedCall(name=name, arguments=arguments)])


_SOON = RetryConfig(initial_backoff_ms=1, max_backoff_ms=5)


class ScriptedProvider:
    """Plays a script. May serve many streams at once; replies are used in the order of the calls.

    Args:
        replies: the script: texts, `Says`, `Calls` and so on, errors, lists of pieces that make up
            one reply, and functions of the request. A function instead of a list answers every
            request.
        provider: its name in events.
        takes_tools: if false, a request with tools is refused.
        retry: how a call is retried that has failed with a `retryable` error; by default three
            attempts almost without a pause. The settings in `[model.retry]` take precedence.

    Raises:
        ArgumentError: `replies` is neither a list nor a function.
    """

    retries_itself = False

    def __init__(
        self,
        replies: Sequence[Piece | Iterable[Piece] | Answer] | Answer = (),
        *,
        provider: str = "scripted",
        takes_tools: bool = True,
        retry: RetryConfig = _SOON,
    ) -> None:
        if not callable(replies) and not isinstance(replies, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
            raise ArgumentError(not_a_list("replies", replies), "replies")
        self.retry = retry
        self.requests: list[ModelRequest] = []
        """Every request so far, oldest first."""
        self.closed = False
        self._provider = provider
        self._takes_tools = takes_tools
        self._answer = replies if callable(replies) else None
        self._replies: list[Piece | Iterable[Piece] | Answer] = []
        self._played = 0
        self._missing = 0
        self._broken: Exception | None = None
        self._estimates = PromptEstimates()
        if isinstance(replies, str):
            self.add(replies)
        elif not callable(replies):
            self.add(*replies)

    def add(self, *replies: Piece | Iterable[Piece] | Answer) -> None:
        """Append replies to the script."""
        self._replies += replies

    @classmethod
    def from_file(cls, path: str | Path) -> "ScriptedProvider":
        """Read a script: a JSON array of strings and replies.

        Raises:
            ConfigError: the file is missing, or is not such an array.
        """
        try:
            raw = read_bytes(expand_home(path)).removeprefix(BOM_UTF8)
            return cls(TypeAdapter(list[str | Reply]).validate_json(raw))
        except OSError as error:
            raise ConfigError(
                ErrorCode.CONFIG_ERROR, f"the script {path} cannot be read: {error.strerror}"
            ) from error
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)
            first = max(
                faults, key=lambda fault: (fault["loc"][-1:] != ("str",), len(fault["loc"]))
            )
            steps = [str(step) for step in first["loc"] if "[" not in str(step)]
            place = ".".join(steps) or "the whole file"
            reason = first["msg"]
            if first["type"].startswith("union_tag"):
                reason = 'it has no "type" of says, calls, fails, hangs and pauses'
            raise ConfigError(
                ErrorCode.CONFIG_ERROR, f"the script {path} is wrong at {place}: {reason}"
            ) from error

    def skip(self, replies: int) -> None:
        """Leave out replies that an earlier process has played, and what interrupted it then."""
        left = self._replies[self._played :]
        for reply in left:
            is_interruption = isinstance(reply, Pauses | Hangs | Fails | AgentCoreError)
            if not replies and not is_interruption:
                return
            self._played += 1
            replies -= not is_interruption

    def assert_complete(self) -> None:
        """Fail unless every reply was used, and there was one for every request.

        An exception raised by a function of the script is raised again here.

        Raises:
            AssertionError: the model was called less often, or more often, than the script expects.
        """
        if self._broken is not None:
            raise self._broken
        replies = plural(len(self._replies), "scripted reply", "scripted replies")
        if self._missing:
            raise AssertionError(
                f"the model was called {plural(len(self.requests), 'time')}, {self._missing} more"
                f" than {replies} can answer"
            )
        left = len(self._replies) - self._played
        if left:
            raise AssertionError(
                f"not used: {left} of {replies}; the next is {self._replies[self._played]!r}"
            )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Play the next reply.

        Raises:
            ProviderError: `unsupported_capability`: the request has tools, and they are not taken.
        """
        if request.tools and not self._takes_tools:
            raise ProviderError(
                ErrorCode.UNSUPPORTED_CAPABILITY,
                f"the model {request.model} of provider {self._provider} does not take tools; "
                f"{WITHOUT_TOOLS}",
                details={
                    "provider": self._provider,
                    "model": request.model,
                    "capability": "tools",
                },
            )
        self.requests.append(request)
        taken = self._take()
        yield ModelStarted(provider=self._provider, model=request.model)
        await asyncio.sleep(0)  # a service never answers at once
        draft = _Draft(self._provider, request)
        try:
            async for piece in self._pieces(taken, request):
                if isinstance(piece, Pauses):
                    await asyncio.sleep(piece.seconds)
                for event in draft.play(piece):
                    yield event
                if isinstance(piece, Hangs):
                    await asyncio.Event().wait()
                if draft.is_over:
                    return
        except AgentCoreError as failure:
            yield ModelFailed(error=ErrorPayload.of(failure))
            return
        except AssertionError as error:
            self._broken = self._broken or error
            failure = ProviderError(ErrorCode.PROVIDER_ERROR, str(error) or "an assertion failed")
            yield ModelFailed(error=ErrorPayload.of(failure))
            return
        except Exception as error:
            self._broken = self._broken or error
            raise
        for event in draft.finish():
            if draft.usage is None and isinstance(event, ModelCompleted):
                prompt = self._estimates.prompt(request)
                usage = Usage.from_input_output(prompt, estimate_blocks(event.content))
                event = event.model_copy(update={"usage": usage})
            yield event

    async def close(self) -> None:
        """Record that it was closed."""
        self.closed = True

    def _take(self) -> list[Piece | Iterable[Piece] | Answer]:
        """Return the next reply, with the pauses before it."""
        if self._answer is not None:
            return [self._answer]
        begun = self._played
        while self._played < len(self._replies):
            self._played += 1
            if not isinstance(self._replies[self._played - 1], Pauses):
                return self._replies[begun : self._played]
        self._missing += 1
        return [
            Fails(
                message=f"the script has {plural(len(self._replies), 'reply', 'replies')}"
                f" and all are used; this is request {len(self.requests)}",
            )
        ]

    async def _pieces(
        self, taken: list[Piece | Iterable[Piece] | Answer], request: ModelRequest
    ) -> AsyncGenerator[object]:
        """Yield the pieces of a reply; after a function that only pauses, also the next reply's."""
        only_pauses = True
        while only_pauses:
            only_pauses = False
            has_begun = False
            for reply in taken:
                async for piece in _pieces_of(reply, request):
                    has_begun = has_begun or not isinstance(piece, Pauses)
                    only_pauses = not has_begun
                    yield piece
            taken = self._take() if only_pauses else []


async def _pieces_of(reply: object, request: ModelRequest) -> AsyncGenerator[object]:
    """Yield the pieces of a reply; a function is called, and its answer awaited or iterated."""
    if callable(reply):
        reply = cast("Answer", reply)(request)
        if inspect.isawaitable(reply):
            reply = await reply
    if isinstance(reply, AsyncIterable):
        async for piece in cast("AsyncIterable[object]", reply):
            yield piece
    elif isinstance(reply, Iterable) and not isinstance(reply, str | Frozen):
        for piece in cast("Iterable[object]", reply):
            yield piece
    else:
        yield Says(text=reply) if isinstance(reply, str) else reply


class _Draft:
    """One reply that is being played, and the events of its pieces."""

    def __init__(self, provider: str, request: ModelRequest) -> None:
        self.is_over = False
        self.usage: Usage | None = None
        self._stop: StopReason | None = None
        self._has_calls = False
        self._reply = ReplyAccumulator(
            Called(provider, request.model), str, history=request.messages
        )

    def finish(self) -> list[ModelEvent]:
        """Return the last deltas and the finished reply."""
        stop = self._stop or (StopReason.TOOL_USE if self._has_calls else StopReason.END_TURN)
        return self._reply.finish(stop, stop.value, usage=self.usage or Usage())

    def play(self, piece: object) -> Iterator[ModelEvent]:
        """Add one piece, and yield its events.

        Raises:
            AssertionError: a function has returned something that is no piece of a reply.
        """
        parts: Iterable[object] = (piece,)
        if isinstance(piece, Says | Calls):
            self.usage = piece.usage or self.usage
            if "stop_reason" in piece.model_fields_set:
                self._stop = piece.stop_reason
            parts = (
                *([ModelReasoningDelta(text=piece.reasoning)] if piece.reasoning else ()),
                *pieces(piece.text, piece.chunks if isinstance(piece, Says) else 1),
                *(piece.calls if isinstance(piece, Calls) else ()),
            )
        for part in parts:
            match part:
                case str(text) | ModelTextDelta(text=text) | Hangs(text=text) | Fails(text=text):
                    if text:
                        self._reply.add_text(text)
                case ModelReasoningDelta(text=text):
                    self._reply.add_reasoning(text)
                case ScriptedCall() | ToolCall():
                    self._has_calls = True
                    call = self._reply.open_call(part.tool_call_id, part.name)
                    given = part.arguments
                    written = given if isinstance(given, str) else jsontext.dump(given).decode()
                    self._reply.feed(call, written)
                case ModelRetry() | ToolCallDelta() | ModelFailed() | ModelCompleted():
                    yield part
                case AgentCoreError():
                    yield ModelFailed(error=ErrorPayload.of(part))
                case ModelStarted() | Pauses():
                    pass
                case _:
                    raise AssertionError(
                        f"a scripted reply was {kind_of(part)}; it may be text, tool "
                        "calls, events of a model, an error, or a list of these"
                    )
            yield from self._reply.deltas()
        if isinstance(piece, Fails):
            asked = piece.retry_after_s
            details = piece.details if asked is None else piece.details | {"retry_after_s": asked}
            failure = ProviderError(piece.code, piece.message, piece.retryable, details)
            yield ModelFailed(error=ErrorPayload.of(failure))
        self.is_over = isinstance(piece, Fails | AgentCoreError | ModelFailed | ModelCompleted)


def create(config: ModelConfig) -> ScriptedProvider:
    """Create the adapter for `provider = "scripted"`.

    Raises:
        ConfigError: `[model] path` is missing, or the script is not usable.
    """
    if not config.path:
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            '[model] provider = "scripted" needs path = "<file.json>", the script to play',
        )
    return ScriptedProvider.from_file(config.path)


def pieces(text: str, count: int) -> list[str]:
    """Split a text into at most `count` pieces of nearly equal length."""
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]

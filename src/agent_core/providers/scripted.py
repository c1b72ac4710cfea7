"""A provider that plays a script: for tests, for the demo, for trying things offline.

A script is a list of replies, from code or from a JSON file. Each model call takes the next one:

    provider = ScriptedProvider([calls("code.read_file", path="a.txt"), "It says hello."])

The same in a file, as `[model] provider = "scripted"`, `path = "replies.json"` reads it:

    [{"type": "calls", "calls": [{"name": "code.read_file", "arguments": {"path": "a.txt"}}]},
     "It says hello."]
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode, ProviderError
from agent_core.providers import jsontext
from agent_core.providers.failures import WITHOUT_TOOLS, Called
from agent_core.providers.reply import ReplyAccumulator
from agent_core.types import (
    ErrorPayload,
    Frozen,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelStarted,
    StopReason,
    Usage,
)


class Says(Frozen):
    """Text, after reasoning if there is some, in `chunks` deltas."""

    type: Literal["says"] = "says"
    text: str
    reasoning: str = ""
    chunks: Annotated[int, Field(gt=0)] = 3
    stop_reason: StopReason = StopReason.END_TURN
    usage: Usage = Usage()


class ScriptedCall(Frozen):
    """One tool call. `arguments` as text is what a model wrote, valid or not."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    tool_call_id: str | None = None


class Calls(Frozen):
    """Tool calls, after reasoning and text if there are some."""

    type: Literal["calls"] = "calls"
    calls: Annotated[list[ScriptedCall], Field(min_length=1)]
    text: str = ""
    reasoning: str = ""
    stop_reason: StopReason = StopReason.TOOL_USE
    usage: Usage = Usage()


class Fails(Frozen):
    """The call fails, after `text` if there is some."""

    type: Literal["fails"] = "fails"
    message: str = "the script says that this call fails"
    code: ErrorCode = ErrorCode.PROVIDER_ERROR
    retryable: bool = False
    text: str = ""
    details: dict[str, Any] = Field(default_factory=dict[str, Any])


class Hangs(Frozen):
    """Nothing more ever arrives after `text`; only cancelling ends it."""

    type: Literal["hangs"] = "hangs"
    text: str = ""


class Pauses(Frozen):
    """The reply after this one takes `seconds` to begin."""

    type: Literal["pauses"] = "pauses"
    seconds: Annotated[float, Field(ge=0)]


Reply = Annotated[Says | Calls | Fails | Hangs | Pauses, Field(discriminator="type")]
Answer = Callable[[ModelRequest], "str | Reply"]
"""A reply that depends on the request; from code only."""


def calls(name: str, /, **arguments: Any) -> Calls:
    """A reply that is one tool call."""
    return Calls(calls=[ScriptedCall(name=name, arguments=arguments)])


class ScriptedProvider:
    """Plays a script. May serve many streams at once; replies go out in the order of the calls.

    Args:
        replies: the script; text stands for `Says`. A function instead of a list answers every
            request, however many there are.
        provider: the key it goes by in events.
        takes_tools: a request with tools is refused when this is false.
    """

    def __init__(
        self,
        replies: Sequence[str | Reply | Answer] | Answer,
        *,
        provider: str = "scripted",
        takes_tools: bool = True,
    ) -> None:
        self.requests: list[ModelRequest] = []
        """Every request so far, oldest first."""
        self.closed = False
        self._provider = provider
        self._takes_tools = takes_tools
        self._answer = replies if callable(replies) else None
        self._replies: list[str | Reply | Answer] = [] if callable(replies) else list(replies)
        self._played = 0

    @classmethod
    def from_file(cls, path: str | Path) -> "ScriptedProvider":
        """Read a script: a JSON array of strings and replies.

        Raises:
            ConfigError: the file is missing, or is not such an array.
        """
        try:
            raw = Path(path).expanduser().read_bytes()
            return cls(TypeAdapter(list[str | Reply]).validate_json(raw))
        except OSError as error:
            raise ConfigError(
                ErrorCode.CONFIG_ERROR, f"the script {path} cannot be read: {error.strerror}"
            ) from error
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False)
            first = max(faults, key=lambda fault: len(fault["loc"]))
            steps = [str(step) for step in first["loc"] if "[" not in str(step)]
            place = ".".join(steps) or "the whole file"
            raise ConfigError(
                ErrorCode.CONFIG_ERROR, f"the script {path} is wrong at {place}: {first['msg']}"
            ) from error

    def assert_complete(self) -> None:
        """Fail unless every reply has been used.

        Raises:
            AssertionError: the model was called less often than the script expects.
        """
        left = len(self._replies) - self._played
        if left:
            raise AssertionError(
                f"{left} of {len(self._replies)} scripted replies were not used; "
                f"the next is {self._replies[self._played]!r}"
            )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Play the next reply.

        Raises:
            ProviderError: `unsupported_capability`, for tools that are not taken.
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
        pause_s = 0.0
        while isinstance(reply := self._take(request), Pauses):
            pause_s += reply.seconds
        yield ModelStarted(provider=self._provider, model=request.model)
        await asyncio.sleep(pause_s)
        called = Called(self._provider, request.model)
        draft = ReplyAccumulator(called, str, history=request.messages)
        for event in self._play(reply, draft):
            yield event
        match reply:
            case Hangs():
                await asyncio.Event().wait()
            case Fails():
                failure = ProviderError(reply.code, reply.message, reply.retryable, reply.details)
                yield ModelFailed(error=ErrorPayload.of(failure))
            case Says() | Calls():
                stop = reply.stop_reason
                for event in draft.finish(stop, stop.value, usage=reply.usage):
                    yield event

    async def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _take(self, request: ModelRequest) -> Says | Calls | Fails | Hangs | Pauses:
        if self._answer is not None:
            reply: str | Reply | Answer = self._answer
        elif self._played < len(self._replies):
            reply = self._replies[self._played]
            self._played += 1
        else:
            return Fails(
                message=f"the script has {len(self._replies)} replies and all are used; "
                f"this is request {len(self.requests)}",
            )
        if callable(reply):
            reply = reply(request)
        return Says(text=reply) if isinstance(reply, str) else reply

    def _play(
        self, reply: Says | Calls | Fails | Hangs, draft: ReplyAccumulator
    ) -> Iterator[ModelEvent]:
        """The deltas of a reply, filling `draft` on the way."""
        if isinstance(reply, Says | Calls) and reply.reasoning:
            draft.add_reasoning(reply.reasoning)
            yield from draft.deltas()
        for piece in pieces(reply.text, reply.chunks if isinstance(reply, Says) else 1):
            draft.add_text(piece)
            yield from draft.deltas()
        for call in reply.calls if isinstance(reply, Calls) else ():
            opened = draft.open_call(call.tool_call_id, call.name)
            if isinstance(call.arguments, str):
                draft.feed(opened, call.arguments)
            else:
                draft.feed(opened, jsontext.dump_text(call.arguments))
            yield from draft.deltas()


def create(config: ModelConfig) -> ScriptedProvider:
    """The adapter for `provider = "scripted"`.

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
    """The text in at most `count` pieces of nearly equal length."""
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]

"""Code of the application at fixed points of a call, a turn and a plan."""

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, Self

from agcore.llm.error import LlmError
from agcore.llm.types import ChatRequest, ChatResponse
from agent_core.api.arguments import checks_arguments
from agent_core.callbacks import callback_problem
from agent_core.errors import ArgumentError
from agent_core.redaction import Redactor, log_failure
from agent_core.text import kind_of, shown_value
from agent_core.types import ToolCall, ToolResult, Usage

logger = logging.getLogger(__name__)


class HookEvent(StrEnum):
    """Points at which hooks are called. `PRE_REQUEST`, `PRE_TOOL` and `ON_TURN_START` can block."""

    PRE_REQUEST = "pre_request"
    POST_REQUEST = "post_request"
    PRE_TOOL = "pre_tool"
    POST_TOOL = "post_tool"
    ON_RETRY = "on_retry"
    ON_ERROR = "on_error"
    ON_TURN_START = "on_turn_start"
    ON_TURN_END = "on_turn_end"
    ON_PLAN_STEP_COMPLETE = "on_plan_step_complete"


@dataclass(frozen=True, slots=True)
class HookContext:
    """The event that a hook is called for.

    Attributes:
        event: the point at which it is called.
        request: the request; at `PRE_REQUEST`, `POST_REQUEST`, `ON_RETRY` and `ON_ERROR`.
        response: the reply; at `POST_REQUEST`. At `ON_TURN_END` and `ON_PLAN_STEP_COMPLETE` the
            answer of the turn or the step.
        usage: the usage of the call at `POST_REQUEST`, of the whole turn at `ON_TURN_END`.
        error: the failure; at `ON_RETRY` and `ON_ERROR`.
        attempt: the number of the failed attempt, from 1; at `ON_RETRY`.
        tool_call: the model's call; at `PRE_TOOL` and `POST_TOOL`.
        tool_result: its answer, whether or not it was run; at `POST_TOOL`.
        turn_index: the turn's number, from 0; at `ON_TURN_START` and `ON_TURN_END`.
        plan_step_index: the number of the plan's step, from 0; at `ON_PLAN_STEP_COMPLETE`.
        session_id: the session of the turn; None for a cycle without a session.
        agent_name: the agent of that session.
        metadata: the caller's metadata of the turn or the submission.
    """

    event: HookEvent
    _: KW_ONLY
    request: ChatRequest | None = None
    response: ChatResponse | None = None
    usage: Usage | None = None
    error: LlmError | None = None
    attempt: int = 0
    tool_call: ToolCall | None = None
    tool_result: ToolResult | None = None
    turn_index: int | None = None
    plan_step_index: int | None = None
    session_id: str | None = None
    agent_name: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class HookResult:
    """A hook's answer: continue, or stop with a reason."""

    blocked: bool = False
    reason: str = ""

    @classmethod
    def allow(cls) -> Self:
        """Let the work continue."""
        return cls()

    @classmethod
    def block(cls, reason: str) -> Self:
        """Stop the work for a reason."""
        return cls(blocked=True, reason=reason)


_ALLOW = HookResult()


class Hook(Protocol):
    """Code of the application that observes, or objects."""

    @abstractmethod
    async def execute(self, context: HookContext) -> HookResult:
        """Look at what is about to happen or has happened."""
        ...


@checks_arguments(but=("register",))
class HookExecutor:
    """Calls the hooks of an event, in the order of their registration."""

    def __init__(self) -> None:
        self._hooks: dict[HookEvent, list[tuple[Hook, bool]]] = {}
        self._redactor = Redactor({})

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Keep these values out of the log when a hook fails."""
        self._redactor.learn(secrets)

    def register(self, event: HookEvent, hook: Hook, *, guard: bool = False) -> None:
        """Have `hook` called at `event`.

        Args:
            event: when it is called.
            hook: the code to call.
            guard: count it as a block if the hook breaks.

        Raises:
            ArgumentError: it has no method `execute`, or there is no such event.
        """
        if not isinstance(event, str) or event not in frozenset(HookEvent):  # pyright: ignore[reportUnnecessaryIsInstance] - likewise
            given = shown_value(event) if isinstance(event, str) else kind_of(event)  # pyright: ignore[reportUnnecessaryIsInstance] - likewise
            message = f"there is no event {given}; the events are in HookEvent"
            raise ArgumentError(f"{message}: {', '.join(HookEvent)}", "event")
        if not isinstance(guard, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - likewise
            raise ArgumentError(f"guard must be True or False, not {kind_of(guard)}", "guard")
        execute = getattr(hook, "execute", None)
        if isinstance(hook, type) or callback_problem(execute, "context", needs_async=True):
            what = f"the class {hook.__name__}" if isinstance(hook, type) else kind_of(hook)
            message = f"{what} is not a hook; give it a method `async def execute(self, context)`"
            raise ArgumentError(message, "hook")
        self._hooks.setdefault(event, []).append((hook, guard))

    def listens(self, event: HookEvent) -> bool:
        """Return whether a hook is called at this event."""
        return event in self._hooks

    async def execute(self, context: HookContext) -> HookResult:
        """Call the hooks of `context.event`; the first block is the result and ends the round.

        A hook that breaks is logged. It stops nothing, unless it is a guard.
        """
        if context.metadata:
            clean = self._redactor.payload_secrets_only(dict(context.metadata))
            context = replace(context, metadata=clean)
        for hook, is_guard in self._hooks.get(context.event, ()):
            try:
                result = _verdict(await hook.execute(context))
            except Exception as error:  # noqa: BLE001 - a hook's failure is no failure of the call
                what = f"a hook at {context.event} failed"
                log_failure(logger, what, error=error, clean=self._redactor.text)
                if is_guard:
                    return HookResult.block(f"a guard failed ({type(error).__name__})")
                continue
            if result.blocked:
                return result
        return _ALLOW


def _verdict(returned: object) -> HookResult:
    """Return a hook's answer if it is a verdict.

    Raises:
        TypeError: the hook returned something else.
    """
    if isinstance(returned, HookResult):
        return returned
    what = kind_of(returned)
    raise TypeError(f"it returned {what}; return HookResult.allow() or HookResult.block(reason)")

"""Tools by name, and the one way to call them: looked up, allowed, checked, run, bounded."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Self

from agcore.llm import ToolRound
from agcore.tools.answers import RESULT_LIMIT_BYTES, ToolOutcome, value_of
from agcore.tools.base import BaseTool, as_tool, call_context, open_call, run_of
from agcore.tools.errors import ToolError, ToolExecutionError, ToolTimeoutError, from_core
from agcore.tools.permissions import Permission, PermissionChecker
from agent_core.aio import is_cancelled
from agent_core.errors import ConfigError, ToolError as CoreToolError
from agent_core.tools import Action, Concurrency, Tool, Toolbox
from agent_core.tools.base import batches, ends_turn, not_run
from agent_core.tools.decorator import FunctionTool
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.registry import check_own_name
from agent_core.tools.results import text_of
from agent_core.tools.threads import OpenCall
from agent_core.types import ErrorPayload, RunIdentity, ToolCall, ToolDefinition, ToolResult, new_id

TIMEOUT_S = 120.0
"""Seconds one call may take, by default."""

AnyTool = BaseTool | Tool


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """A call that somebody wants made."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


class ToolRegistry:
    """The tools of an agent. Takes `BaseTool`s and the engine's tools alike.

    Args:
        tools: to begin with.
        permissions: which may be called; all by default.
        timeout_s: how long one call may take, in seconds.
        result_limit_bytes: how large one result may be.
        session_id: what calls are told about where they happen.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool] = (),
        *,
        permissions: PermissionChecker | None = None,
        timeout_s: float = TIMEOUT_S,
        result_limit_bytes: int = RESULT_LIMIT_BYTES,
        session_id: str = "agcore",
    ) -> None:
        self._registered: dict[str, AnyTool] = {}
        self._known: dict[str, Tool] = {}
        self._permissions = permissions or PermissionChecker()
        self._timeout_s = timeout_s
        self._result_limit = result_limit_bytes
        self._session_id = session_id
        self._results = ResultLimiter(None, limit_bytes=result_limit_bytes)
        for tool in tools:
            self.register(tool)

    def register(self, tool: AnyTool) -> None:
        """Add a tool.

        Raises:
            ToolError: `ExecutionFailed`; the name is taken, or a tool of the caller's has a name
                that only tools of the engine or of a server can have.
        """
        made = as_tool(tool)
        if isinstance(tool, BaseTool | FunctionTool):
            try:
                check_own_name(made.name)
            except ConfigError as error:
                raise ToolExecutionError(made.name, error.message) from error
        if made.name in self._known:
            message = f"there is already a tool named {made.name}; give one of them another name"
            raise ToolExecutionError(made.name, message)
        self._known[made.name] = made
        self._registered[made.name] = tool

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Keep these out of what the user is asked about calls."""
        self._permissions.learn(secrets)

    def get(self, name: str) -> AnyTool | None:
        """The tool of that name, as it was registered."""
        return self._registered.get(name)

    def list_tools(self) -> list[str]:
        """Every name, sorted."""
        return sorted(self._registered)

    def definitions(self) -> list[ToolDefinition]:
        """What a model is offered, by name: the tools that may be called."""
        allowed = (name for name in self.list_tools() if self._allows(name))
        return [tool.definition for name in allowed if (tool := self._known.get(name))]

    def only(self, names: Collection[str]) -> Self:
        """A registry with those of these tools that are named; the others do not exist in it."""
        return self._with(tool for name, tool in self._registered.items() if name in names)

    def plus(self, tools: Iterable[AnyTool]) -> Self:
        """A registry with these tools and some more.

        Raises:
            ToolError: a name is taken.
        """
        return self._with([*self._registered.values(), *tools])

    def for_session(self, session_id: str) -> Self:
        """The same tools, told that they are called in this session."""
        return self._with(self._registered.values(), session_id=session_id)

    async def invoke(
        self, name: str, arguments: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> Any:
        """Call a tool and return its answer as a plain value.

        Raises:
            ToolError: of the kind that fits; a tool that answers with an error has failed.
        """
        call = ToolCall(tool_call_id=new_id("call"), name=name, arguments=dict(arguments))
        run = run_of(self._session_id)
        result = await self._run(call, run, timeout_s or self._timeout_s)
        if not result.is_error:
            return value_of(result)
        said = result.error.message if result.error else str(value_of(result))
        raise ToolExecutionError(name, said)

    async def invoke_all(
        self, invocations: Sequence[ToolInvocation], timeout_s: float | None = None
    ) -> list[ToolOutcome]:
        """Make several calls at once: one outcome for each, in order, whatever happens to others.

        The caller has decided that they may run side by side; a model's calls go through `answer`.

        Args:
            invocations: the calls.
            timeout_s: how long each may take, in seconds.
        """

        async def outcome(wanted: ToolInvocation) -> ToolOutcome:
            try:
                value = await self.invoke(wanted.name, wanted.arguments, timeout_s=timeout_s)
            except ToolError as error:
                return ToolOutcome(wanted.name, error=error)
            return ToolOutcome(wanted.name, value)

        return await asyncio.gather(*map(outcome, invocations))

    async def answer(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Answer a model's calls by the engine's rules: one result for each, in order.

        Calls that only read run side by side, one that writes runs alone, and after a write that
        failed the later calls are answered without being run. A tool that fails is an answer
        too, for the model to read.
        """
        round_ = ToolRound(calls)
        async with aclosing(self.run(round_)) as begun:
            async for _ in begun:
                pass
        return round_.results()

    async def run(self, calls: ToolRound) -> AsyncGenerator[ToolCall]:
        """`answer`, noted in the round as it goes; yields each call before it begins."""
        done = 0
        for lane, batch in batches(calls.calls, self._lane):
            for call in batch:
                yield call
            indexes = range(done, done := done + len(batch))
            for index in indexes:
                calls.begin(index)
            results = await asyncio.gather(*(self._noted(calls, index) for index in indexes))
            if ends_turn(lane, results[-1]):
                break
        for index in range(done, len(calls.calls)):
            calls.answer(index, not_run(calls.calls[index]))

    async def _noted(self, calls: ToolRound, index: int) -> ToolResult:
        result = await self._answer(calls.calls[index])
        calls.answer(index, result)
        return result

    async def _answer(self, call: ToolCall) -> ToolResult:
        run = run_of(self._session_id)
        try:
            return await self._run(call, run, self._timeout_s)
        except ToolError as error:
            return (await self._results.limit_failure(ErrorPayload.of(error), run, call)).result

    def _lane(self, call: ToolCall) -> Concurrency:
        tool = self._known.get(call.name)
        return tool.lane if tool else Concurrency.READ

    def _allows(self, name: str) -> bool:
        return self._permissions.permission(name) is Permission.ALLOWED

    def _with(self, tools: Iterable[AnyTool], *, session_id: str | None = None) -> Self:
        return type(self)(
            tools,
            permissions=self._permissions,
            timeout_s=self._timeout_s,
            result_limit_bytes=self._result_limit,
            session_id=session_id or self._session_id,
        )

    async def _run(self, call: ToolCall, run: RunIdentity, timeout_s: float) -> ToolResult:
        """Make one call; its result is of bounded size.

        Raises:
            ToolError: it could not be made, must not be made, or failed.
        """
        clock = asyncio.timeout(timeout_s)
        try:
            with open_call() as opened:
                tool, action = await self._permitted(call, run, opened)
                async with clock:  # a user who is asked first may take as long as they like
                    returned = await action.run()
            return (await self._results.limit(returned, run, call, tool=tool)).result
        except CoreToolError as error:
            known = from_core(call.name, error)
            raise known from (None if known is error else error)
        except TimeoutError as error:
            if not clock.expired():
                raise ToolExecutionError(
                    call.name, f"{call.name} failed: {text_of(error)}"
                ) from error
            raise ToolTimeoutError(
                call.name, f"{call.name} gave no answer in {timeout_s:g} s"
            ) from None
        except BaseException as error:  # what a tool raises to end the program ends its call
            if isinstance(error, asyncio.CancelledError) and is_cancelled(asyncio.current_task()):
                raise
            said = f"{call.name} failed: {text_of(error)}"
            raise ToolExecutionError(call.name, said) from error

    async def _permitted(
        self, call: ToolCall, run: RunIdentity, opened: OpenCall
    ) -> tuple[Tool, Action]:
        """The call, looked at and allowed, but not run yet."""
        if call.name in self._registered:
            self._permissions.check(call.name)
        tool, arguments = Toolbox(self._known.values()).resolve(call)
        context = call_context(run, call.tool_call_id, opened)
        action = await tool.prepare(arguments, context)
        await self._permissions.require(call, tool.definition, action.access, run)
        return tool, action

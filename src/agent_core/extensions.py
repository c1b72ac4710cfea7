"""Extensions: objects that add behaviour to a run at fixed points.

The engine's own features (the fence, snapshots, budgets, guards, traces, hooks, permissions) are
extensions like those of a program; `Rank` is their order.
"""

import inspect
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, cast

from agent_core.callbacks import async_cure, callback_problem, may_be_awaited
from agent_core.errors import (
    AgentCoreError,
    CallChangedError,
    ConfigError,
    ErrorCode,
    ParkedError,
    PortableError,
)
from agent_core.providers.adapter_faults import ask_adapter
from agent_core.providers.base import ProviderAdapter
from agent_core.text import kind_of
from agent_core.tools.base import ToolAnswer, ToolReturn
from agent_core.types import (
    Access,
    Draft,
    ModelEvent,
    ModelRequest,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from agent_core.types.values import Value

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from agent_core.events import Journal
    from agent_core.tools.toolsets import AnyTool

ENTRY_POINTS = "soong_agent.extensions"

AskModel = Callable[[ModelRequest], AsyncGenerator[ModelEvent]]
"""Asks the next extension, and finally the model."""

RunTool = Callable[[], Awaitable[ToolReturn]]
"""Makes a tool call. The value of a built-in tool may be a `ToolAnswer`: return it unchanged."""

Admit = Callable[[], Awaitable[float | None]]


async def find_none() -> "Sequence[JudgedCall]":
    """Return no calls: nothing follows in the reply."""
    return ()


class Rank(IntEnum):
    """The order of extensions, outermost first."""

    FENCE = 0
    SNAPSHOTS = 1
    BUDGET = 2
    TRACE = 3
    GUARDS = 4
    HOOKS = 5
    PERMISSIONS = 6
    PROGRAM = 7
    CLAIM = 8


class GuardStop(PortableError):  # noqa: N818 - it is raised to stop a run, not because of an error
    """Raised by a guard or an extension to stop the run, which fails with `guard_stopped`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ExtensionContext(Value):
    """The run that an extension or a guard works for.

    Attributes:
        run: identifies the run.
        deps: the object passed to the run as `deps`.
    """

    run: RunIdentity
    deps: Any = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JudgedCall(Value):
    """A tool call that is about to be admitted or refused.

    Attributes:
        call: as the model made it, or with the arguments that a person has set.
        definition: of the tool.
        access: what the call would touch.
        journal: of the run.
        find_later: returns the calls of the same reply that follow, as they would be made now.
    """

    call: ToolCall
    definition: ToolDefinition
    access: Access
    journal: "Journal"
    find_later: "Callable[[], Awaitable[Sequence[JudgedCall]]]" = find_none


class Extension:
    """Adds behaviour to runs. Subclass it, and override the methods you need.

    One object may serve many runs at once: every method gets the context of its run. Extensions are
    nested; every method is called for the outermost extension first.

    `GuardStop` stops the run, and no further call is made. An `AgentCoreError` ends the run; raised
    in `before_tool_call`, `admit_tool_call` or `wrap_tool_call` it is the result that the model
    reads. Any other exception fails the call in these three methods, and ends the run with
    `internal_error` elsewhere. The error of the run, or the call's event, names the extension and
    the exception; the model only reads that the call failed.
    """

    rank: ClassVar[Rank] = Rank.PROGRAM
    """The rank of the extension among the engine's own. An extension of another rank than
    `PROGRAM` may come before permissions and guards: an installed one is refused."""

    def instructions(self, context: ExtensionContext) -> str | None:  # noqa: ARG002
        """Return a text for the system prompt of the run."""
        return None

    def tools(self, context: ExtensionContext) -> "Sequence[AnyTool]":  # noqa: ARG002
        """Return tools and toolsets to add to the run's own."""
        return ()

    def wrap_run(
        self,
        context: ExtensionContext,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[object]:
        """Return a context manager that is entered when the run begins and left when it ends.

        If the run fails or is cancelled, it is left with the exception, which it cannot suppress. A
        run that waits for a person's answer leaves it too, and enters it again when it continues.
        """
        return nullcontext()

    async def run_started(self, context: ExtensionContext) -> None:
        """Begin a run, before its message is stored and sent."""

    async def on_message(self, context: ExtensionContext, message: str) -> None:
        """See the message before it is stored and sent: the user's, or the task of a child."""

    def wrap_model_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        request: ModelRequest,
        proceed: AskModel,
    ) -> AsyncIterator[ModelEvent]:
        """Yield the events of a model call; usually an async generator over `proceed(request)`.

        Args:
            context: of the run.
            request: the model request; `request.model_copy(update=…)` makes a changed one.
            proceed: asks the next extension, and finally the model. It may be called any number of
                times; its streams are closed when the call ends.
        """
        return proceed(request)

    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """See a tool call before permissions decide; raise `PermissionDeniedError` to refuse it.

        Returns:
            A note about the call, which a question to the user shows.
        """

    async def admit_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        judged: JudgedCall,  # noqa: ARG002
        proceed: Admit,
    ) -> float | None:
        """Return once a tool call may be made; raise `PermissionDeniedError` to refuse it.

        Returns:
            Seconds that a person took to answer; None if no person was asked.
        """
        return await proceed()

    async def wrap_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,  # noqa: ARG002
        proceed: RunTool,
    ) -> ToolReturn:
        """Make an admitted tool call with `proceed()`, and return its value or another one."""
        return await proceed()

    async def after_tool_call(
        self, context: ExtensionContext, call: ToolCall, result: ToolResult
    ) -> None:
        """See the result of a tool call as it was stored, without secrets.

        Calls that were cancelled after they had begun are included.
        """

    async def calls_dropped(self, context: ExtensionContext, calls: Sequence[ToolCall]) -> None:
        """See calls that are not made because an earlier one of the same reply failed."""

    async def before_stop(self, context: ExtensionContext, answer: str) -> str | None:
        """Return an objection to the end of the run, which goes back to the model; None: none."""


_POINTS = tuple(
    name for name, each in vars(Extension).items() if inspect.isfunction(each) and name[0] != "_"
)


@cache
def _overridden(kind: type[Extension]) -> tuple[str, ...]:
    """Return the names of the methods that a class defines anew."""
    return tuple(name for name in _POINTS if getattr(kind, name) is not getattr(Extension, name))


_STREAM = Extension.wrap_model_call.__name__


@cache
def misfit_of_extension(kind: type[Extension]) -> str | None:
    """Return which method of a class cannot be called as an extension's is, and why; None: none."""
    for name in _overridden(kind):
        own, base = inspect.getattr_static(kind, name), getattr(Extension, name)
        if not inspect.isfunction(own):
            continue
        where = f"its method {name}"
        if inspect.iscoroutinefunction(own) and not inspect.iscoroutinefunction(base):
            cure = "as an async generator, with `yield`" if name == _STREAM else "without async"
            return f"{where} is a coroutine; write {name} {cure}"
        if inspect.iscoroutinefunction(base) and not may_be_awaited(own):
            return f"{where} is not async; {async_cure(name)}"
        if problem := callback_problem(own, *inspect.signature(base).parameters):
            return f"{where} {problem}"
    return None


class Extensions:
    """The extensions of one run in their order; each point calls those that override it.

    Args:
        context: of the run.
        extensions: in any order; extensions of the same rank keep theirs.
    """

    def __init__(self, context: ExtensionContext, extensions: Iterable[Extension] = ()) -> None:
        self.context = context
        self._all = sorted(extensions, key=attrgetter("rank"))
        self._stopped: AgentCoreError | None = None
        self._at = defaultdict[str, list[Extension]](list)
        for each in self._all:
            for name in _overridden(type(each)):
                self._at[name].append(each)

    def plus(self, *extensions: Extension) -> "Extensions":
        """Return these extensions and some more, each at its rank."""
        return Extensions(self.context, [*self._all, *extensions])

    def instructions(self) -> list[str]:
        """Return the texts that extensions contribute to the system prompt."""
        texts: list[str] = []
        for each in self._at["instructions"]:
            with self._failures_of(each):
                texts += filter(None, [each.instructions(self.context)])
        return texts

    def tools(self) -> "list[AnyTool]":
        """Return the tools and toolsets that extensions contribute."""
        tools: list[AnyTool] = []
        for each in self._at["tools"]:
            with self._failures_of(each):
                tools += each.tools(self.context)
        return tools

    def around_run(self) -> AbstractAsyncContextManager[None]:
        """Return the context that wraps the run."""
        return self._around_all() if self._at["wrap_run"] else nullcontext()

    @asynccontextmanager
    async def _around_all(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for each in self._at["wrap_run"]:
                await stack.enter_async_context(self._around_run(each))
            yield

    @asynccontextmanager
    async def _around_run(self, extension: Extension) -> AsyncGenerator[None]:
        failure: BaseException | None = None
        try:
            async with extension.wrap_run(self.context):
                try:
                    yield
                except BaseException as error:
                    failure = error
                    raise
        except BaseException as error:
            if failure is not None and (error is failure or not isinstance(failure, Exception)):
                raise failure from failure.__cause__  # a cancelled run stays cancelled
            with self._failures_of(extension):
                raise
        if failure is not None:
            raise failure  # how the run ends is not the extension's to change

    async def run_started(self) -> None:
        """Begin a run, before its message is stored and sent."""
        for each in self._at["run_started"]:
            with self._failures_of(each):
                await each.run_started(self.context)

    async def on_message(self, message: Draft) -> None:
        """Show the user's message."""
        for each in self._at["on_message"]:
            with self._failures_of(each):
                await each.on_message(self.context, message.text)

    def around(self, provider: ProviderAdapter) -> ProviderAdapter:
        """Return the adapter with the extensions that wrap model calls around it.

        Raises:
            AgentCoreError: `guard_stopped`: an extension has stopped the run.
        """
        if self._stopped is not None:
            raise self._stopped
        wrappers = self._at["wrap_model_call"]
        if not wrappers:
            return provider
        ask: AskModel = partial(ask_adapter, provider)
        for each in reversed(wrappers):
            wrap = self._ask_through if each.rank is Rank.PROGRAM else _ask_engine
            ask = partial(wrap, each, self.context, ask)
        return WrappedProvider(ask)

    async def _ask_through(
        self, extension: Extension, context: ExtensionContext, ask: AskModel, request: ModelRequest
    ) -> AsyncGenerator[ModelEvent]:
        """Ask through an extension of the program, and close all that it has opened."""
        failures: list[Exception] = []
        opened: list[AsyncGenerator[ModelEvent]] = []

        async def proceed(asked: ModelRequest) -> AsyncGenerator[ModelEvent]:
            try:
                async with aclosing(ask(asked)) as events:
                    async for event in events:
                        yield event
            except Exception as error:
                failures.append(error)
                raise

        def open_stream(asked: ModelRequest) -> AsyncGenerator[ModelEvent]:
            opened.append(proceed(asked))
            return opened[-1]

        try:
            wrapped = extension.wrap_model_call(context, request, open_stream)
            opened.append(_iterate(wrapped))
            async for event in opened[-1]:
                yield event
        except Exception as error:
            if error in failures:
                raise
            with self._failures_of(extension):
                raise
        finally:
            for events in reversed(opened):
                await events.aclose()

    async def before_tool_call(
        self, call: ToolCall, definition: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """Show a call before it is judged, and return the last note about it.

        Raises:
            PermissionDeniedError: an extension refused it.
            AgentCoreError: `guard_stopped`: an extension has stopped the run.
        """
        if self._stopped is not None:
            raise self._stopped
        note = None
        for each in self._at["before_tool_call"]:
            with self._failures_of(each):
                note = await each.before_tool_call(self.context, call, definition) or note
        return note

    async def admit_tool_call(self, judged: JudgedCall) -> float | None:
        """Return once the call may be made: the seconds that people took to answer, if any did.

        Raises:
            PermissionDeniedError: the policy, the user or an extension refused it.
            AgentCoreError: `guard_stopped`: an extension has stopped the run.
        """
        admit: Admit = _admitted
        for each in reversed(self._at["admit_tool_call"]):
            ask = each.admit_tool_call
            if each.rank is Rank.PROGRAM:
                ask = partial(self._admit_through, each)
            admit = partial(ask, self.context, judged, admit)
        try:
            waited = await admit()
        except AgentCoreError as error:
            if error.code is ErrorCode.GUARD_STOPPED:  # by a guard: it counts for every call
                self._stopped = self._stopped or error
            raise
        if self._stopped is not None:  # by another call, while a person was asked
            raise self._stopped
        return waited

    async def _admit_through(
        self, extension: Extension, context: ExtensionContext, judged: JudgedCall, proceed: Admit
    ) -> float | None:
        with self._failures_of(extension):
            return await extension.admit_tool_call(context, judged, proceed)

    async def run_tool(
        self, call: ToolCall, action: Callable[[], Awaitable[ToolReturn | ToolAnswer]]
    ) -> ToolReturn | ToolAnswer:
        """Make an admitted call."""
        run = cast("RunTool", action)
        for each in reversed(self._at["wrap_tool_call"]):
            wrap = each.wrap_tool_call
            if each.rank is Rank.PROGRAM:
                wrap = partial(self._wrap_through, each)
            run = partial(wrap, self.context, call, run)
        try:
            return await run()
        except GuardStop as stop:
            raise self._stop("an extension", stop) from None

    async def _wrap_through(
        self, extension: Extension, context: ExtensionContext, call: ToolCall, proceed: RunTool
    ) -> ToolReturn:
        """Let an extension make a call; what the tool itself raises passes through it."""
        raised: list[BaseException] = []

        async def run() -> ToolReturn:
            try:
                return await proceed()
            except BaseException as error:
                raised.append(error)
                raise

        try:
            return await extension.wrap_tool_call(context, call, run)
        except Exception as error:
            if not any(error is each for each in raised):
                with self._failures_of(extension):
                    raise
            raise

    async def after_tool_call(self, call: ToolCall, result: ToolResult) -> None:
        """Show the result of a call."""
        for each in self._at["after_tool_call"]:
            with self._failures_of(each):
                await each.after_tool_call(self.context, call, result)

    async def calls_dropped(self, calls: Sequence[ToolCall]) -> None:
        """Show calls that are not made."""
        for each in self._at["calls_dropped"]:
            with self._failures_of(each):
                await each.calls_dropped(self.context, calls)

    async def before_stop(self, answer: str) -> str | None:
        """Return the first objection to the end of the run."""
        for each in self._at["before_stop"]:
            with self._failures_of(each):
                if objection := await each.before_stop(self.context, answer):
                    return objection
        return None

    def require_going(self) -> None:
        """Check that no guard or extension has stopped the run.

        Raises:
            AgentCoreError: `guard_stopped`: one has.
        """
        if self._stopped is not None:
            raise self._stopped

    @contextmanager
    def _failures_of(self, extension: Extension) -> Generator[None]:
        """Say which extension of the program failed; the engine's own raise what they mean."""
        try:
            yield
        except GuardStop as stop:
            raise self._stop(f"the extension {_name(extension)}", stop) from None
        except (AgentCoreError, ParkedError, CallChangedError):
            raise
        except Exception as error:
            if extension.rank is not Rank.PROGRAM:
                raise
            raise BrokenExtensionError(_name(extension), error) from error

    def _stop(self, who: str, stop: GuardStop) -> AgentCoreError:
        """Stop the run; the first reason counts."""
        reason = str(stop)
        message = f"{who} has stopped the run" + (reason and f": {reason}")
        error = AgentCoreError(ErrorCode.GUARD_STOPPED, message, details={"reason": reason})
        self._stopped = self._stopped or error
        return self._stopped


class BrokenExtensionError(AgentCoreError):
    """An extension of the program raised an exception that is no answer to anything.

    Args:
        name: of the extension.
        error: the exception.
    """

    def __init__(self, name: str, error: Exception) -> None:
        message = f"the extension {name} failed: {type(error).__name__}: {error}"
        super().__init__(ErrorCode.INTERNAL_ERROR, message, details={"extension": name})

    def for_model(self, *, has_begun: bool) -> AgentCoreError:
        """Return the error of the call, without the text of the exception."""
        message = "not run: the program failed to check the call"
        if has_begun:
            message = "the program failed while the call was made; its effect is unknown"
        return AgentCoreError(ErrorCode.INTERNAL_ERROR, message, details=self.details)


def installed_extensions(names: Sequence[str]) -> list[Extension]:
    """Return the extensions of installed distributions that `[runtime] extensions` names.

    Each is the name of an entry point of the group `soong_agent.extensions`, which refers to a
    subclass of `Extension` or a function without parameters that returns an extension.

    Raises:
        ConfigError: there is none of that name, there are several, or it cannot be made.
    """
    if not names:
        return []
    # Reading what is installed takes a while, and few programs need it.
    from importlib.metadata import entry_points  # noqa: PLC0415

    points = entry_points(group=ENTRY_POINTS)
    return [_installed(name, points) for name in names]


def describe_installed(name: str) -> str:
    """Return the name of an installed extension with its distribution."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    for point in entry_points(group=ENTRY_POINTS, name=name):
        if point.dist is not None:
            return f"{name} ({point.dist.name} {point.dist.version})"
    return name


def _installed(name: str, points: "EntryPoints") -> Extension:
    found = {(point.value, point.dist.name if point.dist else "?"): point for point in points}
    found = {key: point for key, point in found.items() if point.name == name}
    details: dict[str, Any] = {"extension": name}
    if len(found) != 1:
        if found:
            distributions = ", ".join(sorted(distribution for _, distribution in found))
            reason = f"belongs to several distributions: {distributions}; uninstall all but one"
        else:
            known = ", ".join(sorted(points.names)) or "none"
            reason = (
                f"is not installed; installed: {known}. A distribution adds one with an entry "
                f"point of the group {ENTRY_POINTS}"
            )
        message = f"[runtime] extensions: {name!r} {reason}"
        raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)
    [((value, distribution), point)] = found.items()
    details["distribution"] = distribution
    try:
        extension: object = point.load()()
    except Exception as error:
        message = (
            f"[runtime] extensions: {name!r} of {distribution} cannot be made ({value}): "
            f"{type(error).__name__}: {error}"
        )
        raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details) from error
    if not isinstance(extension, Extension):
        message = (
            f"[runtime] extensions: {name!r} of {distribution} is {kind_of(extension)}, "
            "not an Extension"
        )
        raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)
    if extension.rank is not Rank.PROGRAM:
        message = (
            f"[runtime] extensions: {name!r} of {distribution} is ranked among the engine's own "
            "extensions, where it may skip permissions; remove its attribute `rank`"
        )
        raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)
    return extension


class WrappedProvider:
    """An adapter whose calls go through a function; what that asks belongs to others."""

    def __init__(self, ask: AskModel) -> None:
        self._ask = ask

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Stream the events of the wrapped call."""
        return self._ask(request)

    async def close(self) -> None:
        """Leave the adapter open."""


def _ask_engine(
    extension: Extension, context: ExtensionContext, ask: AskModel, request: ModelRequest
) -> AsyncGenerator[ModelEvent]:
    events = extension.wrap_model_call(context, request, ask)
    return cast("AsyncGenerator[ModelEvent]", events)


async def _iterate(events: AsyncIterator[ModelEvent]) -> AsyncGenerator[ModelEvent]:
    """Yield events, and close them in the end.

    Raises:
        TypeError: they are no async iterator.
    """
    if not hasattr(events, "__aiter__"):
        if inspect.iscoroutine(events):
            events.close()
        message = "write wrap_model_call as an async generator, with `yield` for every event"
        raise TypeError(message)
    try:
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _admitted() -> None:
    """Admit the call: no extension has refused it."""


def _name(extension: Extension) -> str:
    return type(extension).__name__

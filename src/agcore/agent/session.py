"""A conversation with an agent, turn by turn, within limits."""

import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, cast, overload

from typing_extensions import TypeVar

from agcore.agent.error import (
    AgentConfigError,
    HookBlockedError,
    LimitExceededError,
    raise_as_agent_error,
)
from agcore.agent.runtime import RuntimeBundle
from agcore.agent.session_memory import SessionMemory, session_memory_set_tool, wrap_in_tag
from agcore.agent.spec import (
    AgentSpec,
    DepsT,
    SessionSettings,
    TurnArgs,
    Usable,
    check_parts,
    read_tools,
)
from agcore.agent.streams import AgentStream
from agcore.llm import (
    AdapterProvider,
    ChatMessage,
    ChatResponse,
    CostTracker,
    Error,
    HookContext,
    HookEvent,
    LlmCycle,
    LlmError,
    Prompt,
    RunTools,
    StreamEvent,
    TurnComplete,
    TurnSettings,
)
from agcore.llm.calls import CallerRun
from agcore.llm.history import given_messages
from agcore.memory import ConversationMemory
from agcore.tools import Tool, ToolError, ToolRegistry, Toolset, open_toolset
from agent_core.aio import finish_uncancelled
from agent_core.aio.loops import LoopLock, running_loop
from agent_core.api.handles import RunResult
from agent_core.config.models import BudgetConfig
from agent_core.errors import validation_error
from agent_core.extensions import ExtensionContext
from agent_core.keywords import lists_keywords
from agent_core.loop.option_checks import checked_metadata, hint_at_option
from agent_core.loop.options import RunOptions, with_instructions
from agent_core.text import nearest, plural
from agent_core.tools.deps import check_agents_deps
from agent_core.types import OutputT, RunStatus, new_id

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.loop.options import AnyOutput, Instructions, Outputs

Environment = str | Callable[[], str]

_Asked = TypeVar("_Asked")
_Opened = Sequence[tuple[Toolset, Sequence[Tool]]]
_OF_SESSION = SessionSettings.__annotations__.keys() - TurnSettings.__annotations__.keys()
"""Settings of a turn that its cycle does not take."""


@dataclass(frozen=True, slots=True)
class PromptLayers:
    """The parts of the system prompt around an agent's own prompt.

    Attributes:
        base: the beginning of every agent's prompt.
        environment: current facts such as date and place; a function is called every turn.
    """

    base: str = ""
    environment: Environment = ""

    def compose(self, agent_prompt: str | None, more: Iterable[str] = ()) -> str:
        """Base, agent, environment and other layers, in this order, without empty ones."""
        around = self.environment() if callable(self.environment) else self.environment
        return "\n\n".join(filter(None, [self.base, agent_prompt, around, *more]))


@dataclass(slots=True)
class _Turn:
    """A turn: its options and tools, and its reply once there is one."""

    options: TurnSettings
    tools: RunTools
    reply: ChatResponse | None = None


class AgentSession(Generic[DepsT, OutputT]):
    """One session of one agent. Turns that are submitted concurrently run one after the other.

    Without a `ConversationMemory` no history is kept. With one, every turn sees its messages,
    including those of other writers, and adds its own. A turn that fails or is cancelled adds only
    the tool calls that had begun, each with its answer.

    Args:
        agent: the agent; `swap_agent` replaces it.
        session_id: letters, digits, `_` and `-`; a new one by default.
        bundle: shared with any number of other sessions.
        conversation: keeps the history.
        session_memory: facts that the session must keep; its own by default.
        layers: builds the system prompt from a base, the agent's prompt, the environment and the
            session memory; without it, the system prompt is the agent's prompt.
        offers_memory_tool: lets the model write to the session memory.
        caller: the run whose tool call the session answers.

    Raises:
        AgentError: `Config`; the session id is invalid, a tool's name is taken, the budget of
            compaction is too small, or the class of the agent is not written as an agent's.
    """

    def __init__(
        self,
        agent: AgentSpec[DepsT, OutputT],
        session_id: str | None,
        bundle: RuntimeBundle,
        *,
        conversation: ConversationMemory | None = None,
        session_memory: SessionMemory | None = None,
        layers: PromptLayers | None = None,
        offers_memory_tool: bool = False,
        caller: CallerRun | None = None,
    ) -> None:
        check_parts(agent, bundle)
        self.agent: AgentSpec[Any, Any] = agent
        self.session_id = new_id("sess") if session_id is None else session_id
        self.bundle = bundle
        # Made in any case, because this checks the session id.
        own_memory = SessionMemory(bundle.session_memory_backend, self.session_id)
        self.session_memory = session_memory or own_memory
        self.notes: dict[str, str] = {}
        """Further layers of the system prompt by their origin, if there are layers."""
        self.last_response: ChatResponse | None = None
        self._conversation = conversation
        self._layers = layers
        offered = [session_memory_set_tool(self.session_memory)] if offers_memory_tool else []
        self._own_tools = offered
        self._notices: list[ChatMessage] = []
        self._owns_provider = False
        self._is_entered = False
        self._stack = AsyncExitStack()
        self._kept: AgentSpec[Any, Any] | None = None
        self._served: _Opened = ()
        self._brought: _Opened = ()
        self._turn_index = 0
        self._begun = time.monotonic()
        self._lock = LoopLock(f"session {self.session_id}")
        config = bundle.config
        settings = replace(config.cycle, max_tool_turns=config.max_tool_turns)
        self._cycle = LlmCycle(bundle.provider, settings, caller=caller)
        self._cycle.with_hook_executor(bundle.hook_executor)
        if config.compact_config is not None:
            try:
                self._cycle.with_compact_config(config.compact_config)
            except LlmError as error:
                raise AgentConfigError(error.message) from error
        if (budget := config.budget) is not None:
            known = budget if isinstance(budget, BudgetConfig) else None
            self._cycle.with_budget(known or BudgetConfig(**budget.model_dump()))
        self._learn()
        self._tools()  # reports a name that is taken at once, not in the first turn

    def __repr__(self) -> str:
        turns = plural(self._turn_index, "turn")
        return f"AgentSession({self.session_id!r}, {self.agent.name!r}, {turns})"

    def own_provider(self) -> None:
        """Have `close` close the provider of the bundle, which no other session may use."""
        self._owns_provider = True

    async def close(self) -> None:
        """Close everything the session has opened. Can be repeated."""
        self._is_entered, self._kept = False, None
        await self._stack.aclose()
        provider = self.bundle.provider
        if self._owns_provider and isinstance(provider, AdapterProvider):
            await provider.close()

    async def __aenter__(self) -> Self:
        with raise_as_agent_error():
            running_loop("a session")
            if self._is_entered:
                message = f"session {self.session_id} is entered already; use it inside that block"
                raise validation_error(f"{message}, or open another one")
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def turn_index(self) -> int:
        """Return the number of completed turns, which is the index of the next one."""
        return self._turn_index

    def usage(self) -> CostTracker:
        """Return the usage of all turns, including failed ones."""
        return self._cycle.usage()

    async def set_session_data(self, key: str, value: str) -> None:
        """Write a value to the session memory."""
        await self.session_memory.set(key, value)

    async def get_session_data(self, key: str) -> str | None:
        """Read a value from the session memory."""
        return await self.session_memory.get(key)

    async def messages(self) -> list[ChatMessage]:
        """Return the history the next turn will see; empty if none is kept.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        with raise_as_agent_error():
            return [*self._cycle.messages(await self._history()), *self._notices]

    def swap_agent(self, agent: AgentSpec[Any, Any]) -> None:
        """Continue with another agent. The history stays, with a notice of the change in it.

        Raises:
            AgentError: `Config`; its class is not written as an agent's.
        """
        check_parts(agent, self.bundle)
        before, self.agent = self.agent, agent
        if self._conversation is not None:
            text = f"From now on you are {agent.name}, no longer {before.name}. Your system"
            text += " prompt and your tools have changed; the conversation continues."
            notice = ChatMessage.user_text(wrap_in_tag("system-reminder", text), synthetic=True)
            self._notices.append(notice)

    async def submit_turn(self, text: Prompt, **settings: Unpack[SessionSettings]) -> ChatResponse:
        """Send a user message, run the tools the model calls, and return the answer.

        A message with images is a list of text and image blocks. Settings passed
        here (`tool_choice`, `stop`, …) apply to this turn, instead of `AgentConfig.cycle`.

        Raises:
            AgentError: `LimitExceeded`, `HookBlocked`, `Llm` or `Memory`.
        """
        async with self._turn(settings) as turn:
            reply = turn.reply = await self._cycle.submit_with_tools(
                text, turn.tools, **turn.options
            )
        return reply

    @overload
    async def run(
        self, message: Prompt, *, output_type: None = None, **args: Unpack[TurnArgs[DepsT]]
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self, message: Prompt, *, output_type: "TypeForm[_Asked]", **args: Unpack[TurnArgs[DepsT]]
    ) -> RunResult[_Asked]: ...

    @overload
    async def run(
        self,
        message: Prompt,
        *,
        output_type: "Outputs[_Asked]",
        **args: Unpack[TurnArgs[DepsT]],
    ) -> RunResult[_Asked]: ...

    @overload
    async def run(
        self, message: Prompt, *, output_type: "AnyOutput", **args: Unpack[TurnArgs[DepsT]]
    ) -> RunResult[Any]: ...

    @lists_keywords(TurnArgs)
    async def run(
        self, message: Prompt, *, output_type: Any = None, **args: Unpack[TurnArgs[DepsT]]
    ) -> RunResult[Any]:
        """`submit_turn`, with the result in the type of the agent's answers.

        Args:
            message: text, or texts and images.
            output_type: of this answer; overrides the agent's.
            deps: available to tools as `ToolContext.deps`.
            args: options of this turn; see `RunSettings`.

        Raises:
            AgentError: as for `submit_turn`.
        """
        async with self._turn(_turn_settings(output_type, args)) as turn:
            options, tools = turn.options, turn.tools
            reply = turn.reply = await self._cycle.submit_with_tools(message, tools, **options)
            run_id, usage = self._cycle.run_id, self._cycle.turn_usage()
        is_typed = options.get("output_type") not in (None, str)
        has_value = is_typed or options.get("output_validators")
        return RunResult(
            output=reply.output if has_value else reply.text,
            text=reply.text,
            status=RunStatus.COMPLETED,
            usage=usage,
            cost=usage.cost,
            session_id=self.session_id,
            run_id=run_id,
            total_usage=usage,
        )

    def submit_turn_stream(
        self, text: Prompt, **settings: Unpack[SessionSettings]
    ) -> AgentStream[Any]:
        """`submit_turn` as a stream of events. A failed model call is the last event, `Error`.

        When the last event arrives the turn is over and counted. Leaving the stream before that, in
        any way, stops the turn.

        Raises:
            AgentError: at the first step, `LimitExceeded` or `HookBlocked`; `Memory`.
        """
        return AgentStream(self._events(text, settings), self._with_agents(settings))

    @overload
    def stream(
        self, message: Prompt, *, output_type: None = None, **args: Unpack[TurnArgs[DepsT]]
    ) -> AgentStream[OutputT]: ...

    @overload
    def stream(
        self, message: Prompt, *, output_type: "TypeForm[_Asked]", **args: Unpack[TurnArgs[DepsT]]
    ) -> AgentStream[_Asked]: ...

    @overload
    def stream(
        self,
        message: Prompt,
        *,
        output_type: "Outputs[_Asked]",
        **args: Unpack[TurnArgs[DepsT]],
    ) -> AgentStream[_Asked]: ...

    @overload
    def stream(
        self, message: Prompt, *, output_type: "AnyOutput", **args: Unpack[TurnArgs[DepsT]]
    ) -> AgentStream[Any]: ...

    @lists_keywords(TurnArgs)
    def stream(
        self, message: Prompt, *, output_type: Any = None, **args: Unpack[TurnArgs[DepsT]]
    ) -> AgentStream[Any]:
        """`run` as a stream of events; its `partial_output()` yields the answer as it arrives.

        Args:
            message: text, or texts and images.
            output_type: of this answer; overrides the agent's.
            deps: available to tools as `ToolContext.deps`.
            args: options of this turn; see `RunSettings`.

        Raises:
            AgentError: as for `submit_turn_stream`.
        """
        return self.submit_turn_stream(message, **_turn_settings(output_type, args))

    async def _events(self, text: Prompt, settings: SessionSettings) -> AsyncGenerator[StreamEvent]:
        last: TurnComplete | Error | None = None
        async with self._turn(settings) as turn:
            running = self._cycle.events_of(text, turn.tools, turn.options)
            async with aclosing(running) as events:
                async for event in events:
                    if isinstance(event, TurnComplete | Error):
                        last = event
                    else:
                        yield event
            if isinstance(last, TurnComplete):
                turn.reply = last.response
        if last is not None:
            yield last

    @asynccontextmanager
    async def _turn(self, settings: SessionSettings) -> AsyncGenerator[_Turn]:
        """Prepare and finish one turn, which counts only if the caller notes its reply."""
        async with AsyncExitStack() as alone:
            with raise_as_agent_error():
                await alone.enter_async_context(self._lock)
            config = self.bundle.config
            if self._turn_index >= config.max_turns:
                turns = plural(config.max_turns, "turn")
                raise LimitExceededError(
                    f"session {self.session_id} has taken its {turns} (max_turns)"
                )
            ttl = config.session_ttl
            if ttl is not None and time.monotonic() - self._begun > ttl.total_seconds():
                raise LimitExceededError(
                    f"session {self.session_id} is older than {ttl} (session_ttl); start another"
                    " one"
                )
            self._learn()
            with raise_as_agent_error():
                check_agents_deps(self.agent.name, self.agent.deps_type, settings.get("deps"))
                hooks, index = self.bundle.hook_executor, self._turn_index
                about = checked_metadata(self._with_agents(settings).get("metadata", {}))
                start = self._hook_context(HookEvent.ON_TURN_START, about)
                verdict = await hooks.execute(start)
                if verdict.blocked:
                    raise HookBlockedError(f"a hook blocked turn {index}: {verdict.reason}")
                await self._remember(self._notices)
                self._notices = []
                self._cycle.with_messages(await self._history(settings.get("history", ())))
                prompt = self.agent.system_prompt or ""
                if self._layers is not None:
                    more = list(self.notes.values())
                    if await self.session_memory.entries():
                        more.append(await self.session_memory.snapshot())
                    prompt = self._layers.compose(prompt, more)
                self._cycle.with_system_prompt(prompt)
                async with AsyncExitStack() as stack:
                    asked = settings.get("tools")
                    await self._open_toolsets(stack, asked)
                    turn = _Turn(self._with_agents(settings), self._tools(asked))
                    try:
                        yield turn
                    finally:
                        await finish_uncancelled(self._remember(self._cycle.added()))
                if turn.reply is not None:
                    self.last_response = turn.reply
                    end = self._hook_context(HookEvent.ON_TURN_END, about)
                    self._turn_index += 1
                    await hooks.execute(
                        replace(end, response=turn.reply, usage=self._cycle.turn_usage())
                    )

    async def _open_toolsets(self, turn: AsyncExitStack, asked: Collection[Usable] | None) -> None:
        """Open the toolsets of the agent and of a turn; an entered session keeps the agent's."""
        agents = read_tools(self.agent.tools).toolsets
        if self._kept is not self.agent:
            owner = self._stack if self._is_entered else turn
            self._served = await _open_all(owner, agents) if agents else ()
            self._kept = self.agent if self._is_entered else None
        self._brought = []
        if asked is not None:
            brought = (each for each in read_tools(asked).toolsets if each not in agents)
            self._brought = await _open_all(turn, brought)

    def _with_agents(self, settings: SessionSettings) -> TurnSettings:
        """Return a turn's settings for the cycle, completed by the agent's own settings."""
        known = SessionSettings.__annotations__.keys()
        if unknown := settings.keys() - known:
            name = min(unknown)
            raise TypeError(f"{name!r} is not a setting of a run{hint_at_option(name, known)}")
        given = {name: value for name, value in settings.items() if name not in _OF_SESSION}
        own = {**self.agent.settings}
        if (output_type := self.agent.output_type) is not None:
            own["output_type"] = output_type
        if (write := self.agent.written_instructions) is not None:
            more: Any = given.get("instructions")
            given["instructions"] = write if more is None else _both(write, more)
        return cast("TurnSettings", {**own, **given})

    def _hook_context(self, event: HookEvent, metadata: Mapping[str, Any]) -> HookContext:
        return HookContext(
            event=event,
            turn_index=self._turn_index,
            session_id=self.session_id,
            agent_name=self.agent.name,
            metadata=metadata,
        )

    def _learn(self) -> None:
        """Pass the secrets to everything that stores or shows text."""
        for secrets in self.bundle.known_secrets():
            self._cycle.with_secrets(secrets)
            self.session_memory.learn(secrets)
            self.bundle.tool_registry.learn(secrets)
            if self._conversation is not None:
                self._conversation.learn(secrets)

    async def _history(self, given: Sequence[Any] = ()) -> list[ChatMessage]:
        """Return the kept history, or the given one if none is kept.

        Raises:
            AgentError: `Config`; both are there.
            AgentCoreError: a message of the given one cannot be read.
        """
        if self._conversation is None:
            return given_messages(given) if given else []
        if given:
            message = "the session keeps a conversation, and history gives another one; keep one"
            raise AgentConfigError(message)
        return await self._conversation.get_history()

    async def _remember(self, messages: list[ChatMessage]) -> None:
        if self._conversation is not None:
            await self._conversation.add_messages(messages)

    def _tools(self, asked: Collection[Usable] | None = None) -> RunTools:
        """Return the tools of a turn: those the agent offers, its own, and those of its toolsets.

        With `asked`, the turn has only the tools named there and those that it brings along.
        """
        offered = list(self.agent.tool_definitions(self.bundle))
        names = {tool.name for tool in offered}
        served = [tool for _, tools in self._served for tool in tools]
        own = [*read_tools(self.agent.tools).own, *self._own_tools, *served]
        try:
            registry = self.bundle.tool_registry.for_session(self.session_id, names, more=own)
            others = registry.list_tools()
            if asked is not None:
                registry = self._asked_tools(registry, asked)
                offered = [tool for tool in offered if registry.get(tool.name) is not None]
            tools = registry.for_run()
        except ToolError as error:
            raise AgentConfigError(error.message) from error
        more = [tool for tool in tools.definitions if tool.name not in names]
        return replace(
            tools, definitions=[*offered, *more], agent_name=self.agent.name, others=others
        )

    def _asked_tools(self, known: ToolRegistry, asked: Collection[Usable]) -> ToolRegistry:
        """Return the tools of a turn that selects some of the known ones or brings its own."""
        agents = {id(each) for each in self.agent.tools or () if not isinstance(each, str)}
        again = read_tools([each for each in asked if id(each) in agents])
        given = read_tools([each for each in asked if id(each) not in agents])
        names = {*again.names, *given.names, *(tool.name for tool in again.own)}
        names |= {t.name for one, tools in self._served if one in again.toolsets for t in tools}
        if unknown := sorted(name for name in names if known.get(name) is None):
            reason = f"the agent {self.agent.name!r} has no tool named {unknown[0]!r}"
            hint = nearest(unknown[0], known.list_tools())
            raise AgentConfigError(f"{reason}{hint}; `tools` of a run names what it has")
        brought = [*given.own, *(tool for _, tools in self._brought for tool in tools)]
        return known.plus(brought).only({*names, *(tool.name for tool in brought)})


def _turn_settings(output_type: Any, args: TurnArgs[Any]) -> SessionSettings:
    """Return the settings of a run's turn; without an `output_type` the agent's counts."""
    asked = {} if output_type is None else {"output_type": output_type}
    return cast("SessionSettings", {**args, **asked})


async def _open_all(owner: AsyncExitStack, given: Iterable[Toolset]) -> _Opened:
    """Open toolsets, all or none; the owner closes them."""
    async with AsyncExitStack() as stack:
        opened = [(each, await stack.enter_async_context(open_toolset(each))) for each in given]
        owner.push_async_exit(stack.pop_all())
    return opened


def _both(first: "Instructions", second: "Instructions") -> "Instructions":
    """Return instructions that are two texts, one after the other."""

    async def write(context: ExtensionContext) -> str:
        texts = [
            (await with_instructions(RunOptions(instructions=each), context)).text
            for each in (first, second)
        ]
        return "\n\n".join(filter(None, texts))

    return write

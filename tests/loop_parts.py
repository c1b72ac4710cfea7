"""Builds a run around a scripted provider and a store in memory, for tests of the loop."""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.composer import Composer, SystemBlocks
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.events import EventStream, HeldSession, Journal
from agent_core.extensions import (
    Admit,
    Extension,
    ExtensionContext,
    Extensions,
    JudgedCall,
    Rank,
)
from agent_core.loop import Outcome, RunContext, RunLimits, run_agent
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.estimates import estimate_blocks
from agent_core.providers.scripted import ScriptedProvider
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.runtime.session_history import SessionHistory
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.tools.base import Tool
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.registry import Toolbox, tool_from
from agent_core.types import (
    AgentType,
    EventType,
    NewRun,
    Node,
    RunIdentity,
    RuntimeEvent,
    ToolCall,
    ToolDefinition,
    ToolPermission,
    ToolResult,
    ToolResultBlock,
    new_id,
    user_text,
)

OWNER = "own_test"


class AllowAll(Extension):
    """Lets everything through but the tools it is told to refuse."""

    rank = Rank.PERMISSIONS

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        self.asked: list[str] = []

    async def admit_tool_call(
        self, context: ExtensionContext, judged: JudgedCall, proceed: Admit
    ) -> float | None:
        name = judged.call.name
        self.asked.append(name)
        if name in self._refused:
            raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, "the user said no")
        return await proceed()


class Listening(Extension):
    """Remembers what it was told, and objects to the end as often as told to."""

    rank = Rank.HOOKS

    def __init__(self, *objections: str) -> None:
        self.heard: list[str] = []
        self._objections = list(objections)

    async def run_started(self, context: ExtensionContext) -> None:
        self.heard.append("session_start")

    async def on_message(self, context: ExtensionContext, message: str) -> None:
        self.heard.append(f"prompt {message}")

    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> None:
        self.heard.append(f"before {call.name}")

    async def after_tool_call(
        self, context: ExtensionContext, call: ToolCall, result: ToolResult
    ) -> None:
        self.heard.append(f"after {call.name}")

    async def before_stop(self, context: ExtensionContext, answer: str) -> str | None:
        self.heard.append("stop")
        return self._objections.pop(0) if self._objections else None


class NoCompaction:
    async def recover(self, journal: Journal) -> bool:
        return False


def a_tool(
    name: str,
    handler: Callable[[dict[str, Any], Any], Awaitable[Any]],
    *,
    writes: bool = False,
) -> Tool:
    definition = ToolDefinition(
        name=name,
        description=f"does {name}",
        input_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
        permission=ToolPermission.WRITE if writes else ToolPermission.READONLY,
    )
    return tool_from(definition, handler)


@dataclass
class Session:
    """One session in a memory store; `run` plays a script in it, `start` makes a run's parts."""

    script: Sequence[Any] = ()
    tools: Iterable[Tool] = ()
    guard: AllowAll = field(default_factory=AllowAll)
    hooks: Listening = field(default_factory=Listening)
    extensions: Sequence[Extension] = ()
    limits: RunLimits = field(default_factory=RunLimits)
    window: int = 32_000
    store: SqliteSessionStore = field(default_factory=SqliteSessionStore.in_memory)
    session_id: str = "s1"
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    provider: ProviderAdapter | None = None

    def __post_init__(self) -> None:
        self.scripted = ScriptedProvider(self.script)
        self.streams: list[EventStream] = []

    async def start(self) -> RunContext:
        opened = await self.store.open_run(
            NewRun(
                session_id=self.session_id,
                cwd="/project",
                owner=OWNER,
                agent_type=AgentType.MAIN,
                agent_id=new_id("agent"),
                run_id=new_id("run"),
            ),
        )
        run = RunIdentity(
            session_id=self.session_id,
            agent_id=opened.agent.agent_id,
            run_id=opened.run.run_id,
        )
        stream = EventStream()
        self.streams.append(stream)
        model = ModelConfig(provider="scripted", name="script", context_window=self.window)
        return RunContext(
            run=run,
            journal=Journal(
                run,
                store=self.store,
                stream=stream,
                redactor=JournalRedactor(Redactor(self.secrets)),
                estimate=estimate_blocks,
                held=HeldSession(OWNER),
            ),
            provider=self.provider or self.scripted,
            composer=Composer(model, ContextConfig(), SystemBlocks()),
            history=SessionHistory(self.store, self.session_id, is_new=not opened.resumed),
            compactor=NoCompaction(),
            toolbox=Toolbox(self.tools),
            extensions=Extensions(
                ExtensionContext(run=run), [self.hooks, self.guard, *self.extensions]
            ),
            results=ResultLimiter(None, limit_bytes=65_536),
            project_dir=Path("/project"),
            limits=self.limits,
        )

    async def run(self, text: str = "hello") -> Outcome:
        return await run_agent(await self.start(), user_text(text))

    async def events(self) -> list[RuntimeEvent]:
        return (await self.store.page(self.session_id)).events

    async def event_types(self) -> list[EventType]:
        return [event.event_type for event in await self.events()]

    async def nodes(self) -> list[Node]:
        return (await self.store.page(self.session_id)).nodes

    async def results(self) -> list[ToolResultBlock]:
        return [result for node in await self.nodes() for result in node.results]

    async def active_path(self) -> list[Node]:
        session = await self.store.session(self.session_id)
        assert session is not None
        return await self.store.path(session.active_node_id) if session.active_node_id else []


def spoken(nodes: Iterable[Node]) -> list[str]:
    """The path in short: who said what."""
    said: list[str] = []
    for node in nodes:
        for block in node.content:
            match block.type:
                case "text":
                    said.append(f"{node.role}: {block.text}")
                case "tool_call":
                    said.append(f"calls {block.name}({json.dumps(block.arguments)})")
                case "tool_result":
                    said.append(f"result {'error' if block.is_error else 'ok'}")
                case _:
                    said.append(block.type)
    return said

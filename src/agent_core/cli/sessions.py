"""`soong-agent sessions`: what there is, what was said, what it has cost; a shorter history."""

import asyncio
import os
import sys
from collections import defaultdict

from agent_core.api import AgentRuntime
from agent_core.cli.options import COMPLETED, FAILED, MISUSED, SessionOptions
from agent_core.cli.plain import PlainView
from agent_core.cli.secrets import Clean, terminal_redactor
from agent_core.cli.terminal import OutputClosedError, Style, Terminal
from agent_core.config.load import read_setup
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.redaction.visible import shortened, visible
from agent_core.runtime.background import read_background_usage
from agent_core.types import Node, NodeType, Role, RunRecord, RunStatus, TextBlock, Usage

_LONGEST_MESSAGE = 400


def attend(options: SessionOptions) -> int:
    """List, show or compact sessions, and return the exit code."""
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    clean = terminal_redactor(os.environ).text
    try:
        clean = terminal_redactor(os.environ, read_setup(options.path)).text
        return asyncio.run(_attend(options, terminal, clean))
    except OutputClosedError:
        return COMPLETED
    except AgentCoreError as error:
        terminal.line(f"error: {clean(error.message)}", Style.BAD)
        misused = isinstance(error, ConfigError) or error.code is ErrorCode.VALIDATION_ERROR
        return MISUSED if misused else FAILED


async def _attend(options: SessionOptions, terminal: Terminal, clean: Clean) -> int:
    async with AgentRuntime(project_dir=options.path) as runtime:
        match options.action:
            case "list":
                return await _list(runtime, terminal, clean, limit=options.limit)
            case "show":
                return await _show(runtime, terminal, clean, session_id=options.session_id)
            case _:
                return await _compact(runtime, terminal, options)


async def _list(runtime: AgentRuntime, terminal: Terminal, clean: Clean, *, limit: int) -> int:
    for session in await runtime.list_sessions(limit=limit):
        used = session.updated_at.astimezone()
        where = visible(clean(session.cwd), one_line=True)
        terminal.text(f"{session.session_id}  {used:%Y-%m-%d %H:%M}  {where}\n")
    return COMPLETED


async def _show(runtime: AgentRuntime, terminal: Terminal, clean: Clean, *, session_id: str) -> int:
    usage: defaultdict[str, Usage] = defaultdict(Usage)
    seen: set[str] = set()
    unsaid: list[RunRecord] = []
    start: int | None = 1
    page = await runtime.replay_session(session_id)
    while start is not None:
        page = await runtime.replay_session(session_id, from_seq=start)
        for run in page.runs:
            if run.run_id not in seen:
                seen.add(run.run_id)
                usage["runs"] = usage["runs"].plus(run.usage)
                unsaid += [run] if run.prompt is not None else []
        start = page.next_seq
    active = page.session.active_node_id
    for node in await runtime.get_node_path(active) if active else []:
        if shown := _shown(node, clean):
            terminal.text(f"{shown}\n")
    for run in unsaid:
        terminal.text(f"{_unsaid(run, clean)}\n")
    for purpose, cost in {**usage, **read_background_usage(page.session.metadata)}.items():
        terminal.line(
            f"tokens of {visible(purpose, one_line=True)}: {cost.input_tokens} in,"
            f" {cost.output_tokens} out, {cost.total_tokens} in all",
            Style.DIM,
        )
    return COMPLETED


async def _compact(runtime: AgentRuntime, terminal: Terminal, options: SessionOptions) -> int:
    view = PlainView(terminal)
    handle = await runtime.compact_session(options.session_id, move_session=options.moves_session)
    async for event in handle.events():
        view.event(event)
    status = await handle.wait()
    view.end(handle.result_text, handle.error, handle.usage)
    return COMPLETED if status is RunStatus.COMPLETED else FAILED


def _unsaid(run: RunRecord, clean: Clean) -> str:
    """A message that no model has seen, and why."""
    blocks = run.prompt.content if run.prompt else []
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    return f"[{run.run_id}] user, {run.status}: {_shortened(text, clean)}"


def _shortened(text: str, clean: Clean) -> str:
    return shortened(visible(clean(text.strip())), _LONGEST_MESSAGE)


def _shown(node: Node, clean: Clean) -> str:
    """A message as one line or a few; what only models read is named, not shown."""
    if node.node_type is NodeType.COMPACTION:
        return f"[{node.node_id}] (summary of what came before)"
    if node.node_type is not NodeType.MESSAGE or node.role is Role.TOOL or not node.text.strip():
        return ""
    return f"[{node.node_id}] {node.role}: {_shortened(node.text, clean)}"

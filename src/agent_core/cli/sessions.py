"""`soong-agent sessions`: what there is, its messages, what it has cost; a shorter history."""

import asyncio

from agent_core.api import AgentRuntime
from agent_core.cli.options import COMPLETED, FAILED, Options
from agent_core.cli.terminal import Clean, Style, Terminal, run_on_terminal
from agent_core.cli.view import ANSWER, RunView, format_usage
from agent_core.config.paths import Setup
from agent_core.runtime.background import read_background_usage
from agent_core.text import shortened, visible
from agent_core.types import Node, NodeType, Role, RunRecord, RunStatus, TextBlock, Usage

_LONGEST_MESSAGE = 400


def manage_sessions(options: Options) -> int:
    """List, show, fork or compact sessions, and return the exit code."""

    def manage(setup: Setup, terminal: Terminal, clean: Clean) -> int:
        return asyncio.run(_manage(options, setup, terminal, clean))

    return run_on_terminal(options.path, manage, asks_model=options.action == "compact")


async def _manage(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    async with AgentRuntime(
        project_dir=options.path,
        home_dir=setup.home,
        config=setup.config,
        default_snapshots="turn",
    ) as runtime:
        match options.action:
            case "list":
                for session in await runtime.list_sessions(limit=options.limit):
                    used = f"{session.updated_at.astimezone():%Y-%m-%d %H:%M}"
                    where = visible(clean(session.cwd), one_line=True)
                    terminal.text(f"{session.session_id}  {used}  {where}\n")
            case "show":
                await _show(runtime, terminal, clean, session_id=options.id)
            case "fork":
                from agent_core.cli.undo import show_move  # noqa: PLC0415 - shown here only

                forked = await runtime.fork(options.id, options.at, into=options.into)
                show_move(forked, terminal, clean)
                terminal.text(f"{forked.session_id}  {visible(clean(forked.session.cwd))}\n")
            case _:
                view = RunView(terminal)
                handle = await runtime.compact_session(
                    options.id, move_session=options.move_session
                )
                async for event in handle.events():
                    view.event(event)
                status = await handle.wait()
                view.end(handle.result_text, handle.error, handle.usage)
                return COMPLETED if status is RunStatus.COMPLETED else FAILED
    return COMPLETED


async def _show(
    runtime: AgentRuntime, terminal: Terminal, clean: Clean, *, session_id: str
) -> None:
    runs: dict[str, RunRecord] = {}
    start: int | None = 1
    page = await runtime.replay_session(session_id)
    while start is not None:
        page = await runtime.replay_session(session_id, from_seq=start)
        runs |= {run.run_id: run for run in page.runs if run.run_id not in runs}
        start = page.next_seq
    active = page.session.active_node_id
    path = await runtime.get_node_path(active) if active else []
    for line in filter(None, (_node_line(node, clean) for node in path)):
        terminal.text(f"{line}\n")
    for run in runs.values():
        is_shown = run.status is not RunStatus.WAITING  # its message is on the path
        if run.prompt is not None and is_shown:  # a message that no model has seen
            texts = (block.text for block in run.prompt.content if isinstance(block, TextBlock))
            text = _shorten("".join(texts), clean)
            terminal.text(f"[{run.run_id}] user, {run.status}: {text}\n")
    for question in await runtime.approvals(session_id):
        request_id, name = question.request_id, visible(question.tool_name, one_line=True)
        terminal.text(f"[{question.run_id}] asks for {name}: {ANSWER % request_id}\n")
    usage: dict[str, Usage] = {}
    for run in runs.values():
        usage["runs"] = usage.get("runs", Usage()).plus(run.usage)
    for purpose, cost in {**usage, **read_background_usage(page.session.metadata)}.items():
        line = f"tokens of {visible(purpose, one_line=True)}: {format_usage(cost)}"
        terminal.line(line, Style.DIM)


def _shorten(text: str, clean: Clean) -> str:
    return shortened(visible(clean(text.strip())), _LONGEST_MESSAGE)


def _node_line(node: Node, clean: Clean) -> str:
    """A message as one line or a few; what only models read is named, not shown."""
    if node.node_type is NodeType.COMPACTION:
        return f"[{node.node_id}] (summary of what came before)"
    if node.node_type is not NodeType.MESSAGE or node.role is Role.TOOL or not node.text.strip():
        return ""
    return f"[{node.node_id}] {node.role}: {_shorten(node.text, clean)}"

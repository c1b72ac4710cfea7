"""`/status`: the state of a conversation on one screen, without asking a model or a server."""

import asyncio
from collections.abc import Iterator

from agent_core.cli.chat.conversation import Chat
from agent_core.cli.instruction_files import describe_instructions
from agent_core.cli.placed import placed_model
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError
from agent_core.history.figures import format_cost, format_tokens
from agent_core.loading import installed_version
from agent_core.text import short_line, visible
from agent_core.types import Node, NodeType, Usage
from agent_core.types.memory_scopes import MEMORY_OFF

_NAMES = 12
_MOST_NAMED = 200


async def show_status(chat: Chat) -> None:
    """Show version, model, project, session, use, sandbox, servers, memory and instructions."""
    usage, path = Usage(), list[Node]()
    if chat.has_sent:
        for run in await chat.runtime.session_runs(chat.session_id):
            usage = usage.plus(run.usage)
        session = (await chat.runtime.replay_session(chat.session_id, 1, 0)).session
        if session.active_node_id:
            path = await chat.runtime.get_node_path(session.active_node_id)
    read = {
        str(node.metadata.get("path", ""))
        for node in path
        if node.node_type is NodeType.INSTRUCTION_CONTEXT
    }
    servers = await asyncio.to_thread(_servers, chat.setup)
    files = await asyncio.to_thread(describe_instructions, chat.setup, read)
    for name, value in _rows(chat, usage, servers, files.text):
        shown = visible(chat.clean(value), one_line=True)
        first, *rest = chat.terminal.wrap(f"{name:<{_NAMES}} {shown}")
        chat.terminal.line(first)
        for line in rest:
            chat.terminal.line(f"  {line}")


def _rows(chat: Chat, usage: Usage, servers: str, files: str) -> Iterator[tuple[str, str]]:
    setup = chat.setup
    yield "version", f"soong-agent {installed_version() or '(not installed)'}"
    yield "model", placed_model(setup.config, chat.model)
    yield "mode", chat.mode
    yield "project", str(setup.project)
    yield "session", chat.session_id if chat.has_sent else "new; it begins with the next message"
    if chat.window.size:
        share = round(100 * chat.window.used / chat.window.size)
        used, size = format_tokens(chat.window.used), format_tokens(chat.window.size)
        yield "context", f"{used} of {size} tokens, {share} %"
    else:
        yield "context", "nothing has been sent yet"
    yield "tokens", f"{format_tokens(usage.total_tokens)}, {format_cost(usage)}"
    yield "sandbox", setup.config.sandbox.mode
    yield "MCP servers", servers
    is_on = setup.config.memory.enabled and setup.memory_scope != MEMORY_OFF
    yield "memory", "on" if is_on else "off"
    yield "instructions", files or "no AGENTS.md or CLAUDE.md is found; /init writes one"


def _servers(setup: Setup) -> str:
    """Return the MCP servers that the settings name; none of them is asked."""
    from agent_core.mcp.config import read_servers  # noqa: PLC0415 - few chats

    try:
        servers = read_servers(setup.settings_home, setup.project)
    except AgentCoreError as error:
        return error.message
    names = [f"{name} (disabled)" if each.disabled else name for name, each in servers.items()]
    return short_line(", ".join(names), _MOST_NAMED) if names else "none"

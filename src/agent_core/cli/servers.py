"""`soong-agent mcp`: which servers there are, whether they answer, and logins."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from time import perf_counter

from msgspec import Struct

from agent_core.cli.answers import open_screen
from agent_core.cli.elicitation import TerminalElicitation
from agent_core.cli.exit_codes import COMPLETED, FAILED, INTERRUPTED
from agent_core.cli.lines import InputLines
from agent_core.cli.options import Options
from agent_core.cli.setup import build_terminal_redactor, run_on_terminal
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError
from agent_core.history.figures import format_duration
from agent_core.mcp import Host, McpTools, ServerFailure, StoredLogin, read_servers
from agent_core.mcp.config import HttpServer, ServerConfig
from agent_core.process import Launcher
from agent_core.providers.tool_forms import say_left_out, tool_fault
from agent_core.redaction import Redactor
from agent_core.runtime.project import load_sandbox
from agent_core.text import Clean, plural, visible
from agent_core.text.json_text import tables
from agent_core.text.shell import command_line
from agent_core.tools.base import Tool
from agent_core.tools.workspace import PathPolicy


def manage_servers(options: Options) -> int:
    """List or test servers, log in or out, and return the exit code."""

    def manage(setup: Setup, terminal: Terminal, clean: Clean) -> int:
        servers = read_servers(setup.home, setup.project)
        if options.action == "list":
            for server_id, server in servers.items():
                line = visible(clean(server_line(server_id, server, setup)), one_line=True)
                facts = json.dumps(_facts(server_id, server, setup)) if options.json else ""
                terminal.text(f"{clean(facts) or line}\n")
            if not servers:
                terminal.line("there is no server in mcp.json", Style.DIM)
            return COMPLETED
        server = servers.get(options.id)
        if server is None:
            known = ", ".join(servers) or "none"
            terminal.line(f"error: mcp.json has no server {options.id}; it has {known}", Style.BAD)
            return FAILED
        if options.action != "test" and not isinstance(server, HttpServer):
            terminal.line(f"error: {options.id} is a program: it has no login", Style.BAD)
            return FAILED
        if options.action == "logout" and isinstance(server, HttpServer):
            was_there = StoredLogin(setup.home, server.url).forget()
            terminal.line(f"logged out of {options.id}" if was_there else "there was no login")
            return COMPLETED
        try:
            return (options.run_loop or asyncio.run)(_look_at(options, server, setup, terminal))
        except KeyboardInterrupt:
            terminal.leave_line()
            return INTERRUPTED

    return run_on_terminal(options, options.path, manage, asks_model=False)


def server_line(server_id: str, server: ServerConfig, setup: Setup) -> str:
    """Return a server's line of `mcp list`, with the secrets in its address or arguments."""
    facts = _facts(server_id, server, setup)
    state = facts["login"] if facts["state"] == "on" else facts["state"]
    return f"{server_id:<16} {facts['transport']:<5}  {facts['place']}  {state}".rstrip()


def _facts(server_id: str, server: ServerConfig, setup: Setup) -> dict[str, str]:
    """Return the facts known about a server without asking it."""
    login, place = "", ""
    if isinstance(server, HttpServer):
        place = server.url
        has_login = StoredLogin(setup.home, server.url).read().get("tokens")
        login = "logged in" if has_login else ""
    else:
        place = command_line([server.command, *server.args])
    state = "on"
    if server.disabled:
        state = "disabled"
    elif server_id in setup.config.tools.mcp.disabled_servers:
        state = "disabled in config.toml"
    transport = server.transport.replace("streamable_", "")
    return {"id": server_id, "state": state, "transport": transport, "login": login, "place": place}


class _Connected(Struct, frozen=True):
    """The outcome of connecting to a server.

    Attributes:
        tools: that it offers.
        offered: the names of its other offers, by kind; only for a test.
        problems: the errors.
        took_s: duration of connecting, in seconds.
    """

    tools: Sequence[Tool]
    offered: Mapping[str, Sequence[str]]
    problems: Sequence[str]
    took_s: float

    @property
    def is_there(self) -> bool:
        """It answers."""
        return bool(self.tools) or not self.problems


async def _look_at(options: Options, server: ServerConfig, setup: Setup, terminal: Terminal) -> int:
    """Connect to the server, logging in if that is the command, and show its offers."""
    redactor = build_terminal_redactor(os.environ, setup)
    found = await _connect(options, server, setup, terminal, redactor)
    if options.json:
        shown = json.dumps(_report(options.id, found), indent=2, ensure_ascii=False)
        terminal.text(f"{visible(redactor.text(shown))}\n")
        return COMPLETED if found.is_there else FAILED
    for problem in found.problems:
        terminal.line(f"error: {redactor.text(problem)}", Style.BAD)
    if not found.is_there:
        cure = "check that it runs, and what it prints: [mcp.json] command, args and env"
        if isinstance(server, HttpServer):
            cure = f"check its url, or log in: soong-agent mcp login {options.id}"
        terminal.line(cure, Style.DIM)
        return FAILED
    count = plural(len(found.tools), "tool")
    if options.action == "login":
        is_stored = isinstance(server, HttpServer) and StoredLogin(setup.home, server.url).read()
        wanted = "logged in to" if is_stored else "no login is needed for"
        terminal.line(f"{wanted} {options.id}: {count}", Style.GOOD)
        return COMPLETED
    for tool in found.tools:
        terminal.text(f"{tool.name} ({tool.definition.permission})\n")
    for kind, names in found.offered.items():
        for name in names:
            line = visible(redactor.text(f"{kind} {name}"), one_line=True)
            terminal.text(f"{line}\n")
    counts = [count, *(plural(len(names), kind) for kind, names in found.offered.items())]
    took = format_duration(found.took_s * 1e3)
    terminal.line(f"{options.id} answers in {took}: {', '.join(counts)}", Style.GOOD)
    return COMPLETED


def _report(server_id: str, found: _Connected) -> dict[str, object]:
    return {
        "id": server_id,
        "ok": found.is_there,
        "connected_ms": round(found.took_s * 1e3),
        "problems": found.problems,
        "tools": [
            {"name": tool.name, "permission": tool.definition.permission} for tool in found.tools
        ],
        **{f"{kind}s": names for kind, names in found.offered.items()},
    }


async def _connect(
    options: Options, server: ServerConfig, setup: Setup, terminal: Terminal, redactor: Redactor
) -> _Connected:
    elicit = None
    problems: list[str] = []

    async def note(failure: ServerFailure) -> None:
        problems.append(failure.message)

    with closing(Launcher()) as launcher, ExitStack() as stack:
        if options.action == "login":
            lines = InputLines(sys.stdin.fileno())
            screen, lines = stack.enter_context(open_screen(terminal, lines))
            elicit = TerminalElicitation(
                screen,
                lines,
                turn=asyncio.Lock(),
                descriptor=lines.descriptor,
                waits_for_login=True,
            )
        host = Host(
            launcher=launcher,
            sandbox=load_sandbox(setup, PathPolicy.of(setup)),
            elicit=elicit,
            home=setup.home,
            learn=redactor.learn,
            clean=redactor.text,
        )
        mcp = McpTools({options.id: server}, setup.config.tools, host=host)
        try:
            started = perf_counter()
            tools = await mcp.tools(on_failure=note)
            took_s = perf_counter() - started
            provider = setup.config.model.provider
            faults = ((tool, tool_fault(provider, tool.definition)) for tool in tools)
            problems += [say_left_out({tool.name: fault}) for tool, fault in faults if fault]
            offered = await _offered(mcp, options.id) if options.action == "test" else {}
        finally:
            await mcp.aclose()
    return _Connected(tools, offered, problems, took_s)


async def _offered(mcp: McpTools, server_id: str) -> dict[str, list[str]]:
    """Return the offers of a server besides tools, by kind; a part it does not list is left out."""
    found: dict[str, list[str]] = {}
    offer = mcp.offers.get(server_id)
    if offer is not None and offer.has_resources:
        with suppress(AgentCoreError):
            listed = await mcp.resources(server_id)
            found["resource"] = [str(each.get("uri")) for each in tables(listed["resources"])]
    if offer is not None:
        with suppress(AgentCoreError):
            found["prompt"] = [str(each["name"]) for each in await mcp.prompts(server_id)]
    return found

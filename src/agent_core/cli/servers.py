"""`soong-agent mcp`: which servers there are, whether they answer, and log-ins."""

import asyncio
import os
import sys
from contextlib import closing

from agent_core.cli.elicitation import TerminalElicitation
from agent_core.cli.options import COMPLETED, FAILED, INTERRUPTED, Options
from agent_core.cli.prompt import InputLines
from agent_core.cli.terminal import (
    Clean,
    Style,
    Terminal,
    build_terminal_redactor,
    run_on_terminal,
)
from agent_core.config.paths import Setup
from agent_core.mcp import Host, McpTools, ServerFailure, StoredLogin, read_servers
from agent_core.mcp.config import HttpServer, ServerConfig
from agent_core.process import Launcher
from agent_core.runtime.project import load_sandbox
from agent_core.text import visible
from agent_core.tools.workspace import PathPolicy


def manage_servers(options: Options) -> int:
    """List or test servers, log in or out, and return the exit code."""

    def manage(setup: Setup, terminal: Terminal, clean: Clean) -> int:
        servers = read_servers(setup.home, setup.project)
        if options.action == "list":
            for server_id, server in servers.items():
                terminal.text(f"{_summary(server_id, server, setup, clean)}\n")
            if not servers:
                terminal.line("there is no server in mcp.json", Style.DIM)
            return COMPLETED
        server = servers.get(options.id)
        if server is None:
            known = ", ".join(servers) or "none"
            terminal.line(f"error: mcp.json has no server {options.id}; it has {known}", Style.BAD)
            return FAILED
        if options.action != "test" and not isinstance(server, HttpServer):
            terminal.line(f"error: {options.id} is a program: it has no log-in", Style.BAD)
            return FAILED
        if options.action == "logout" and isinstance(server, HttpServer):
            was_there = StoredLogin(setup.home, server.url).forget()
            terminal.line(f"logged out of {options.id}" if was_there else "there was no log-in")
            return COMPLETED
        try:
            return asyncio.run(_connect(options, server, setup, terminal))
        except KeyboardInterrupt:
            terminal.leave_line()
            return INTERRUPTED

    return run_on_terminal(options.path, manage)


def _summary(server_id: str, server: ServerConfig, setup: Setup, clean: Clean) -> str:
    if isinstance(server, HttpServer):
        place = server.url
        state = "logged in" if StoredLogin(setup.home, server.url).read().get("tokens") else ""
    else:
        place, state = " ".join([server.command, *server.args]), ""
    state = "disabled" if server.disabled else state
    return visible(clean(f"{server_id:<16} {place}  {state}".rstrip()), one_line=True)


async def _connect(options: Options, server: ServerConfig, setup: Setup, terminal: Terminal) -> int:
    """Connect to the server, logging in where that is what is wanted, and count its tools."""
    descriptor = sys.stdin.fileno()
    redactor = build_terminal_redactor(os.environ, setup)
    elicit = None
    if options.action == "login":
        elicit = TerminalElicitation(
            terminal,
            InputLines(descriptor),
            turn=asyncio.Lock(),
            descriptor=descriptor,
            waits_for_login=True,
        )
    failures: list[ServerFailure] = []

    async def note(failure: ServerFailure) -> None:
        failures.append(failure)

    with closing(Launcher()) as launcher:
        host = Host(
            launcher=launcher,
            sandbox=load_sandbox(setup, PathPolicy.of(setup)),
            elicit=elicit,
            home=setup.home,
            learn=redactor.learn,
        )
        mcp = McpTools({options.id: server}, setup.config.tools, host=host)
        try:
            tools = await mcp.tools(on_failure=note)
        finally:
            await mcp.aclose()
    for failure in failures:
        terminal.line(f"error: {redactor.text(failure.message)}", Style.BAD)
    if failures and not tools:
        return FAILED
    if options.action == "login":
        is_stored = isinstance(server, HttpServer) and StoredLogin(setup.home, server.url).read()
        wanted = "logged in to" if is_stored else "no log-in is wanted by"
        noun = "tool" if len(tools) == 1 else "tools"
        terminal.line(f"{wanted} {options.id}: {len(tools)} {noun}", Style.GOOD)
        return COMPLETED
    for tool in tools:
        terminal.text(f"{tool.name} ({tool.definition.permission})\n")
    return COMPLETED

"""`soong-agent mcp serve`: starts and ends the server, over standard streams or over HTTP."""

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agent_core.cli.exit_codes import COMPLETED, MISUSED, OUTPUT_CLOSED
from agent_core.cli.json_lines import Lines, private_streams
from agent_core.cli.layout import shown_error
from agent_core.cli.listening import listen, read_token, require_token, say_short
from agent_core.cli.options import Options
from agent_core.cli.setup import build_terminal_redactor, read_command_setup, show_warnings
from agent_core.cli.signals import catch_signals
from agent_core.cli.streams import is_gone, is_output_closed, report_output_error
from agent_core.config.paths import Setup, resolve_project
from agent_core.errors import AgentCoreError
from agent_core.redaction import Redactor
from agent_core.text import visible
from agent_core.text.json_text import JsonObject

if TYPE_CHECKING:
    from agent_core.cli.mcp_server.agent import AgentServer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_BY_HAND = "an MCP client starts this, and speaks its protocol here; Ctrl-D ends it"
_TOKENS = ("token_env", "token_file")
_HOST, _PORT = "127.0.0.1", 8643


class _Start(Struct, frozen=True):
    """The choices of the command line and the settings.

    Attributes:
        token: for clients over HTTP.
        is_made: the token was made for this process.
    """

    setup: Setup
    folders: list[Path]
    redactor: Redactor
    token: str = ""
    is_made: bool = False


def serve_clients(options: Options) -> int:
    """Serve until the client leaves, or a signal arrives, and return the exit code."""
    if is_output_closed():
        return OUTPUT_CLOSED
    if options.transport != "http":
        given = {name: getattr(options, name) for name in ("host", "port", *_TOKENS)}
        if wrong := [name for name, value in given.items() if value is not None]:
            _say(f"error: --{wrong[0].replace('_', '-')} takes --transport http")
            _say("soong-agent mcp serve --help shows what there is")
            return MISUSED
    redactor = build_terminal_redactor(os.environ)
    try:
        start = _prepare(options)
        redactor = start.redactor
        show_warnings(_say, redactor)
        logging.getLogger("mcp").propagate = True  # its server's, and no event says the same
        if options.transport == "http":
            return _serve_http(options, start)
    except (AgentCoreError, OSError, ValueError) as error:
        _say(f"error: {shown_error(redactor.text(str(error)))}")
        return MISUSED
    with private_streams() as (source, sink):
        if os.isatty(source):
            _say(_BY_HAND)
        return asyncio.run(_serve_stdio(options, start, source, sink))


def _prepare(options: Options) -> _Start:
    first, *more = options.projects or [None]
    setup = read_command_setup(first, options.model)
    redactor = build_terminal_redactor(os.environ, setup)
    folders = [setup.project, *map(resolve_project, more)]
    if options.transport != "http":
        return _Start(setup, folders, redactor)
    token, is_made = _token(options)
    redactor.learn({"mcp_serve_token": token})
    if warning := say_short(token):
        _say(warning)
    return _Start(setup, folders, redactor, token, is_made)


def _token(options: Options) -> tuple[str, bool]:
    """Return the token that clients send, and whether it was made here.

    Raises:
        OSError: the named file cannot be read.
        ValueError: there is no token.
    """
    if (token := read_token(options)) is not None:
        return token, False
    if (host := options.host or _HOST) not in LOOPBACK:
        raise require_token(host)
    return secrets.token_urlsafe(32), True


def _say(text: str) -> None:
    print(visible(text, one_line=True), file=sys.stderr, flush=True)


async def _serve_stdio(options: Options, start: _Start, source: int, sink: int) -> int:
    from agent_core.cli.mcp_server.stdio import LONGEST_MESSAGE, serve_lines  # noqa: PLC0415 - slow

    lines = Lines(source, sink, peer="the client", longest=LONGEST_MESSAGE)
    agent = _agent(options, start)
    number = await _serve_until_signal(agent, serve_lines(agent.server, lines))
    await lines.close()
    if number is not None:
        return 128 + number
    if lines.failure is not None and not is_gone(lines.failure):
        return report_output_error("soong-agent", lines.failure)
    return COMPLETED


def _agent(options: Options, start: _Start) -> "AgentServer":
    from agent_core.cli.mcp_server.agent import AgentServer  # noqa: PLC0415 - slow to load

    return AgentServer(
        start.setup,
        start.folders,
        model=options.model,
        mode=options.mode or "ask",
        approvals=options.approvals,
        redactor=start.redactor,
    )


def _serve_http(options: Options, start: _Start) -> int:
    from agent_core.cli.mcp_server.http import PATH  # noqa: PLC0415 - slow to load

    host, port = options.host or _HOST, _PORT if options.port is None else options.port
    with closing(listen(host, port)) as listening:
        shown = f"[{host}]" if ":" in host else host
        facts: JsonObject = {"url": f"http://{shown}:{listening.getsockname()[1]}{PATH}"}
        if start.is_made:
            facts["headers"] = {"Authorization": f"Bearer {start.token}"}
        print(json.dumps(facts), flush=True)
        asyncio.run(_serve_requests(options, start, listening))
    return COMPLETED


async def _serve_requests(options: Options, start: _Start, listening: socket.socket) -> None:
    from agent_core.cli.mcp_server.http import serve_http  # noqa: PLC0415 - slow to load

    agent = _agent(options, start)
    is_local = (options.host or _HOST) in LOOPBACK
    work = serve_http(agent.server, listening, start.token, is_local=is_local)
    await _serve_until_signal(agent, work)


async def _serve_until_signal(
    agent: "AgentServer", serving: Coroutine[Any, Any, None]
) -> int | None:
    """Serve until the end or a signal, close the agent, and return the number of the signal."""
    loop, work = asyncio.get_running_loop(), asyncio.create_task(serving)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        loop.call_soon_threadsafe(work.cancel)

    with catch_signals(stop):
        await asyncio.wait([work])
        await agent.close()
    if not work.cancelled() and (error := work.exception()) is not None:
        raise error
    return received[0] if received else None

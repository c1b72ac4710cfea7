"""The console on a server of its own: `soong-agent serve`."""

import asyncio
import getpass
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from starlette.types import ASGIApp

from agent_core.api import AgentRuntime
from agent_core.http.serving import Server, Tls, raise_file_limit
from agent_core.opening import open_binary
from agent_core.serve.access import Names, ServerAccess
from agent_core.serve.application import build
from agent_core.serve.origins import local_hosts
from agent_core.serve.places import ServedFolders
from agent_core.serve.principals import ALL, Principal
from agent_core.serve.server import make_server
from agent_core.serve.sign_in import SignIn
from agent_core.serve.visits import Console

_STOP_S = 5.0
"""Seconds that runs may take to end before the streams do, and what is closed afterwards."""


class Start(Struct, frozen=True):
    """Arguments with which the server is started.

    Attributes:
        folders: the folders to work in; new sessions work in the first.
        open_runtime: returns the runtime of a folder; it reads settings, in a thread.
        key: the secret of the home with which cookies are made.
        host: the name of the server in the link.
        is_local: only this machine reaches the server.
        token: signs in; None: only the link does.
        tls: the certificate, if the server speaks TLS itself.
        is_shared: other machines use the database, too.
        is_read_only: nothing may be changed.
    """

    folders: Sequence[Path]
    open_runtime: Callable[[Path], AgentRuntime]
    key: bytes
    host: str
    is_local: bool
    token: str | None = None
    tls: Tls | None = None
    is_shared: bool = False
    is_read_only: bool = False


async def serve(
    start: Start, listening: socket.socket, *, show: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Serve until `stop` is set.

    Args:
        start: how it is started.
        listening: takes connections.
        show: gets the link to sign in, once the server listens.
        stop: ends the server once it is set.

    Raises:
        ConfigError, StorageError: the first folder cannot be opened.
        ValueError: the certificate cannot be used.
    """
    raise_file_limit()
    port: int = listening.getsockname()[1]
    scheme = "http" if start.tls is None else "https"
    sign_in = SignIn(start.token, start.key, port)
    principal = Principal(_user(), may=ALL)
    reader = await asyncio.to_thread(start.open_runtime, start.folders[0])
    async with reader:
        secrets = {"console_code": sign_in.code, "console_token": start.token or ""}
        await reader.learn_secrets(secrets)
        places = ServedFolders(
            start.folders,
            reader=reader,
            open_runtime=start.open_runtime,
            is_shared=start.is_shared,
            secrets=secrets,
        )
        console = Console(
            places, start.is_read_only, questions_wait=start.is_shared, signs_out=True
        )
        access = ServerAccess(sign_in, _names(start, port, scheme), principal)
        server = _server(build(console, access), start.tls)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        stopping = asyncio.create_task(stop.wait())
        try:
            listens = asyncio.create_task(server.listens.wait())
            await asyncio.wait([serving, listens], return_when=asyncio.FIRST_COMPLETED)
            listens.cancel()
            host = f"[{start.host}]" if ":" in start.host else start.host
            if not serving.done():
                show(f"{scheme}://{host}:{port}/login?code={sign_in.code}")
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            console.is_stopping = True
            ending = asyncio.create_task(places.stop())
            if not await places.respond():
                places.hurry()
            await asyncio.wait([ending], timeout=_STOP_S)
        finally:
            stopping.cancel()
            console.is_stopping = True
            console.streams.end()
            server.should_exit = True
            await asyncio.wait([serving])
            closing = asyncio.create_task(places.close())
            _, unfinished = await asyncio.wait([closing], timeout=_STOP_S)
            if unfinished:
                places.hurry()
            await closing
        serving.result()


def _names(start: Start, port: int, scheme: str) -> Names:
    hosts = local_hosts(port, scheme) if start.is_local else None
    # A reverse proxy may add TLS, but not on this machine, where it would send its own Host.
    schemes = (scheme,) if start.is_local or scheme == "https" else ("http", "https")
    return Names(hosts, schemes)


def _server(application: ASGIApp, tls: Tls | None) -> Server:
    try:
        return make_server(application, tls)
    except ssl.SSLError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"the certificate or its key cannot be used: {reason}") from None
    except OSError as error:
        raise ValueError(f"{_unreadable(tls)} cannot be read: {error.strerror}") from None


def _unreadable(tls: Tls | None) -> str:
    """Name the file that cannot be opened, which an error about a certificate leaves out."""
    for what, file in (("certificate", tls.certificate), ("key", tls.key)) if tls else ():
        try:
            open_binary(file).close()
        except OSError:
            return f"the {what} {file}"
    return "the certificate or its key"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return f"user {os.getuid()}"

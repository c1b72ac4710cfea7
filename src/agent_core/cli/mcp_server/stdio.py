"""Serves one client on two descriptors of this process."""

import asyncio
from contextlib import suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, jsonrpc_message_adapter
from pydantic import ValidationError

from agent_core.cli.json_lines import Lines

LONGEST_MESSAGE = 4 * 2**20
"""Bytes of one message of a client, over any transport."""

Incoming = SessionMessage | Exception


async def serve_lines(server: Server[Any], lines: Lines) -> None:
    """Serve until the client closes the connection; its open calls are cancelled then."""
    to_server, requests = anyio.create_memory_object_stream[Incoming](0)
    replies, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(lines, to_server))
    writing = asyncio.create_task(_write(lines, from_server))
    try:
        await server.run(requests, replies, server.create_initialization_options())
        await asyncio.wait([writing], timeout=1)
    finally:
        for task in (reading, writing):
            task.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)


async def _read(lines: Lines, to_server: MemoryObjectSendStream[Incoming]) -> None:
    async with to_server:
        while (given := await lines.receive()) is not None:
            try:
                message = jsonrpc_message_adapter.validate_python(given, by_name=False)
            except ValidationError:
                if "method" in given and "id" in given:
                    error = {"code": INVALID_REQUEST, "message": "the request is malformed"}
                    answer = {"jsonrpc": "2.0", "id": given["id"], "error": error}
                    with suppress(ConnectionError):
                        await lines.send(answer)
                continue
            try:
                await to_server.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return


async def _write(lines: Lines, from_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with from_server:
        async for each in from_server:
            message = each.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
            try:
                await lines.send(message)
            except ConnectionError:
                return

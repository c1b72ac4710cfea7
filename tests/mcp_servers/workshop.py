"""A well-behaved MCP server on the official SDK: every kind of content, over every transport.

`python workshop.py [stdio|http|sse]`; the last two print the port they listen on.
"""

import asyncio
import base64
import socket
import sys
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import Field

PIXEL = base64.b64encode(b"\x89PNG not really").decode()
READONLY = ToolAnnotations(read_only_hint=True)

server = MCPServer("workshop", log_level="ERROR")


@server.tool(annotations=READONLY)
def greet(name: Annotated[str, Field(description="Whom to greet")]) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"


@server.tool(annotations=READONLY)
def measure(length: int) -> dict[str, Any]:
    """Answer with structured content."""
    return {"length": length, "unit": "mm"}


@server.tool()
def everything() -> CallToolResult:
    """Answer with every kind of content."""
    blob = base64.b64encode(b"\x00\x01").decode()
    return CallToolResult(
        content=[
            TextContent(text="words"),
            ImageContent(data=PIXEL, mime_type="image/png"),
            AudioContent(data=PIXEL, mime_type="audio/wav"),
            ResourceLink(uri="file:///plan.txt", name="plan", mime_type="text/plain"),
            EmbeddedResource(resource=TextResourceContents(uri="memo://1", text="a memo")),
            EmbeddedResource(
                resource=BlobResourceContents(uri="memo://2", blob=blob, mime_type="x/y")
            ),
        ]
    )


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("the saw is blunt")


@server.tool(annotations=READONLY)
async def saw(planks: int, context: Context[Any, Any]) -> str:
    """Report progress."""
    for plank in range(planks):
        await asyncio.sleep(0.02)
        await context.report_progress(plank + 1, planks, "sawing")
    return "sawn"


@server.tool()
async def extend(context: Context[Any, Any]) -> str:
    """Add a tool and say so."""
    server.add_tool(lambda: "new", name="novelty", description="A new tool.")
    await context.notify_tools_changed()
    return "extended"


def main() -> None:
    how = sys.argv[1] if len(sys.argv) > 1 else "stdio"
    if how == "stdio":
        server.run()
        return
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    app = server.sse_app() if how == "sse" else server.streamable_http_app()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


main()

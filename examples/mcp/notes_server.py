"""A small MCP server: it keeps notes for as long as it runs."""

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("notes", log_level="ERROR")
notes: list[str] = []


@server.tool()
def add_note(text: str) -> str:
    """Write a note down."""
    notes.append(text)
    return f"note {len(notes)} written"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read_notes() -> list[str]:
    """Read all notes."""
    return notes


server.run()

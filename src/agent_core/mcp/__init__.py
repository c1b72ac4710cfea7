"""Tools from MCP servers. The SDK is imported when a server is first connected."""

from agent_core.mcp.config import load_servers, secret_values
from agent_core.mcp.host import Host
from agent_core.mcp.tools import McpTools, ServerFailure

__all__ = ["Host", "McpTools", "ServerFailure", "load_servers", "secret_values"]

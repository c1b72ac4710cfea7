"""Tools from MCP servers. The SDK is imported when a server is first connected."""

from agent_core.mcp.config import ServerConfig, enabled, load_servers, read_servers
from agent_core.mcp.discovery import Host
from agent_core.mcp.elicitation import ElicitationCallback
from agent_core.mcp.secrets import secret_values
from agent_core.mcp.tokens import StoredLogin, stored_secrets
from agent_core.mcp.tools import McpTools, ServerFailure
from agent_core.mcp.toolsets import McpHttp, McpStdio, McpToolset

__all__ = [
    "ElicitationCallback",
    "Host",
    "McpHttp",
    "McpStdio",
    "McpTools",
    "McpToolset",
    "ServerConfig",
    "ServerFailure",
    "StoredLogin",
    "enabled",
    "load_servers",
    "read_servers",
    "secret_values",
    "stored_secrets",
]

"""The SDK takes most of a second to import: it is imported only for servers."""

import subprocess
import sys


def test_the_sdk_is_imported_only_for_a_server() -> None:
    program = """
import asyncio, sys
from agent_core.config.models import ToolsConfig
from agent_core.mcp import McpTools
assert asyncio.run(McpTools({}, ToolsConfig()).tools()) == []
print([name for name in ("mcp", "mcp_types", "anyio", "httpx2") if name in sys.modules])
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

"""Lets the public MCP conformance suite try our client: `client.py <server-url>`.

The suite starts a server, runs this program against it and judges what it saw on the wire. What
is tried is the product's own `McpTools`: it lists the tools and calls each one. Only the user is
played: questions are answered with their defaults, logins are granted.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from agent_core.config.models import ToolsConfig
from agent_core.errors import ToolError
from agent_core.mcp import Host, McpTools, ServerFailure
from agent_core.mcp.config import HttpServer
from agent_core.tools.base import Tool, ToolContext
from agent_core.types import ElicitationAnswer, ElicitationRequest, RunIdentity
from tool_facts import Kept

CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
PREFIX = "mcp.suite."
CALLBACK = "http://localhost:3030/callback"
"""Where a browser would be sent back to. There is no server: the address is read, not visited."""


class Memory:
    """What a login leaves behind, for as long as the program runs."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self._client = client
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


class Browser:
    """A user who agrees to everything, in a browser without a screen."""

    def __init__(self) -> None:
        self._sent_back_to = ""

    async def visit(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            response = await client.get(url, follow_redirects=False)
        self._sent_back_to = response.headers.get("location", "")

    async def result(self) -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(self._sent_back_to).query)
        found = {name: values[0] for name, values in query.items()}
        return AuthorizationCodeResult(
            code=found["code"], state=found.get("state"), iss=found.get("iss")
        )


def suite_context() -> dict[str, Any]:
    """What the scenario gives the client beforehand: credentials, or the calls it wants to see."""
    return json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")


def authorize(_: str, url: str) -> httpx2.Auth:
    context = suite_context()
    known = None
    if client_id := context.get("client_id"):
        known = OAuthClientInformationFull(
            client_id=client_id,
            client_secret=context.get("client_secret"),
            issuer=context.get("issuer"),
            redirect_uris=[AnyUrl(CALLBACK)],
            token_endpoint_auth_method="client_secret_basic",  # noqa: S106 - a method's name
        )
    browser = Browser()
    return OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="soong-agent conformance", redirect_uris=[AnyUrl(CALLBACK)]
        ),
        storage=Memory(known),
        redirect_handler=browser.visit,
        callback_handler=browser.result,
        client_metadata_url=CLIENT_DOCUMENT,
    )


async def elicit(request: ElicitationRequest) -> ElicitationAnswer:
    """Accept every form, with the answers it suggests itself."""
    if request.requested_schema is None:
        return ElicitationAnswer(action="decline")
    properties = request.requested_schema.get("properties", {})
    content = {name: each["default"] for name, each in properties.items() if "default" in each}
    return ElicitationAnswer(action="accept", content=content)


def calls_for(tools: list[Tool]) -> Iterator[tuple[Tool, dict[str, Any]]]:
    """The calls that the scenario names, or one of each tool."""
    by_name = {tool.name.removeprefix(PREFIX): tool for tool in tools}
    if named := suite_context().get("toolCalls"):
        yield from ((by_name[each["name"]], each["arguments"]) for each in named)
        return
    for tool in tools:
        if tool.name == f"{PREFIX}json_schema_echo":  # wants to see what we made of a schema
            yield tool, {"schema": by_name["json_schema_2020_12_tool"].definition.input_schema}
        else:
            yield tool, example(tool.definition.input_schema)


def example(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments that fit the schema: every required property gets a plain value."""
    plain: dict[str, Any] = {"integer": 2, "number": 2, "boolean": True, "array": [], "object": {}}
    properties = schema.get("properties", {})
    return {
        name: plain.get(properties.get(name, {}).get("type"), "test")
        for name in schema.get("required", properties)
    }


async def call(tool: Tool, arguments: dict[str, Any]) -> None:
    facts = ToolContext(
        run=RunIdentity(session_id="sess_1", agent_id="agent_1", run_id="run_1"),
        tool_call_id="call_1",
        project_dir=Path.cwd(),
        progress=lambda line: None,
        artifact=Kept(),
        is_cancelled=bool,
    )
    try:
        action = await tool.prepare(tool.parse(arguments), facts)
        await action.run()
    except ToolError as error:
        sys.stderr.write(f"{tool.name}: {error}\n")


async def main(url: str) -> int:
    failures: list[ServerFailure] = []

    async def failed(failure: ServerFailure) -> None:
        failures.append(failure)

    servers = {"suite": HttpServer(url=url)}
    host = Host(authorize=authorize, elicit=elicit)
    mcp = McpTools(servers, ToolsConfig(), host=host)
    try:
        for tool, arguments in calls_for(await mcp.tools(on_failure=failed)):
            await call(tool, arguments)
    finally:
        await mcp.aclose()
    sys.stderr.writelines(f"{failure.message}\n" for failure in failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))

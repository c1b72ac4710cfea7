"""Resources and prompts of MCP servers."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from agent_core.errors import ErrorCode, ToolError, validation_error
from agent_core.text import shortened
from agent_core.tools.base import Action, ArtifactWriter, Tool, ToolContext
from agent_core.tools.registry import model_tool
from agent_core.tools.schema import Arguments
from agent_core.types import WORDS, Access, TextBlock, ToolResult, UserMessage

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import ListResourcesResult

    from agent_core.mcp.connection import ServerConnection
    from agent_core.mcp.server import McpServer

READ_RESOURCE = "internal.read_resource"

MOST_LISTED = 200
_MOST_PAGES = 20
_LONGEST_FIELD = 300


class ReadResource(Arguments):
    """Read a resource of an MCP server."""

    server: str
    uri: str | None = Field(None, description="Without one, the server's resources are listed.")


def resource_tool(servers: Mapping[str, "McpServer"], seconds: float) -> Tool:
    """Build `internal.read_resource` for these servers."""

    async def prepare(arguments: ReadResource, context: ToolContext, /) -> Action:
        if arguments.server not in servers:
            known = ", ".join(sorted(servers))
            message = f"there is no server {shortened(arguments.server, 80)} with resources here"
            raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, f"{message}; there are: {known}")
        server, uri = servers[arguments.server], arguments.uri

        async def run() -> ToolResult | dict[str, Any]:
            if uri is None:
                return await list_resources(server, seconds)
            return await read_resource(server, uri, context.artifact, seconds)

        summary = f"{arguments.server}: {uri or 'what there is'}"[:400]
        target = f"MCP server {arguments.server} ({server.place})"
        return Action(Access(summary=summary, target=target), run)

    tool = model_tool(READ_RESOURCE, ReadResource, prepare)
    listed = shortened(", ".join(sorted(servers)), _LONGEST_FIELD)
    description = f"{tool.definition.description} Servers: {listed}."
    return replace(tool, definition=tool.definition.model_copy(update={"description": description}))


async def read_resource(
    server: "McpServer", uri: str, artifact: ArtifactWriter, seconds: float
) -> ToolResult:
    """Read a resource as a result: text, images, and artifacts for everything else.

    Raises:
        ToolError: `validation_error`: there is no such resource; otherwise as
          `ServerConnection.request`.
    """
    from mcp_types import CallToolResult, EmbeddedResource  # noqa: PLC0415 - brings the SDK

    from agent_core.mcp.results import tool_result  # noqa: PLC0415

    async def ask(connection: "ServerConnection") -> CallToolResult:
        found = await connection.request(
            f"the resource {uri[:200]}", lambda client: client.read_resource(uri), seconds=seconds
        )
        parts = [EmbeddedResource(resource=content) for content in found.contents]
        return CallToolResult(content=[*parts])

    return await tool_result(await server.ask(ask), artifact)


async def list_resources(server: "McpServer", seconds: float) -> dict[str, Any]:
    """List the resources of a server and its templates, at most `MOST_LISTED` of each.

    Raises:
        ToolError: as `ServerConnection.request`.
    """

    async def ask(connection: "ServerConnection") -> dict[str, Any]:
        resources: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await connection.request(
                "its resources",
                partial(_list_page, cursor=cursor),
                seconds=seconds,
            )
            resources += (_fields(each.model_dump(mode="json")) for each in page.resources)
            cursor = page.next_cursor
            if cursor is None or len(resources) >= MOST_LISTED:
                break
        templates = await connection.request(
            "its templates", lambda client: client.list_resource_templates(), seconds=seconds
        )
        found = [_fields(each.model_dump(mode="json")) for each in templates.resource_templates]
        return {
            "resources": resources[:MOST_LISTED],
            "templates": found[:MOST_LISTED],
            "truncated": cursor is not None or max(len(resources), len(found)) > MOST_LISTED,
        }

    return await server.ask(ask)


async def _list_page(client: "Client", *, cursor: str | None) -> "ListResourcesResult":
    return await client.list_resources(cursor=cursor)


def _fields(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a description that help to choose, shortened."""
    wanted = ("uri", "uri_template", "name", "description", "mime_type", "size", "required")
    given = {key: described[key] for key in wanted if described.get(key) is not None}
    return {k: shortened(v, _LONGEST_FIELD) if isinstance(v, str) else v for k, v in given.items()}


async def list_prompts(server: "McpServer", seconds: float) -> list[dict[str, Any]]:
    """List the prompts of a server: name, description, and their arguments.

    Raises:
        ToolError: as `ServerConnection.request`.
    """

    async def ask(connection: "ServerConnection") -> list[dict[str, Any]]:
        page = await connection.request(
            "its prompts", lambda client: client.list_prompts(), seconds=seconds
        )
        listed = [each.model_dump(mode="json") for each in page.prompts[:MOST_LISTED]]
        return [
            _fields(each) | {"arguments": [*map(_fields, each.get("arguments") or ())]}
            for each in listed
        ]

    return await server.ask(ask)


async def _prompt_arguments(server: "McpServer", name: str, seconds: float) -> list[dict[str, Any]]:
    known = {each["name"]: each["arguments"] for each in await list_prompts(server, seconds)}
    if name not in known:
        there = ", ".join(known) or "none"
        raise validation_error(
            f"MCP server {server.server_id} has no prompt {name}; it has {there}"
        )
    return known[name]


async def read_prompt(
    server: "McpServer", name: str, arguments: Mapping[str, str], seconds: float
) -> UserMessage:
    """Read a prompt as a message of the user.

    Raises:
        AgentCoreError: `validation_error`: there is no such prompt, or its arguments do not fit.
        ToolError: as `ServerConnection.request`.
    """
    from agent_core.mcp.results import message_blocks  # noqa: PLC0415 - brings the SDK

    listed = await _prompt_arguments(server, name, seconds)
    names = [each["name"] for each in listed]
    required = {each["name"] for each in listed if each.get("required")}
    if unknown := [*arguments.keys() - {*names}]:
        takes = ", ".join(names) or "no arguments"
        raise validation_error(f"the prompt {name} takes no {unknown[0]}; it takes {takes}")
    if missing := [each for each in names if each in required - arguments.keys()]:
        raise validation_error(f"the prompt {name} needs {', '.join(missing)}")
    found = await server.ask(
        lambda connection: connection.request(
            f"the prompt {name}",
            lambda client: client.get_prompt(name, dict(arguments)),
            seconds=seconds,
        )
    )
    content = [
        block
        for message in found.messages
        for block in message_blocks(message.content, is_answer=message.role == "assistant")
    ]
    facts = {"server_id": server.server_id, "name": name}
    given = [f"{key}={shlex.quote(value)}" for key, value in arguments.items()]
    words = " ".join([f"/{server.server_id}:{name}", *given])
    return UserMessage(
        content=content or [TextBlock(text=name)],
        metadata={"mcp_prompt": facts, WORDS: shortened(words, _LONGEST_FIELD)},
    )


async def parse_arguments(
    server: "McpServer", name: str, text: str, seconds: float
) -> dict[str, str]:
    """Parse `topic=tides "two words"`: arguments by name, and unnamed ones in the prompt's order.

    Raises:
        AgentCoreError: `validation_error`: the quotes do not match, there is no such prompt, or
            there are too many words.
        ToolError: as `ServerConnection.request`.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise validation_error(f"the arguments of {name} cannot be read: {error}") from None
    names = [each["name"] for each in await _prompt_arguments(server, name, seconds)]
    given: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        key, is_pair, value = word.partition("=")
        if is_pair and key in names:
            given[key] = value
        else:
            rest.append(word)
    free = [each for each in names if each not in given]
    if len(rest) > len(free):
        raise validation_error(f"the prompt {name} takes {', '.join(names) or 'no arguments'}")
    return given | dict(zip(free, rest, strict=False))

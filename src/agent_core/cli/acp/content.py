"""Translates content from an editor: prompts to messages, and its MCP servers to toolsets."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import assert_never
from urllib.parse import unquote, urlsplit

from acp.schema import (
    AcpMcpServer,
    AudioContentBlock,
    BlobResourceContents,
    EmbeddedResourceContentBlock,
    HttpMcpServer,
    ImageContentBlock,
    McpServerStdio,
    ResourceContentBlock,
    SseMcpServer,
    TextContentBlock,
)

from agent_core.errors import validation_error
from agent_core.mcp.toolsets import McpHttp, McpStdio, McpToolset
from agent_core.text import visible
from agent_core.text.content import mark_content
from agent_core.types import WORDS, ContentBlock, ImageBlock, TextBlock, UserMessage, own_words

PromptBlock = (
    AudioContentBlock
    | EmbeddedResourceContentBlock
    | ImageContentBlock
    | ResourceContentBlock
    | TextContentBlock
)
AnyServer = AcpMcpServer | HttpMcpServer | McpServerStdio | SseMcpServer

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_-]")
_DOCUMENTS = {"application/pdf"}


def user_message(blocks: Iterable[PromptBlock]) -> UserMessage:
    """Return the message of a prompt.

    Raises:
        AgentCoreError: `validation_error`: it has content that no model here is shown.
    """
    blocks = list(blocks)
    content = [_part(block) for block in blocks]
    said = [
        TextBlock(text=_path_of(block.uri) or visible(block.uri, one_line=True))
        if isinstance(block, ResourceContentBlock) and _has_title(block)
        else part
        for block, part in zip(blocks, content, strict=True)
    ]
    metadata = {} if said == content else {WORDS: own_words(said, {})}
    return UserMessage(content=content, metadata=metadata)


def _has_title(link: ResourceContentBlock) -> bool:
    """Return whether a link has a title, which is not the user's: no file's name."""
    path = _path_of(link.uri)
    return path is None or link.name != PurePath(path).name


def _part(block: PromptBlock) -> ContentBlock:
    match block:
        case TextContentBlock(text=text):
            return TextBlock(text=text)
        case ImageContentBlock(data=data, mime_type=mime_type):
            return ImageBlock(mime_type=mime_type, data=data)
        case ResourceContentBlock(uri=uri, name=name):
            return TextBlock(text=_link(uri, name))
        case EmbeddedResourceContentBlock(resource=BlobResourceContents() as resource):
            kind = resource.mime_type or ""
            if kind.startswith("image/") or kind in _DOCUMENTS:
                return ImageBlock(mime_type=kind, data=resource.blob)
            raise validation_error(
                f"the resource {resource.uri} is {kind or 'of no type'}, and no text"
            )
        case EmbeddedResourceContentBlock(resource=resource):
            return TextBlock(text=_embedded(resource.uri, resource.text))
        case AudioContentBlock():
            raise validation_error("audio cannot be sent")
        case _:
            assert_never(block)


def _link(uri: str, name: str) -> str:
    path = _path_of(uri)
    return f"[{visible(name, one_line=True)}]({path or visible(uri, one_line=True)})"


def _embedded(uri: str, text: str) -> str:
    path = _path_of(uri)
    return mark_content(text, visible(f"the file {path}" if path else uri, one_line=True))


def _path_of(uri: str) -> str | None:
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else None


def absolute_path(path: str) -> Path:
    """Return the path of a folder that the editor names, which need not exist.

    Raises:
        AgentCoreError: `validation_error`: the path is relative, or cannot be a path.
    """
    folder = Path(path)
    if not folder.is_absolute() or "\0" in path:
        raise validation_error(f"cwd must be an absolute path, not {path!r}")
    return folder


def existing_folder(path: str) -> Path:
    """Return a folder that the editor names.

    Raises:
        AgentCoreError: `validation_error`: it is not a folder.
    """
    folder = absolute_path(path)
    if not folder.is_dir():
        raise validation_error(f"there is no folder {path}")
    return folder


def toolsets(servers: Sequence[AnyServer]) -> list[McpToolset]:
    """Return the servers of an editor as toolsets.

    Raises:
        AgentCoreError: `validation_error`: one cannot be used; it is named.
    """
    return [_toolset(server) for server in servers]


def _toolset(server: AnyServer) -> McpToolset:
    name = _NOT_IN_IDS.sub("_", server.name)[:64]
    match server:
        case McpServerStdio():
            env = {each.name: each.value for each in server.env}
            return McpStdio(name, server.command, server.args, env=env)
        case HttpMcpServer() | SseMcpServer():
            transport = "sse" if isinstance(server, SseMcpServer) else "streamable_http"
            headers = {each.name: each.value for each in server.headers}
            return McpHttp(name, server.url, headers=headers, transport=transport)
        case AcpMcpServer():
            raise validation_error(
                f"the MCP server {server.name} can only be reached through the editor"
            )
        case _:
            assert_never(server)

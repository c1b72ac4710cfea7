"""Conversations as values: given to a run or imported as a session, and given back as messages."""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast, get_args

import orjson

from agent_core.artifacts.images import sendable
from agent_core.artifacts.store import ArtifactStore
from agent_core.config.paths import Setup
from agent_core.context.given_messages import GivenMessage, read_history
from agent_core.errors import AgentCoreError, ArgumentError, ErrorCode, validation_error
from agent_core.events.journal import build_node
from agent_core.opening import read_text
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.storage.given import renamed_nodes
from agent_core.storage.store import SessionStore
from agent_core.text import first_words
from agent_core.text.json_text import JsonValue
from agent_core.types import (
    SESSION_INSTRUCTIONS,
    AgentRecord,
    AgentType,
    ContentBlock,
    Draft,
    ImageBlock,
    Node,
    SessionRecord,
    ToolResultBlock,
    is_user_message,
    new_id,
    utc_now,
)
from agent_core.types.lanes import own_place

MessageFormat = Literal["soong", "openai", "anthropic"]
"""The form of messages: nodes as JSON, or messages of OpenAI's or Anthropic's API."""

_EXPORT_LINES = frozenset({"session", "agent", "run", "node", "event", "artifact", "damage"})


async def make_nodes(
    given: Sequence[GivenMessage],
    *,
    session_id: str,
    agent_id: str,
    redactor: JournalRedactor,
    artifacts: ArtifactStore,
    max_image_bytes: int,
) -> list[Node]:
    """Return a conversation as nodes of a new session: without secrets, its images checked.

    Raises:
        AgentCoreError: `validation_error`: an image of it cannot be shown to any model.
        StorageError: `artifact_not_found`: an image does not exist.
    """
    nodes: list[Node] = []
    for message in given:
        content = [
            await _shown(block, message.index, artifacts, max_image_bytes)
            for block in message.content
        ]
        draft = Draft(message.role, content, message.node_type, message.metadata)
        node = build_node(
            draft,
            redactor,
            estimate_blocks,
            session_id=session_id,
            agent_id=agent_id,
            run_id=None,
            parent_id=nodes[-1].node_id if nodes else None,
        )
        if message.created_at is not None:
            node = node.model_copy(update={"created_at": message.created_at})
        nodes.append(node)
    names = {old.node_id: new.node_id for old, new in zip(given, nodes, strict=True) if old.node_id}
    if not names:
        return nodes
    return [
        node.model_copy(update={"metadata": renamed_nodes(node.metadata, names)}) for node in nodes
    ]


async def _shown(
    block: ContentBlock, index: int, artifacts: ArtifactStore, max_bytes: int
) -> ContentBlock:
    if isinstance(block, ToolResultBlock):
        content = [await _shown(each, index, artifacts, max_bytes) for each in block.content]
        return block.model_copy(update={"content": content})
    if not isinstance(block, ImageBlock):
        return block
    try:
        return await sendable(block, artifacts, max_bytes=max_bytes)
    except AgentCoreError as error:
        message = f"history[{index}]: {error.message}"
        details = {**error.details, "option": "history", "index": index}
        raise AgentCoreError(error.code, message, details=details) from error


class Conversations:
    """Imports sessions, and gives conversations back.

    Args:
        setup: of the project of new sessions.
        store: of the sessions.
        artifacts: the contents of images.
        redactor: removes secrets.
    """

    def __init__(
        self, setup: Setup, store: SessionStore, artifacts: ArtifactStore, redactor: Redactor
    ) -> None:
        self._setup = setup
        self._store = store
        self._artifacts = artifacts
        self._redactor = JournalRedactor(redactor)

    async def import_session(
        self, source: object, *, session_id: str, title: str | None
    ) -> SessionRecord:
        """Add a session that begins with a conversation: see `AgentRuntime.import_session`."""
        setup, agent_id, now = self._setup, new_id("agent"), utc_now()
        is_shared = setup.database_url is not None
        exported, messages = await _read_source(source)
        history = read_history(messages)
        nodes = await make_nodes(
            history.messages,
            session_id=session_id,
            agent_id=agent_id,
            redactor=self._redactor,
            artifacts=self._artifacts,
            max_image_bytes=setup.config.model.max_image_bytes,
        )
        instructions = history.system or _instructions_in(exported)
        metadata = {SESSION_INSTRUCTIONS: instructions} if instructions else {}
        words = next((node.words for node in nodes if is_user_message(node)), "")
        known = exported.get("title")
        title = title or (known if isinstance(known, str) else None) or first_words(words)
        session = SessionRecord(
            session_id=session_id,
            cwd=str(setup.project),
            root_agent_id=agent_id,
            title=self._redactor.payload(title),
            tenant=setup.tenant,
            place=own_place(setup.config.worker.host_id) if is_shared else None,
            metadata=self._redactor.metadata(metadata),
            created_at=now,
            updated_at=now,
        )
        agent = AgentRecord(
            agent_id=agent_id,
            session_id=session_id,
            agent_type=AgentType.MAIN,
            created_at=now,
            updated_at=now,
        )
        return await self._store.import_session(session, agent, nodes)

    async def messages(self, session_id: str, form: MessageFormat) -> list[dict[str, Any]]:
        """Return the conversation of a session: see `Session.messages`."""
        from agent_core.context.written_messages import (  # noqa: PLC0415 - an import needs none
            as_anthropic,
            as_nodes,
            as_openai,
        )

        if form not in get_args(MessageFormat):
            known = ", ".join(get_args(MessageFormat))
            message = f"there is no format {form!r} of messages; there are: {known}"
            raise ArgumentError(message, "form")
        session = await self._store.require_session(session_id)
        path = await self._store.path(session.active_node_id) if session.active_node_id else []
        path = [await self._with_images(node) for node in path]
        if form == "anthropic":
            return as_anthropic(path)
        system = session.metadata.get(SESSION_INSTRUCTIONS)
        head = [{"role": "system", "content": system}] if isinstance(system, str) else []
        return [*head, *(as_openai(path) if form == "openai" else as_nodes(path))]

    async def _with_images(self, node: Node) -> Node:
        """Return the node with its images as data, which needs no store."""
        if not any(isinstance(block, ImageBlock | ToolResultBlock) for block in node.content):
            return node
        limit = self._setup.config.model.max_image_bytes
        content = [await _shown(block, 0, self._artifacts, limit) for block in node.content]
        return node.model_copy(update={"content": content})


async def _read_source(source: object) -> tuple[Mapping[str, JsonValue], object]:
    """Return the exported session, if it is one, and the messages."""
    if isinstance(source, str | os.PathLike):
        source = await asyncio.to_thread(_read_file, Path(cast("str", source)))
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        items = list(cast("Iterable[object]", source))
        if items and all(map(_is_export_line, items)):
            return _exported(cast("Sequence[Mapping[str, JsonValue]]", items))
        return {}, items
    return {}, cast("object", source)


def _read_file(path: Path) -> list[object]:
    """Read a file of JSON lines, or of one JSON list.

    Raises:
        AgentCoreError: `file_not_found`, or `validation_error`: it cannot be read, or holds
            something else.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise AgentCoreError(ErrorCode.FILE_NOT_FOUND, f"there is no file {path}") from None
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        message = f"{path} cannot be read: {reason or error}"
        raise validation_error(message) from None
    with suppress(orjson.JSONDecodeError):
        whole: object = orjson.loads(text)
        return cast("list[object]", whole) if isinstance(whole, list) else [whole]
    try:
        return [orjson.loads(line) for line in text.splitlines() if line.strip()]
    except orjson.JSONDecodeError as error:
        message = f"{path} is neither a JSON list of messages nor JSON lines of an export: {error}"
        raise validation_error(message) from None


def _is_export_line(item: object) -> bool:
    if not isinstance(item, Mapping):
        return False
    line = cast("Mapping[str, JsonValue]", item)
    kind = line.get("type")
    return isinstance(kind, str) and kind in _EXPORT_LINES and isinstance(line.get(kind), Mapping)


def _exported(lines: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], list[object]]:
    """Return the session of an export, and the nodes on the path to its active node."""
    sessions = [line["session"] for line in lines if line["type"] == "session"]
    nodes = {line["node"].get("node_id"): line["node"] for line in lines if line["type"] == "node"}
    session: Mapping[str, Any] = sessions[0] if sessions else {}
    path: list[object] = []
    node = nodes.pop(session.get("active_node_id"), None)
    while node is not None:  # each is taken out, so a damaged file cannot lead in a circle
        path.append(node)
        node = nodes.pop(node.get("parent_id"), None)
    return session, path[::-1]


def _instructions_in(session: Mapping[str, JsonValue]) -> str:
    metadata = session.get("metadata")
    found = (
        cast("Mapping[str, JsonValue]", metadata).get(SESSION_INSTRUCTIONS)
        if isinstance(metadata, Mapping)
        else None
    )
    return found if isinstance(found, str) else ""

"""What a run has put into view: nothing is added twice, a changed version replaces the old one."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from agent_core.context.instructions import InstructionCatalog
from agent_core.context.texts import MAX_TEXT_BYTES, read_text_file
from agent_core.tools.base import ToolContext
from agent_core.tools.workspace import Reading
from agent_core.types import Node, NodeType, user_text

logger = logging.getLogger(__name__)


class Conversation(Protocol):
    """Where a run's path can be looked at; the journal is one."""

    @property
    def path(self) -> Sequence[Node]:
        """The path so far, root first."""
        ...


class LoadedTexts:
    """Says whether a version of a text is on the path already.

    `in_order` is held while a text is read: of two calls in one turn the first one adds it.

    Args:
        conversation: the run's own.
        node_type: the type of node that holds such texts.
        key: the node's metadata field that names the text; `hash` tells its version.
    """

    def __init__(self, conversation: Conversation, node_type: NodeType, key: str) -> None:
        self._conversation = conversation
        self._node_type = node_type
        self._key = key
        self.in_order = asyncio.Lock()
        self._coming: dict[str, str] = {}

    def add(self, name: str, version: str) -> bool:
        """Note that a text is about to be added; False if this very version is in view.

        Two calls of one turn that load the same text add it once.
        """
        if (self._coming.get(name) or self._on_path(name)) == version:
            return False
        self._coming[name] = version
        return True

    def _on_path(self, name: str) -> str | None:
        for node in reversed(self._conversation.path):
            if node.node_type is self._node_type and node.metadata.get(self._key) == name:
                return node.metadata.get("hash")
        return None


class InstructionRegister:
    """Recognises instruction files when a run reads them, for `code.read_file`.

    The read itself stays an ordinary one. Beside it the whole body is kept in view, as an
    `instruction_context` node, unless that version of the file already is.
    """

    def __init__(self, catalog: InstructionCatalog, conversation: Conversation) -> None:
        self._catalog = catalog
        self._loaded = LoadedTexts(conversation, NodeType.INSTRUCTION_CONTEXT, "path")

    def in_order(self, path: Path, /) -> AbstractAsyncContextManager[None]:
        """Let reads of instruction files pass one at a time, and others as they like."""
        return nullcontext() if self._catalog.find(path) is None else self._loaded.in_order

    async def note(self, path: Path, context: ToolContext, /) -> Reading:
        """Say what reading the file at this resolved path adds to the conversation."""
        file = self._catalog.find(path)
        if file is None:
            return Reading()
        try:
            content = await asyncio.to_thread(read_text_file, path, MAX_TEXT_BYTES)
        except OSError as error:
            logger.warning("%s was read but cannot be kept in view: %s", file.shown, error)
            return Reading()
        version = digest(content)
        if not self._loaded.add(file.shown, version):
            return Reading(already_loaded=True)
        body = content.decode("utf-8", "replace").replace("\0", "")
        node = user_text(
            body,
            NodeType.INSTRUCTION_CONTEXT,
            path=file.shown,
            hash=version,
            tool_call_id=context.tool_call_id,
        )
        return Reading(adds=[node])


def digest(content: bytes) -> str:
    """The hash by which versions of a text are told apart."""
    return hashlib.sha256(content).hexdigest()

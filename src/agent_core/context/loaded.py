"""What a run has put into view: nothing is added twice, a changed version replaces the old one."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from agent_core.context.instructions import InstructionCatalog
from agent_core.disk.reading import MAX_TEXT_BYTES, read_text_file
from agent_core.text import content_hash
from agent_core.tools.base import ToolContext
from agent_core.tools.workspace import Reading
from agent_core.types import NodeType, user_text

logger = logging.getLogger(__name__)


Shown = Callable[[NodeType], Iterable[Mapping[str, Any]]]
"""What is known of the loaded texts of one type in a request, in their order."""


class View:
    """The loaded texts that stand in the latest request of one run.

    A text that a compaction did not carry over, or that made room for others, is not among them.

    Attributes:
        turn: grows with every request; a text that is being added stands in the next one.
    """

    def __init__(self) -> None:
        self.turn = 0
        self._shown: Shown | None = None

    def show(self, shown: Shown) -> None:
        """Take the request that has just been built."""
        self.turn += 1
        self._shown = shown

    def texts(self, node_type: NodeType) -> list[Mapping[str, Any]]:
        """The metadata of every text of this type in view, the latest version last."""
        return list(self._shown(node_type)) if self._shown else []


class LoadedTexts:
    """Says whether a version of a text is in view already.

    `in_order` is held while a text is read: of two calls in one turn the first one adds it.

    Args:
        view: the run's own.
        node_type: the type of node that holds such texts.
        key: the node's metadata field that names the text; `hash` tells its version.
    """

    def __init__(self, view: View, node_type: NodeType, key: str) -> None:
        self._view = view
        self._turn = view.turn
        self._node_type = node_type
        self._key = key
        self.in_order = asyncio.Lock()
        self._coming: dict[str, str] = {}

    def add(self, name: str, version: str) -> bool:
        """Note that a text is about to be added; False if this very version is in view.

        Two calls of one turn that load the same text add it once.
        """
        if self._turn != self._view.turn:
            self._turn = self._view.turn
            self._coming.clear()  # what was added since is in view, or made room for others
        if (self._coming.get(name) or self._in_view(name)) == version:
            return False
        self._coming[name] = version
        return True

    def _in_view(self, name: str) -> str | None:
        for text in reversed(self._view.texts(self._node_type)):
            if text.get(self._key) == name:
                return text.get("hash")
        return None


class LoadedInstructions:
    """Recognises instruction files when a run reads them, for `code.read_file`.

    The read itself stays an ordinary one. Beside it the whole body comes into view, as an
    `instruction_context` node, unless that version of the file already is there.
    """

    def __init__(self, catalog: InstructionCatalog, view: View) -> None:
        self._catalog = catalog
        self._loaded = LoadedTexts(view, NodeType.INSTRUCTION_CONTEXT, "path")

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
        version = content_hash(content)
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

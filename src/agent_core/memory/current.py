"""Memories as they are on disk when a run begins: the catalog, and recalled texts."""

import logging
from typing import cast

from msgspec import Struct

from agent_core.errors import AgentCoreError
from agent_core.memory.entry import Memory
from agent_core.memory.folder import MemoryFolder, MemoryList
from agent_core.text.json_text import JsonObject
from agent_core.types import Node
from agent_core.types.memory_scopes import MEMORY_SHARED

logger = logging.getLogger(__name__)


class CurrentMemories(Struct, frozen=True):
    """The memories at the start of a run; recalled texts are compared with the files anew.

    Attributes:
        catalog: one line for each memory, behind the user's own lines of `MEMORY.md`.
        scope: the scope of the run.
        folder: its folder; None if it cannot be read.
        known: all memories.
        is_on: the run has a memory; without one it shows no recalled texts.
    """

    catalog: str = ""
    scope: str = MEMORY_SHARED
    folder: MemoryFolder | None = None
    known: MemoryList = MemoryList()
    is_on: bool = True

    def changed_texts(self, node: Node) -> dict[Memory, str] | None:
        """Return today's texts of a node of recalled memories, without forgotten ones.

        Returns None if nothing has changed.
        """
        if not self.is_on:
            return {}
        folder, known = self.folder, self.known
        if folder is None or node.metadata.get("memory", MEMORY_SHARED) != self.scope:
            return None
        then = cast("JsonObject", node.metadata.get("hashes") or {})
        try:
            found = [folder.find(memory_id, known) for memory_id in then]
        except AgentCoreError as error:
            logger.warning("recalled memories are shown as they were: %s", error.message)
            return None
        left = [memory for memory in found if memory is not None]
        if {memory.memory_id: memory.version for memory in left} == then:
            return None
        from agent_core.memory.recall import fit_memories  # noqa: PLC0415 - few are changed

        return fit_memories(left, max(node.token_count, _LEAST_ROOM))


_LEAST_ROOM = 2_000
"""Tokens that the current texts of a node may take, if its own took fewer."""


def find_memories(folder: MemoryFolder | None, scope: str) -> CurrentMemories:
    """Read what is remembered; `folder` is None without memory. Blocks on files."""
    if folder is None:
        return CurrentMemories(is_on=False)
    if not folder.root.is_dir():
        return CurrentMemories(scope=scope, folder=folder)
    try:
        known = folder.read()
    except AgentCoreError as error:
        logger.warning("no memories are listed: %s", error.message)
        return CurrentMemories(scope=scope)
    return CurrentMemories(folder.list_catalog(known), scope, folder, known)

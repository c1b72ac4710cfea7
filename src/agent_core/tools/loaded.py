"""The texts a run has loaded: none is added twice, a changed version replaces the old one."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_core.types import NodeType

LoadedTextSource = Callable[[NodeType], Iterable[Mapping[str, Any]]]
"""Gives the metadata of the loaded texts of one type in a request, in their order."""


class View:
    """The loaded texts that stand in the latest request of one run.

    A text that a compaction did not carry over, or that made room for others, is not among them.

    Attributes:
        turn: grows with every request; a text that is being added stands in the next one.
    """

    def __init__(self) -> None:
        self.turn = 0
        self._source: LoadedTextSource | None = None

    def show(self, source: LoadedTextSource) -> None:
        """Take the request that has just been built."""
        self.turn += 1
        self._source = source

    def texts(self, node_type: NodeType) -> list[Mapping[str, Any]]:
        """The metadata of every text of this type in view, the latest version last."""
        return list(self._source(node_type)) if self._source else []


class LoadedTexts:
    """Knows which version of a text is in view, or on its way there.

    `in_order` is held while a text is read: of two calls in one turn the first one adds it.

    Args:
        view: the run's own.
        node_type: the type of node that holds such texts.
        key: the node's metadata field that names its text, whose version is in `hash`. A node
            with several texts has their versions in `hashes`, by name.
    """

    def __init__(self, view: View, node_type: NodeType, key: str) -> None:
        self._view = view
        self._turn = view.turn
        self._node_type = node_type
        self._key = key
        self.in_order = asyncio.Lock()
        self._coming: dict[str, str] = {}

    def versions(self) -> dict[str, str]:
        """The last version of each text in view, or on its way there, by name."""
        if self._turn != self._view.turn:
            self._turn = self._view.turn
            self._coming.clear()  # what was added since is in view, or made room for others
        versions: dict[str, Any] = {}
        for text in self._view.texts(self._node_type):
            versions |= text.get("hashes") or {str(text.get(self._key)): text.get("hash")}
        return versions | self._coming

    def add(self, name: str, version: str) -> bool:
        """Note that a text is about to be added; False if this very version is in view.

        Two calls of one turn that load the same text add it once.
        """
        if self.versions().get(name) == version:
            return False
        self._coming[name] = version
        return True

"""Texts that were loaded from files, compared with the files as they are now.

A conversation stores the text of a file as it was when the model loaded it. From the start of the
next run, or the next compaction, requests show the current text, and none of a file that is gone.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from agent_core.opening import MAX_TEXT_BYTES, FileVersion, read_text_file, version_of
from agent_core.providers.estimates import estimate_blocks
from agent_core.text.content import content_hash
from agent_core.text.json_text import JsonObject
from agent_core.tools.text import decode_text
from agent_core.types import JsonBlock, Node, NodeType, TextBlock, ToolResultBlock

CurrentText = Callable[[Node], Node | None]
"""Returns a loaded text as it is on disk: the same node if it is unchanged; None if it is gone."""

CurrentTexts = Mapping[str, Node | None]
"""Loaded texts by the ids of their nodes, as requests show them; None if they are left out."""

FILE_TEXTS = {
    NodeType.INSTRUCTION_CONTEXT: "path",
    NodeType.SKILL_CONTEXT: "name",
    NodeType.MEMORY_CONTEXT: "ids",
}
"""The types of nodes with the text of a file, and the key of their metadata that names the file."""

_OF_SEVERAL = ("ids", "hashes")
"""The keys that name the texts of a node with several."""

OUTDATED = "(the file has changed since, or is gone: this text is not shown any more)"
"""Replaces the result of the call that loaded a text which is no longer on disk."""

_FROM_DISK = "from_disk"


def compare_with_disk(nodes: Iterable[Node], current: CurrentText) -> CurrentTexts:
    """Return the loaded texts among `nodes` that a request shows differently.

    Of several versions of one file only the last node shows a text.
    """
    latest: dict[tuple[NodeType, str], Node] = {}
    texts: dict[str, Node | None] = {}
    for node in nodes:
        name = (node.node_type, str(node.metadata.get(FILE_TEXTS[node.node_type])))
        if name in latest:
            texts[latest[name].node_id] = None
        latest[name] = node
    for node in latest.values():
        now = current(node)
        if now is not node:
            texts[node.node_id] = now if now and now.text.strip() else None
    return texts


def find_outdated(path: Iterable[Node], texts: CurrentTexts) -> Collection[str]:
    """Return the ids of the calls whose results hold texts that are no longer on disk."""
    if not texts:
        return ()
    path = list(path)
    loaded = [node for node in path if node.node_type in FILE_TEXTS]
    calls = (node.metadata.get("tool_call_id") for node in loaded if node.node_id in texts)
    outdated = {call_id for call_id in calls if isinstance(call_id, str)}
    shown = (texts.get(node.node_id, node) for node in loaded)
    return outdated.union(_outdated_repeats(path, filter(None, shown)))


def without_outdated(node: Node, outdated: Collection[str]) -> Node:
    """Return the results of a turn, without the results of outdated calls."""
    if not any(block.tool_call_id in outdated for block in node.results):
        return node
    content = [
        block.model_copy(update={"content": [TextBlock(text=OUTDATED)]})
        if isinstance(block, ToolResultBlock) and block.tool_call_id in outdated
        else block
        for block in node.content
    ]
    return node.model_copy(update={"content": content})


def with_current_texts(path: Sequence[Node], current: CurrentText) -> Sequence[Node]:
    """Return a path as a request would show it now; nodes without a text have no name either."""
    texts = compare_with_disk((node for node in path if node.node_type in FILE_TEXTS), current)
    if not texts:
        return path
    outdated = find_outdated(path, texts)
    nodes: list[Node] = []
    for node in path:
        shown = texts.get(node.node_id, node)
        if shown is None:
            nodes.append(node.model_copy(update={"content": [], "metadata": {}}))
        else:
            nodes.append(without_outdated(shown, outdated))
    return nodes


def _outdated_repeats(path: Iterable[Node], current: Iterable[Node]) -> Iterator[str]:
    """Yield the calls that repeat a text which was in view then, and is none of the current ones.

    Such a call has loaded no node: its result says `already_loaded`.
    """
    texts = [_one_line(node.text) for node in current]
    for node in path:
        for result in node.results:
            for block in result.content[:1]:
                data: object = block.data if isinstance(block, JsonBlock) else None
                if not isinstance(data, dict):
                    continue
                facts = cast("JsonObject", data)
                text = facts.get("content", facts.get("summary"))
                if facts.get("already_loaded") is True and isinstance(text, str):
                    line = _one_line(text)
                    if not any(line in known for known in texts):
                        yield result.tool_call_id


def _one_line(text: str) -> str:
    return " ".join(text.split())


def with_text(node: Node, text: str, version: str, **metadata: Any) -> Node:
    """Return a copy of a node with another version of its text, and with other `metadata`."""
    content = [TextBlock(text=text)]
    metadata = {**node.metadata, "hash": version, _FROM_DISK: True, **metadata}
    tokens = estimate_blocks(content)
    update = {"content": content, "metadata": metadata, "token_count": tokens}
    return node.model_copy(update=update)


def is_from_disk(node: Node) -> bool:
    """Return whether the text is not the one that is stored with the node."""
    return _FROM_DISK in node.metadata


def dump_texts(texts: CurrentTexts) -> JsonObject:
    """Return the texts as a report stores them."""
    return {
        node_id: node
        and {"text": node.text, "hash": node.metadata["hash"]}
        | {key: node.metadata[key] for key in _OF_SEVERAL if key in node.metadata}
        for node_id, node in texts.items()
    }


def load_texts(stored: Mapping[str, Any], nodes: Mapping[str, Node]) -> CurrentTexts:
    """Return the texts of a report; `nodes` are the stored ones, by id."""
    return {
        node_id: text
        and with_text(
            nodes[node_id],
            text["text"],
            text["hash"],
            **{key: text[key] for key in _OF_SEVERAL if key in text},
        )
        for node_id, text in stored.items()
        if node_id in nodes
    }


def hash_file(path: Path) -> str:
    """Return the hash of a file's content, read once for each version of the file.

    Raises:
        OSError: it cannot be read.
    """
    version = version_of(path)
    if version is None:
        return content_hash(read_text_file(path, MAX_TEXT_BYTES))
    return _hash_known(path, version)


@lru_cache(maxsize=1024)
def _hash_known(path: Path, _version: FileVersion) -> str:
    return content_hash(read_text_file(path, MAX_TEXT_BYTES))


def read_current(node: Node, path: Path) -> tuple[str, str] | None:
    """Return the text of a file and its hash; None if it is the version of the node.

    Raises:
        OSError: it cannot be read.
    """
    if hash_file(path) == node.metadata.get("hash"):
        return None
    content = read_text_file(path, MAX_TEXT_BYTES)
    return decode_text(content), content_hash(content)

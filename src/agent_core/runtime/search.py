"""Searches messages, calls and results of all sessions for words."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from agent_core.errors import ArgumentError, StorageError
from agent_core.storage.store import SessionStore
from agent_core.text.folding import find_folded, fold
from agent_core.types import (
    ContentBlock,
    JsonBlock,
    Node,
    ReasoningBlock,
    SessionMatch,
    SessionRecord,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

_PHRASE = re.compile(r'"([^"]+)"|(\S+)')
_BEFORE, _AFTER = 60, 140
"""Characters of a snippet around the first word."""
_AT_ONCE = 64
_MOST_WORDS, _LONGEST = 20, 1000


def read_query(query: str) -> list[str]:
    """Split a query into folded words; a phrase in double quotes is one word.

    Raises:
        AgentCoreError: `validation_error`: there are no words, or too many.
    """
    words = [fold(phrase or word) for phrase, word in _PHRASE.findall(query)]
    words = [word for word in words if word.strip()]
    if not 0 < len(words) <= _MOST_WORDS or len(query) > _LONGEST:
        message = f"a search takes 1 to {_MOST_WORDS} words, of {_LONGEST} characters in all"
        raise ArgumentError(message, "query")
    return words


async def search(
    store: SessionStore,
    words: list[str],
    *,
    limit: int,
    project: str | None,
    before: int | None = None,
    clean: Callable[[Node], Node],
    clean_text: Callable[[str], str],
) -> list[tuple[int, SessionMatch]]:
    """Return the newest messages, calls and results that contain every word, with their numbers.

    Text removed by cleaning is not found. With `before`, only those with a smaller number.
    """
    found: list[tuple[int, SessionMatch]] = []
    sessions: dict[str, SessionRecord | None] = {}
    while len(found) < limit:
        rows = await store.nodes_with(words, before=before, limit=_AT_ONCE, project=project)
        for before, node in rows:
            if node is None:
                continue
            text = "\n".join(_texts(clean(node).content))
            if (snippet := _snippet(text, words)) is None or len(found) == limit:
                continue
            if node.session_id not in sessions:
                sessions[node.session_id] = await _session(store, node.session_id)
            session = sessions[node.session_id]
            if session is not None:  # deleted just now
                tools = [block.name for block in node.calls]
                tools += [str(result.metadata.get("tool_name", "")) for result in node.results]
                match = SessionMatch(
                    session_id=node.session_id,
                    title=session.title and clean_text(session.title),
                    cwd=session.cwd,
                    node_id=node.node_id,
                    run_id=node.run_id,
                    role=node.role,
                    tools=list(filter(None, tools)),
                    snippet=snippet,
                    created_at=node.created_at,
                )
                found.append((before, match))
        if len(rows) < _AT_ONCE:
            break
    return found


async def _session(store: SessionStore, session_id: str) -> SessionRecord | None:
    """Return a session as far as it can be read; None: it was deleted."""
    try:
        return await store.session(session_id)
    except StorageError as error:
        if error.retryable:
            raise
        with suppress(StorageError):
            return (await store.page(session_id, from_seq=1, to_seq=0, limit=1)).session
        return None


def _snippet(text: str, words: list[str]) -> str | None:
    """Return the text around the first word; None if a word is missing."""
    first = find_folded(text, words)
    if first is None:
        return None
    start, end = max(first - _BEFORE, 0), first + _AFTER
    cut = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{cut}{'…' if end < len(text) else ''}"


def _texts(content: Iterable[ContentBlock]) -> Iterator[str]:
    for block in content:
        match block:
            case TextBlock(text=text) | ReasoningBlock(text=text):
                yield text
            case ToolCallBlock(name=name, arguments=arguments):
                yield name
                yield from _strings(arguments)
            case ToolResultBlock(content=inner, error=error):
                yield from _texts(inner)
                if error is not None:
                    yield error.message
            case JsonBlock(data=data):
                yield from _strings(data)
            case _:
                pass


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _strings(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)

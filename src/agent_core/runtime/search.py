"""Searches messages, calls and results of all sessions for words."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.storage.store import SessionStore
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
_VARIABLE = re.compile(
    r"f[fil]+|st|[ahijtwy]?[^\x00-\x7f]+n?|[ks]|\A[filnt]|[afhijtwy]\Z|(?P<special>[%_^])"
)
"""Parts of a folded word that texts may write in other ways: escaped, or as ß, ﬁ, İ or K.

Letters at the ends of a word may be a part of one such sign, so they count, too.
"""
_BEFORE, _AFTER = 60, 140
"""Characters of a snippet around the first word."""
_AT_ONCE = 64
_MOST_WORDS, _LONGEST = 20, 1000


def read_query(query: str) -> list[str]:
    """Split a query into case-folded words; a phrase in double quotes is one word.

    Raises:
        AgentCoreError: `validation_error`: there are no words, or too many.
    """
    words = [(phrase or word).casefold() for phrase, word in _PHRASE.findall(query)]
    words = [word for word in words if word.strip()]
    if not 0 < len(words) <= _MOST_WORDS or len(query) > _LONGEST:
        message = f"a search takes 1 to {_MOST_WORDS} words, of {_LONGEST} characters in all"
        raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message)
    return words


async def search(
    store: SessionStore,
    words: list[str],
    *,
    limit: int,
    project: str | None,
    clean: Callable[[Node], Node],
    clean_text: Callable[[str], str],
) -> list[SessionMatch]:
    """Return the newest messages, calls and results that contain every word.

    Text removed by cleaning is not found.
    """
    patterns = [_pattern(word) for word in words]
    found: list[SessionMatch] = []
    sessions: dict[str, SessionRecord | None] = {}
    before: int | None = None
    while len(found) < limit:
        rows = await store.nodes_like(patterns, before=before, limit=_AT_ONCE, project=project)
        for before, node in rows:  # noqa: B007 - the next batch begins there
            text = "\n".join(_texts(clean(node).content))
            if (snippet := _snippet(text, words)) is None or len(found) == limit:
                continue
            if node.session_id not in sessions:
                sessions[node.session_id] = await store.session(node.session_id)
            session = sessions[node.session_id]
            if session is not None:  # deleted just now
                tools = [block.name for block in node.calls]
                tools += [str(result.metadata.get("tool_name", "")) for result in node.results]
                found.append(
                    SessionMatch(
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
                )
        if len(rows) < _AT_ONCE:
            break
    return found


def _pattern(word: str) -> str:
    """Return a `LIKE` pattern for stored texts with this word; it may match other texts too."""
    stored = json.dumps(word, ensure_ascii=False)[1:-1]
    pattern = _VARIABLE.sub(lambda part: f"^{part[0]}" if part["special"] else "%", stored)
    return f"%{pattern}%"


def _snippet(text: str, words: list[str]) -> str | None:
    """Return the text around the first word; None if a word is missing."""
    folded = text.casefold()
    places = [folded.find(word) for word in words]
    if -1 in places:
        return None
    first = min(places)
    if len(folded) != len(text):
        first = _unfolded(text, first)
    start, end = max(first - _BEFORE, 0), first + _AFTER
    cut = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{cut}{'…' if end < len(text) else ''}"


def _unfolded(text: str, place: int) -> int:
    """Return the place in a text of a place in its case-folded form, which may be longer."""
    ends = accumulate(len(char.casefold()) for char in text)
    return next(number for number, end in enumerate(ends) if end > place)


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

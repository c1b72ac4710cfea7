"""Summaries that an older version has written, in which content that came with messages speaks."""

from collections.abc import Iterable, Iterator, Mapping

from agent_core.providers.estimates import estimate_blocks
from agent_core.text.json_text import array, table
from agent_core.text.quotes import without_quotes
from agent_core.types import Node, TextBlock

_CUT = " […]"
_NOTHING = "(nothing but content)"


def with_own_words(compaction: Node, path: Iterable[Node]) -> Node:
    """Return a summary whose goal, latest message and rules are the user's own words.

    Versions before `as_of` took a log that came with a message for words of the user. A summary of
    today's version is returned as it is.
    """
    details = table(compaction.metadata.get("details"))
    kept = table(details.get("kept"))
    if not kept or "as_of" in kept:
        return compaction
    said = {node.node_id: node.words.strip() for node in path}
    text = compaction.text
    for key in ("goal", "latest_message"):
        for fact, words in _facts([kept.get(key)], said):
            if not words.startswith(fact.removesuffix(_CUT)):
                text = text.replace(_escaped(fact), _escaped(words[: len(fact)]) or _NOTHING, 1)
    rules = kept.get("rules")
    for fact, words in _facts(array(rules), said):
        if fact not in " ".join(without_quotes(words).split()):
            text = text.replace(f"\n- {_escaped(fact)}", "", 1)
    if text == compaction.text:
        return compaction
    content = [TextBlock(text=text)]
    update = {"content": content, "token_count": estimate_blocks(content)}
    return compaction.model_copy(update=update)


def _facts(stored: Iterable[object], said: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the texts that were kept, and all words of the messages that they were taken from."""
    for fact in map(table, stored):
        text = fact.get("text")
        if isinstance(text, str) and (node_id := str(fact.get("node_id"))) in said:
            yield text, said[node_id]


def _escaped(text: str) -> str:
    """Return a text as it is in the summary."""
    return text.replace("</kept", "&lt;/kept")

"""Parts of a reply about tools that the service runs itself: their uses, and sources of a text."""

from collections.abc import Mapping, Sequence
from typing import cast

from agent_core.providers import jsontext
from agent_core.providers.failures import Called
from agent_core.providers.reply import CallDraft, ProseDraft, WholePart, text
from agent_core.text.json_text import JsonObject, JsonValue, table, tables
from agent_core.types import OPAQUE, CitationBlock, ContentBlock, ProviderToolBlock

ITEM = "item"
"""Key of the opaque field with what the service has sent, which is sent back whole."""
_MAX_SOURCES = 50
_MAX_RESULT = 20_000

Part = ProseDraft | CallDraft | WholePart


def tool_use(
    called: Called,
    name: str,
    *,
    arguments: Mapping[str, JsonValue] | None = None,
    result: str | None = None,
    item: Mapping[str, JsonValue] | None = None,
) -> WholePart:
    """Return the part for a use of a tool, or for its result.

    `item` is sent back to the same provider and model; None if nothing has to be.
    """
    metadata: JsonObject = {**called.details}
    if item:
        metadata[OPAQUE] = {ITEM: jsontext.clean(dict(item))}
    block = ProviderToolBlock(
        name=name[:200],
        arguments=jsontext.clean(dict(arguments or {})),
        result=None if result is None else _cut(result),
        metadata=metadata,
    )
    return WholePart(block)


def citation(
    called: Called,
    url: str,
    title: str = "",
    *,
    text_range: tuple[int, int] | None = None,
    item: Mapping[str, JsonValue] | None = None,
) -> WholePart:
    """Return the part for a source of the text before it."""
    metadata: JsonObject = {}
    if item:
        metadata = {**called.details, OPAQUE: {ITEM: jsontext.clean(dict(item))}}
    first, last = text_range or (0, 0)
    return WholePart(
        CitationBlock(
            url=_line(url),
            title=_line(title),
            text_range=(first, last) if 0 <= first < last else None,
            metadata=metadata,
        )
    )


def opaque_item(block: ContentBlock, provider: str, model: str) -> JsonObject:
    """Return what the service has sent for a block; empty for another service or model."""
    if not isinstance(block, ProviderToolBlock | CitationBlock):
        return {}
    origin = block.metadata
    if origin.get("provider") != provider or origin.get("model") != model:
        return {}
    return table(table(origin.get(OPAQUE)).get(ITEM))


def url_citations(called: Called, annotations: object) -> list[WholePart]:
    """Return the sources in the annotations of OpenAI's protocols."""
    found: list[WholePart] = []
    for each in tables(annotations):
        fields = table(each.get("url_citation")) or each
        if url := text(fields.get("url")):
            first, last = fields.get("start_index"), fields.get("end_index")
            is_range = type(first) is int and type(last) is int
            place = cast("tuple[int, int]", (first, last)) if is_range else None
            found.append(citation(called, url, text(fields.get("title")), text_range=place))
    return found


def sources_text(found: Sequence[tuple[str, str]]) -> str:
    """Return pages as lines: title and address."""
    lines = [f"{title} - {url}" if title else url for title, url in found[:_MAX_SOURCES]]
    if (more := len(found) - _MAX_SOURCES) > 0:
        lines.append(f"… (+{more} more)")
    return "\n".join(lines)


def _cut(result: str) -> str:
    return result if len(result) <= _MAX_RESULT else f"{result[:_MAX_RESULT]}…"


def _line(value: str) -> str:
    return " ".join(jsontext.clean(value[:2000]).split())

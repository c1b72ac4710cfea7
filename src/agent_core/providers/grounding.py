"""Sources in a reply of Gemini: its grounding metadata as uses of tools and citations."""

from collections.abc import Mapping, Sequence
from typing import Any

from agent_core.providers.failures import Called
from agent_core.providers.reply import ProseDraft, WholePart, items, table, text
from agent_core.providers.service_tools import Part, citation, sources_text, tool_use

PAGES = "pages"
"""Key of the pages that were fetched, beside the service's own keys."""


def grounded(called: Called, parts: Sequence[Part], grounding: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a reply with its searches before them and its sources after its texts."""
    chunks = [_source(chunk) for chunk in items(grounding.get("groundingChunks"))]
    found: list[Part] = []
    has_uses = any(isinstance(part, WholePart) for part in parts)
    queries = grounding.get("webSearchQueries")
    if (queries or chunks) and not has_uses:
        asked = {"queries": queries} if queries else {}
        result = sources_text([each for each in chunks if each[1]])
        found.append(tool_use(called, "web_search", arguments=asked, result=result))
    for page in items(grounding.get(PAGES)):
        url = text(page.get("retrievedUrl"))
        status = text(page.get("urlRetrievalStatus")).removeprefix("URL_RETRIEVAL_STATUS_").lower()
        if not has_uses:
            found.append(tool_use(called, "web_fetch", arguments={"url": url}, result=status))
    texts = [p for p in parts if isinstance(p, ProseDraft) and not p.is_reasoning]
    cited = _citations(called, texts, chunks, grounding)
    for part in parts:
        found.append(part)
        found += cited.get(id(part), ())
    return found


def _citations(
    called: Called,
    texts: Sequence[ProseDraft],
    chunks: Sequence[tuple[str, str]],
    grounding: Mapping[str, Any],
) -> dict[int, list[WholePart]]:
    """Return the sources of each text, by its identity."""
    cited: dict[int, list[WholePart]] = {}
    if not texts:
        return cited
    whole = [(part, part.text + "".join(part.fresh)) for part in texts]
    supports = items(grounding.get("groundingSupports"))
    for support in supports:
        segment = table(support.get("segment"))
        part, place = _find(whole, segment)
        for index in support.get("groundingChunkIndices") or ():
            if type(index) is int and 0 <= index < len(chunks) and chunks[index][1]:
                title, url = chunks[index]
                source = citation(called, url, title, text_range=place)
                cited.setdefault(id(part), []).append(source)
    if not supports:
        sources = [citation(called, url, title) for title, url in chunks if url]
        cited[id(texts[-1])] = sources
    return cited


def _find(
    whole: Sequence[tuple[ProseDraft, str]], segment: Mapping[str, Any]
) -> tuple[ProseDraft, tuple[int, int] | None]:
    """Return the text of a segment, and its characters: the service counts bytes of the reply."""
    said = text(segment.get("text"))
    first, last = segment.get("startIndex") or 0, segment.get("endIndex")
    if type(first) is int and type(last) is int:
        before = 0
        for part, each in whole:
            raw = each.encode("utf-8", "surrogatepass")
            if before <= first and last <= before + len(raw):
                start = len(raw[: first - before].decode("utf-8", "ignore"))
                end = len(raw[: last - before].decode("utf-8", "ignore"))
                if not said or each[start:end] == said:
                    return part, (start, end)
            before += len(raw)
    for part, each in whole:
        if said and (at := each.find(said)) >= 0:
            return part, (at, at + len(said))
    return whole[-1][0], None


def _source(chunk: Mapping[str, Any]) -> tuple[str, str]:
    """Return title and address of a source."""
    fields = (
        table(chunk.get("web")) or table(chunk.get("retrievedContext")) or table(chunk.get("maps"))
    )
    return text(fields.get("title")), text(fields.get("uri"))

"""Similarity of pages to a query in meaning, by embeddings that the application supplies."""

import asyncio
import inspect
import math
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from operator import mul
from typing import Any

from agcore.memory.error import InvalidMemoryError, MemoryStorageError
from agcore.memory.store import MemoryStore
from agcore.memory.types import MemoryFilter, MemoryItem
from agent_core.aio.loops import LoopLock

Embed = Callable[[list[str]], Any]
"""Gives one vector for each text, all of one length: a coroutine function, or a plain one, which
runs in a thread."""

VECTOR_PREFIX = "_vector:"
_AT_ONCE = 100
_MOST_CHARS = 8000


class PageVectors:
    """The vectors of pages. A page is embedded once, and again when its text has changed.

    Args:
        embed: gives the vectors.
        store: keeps them; without one they are lost with this object. Vectors of another model
            need another store.
    """

    def __init__(self, embed: Embed, store: MemoryStore | None = None) -> None:
        self._embed = embed
        self._store = store
        self._known: dict[str, tuple[str, array[float]]] = {}
        self._lock = LoopLock("the index of vectors")

    async def nearness(self, query: str, pages: Iterable[tuple[str, str]]) -> list[float]:
        """Return how similar each page (id and text) is to a query, from 0 to 1.

        Raises:
            MemoryError: the embeddings failed or are invalid, or the store failed.
        """
        async with self._lock:
            vectors = await self._vectors_of(await asyncio.to_thread(_hashed, pages))
            (wanted,) = await self._ask([query])
        if any(len(vector) != len(wanted) for vector in vectors):
            message = (
                "the embeddings differ in length; keep those of another model in another store"
            )
            raise InvalidMemoryError(message)
        return await asyncio.to_thread(
            lambda: [min(1.0, max(0.0, sum(map(mul, wanted, vector)))) for vector in vectors]
        )

    async def _vectors_of(self, pages: Sequence[tuple[str, str, str]]) -> list["array[float]"]:
        missing: list[tuple[str, str, str]] = []
        others = self._store  # asked for vectors that are not known here
        if not self._known and self._store is not None:
            others = None
            stored = await self._store.list(MemoryFilter(prefix=VECTOR_PREFIX))
            self._known = await asyncio.to_thread(lambda: dict(map(_stored_vector, stored)))
        for page_id, text, text_hash in pages:
            if self._known.get(page_id, ("",))[0] == text_hash:
                continue
            item = await others.get(VECTOR_PREFIX + page_id) if others else None
            if item is not None and item.metadata.get("text") == text_hash:
                self._known[page_id] = _stored_vector(item)[1]
            else:
                missing.append((page_id, text, text_hash))
        for start in range(0, len(missing), _AT_ONCE):
            some = missing[start : start + _AT_ONCE]
            vectors = await self._ask([text for _, text, _ in some])
            for (page_id, _, text_hash), vector in zip(some, vectors, strict=True):
                self._known[page_id] = text_hash, vector
                if self._store is not None:
                    content = b64encode(vector.tobytes()).decode()
                    item_id, facts = VECTOR_PREFIX + page_id, {"text": text_hash}
                    await self._store.save(MemoryItem(id=item_id, content=content, metadata=facts))
        return [self._known[page_id][1] for page_id, _, _ in pages]

    async def _ask(self, texts: list[str]) -> list["array[float]"]:
        """Compute the vectors of texts, each of length 1."""
        try:
            if inspect.iscoroutinefunction(self._embed):
                given = await self._embed(texts)
            else:
                given = await asyncio.to_thread(self._embed, texts)
                if inspect.isawaitable(given):
                    given = await given
            vectors = await asyncio.to_thread(lambda: [_unit_vector(vector) for vector in given])
        except Exception as error:
            raise MemoryStorageError(f"the embeddings failed: {error}") from error
        if len(vectors) != len(texts):
            message = f"there are {len(vectors)} embeddings for {len(texts)} texts"
            raise InvalidMemoryError(message)
        return vectors


def _stored_vector(item: MemoryItem) -> tuple[str, tuple[str, "array[float]"]]:
    """Return the page id of a stored vector, with the hash of its text and the vector."""
    vector = array("f", b64decode(item.content))
    return item.id.removeprefix(VECTOR_PREFIX), (str(item.metadata.get("text")), vector)


def _hashed(pages: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return the id, the beginning of the text, and its hash, for each page."""
    shortened = [(page_id, text[:_MOST_CHARS]) for page_id, text in pages]
    return [
        (page_id, text, sha256(text.encode(errors="surrogatepass")).hexdigest())
        for page_id, text in shortened
    ]


def _unit_vector(vector: Sequence[float]) -> "array[float]":
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise ValueError("a vector has a part that is not a finite number")
    return array("f", (part / length if length else 0.0 for part in vector))

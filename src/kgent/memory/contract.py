"""The interface of a memory outside of kgent."""

from typing import Protocol, runtime_checkable

from kgent.errors import Record


class MemoryItem(Record):
    """A remembered item; `score`, if there is one, is between 0 and 1."""

    content: str
    scope: str = ""
    tags: list[str] = []
    memory_id: str | None = None
    score: float | None = None


class MemoryWriteResult(Record):
    """The result of a request to remember something."""

    accepted: bool
    memory_id: str | None = None
    summary: str = ""


@runtime_checkable
class MemoryClient(Protocol):
    """A memory outside of kgent. Its methods may block; they are called from worker threads."""

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        """Return the best matches, best first, at most `limit`; an empty scope means any."""
        ...

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        """Remember something, or refuse to."""
        ...

"""What kgent asks of a memory, wherever it lives."""

from typing import Protocol

from pydantic import BaseModel, ConfigDict


class MemoryItem(BaseModel):
    """Something remembered; `score`, if there is one, lies between 0 and 1."""

    model_config = ConfigDict(frozen=True)

    content: str
    scope: str = ""
    tags: list[str] = []
    memory_id: str | None = None
    score: float | None = None


class MemoryWriteResult(BaseModel):
    """What became of a request to remember."""

    model_config = ConfigDict(frozen=True)

    accepted: bool
    memory_id: str | None = None
    summary: str = ""


class MemoryClient(Protocol):
    """A memory outside of kgent. Its methods may block; they are called from worker threads."""

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        """The items that fit best, best first, at most `limit`; an empty scope means any."""
        ...

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        """Remember something, or refuse to."""
        ...

"""Memory: stores, what was said in a session, what is known, and how it is found again."""

from agcore.memory.conversation import (
    ConversationMemory,
    ConversationMemoryConfig,
    MemoryStrategy,
    StoredMessage,
)
from agcore.memory.errors import MemoryError  # noqa: A004 - the toolkit's own
from agcore.memory.knowledge import KnowledgePage, KnowledgeStore, PageIndexEntry
from agcore.memory.retriever import (
    MemoryRetriever,
    RetrievalResult,
    RetrieverConfig,
    ScoredItem,
)
from agcore.memory.sqlite import SqliteStore
from agcore.memory.store import InMemoryStore, MemoryStore
from agcore.memory.types import EvictionConfig, EvictionPolicy, MemoryFilter, MemoryItem

__all__ = [
    "ConversationMemory",
    "ConversationMemoryConfig",
    "EvictionConfig",
    "EvictionPolicy",
    "InMemoryStore",
    "KnowledgePage",
    "KnowledgeStore",
    "MemoryError",
    "MemoryFilter",
    "MemoryItem",
    "MemoryRetriever",
    "MemoryStore",
    "MemoryStrategy",
    "PageIndexEntry",
    "RetrievalResult",
    "RetrieverConfig",
    "ScoredItem",
    "SqliteStore",
    "StoredMessage",
]

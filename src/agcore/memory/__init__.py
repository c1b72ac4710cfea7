"""Memory: stores, conversations, knowledge pages and how they are found again."""

from agcore.errors import MemoryError  # noqa: A004 - the toolkit's own
from agcore.memory.conversation import ConversationMemory, ConversationMemoryConfig, MemoryStrategy
from agcore.memory.embeddings import Embed
from agcore.memory.knowledge import (
    KnowledgePage,
    KnowledgeStore,
    MemoryRetriever,
    PageIndexEntry,
    RetrievalResult,
    RetrieverConfig,
    ScoredItem,
)
from agcore.memory.stores import (
    EvictionConfig,
    EvictionPolicy,
    InMemoryStore,
    MemoryFilter,
    MemoryItem,
    MemoryStore,
    SqliteStore,
    session_prefix,
)
from agcore.memory.words import dice, words_of

__all__ = [
    "ConversationMemory",
    "ConversationMemoryConfig",
    "Embed",
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
    "dice",
    "session_prefix",
    "words_of",
]

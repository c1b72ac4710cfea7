"""Memory: stores, conversations, knowledge pages and how they are found again."""

from agcore.memory.conversation import ConversationMemory, ConversationMemoryConfig, MemoryStrategy
from agcore.memory.error import MemoryError  # noqa: A004 - the toolkit's own
from agcore.memory.knowledge import KnowledgePage, KnowledgeStore, PageIndexEntry, ScoredItem
from agcore.memory.page_index import KNOWLEDGE_PREFIX
from agcore.memory.postgres import PostgresStore
from agcore.memory.retriever import Embed, MemoryRetriever, RetrievalResult, RetrieverConfig
from agcore.memory.store import InMemoryStore, MemoryStore, SqliteStore
from agcore.memory.types import (
    EvictionConfig,
    EvictionPolicy,
    MemoryFilter,
    MemoryItem,
    session_prefix,
)
from agcore.memory.words import dice, words_of

__all__ = [
    "KNOWLEDGE_PREFIX",
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
    "PostgresStore",
    "RetrievalResult",
    "RetrieverConfig",
    "ScoredItem",
    "SqliteStore",
    "dice",
    "session_prefix",
    "words_of",
]

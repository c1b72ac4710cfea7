"""What is remembered about a user beyond one session: Markdown files of the user's own home.

Extraction reads conversations and writes files, recall reads files and writes nothing. Models are
asked through `AskModel`; no other process is needed, and no agent can write here.
"""

from agent_core.memory.entry import Memory
from agent_core.memory.extraction import AskModel, Cursor, ExtractionResult, Extractor
from agent_core.memory.folder import MemoryFolder, MemoryList, MemoryWriter
from agent_core.memory.recall import Recall, Selector, recall_tool
from agent_core.memory.spans import (
    Backlog,
    ExtractionReason,
    MessageSpan,
    is_explicit_request,
    unprocessed_spans,
)

__all__ = [
    "AskModel",
    "Backlog",
    "Cursor",
    "ExtractionReason",
    "ExtractionResult",
    "Extractor",
    "Memory",
    "MemoryFolder",
    "MemoryList",
    "MemoryWriter",
    "MessageSpan",
    "Recall",
    "Selector",
    "is_explicit_request",
    "recall_tool",
    "unprocessed_spans",
]

"""What is remembered about a user beyond one session: Markdown files of the user's own home.

Extraction reads conversations and writes files, recall reads files and writes nothing. Models are
asked through `AskModel`; nobody else's process is needed, and no agent can write here.
"""

from agent_core.memory.catalog import bounded
from agent_core.memory.entry import Memory
from agent_core.memory.extraction import AskModel, Cursor, Extracted, Extractor
from agent_core.memory.folder import MemoryFolder, Remembered
from agent_core.memory.recall import Selector
from agent_core.memory.stretch import MessageSpan, unprocessed_spans
from agent_core.memory.tools import Recall, recall_tool
from agent_core.memory.triggers import Backlog, Reason, is_explicit_request
from agent_core.memory.writer import MemoryWriter

__all__ = [
    "AskModel",
    "Backlog",
    "Cursor",
    "Extracted",
    "Extractor",
    "Memory",
    "MemoryFolder",
    "MemoryWriter",
    "MessageSpan",
    "Reason",
    "Recall",
    "Remembered",
    "Selector",
    "bounded",
    "is_explicit_request",
    "recall_tool",
    "unprocessed_spans",
]

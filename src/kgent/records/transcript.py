"""The run as a person would tell it: `transcript.md`."""

import re
import threading
from typing import Protocol

from agent_core.redaction import Redactor, visible
from kgent.records.files import RunFiles

SECTIONS = (
    "Run",
    "Prompt",
    "Profile",
    "Skills",
    "Memory",
    "Tool Calls",
    "Deliverables",
    "Result",
)
_FENCES = re.compile(r"`{3,}")


class Finished(Protocol):
    """What the transcript needs of a run context."""

    @property
    def run_id(self) -> str: ...


class TranscriptWriter:
    """Collects sections, keeps the file readable at any moment, and orders them at the end."""

    def __init__(self, files: RunFiles, name: str, *, redactor: Redactor) -> None:
        self._files = files
        self._name = name
        self._redactor = redactor
        self._lock = threading.Lock()
        self._sections: dict[str, list[str]] = {}
        self._last: str | None = None

    def append_section(self, title: str, content: str) -> None:
        """Add to a section; it is in the file when this returns.

        Raises:
            OSError: it could not be written.
        """
        clean = self._redactor.text(visible(content, zero_width=False)).rstrip()
        with self._lock:
            self._sections.setdefault(title, []).append(clean)
            head = "" if title == self._last else f"\n## {title}\n\n"
            self._last = title
            self._files.append(self._name, f"{head}{clean}\n".encode("utf-8", "replace"))

    def finalize(self, context: Finished) -> None:
        """Write the whole again, every section in its place.

        Raises:
            OSError: it could not be written.
        """
        with self._lock:
            others = [title for title in self._sections if title not in SECTIONS]
            parts = [f"# Transcript of {context.run_id}"]
            for title in (*SECTIONS, *others):
                body = "\n".join(self._sections.get(title, ["(nothing)"]))
                parts.append(f"## {title}\n\n{body}")
            self._files.put(self._name, "\n\n".join(parts) + "\n")


def quoted(text: str) -> str:
    """`text` as a block that cannot end itself: nothing in it is read as part of the transcript."""
    longest = max((len(found) for found in _FENCES.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"

"""The transcript of a run, in `transcript.md`."""

import re
from typing import Protocol

from agent_core.text import visible
from kgent.records.lines import RecordLines
from kgent.runtime.state import RunStatus

TRANSCRIPT_FILE = "transcript.md"
SECTIONS = (
    *("Run", "Prompt", "Profile", "Skills"),
    *("Memory", "Tool Calls", "Deliverables", "Result"),
)
"""The sections of the transcript, in their order."""
_OF_THE_WORK = ("Skills", "Memory", "Tool Calls")
_NOTHING = "(nothing)"
_FENCES = re.compile(r"`{3,}")
_OPENING = re.compile(r"(`{3,})text")
_RESULT = SECTIONS[-1]
_STATUS = "Status: "
_WITHOUT_ERROR = {
    RunStatus.completed,
    RunStatus.review_required,
    RunStatus.revision_required,
    RunStatus.cancelled,
}
"""The states in which a run rests without an error."""


class _Context(Protocol):
    """The part of a `RunContext` that the transcript needs."""

    @property
    def run_id(self) -> str: ...


class TranscriptWriter:
    """Writes the transcript of one run, which can be read at any time."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines
        self._sections: dict[str, list[str]] = {}
        self._last: str | None = None

    def continue_from(self, transcript: str) -> None:
        """Take over what the transcript of the last attempt says about its work, for a review."""
        section, fence = "", ""
        with self._lines.lock:
            for line in transcript.split("\n"):
                if fence:
                    fence = "" if line == fence else fence
                elif opening := _OPENING.fullmatch(line):
                    fence = opening[1]
                elif line.startswith("## "):
                    section = line.removeprefix("## ")
                    continue
                if section in _OF_THE_WORK and line != _NOTHING:
                    self._sections.setdefault(section, []).append(line)
            for title, found in self._sections.items():
                self._sections[title] = ["\n".join(found).strip("\n")]

    def append_section(self, title: str, content: str) -> None:
        """Add text to a section."""
        clean = self._lines.redactor.text(visible(content, zero_width=False)).rstrip()
        with self._lines.lock:
            self._sections.setdefault(title, []).append(clean)
            head = "" if title == self._last else f"\n## {title}\n\n"
            self._last = title
            text = f"{head}{clean}\n".encode("utf-8", "replace")
            self._lines.files.append(TRANSCRIPT_FILE, text)

    def finalize(self, context: _Context) -> None:
        """Rewrite the whole transcript with its sections in order."""
        with self._lines.lock:
            others = [title for title in self._sections if title not in SECTIONS]
            parts = [f"# Transcript of {context.run_id}"]
            for title in (*SECTIONS, *others):
                body = "\n".join(self._sections.get(title, [])) or _NOTHING
                parts.append(f"## {title}\n\n{body}")
            self._lines.files.put(TRANSCRIPT_FILE, "\n\n".join(parts) + "\n")


def quoted(text: str) -> str:
    """Return `text` as a block that it cannot end, so that no part of it counts as transcript."""
    longest = max((len(found) for found in _FENCES.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def find_answer(transcript: str) -> str | None:
    """Return the answer of a run from its transcript; None if the run has none.

    The section `Result` has the status, the error if there is one, and the answer.
    Headings inside quoted blocks count as text.
    """
    fence, section, status, blocks = "", "", "", list[list[str]]()
    for line in transcript.split("\n"):
        if fence:
            if line == fence:
                fence = ""
            elif section == _RESULT:
                blocks[-1].append(line)
        elif opening := _OPENING.fullmatch(line):
            fence = opening[1]
            if section == _RESULT:
                blocks.append([])
        elif line.startswith("## "):
            section, status, blocks = line.removeprefix("## "), "", []
        elif section == _RESULT and line.startswith(_STATUS):
            status = line.removeprefix(_STATUS)
    texts = ["\n".join(block) for block in blocks]
    answers = texts if status in _WITHOUT_ERROR else texts[1:]
    return answers[0] if answers and section == _RESULT else None

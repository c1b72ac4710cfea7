"""The archive of a run: content that is too large for a record, in `archive/`."""

from collections.abc import Iterable
from typing import Any

from agent_core.text.json_text import strict_json
from kgent.records.lines import RecordLines, plain_name

ARCHIVE = "archive"
TOOL_OUTPUT = "tool-output"
"""The folder of the archive for results that are too large for a message."""


class Archive:
    """Stores redacted content under names that are used once."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines
        self._names: set[str] = set()

    def continue_from(self, names: Iterable[str]) -> None:
        """Take the names of files that earlier attempts have stored."""
        self._names |= set(names)

    def keep_json(self, folder: str, label: str, value: Any) -> str:
        """Store a JSON value in a folder of the archive; return its path in the run folder."""
        text = strict_json(self._lines.redactor.payload(value), ensure_ascii=False, indent=1)
        return self._keep(folder, label, ".json", text.encode("utf-8", "replace"))

    def keep_raw(self, folder: str, label: str, content: bytes, *, ending: str = "") -> str:
        """Store bytes in a folder of the archive; return their path in the run folder."""
        return self._keep(folder, label, ending, self._lines.redactor.raw(content))

    def add_lines(self, name: str, *values: Any) -> str:
        """Append JSON values to `archive/<name>`, one per line; return that path."""
        clean = (self._lines.redactor.payload(value) for value in values)
        text = "".join(strict_json(value, ensure_ascii=False) + "\n" for value in clean)
        self._lines.files.append(f"{ARCHIVE}/{name}", text.encode("utf-8", "replace"))
        return f"{ARCHIVE}/{name}"

    def _keep(self, folder: str, label: str, ending: str, raw: bytes) -> str:
        """Write a file under an unused name of plain characters.

        The label may be any text, and may occur twice; a model's id of a call is an example.
        """
        plain = f"{ARCHIVE}/{folder}/{plain_name(label)}"
        name, number = f"{plain}{ending}", 1
        with self._lines.lock:
            while name in self._names:
                number += 1
                name = f"{plain}-{number}{ending}"
            self._names.add(name)
        self._lines.files.put(name, raw)
        return name

"""Earlier entries, in a file of the home that all processes share."""

import json
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from prompt_toolkit.history import History

from agent_core.cli.chat.pastes import Pastes
from agent_core.disk.locks import try_lock
from agent_core.opening import open_descriptor
from agent_core.text.json_text import JsonObject

_LEADS = ("!", "/")
MOST_ENTRIES = 1000
MOST_BYTES = 1_000_000
_LONGEST_ENTRY = 16_384
_TRIES = 50
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileHistory(History):
    """Entries as JSON lines, without secrets; the oldest go when there are too many.

    A file that cannot be read or written is done without.

    Args:
        path: the file; it is made with the first entry.
        clean: takes secrets out of a text.
        pastes: the large pasted texts of the entries, which are stored with them.
    """

    def __init__(self, path: Path, clean: Callable[[str], str], pastes: Pastes) -> None:
        super().__init__()
        self._path = path
        self._clean = clean
        self._pastes = pastes
        self._messages: set[str] = set()
        self._keeps = True

    def load_history_strings(self) -> Iterable[str]:
        """The entries, the last one first."""
        try:
            descriptor = open_descriptor(self._path, _FLAGS & ~os.O_CREAT)
            try:
                lines = _last_lines(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return []
        texts: dict[str, None] = {}
        for entry in filter(None, map(_entry, reversed(lines))):
            text = self._pastes.restore(entry.text, entry.pastes)
            if text is not None and text not in texts:
                texts[text] = None
                if entry.message:
                    self._messages.add(text)
        return texts

    def names_command(self, text: str) -> bool:
        """Return whether an entry that begins with `!` or `/` was entered as a command."""
        return text.startswith(_LEADS) and text not in self._messages

    def add(self, text: str, *, names_command: bool) -> None:
        """Add an entry, unless it is the last one again."""
        if names_command or not text.startswith(_LEADS):
            self._messages.discard(text)
        else:
            self._messages.add(text)
        if self.get_strings()[-1:] != [text]:
            self.append_string(text)

    def keep_draft(self, text: str, *, names_command: bool) -> None:
        """Add a text that was not sent, in this process only."""
        self._keeps = False
        try:
            self.add(text, names_command=names_command)
        finally:
            self._keeps = True

    def store_string(self, string: str) -> None:
        """Add an entry to the file, unless it is very long."""
        pastes = self._pastes.named_in(string)
        if self._pastes.images_in(string):  # another process would not have them
            return
        if not self._keeps or len(string) + sum(map(len, pastes.values())) > _LONGEST_ENTRY:
            return
        entry: JsonObject = {"text": self._clean(string)}
        if string in self._messages:
            entry["message"] = True
        if pastes:
            entry["pastes"] = {name: self._clean(text) for name, text in pastes.items()}
        line = json.dumps(entry).encode() + b"\n"
        with suppress(OSError):
            self._add(line)

    def _add(self, line: bytes) -> None:
        """Raises OSError."""
        for _ in range(_TRIES):
            descriptor = open_descriptor(self._path, _FLAGS, 0o600)
            try:
                facts = os.fstat(descriptor)
                if not stat.S_ISREG(facts.st_mode):
                    return
                if not try_lock(descriptor, shared=False):
                    time.sleep(0.001)
                elif facts.st_ino == self._path.stat().st_ino:  # not replaced meanwhile
                    if facts.st_size + len(line) <= MOST_BYTES:
                        if os.write(descriptor, line) < len(line):  # the disk is full
                            os.ftruncate(descriptor, facts.st_size)
                    else:
                        self._replace([*_last_lines(descriptor), line])
                    return
            finally:
                os.close(descriptor)

    def _replace(self, lines: list[bytes]) -> None:
        """Keep the later half; who waits for the lock opens the new file."""
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        kept: list[bytes] = []
        room = MOST_BYTES // 2
        for line in reversed(lines[-MOST_ENTRIES // 2 :]):
            room -= len(line)
            if room < 0:
                break
            kept.append(line)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            with os.fdopen(open_descriptor(new, flags, 0o600), "wb") as file:
                file.writelines(reversed(kept))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def _last_lines(descriptor: int) -> list[bytes]:
    size = os.fstat(descriptor).st_size
    start = max(size - MOST_BYTES, 0)
    lines = os.pread(descriptor, MOST_BYTES, start).splitlines(keepends=True)
    whole = lines[1:] if start else lines  # the first one may be the end of another
    return whole[-MOST_ENTRIES:]


class _Entry(Struct):
    """An entry as it is stored.

    Attributes:
        message: it begins with `!` or `/` and was sent as a message.
        pastes: the large pasted texts, by the names that the text has for them.
    """

    text: Annotated[str, Meta(min_length=1)]
    message: bool = False
    pastes: dict[str, str] = {}


def _entry(line: bytes) -> _Entry | None:
    """Return an entry; None if it is damaged."""
    try:
        return msgspec.json.decode(line, type=_Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None

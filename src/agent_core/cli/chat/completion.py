"""Completes a line: names of commands, their values, and files behind an `@`."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from agent_core.cli.chat.mentions import unfinished_mention
from agent_core.errors import AgentCoreError
from agent_core.text import short_line, visible
from agent_core.text.folding import fold

MOST_FILES = 200_000
_SHOWN = 40
_FRESH_S = 5.0
_LIST_S = 10.0
_WORD = re.compile(r"[A-Za-z0-9_./~-]*$")
_LISTING = (
    *("--files", "--hidden", "--no-config", "--no-messages", "--color=never", "--null"),
    *("--no-require-git", "--glob=!.git", "--glob=!.hg", "--glob=!.svn"),
)

Values = Callable[[Sequence[str]], Awaitable[Sequence[tuple[str, str]]]]
"""Returns the values of a word, each with its meaning, from the words before it."""


class Files:
    """The files of a project that no ignore file names, listed again after a few seconds."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._names: Sequence[str] = ()
        self._folded: Sequence[str] = ()
        self._listed_at = float("-inf")
        self._listing: asyncio.Task[None] | None = None

    async def like(self, typed: str) -> list[str]:
        """Paths that have these letters, the best first; folders end with a slash."""
        if self._listing is None and time.monotonic() - self._listed_at > _FRESH_S:
            self._listing = asyncio.create_task(self._list())
        if self._listing is not None and not self._names:
            await asyncio.shield(self._listing)
        return await asyncio.to_thread(_best, typed, self._names, self._folded)

    async def _list(self) -> None:
        try:
            names = await _list_files(self._project)
            folders = {f"{name[: end + 1]}" for name in names for end in _slashes(name)}
            self._names = sorted([*names, *folders])
            self._folded = [fold(name) for name in self._names]
        finally:
            self._listed_at, self._listing = time.monotonic(), None


def _slashes(name: str) -> Iterable[int]:
    return (place for place, letter in enumerate(name) if letter == "/")


async def _list_files(project: Path) -> list[str]:
    """The paths of a project, within a time; nothing where they cannot be listed."""
    from agent_core.tools.code.search import ripgrep  # noqa: PLC0415 - for those who write an @

    try:
        program = await asyncio.to_thread(ripgrep)
        child = await asyncio.create_subprocess_exec(
            program,
            *_LISTING,
            cwd=project,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except (AgentCoreError, OSError):
        return []
    found: list[str] = []
    rest, is_read = b"", False
    try:
        async with asyncio.timeout(_LIST_S):
            while child.stdout and len(found) < MOST_FILES:
                piece = await child.stdout.read(2**16)
                if not piece:
                    is_read = True
                    break
                *whole, rest = (rest + piece).split(b"\0")
                found += (os.fsdecode(name) for name in whole)
    except TimeoutError:
        pass
    finally:
        if not is_read:  # a process that has ended may be gone already
            child.kill()
        await child.wait()
    return [name for name in found[:MOST_FILES] if name.isprintable() and '"' not in name]


def _best(typed: str, names: Sequence[str], folded: Sequence[str]) -> list[str]:
    """Return names that begin with it, then files that do, then names with it, then its letters."""
    typed = fold(typed)
    ranks: list[list[str]] = [[], [], [], []]
    letters = re.compile(".*?".join(map(re.escape, typed))) if typed else None
    for name, plain in zip(names, folded, strict=True):
        if plain.startswith(typed):
            is_deep = "/" in plain[len(typed) :].rstrip("/")
            ranks[1 if is_deep else 0].append(name)
        elif plain.rstrip("/").rpartition("/")[2].startswith(typed):
            ranks[1].append(name)
        elif typed in plain:
            ranks[2].append(name)
        elif letters is not None and len(ranks[3]) < _SHOWN and letters.search(plain):
            ranks[3].append(name)
    best: list[str] = []
    for rank in ranks:
        if len(best) < _SHOWN:
            best += sorted(rank, key=lambda name: (len(name), name))[: _SHOWN - len(best)]
    return best


class ChatCompleter(Completer):
    """Completes commands, their values, and files.

    Args:
        commands: returns the meaning of each, by name.
        values: the values of a command, by name.
        files: of the project.

    Attributes:
        names_command: tells whether a `/` at the beginning of the line names a command.
    """

    names_command: Callable[[], bool] = staticmethod(lambda: True)

    def __init__(
        self,
        commands: Callable[[], Awaitable[Mapping[str, str]]],
        values: Mapping[str, Values],
        files: Files,
    ) -> None:
        self._commands = commands
        self._values = values
        self._files = files

    def get_completions(
        self,
        document: Document,  # noqa: ARG002 - the protocol's
        complete_event: CompleteEvent,  # noqa: ARG002 - the protocol's
    ) -> Iterable[Completion]:
        """Nothing: a line is completed by `get_completions_async`."""
        return ()

    async def get_completions_async(
        self,
        document: Document,
        complete_event: CompleteEvent,  # noqa: ARG002 - the protocol's
    ) -> AsyncGenerator[Completion, None]:
        """Yield the replacements for the word before the cursor."""
        before = document.text_before_cursor
        if mention := unfinished_mention(before):
            start, typed = mention
            for name in await self._files.like(typed):
                text = f'"{name}"' if " " in name and not name.endswith("/") else name
                text = f'"{name}' if " " in name and name.endswith("/") else text
                yield Completion(text, start - len(before), display=visible(name, one_line=True))
            return
        if not before.startswith("/") or "\n" in before or not self.names_command():
            return
        name, *words = before[1:].split(" ")
        if not words:
            for known, what in _beginning_with(name, (await self._commands()).items()):
                meta = short_line(visible(what, one_line=True), 60)
                text = f"{known} "  # its words follow
                yield Completion(text, -len(name), display=f"/{known}", display_meta=meta)
            return
        known_values = self._values.get(name)
        values = await known_values([word for word in words[:-1] if word]) if known_values else ()
        for value, what in _beginning_with(words[-1], values):
            meta = short_line(visible(what), 60)
            yield Completion(value, -len(words[-1]), display_meta=meta)


def _beginning_with(typed: str, entries: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the entries that begin with this; what is typed whole comes first."""
    found = [entry for entry in entries if entry[0].startswith(typed)]
    return sorted(found, key=lambda entry: entry[0] != typed)

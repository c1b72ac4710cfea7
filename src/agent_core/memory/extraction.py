"""One extraction: ask, check everything, then write everything, and only then move the cursor."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from string import Template
from typing import Any, Protocol, TypeVar

from agent_core.assets import load_asset
from agent_core.errors import AgentCoreError
from agent_core.memory.catalog import bounded, front_matter_line
from agent_core.memory.entry import Memory, file_name, one_line
from agent_core.memory.folder import MOST_PROBLEMS, MemoryFolder, Remembered, write_failed
from agent_core.memory.stretch import MessageSpan
from agent_core.memory.wire import (
    WRITES,
    Answer,
    Decision,
    Entry,
    answer_schema,
    check_provenance,
    parse_answer,
)
from agent_core.memory.writer import MemoryWriter
from agent_core.types import new_id, utc_now

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_TOKENS = 2048


class AskModel(Protocol):
    """One model call without tools and without history."""

    async def __call__(self, system: str, prompt: str, *, max_tokens: int) -> str:
        """Return the answer's text.

        Raises:
            AgentCoreError: there is none.
        """
        ...


class Cursor(Protocol):
    """How far a session has been scanned."""

    async def is_at(self, position: int) -> bool:
        """Whether it is where it was: another process may have scanned the session too."""
        ...

    async def move(self, position: int) -> None:
        """Everything up to this sequence number has been scanned, and what came of it is written.

        Raises:
            StorageError: it could not be stored.
        """
        ...


@dataclass(slots=True)
class Extracted:
    """What came of one extraction; ids of memories, and the files that were passed over."""

    explicit: bool = False
    new: list[str] = field(default_factory=list[str])
    updated: list[str] = field(default_factory=list[str])
    duplicates: int = 0
    ignored: int = 0
    unreadable: list[str] = field(default_factory=list[str])


class Extractor:
    """Finds what is worth remembering in a stretch of a conversation, and writes it down.

    Args:
        folder: where memories lie.
        writer: writes there.
        categories: those in use.
        ask: the extraction model.
        clean: removes secrets from a text.
        estimate: tokens of a text.
        catalog_room: tokens that the catalog, and the front matter, may take each.
    """

    def __init__(
        self,
        folder: MemoryFolder,
        categories: Sequence[str],
        *,
        writer: MemoryWriter,
        ask: AskModel,
        clean: Callable[[str], str],
        estimate: Callable[[str], int],
        catalog_room: int,
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._categories = categories
        self._ask = ask
        self._clean = clean
        self._estimate = estimate
        self._room = catalog_room

    async def extract(
        self, stretch: MessageSpan, session_id: str, *, start: int, cursor: Cursor
    ) -> Extracted:
        """Scan one stretch; `start` is where the cursor stood before it.

        Raises:
            SchemaError: the answer cannot be used; nothing was written.
            AgentCoreError: the model failed; or `memory_write_failed`: what was written so far
                stands, the cursor has not moved, and scanning again does no harm.
        """
        known = await asyncio.to_thread(self._folder.read)
        for problem in known.problems:
            logger.warning("a memory file was passed over: %s", problem)
        material = await asyncio.to_thread(self._material, stretch, known)
        text = await self._ask(self._instructions(), material, max_tokens=_ANSWER_TOKENS)
        answer = parse_answer(text)
        check_provenance(
            answer,
            range_ids={node.node_id for node in stretch.messages},
            user_ids={node.node_id for node in stretch.user_messages},
            known={one.memory_id: one.category for one in known.memories},
            categories=self._categories,
        )
        return await _to_the_end(
            self._write_down(answer, known, (session_id, start, stretch.end), cursor)
        )

    async def _write_down(
        self, answer: Answer, seen: Remembered, where: tuple[str, int, int], cursor: Cursor
    ) -> Extracted:
        session_id, start, end = where
        async with _exclusive(self._folder):
            if not await cursor.is_at(start):
                return Extracted()  # another process was quicker; its memories are as good
            done = await asyncio.to_thread(self._save, answer, seen, session_id)
            await cursor.move(end)
        return done

    def _save(self, answer: Answer, seen: Remembered, session_id: str) -> Extracted:
        """Write the files, then the catalog. A file that changed meanwhile stops everything."""
        now, known = utc_now(), self._folder.read()
        done = Extracted(answer.explicit, unreadable=list(known.problems[:MOST_PROBLEMS]))
        planned: list[Memory] = []
        for entry in answer.memories:
            if entry.decision is Decision.IGNORE:
                done.ignored += 1
            elif entry.decision is Decision.DUPLICATE:
                done.duplicates += 1
            elif entry.decision is not Decision.NEW:
                planned.append(self._rewritten(entry, seen, known, (session_id, now)))
                done.updated.append(planned[-1].memory_id)
            elif _is_there(entry, session_id, [*known.memories, *planned]):
                done.duplicates += 1
            else:
                planned.append(self._made(entry, session_id, now))
                done.new.append(planned[-1].memory_id)
        for memory in planned:
            self._writer.save(memory)
        if any(entry.decision in WRITES for entry in answer.memories):
            self._writer.catalogue(self._folder.read().memories)
        return done

    def _made(self, entry: Entry, session_id: str, now: datetime) -> Memory:
        memory_id = new_id("mem")
        name = entry.filename.replace("\\", "/").rpartition("/")[2]
        path = f"{entry.category}/{file_name(self._clean(name), memory_id, now)}"
        return Memory(
            memory_id=memory_id,
            category=entry.category,
            path=path,
            summary=self._line(entry.summary),
            content=self._clean(entry.content).strip(),
            tags=list(map(self._line, entry.tags)),
            created_at=now,
            updated_at=now,
            source_session_id=session_id,
            source_node_ids=list(dict.fromkeys(entry.source_node_ids)),
        )

    def _rewritten(
        self, entry: Entry, seen: Remembered, known: Remembered, by: tuple[str, datetime]
    ) -> Memory:
        """The same file with other words; id, path and what a user added to its head stay."""
        session_id, now = by
        memory_id = entry.memory_id or ""
        before, current = seen.get(memory_id), known.get(memory_id)
        if before is None or current is None or before.version != current.version:
            path = before.path if before else memory_id
            raise write_failed(f"{path} was changed while the extraction was under way")
        return replace(
            current,
            summary=self._line(entry.summary),
            content=self._clean(entry.content).strip(),
            tags=list(map(self._line, entry.tags)),
            updated_at=now,
            source_session_id=session_id,
            source_node_ids=list(dict.fromkeys([*current.source_node_ids, *entry.source_node_ids])),
        )

    def _line(self, text: str) -> str:
        return one_line(self._clean(text))

    def _instructions(self) -> str:
        template = Template(load_asset("system.memory_extraction").text)
        return template.substitute(categories=", ".join(self._categories), schema=answer_schema())

    def _material(self, stretch: MessageSpan, known: Remembered) -> str:
        catalog = bounded(self._folder.catalog().splitlines(), self._room, self._estimate)
        heads = bounded(map(front_matter_line, known.memories), self._room, self._estimate)
        return (
            f"<memory_catalog>\n{catalog}\n</memory_catalog>\n\n"
            f"<front_matter>\n{heads}\n</front_matter>\n\n"
            f"<conversation>\n{stretch.shown()}\n</conversation>"
        )


def _is_there(entry: Entry, session_id: str, memories: Sequence[Memory]) -> bool:
    """Whether a scan that was interrupted, or this one, has written the same thing already."""
    return any(
        memory.category == entry.category
        and memory.source_session_id == session_id
        and set(memory.source_node_ids) >= set(entry.source_node_ids)
        and (memory.summary == one_line(entry.summary) or memory.content == entry.content.strip())
        for memory in memories
    )


@asynccontextmanager
async def _exclusive(folder: MemoryFolder) -> AsyncGenerator[None]:
    """Hold the folder's lock; a cancelled wait for it does not leave it taken."""
    stack = ExitStack()
    entering = asyncio.create_task(asyncio.to_thread(stack.enter_context, folder.locked()))
    try:
        await asyncio.shield(entering)
    except asyncio.CancelledError:
        with suppress(AgentCoreError):
            await entering
        stack.close()
        raise
    with stack:
        yield


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` whole even if the caller is cancelled meanwhile; then say so."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise

"""One extraction: ask, check everything, then write everything, and only then move the cursor."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from enum import StrEnum
from string import Template
from typing import Annotated, Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_core.aio import finish_uncancelled
from agent_core.assets import load_asset
from agent_core.errors import AgentCoreError, ErrorCode, SchemaError
from agent_core.memory.entry import Memory, file_name, find_id
from agent_core.memory.folder import (
    MOST_PROBLEMS,
    MemoryFolder,
    MemoryList,
    MemoryWriter,
    write_failed,
)
from agent_core.memory.spans import MessageSpan
from agent_core.memory.wishes import may_ask_to_forget
from agent_core.providers.jsontext import unfenced
from agent_core.text import fit_lines, one_line
from agent_core.tools.schema import json_path, model_schema
from agent_core.types import new_id, utc_now

logger = logging.getLogger(__name__)

_ANSWER_TOKENS = 2048


class AskModel(Protocol):
    """One model call without tools and without history."""

    async def __call__(self, system: str, prompt: str, *, max_tokens: int) -> str:
        """Return the answer's text.

        Raises:
            AgentCoreError: there is no answer.
        """
        ...


class ScanPosition(Protocol):
    """The position up to which a session has been scanned."""

    async def is_at(self, position: int) -> bool:
        """Return whether the position is unchanged: another process may have scanned too."""
        ...

    async def move(self, position: int) -> None:
        """Record that everything up to this sequence number is scanned and its results are written.

        Raises:
            StorageError: it could not be stored.
        """
        ...


class MemoryDecision(StrEnum):
    """Decision about one extracted memory."""

    NEW = "new"
    DUPLICATE = "duplicate"
    UPDATE = "update"
    CONFLICT = "conflict"
    FORGET = "forget"
    IGNORE = "ignore"


_REWRITES = {MemoryDecision.UPDATE, MemoryDecision.CONFLICT}
_WRITES = {MemoryDecision.NEW, *_REWRITES}
_LONGEST_ID = 400
"""Characters of an id, with the label that a model may repeat."""


class ExtractedMemory(BaseModel):
    """One memory that the model proposes, and its decision about it."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    decision: MemoryDecision
    category: Literal["user", "feedback", "reference"]
    filename: Annotated[str, Field(max_length=200)]
    memory_id: Annotated[str, Field(max_length=_LONGEST_ID)] | None = None
    summary: Annotated[str, Field(max_length=500)]
    tags: Annotated[list[Annotated[str, Field(max_length=60)]], Field(max_length=12)]
    content: Annotated[str, Field(max_length=6000)]
    source_node_ids: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=_LONGEST_ID)]],
        Field(min_length=1, max_length=100),
    ]


class ExtractionAnswer(BaseModel):
    """The answer of the extraction model, validated before any file is touched."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    explicit: bool = Field(description="The user asked for something to be remembered.")
    memories: Annotated[list[ExtractedMemory], Field(max_length=50)]


class ExtractionResult(Struct):
    """Result of one extraction: ids of memories, and the files that could not be read.

    `summaries` are, by id, the summaries of memories that it has written or forgotten.
    """

    explicit: bool = False
    new: list[str] = field(default_factory=list[str])
    updated: list[str] = field(default_factory=list[str])
    forgotten: list[str] = field(default_factory=list[str])
    summaries: dict[str, str] = field(default_factory=dict[str, str])
    duplicates: int = 0
    ignored: int = 0
    unreadable: list[str] = field(default_factory=list[str])


class Extractor:
    """Finds memories in a span of a conversation, and writes them to files.

    Args:
        folder: the memory folder.
        categories: the categories in use.
        writer: writes to the folder.
        ask: the extraction model.
        clean: removes secrets from a text.
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
        catalog_room: int,
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._categories = categories
        self._ask = ask
        self._clean = clean
        self._room = catalog_room

    async def extract(
        self, span: MessageSpan, session_id: str, *, start: int, cursor: ScanPosition
    ) -> ExtractionResult:
        """Scan one span; `start` is the position of the cursor before it.

        Raises:
            SchemaError: the answer cannot be used; nothing was written.
            AgentCoreError: the model failed; or `memory_write_failed`: files written so far stay,
              the cursor has not moved, and scanning again does no harm.
        """
        seen = await asyncio.to_thread(self._folder.read)
        for problem in seen.problems:
            logger.warning("a memory file was passed over: %s", problem)
        template = Template(load_asset("system.memory_extraction").text)
        system = template.substitute(categories=", ".join(self._categories), schema=answer_schema())
        prompt = await asyncio.to_thread(self._prompt, span, seen)
        range_ids = {node.node_id for node in span.messages}
        known = {one.memory_id: one.category for one in seen.memories}
        answer = with_plain_ids(
            parse_answer(await self._ask(system, prompt, max_tokens=_ANSWER_TOKENS)),
            range_ids=range_ids,
            memory_ids=known,
        )
        check_provenance(
            answer,
            range_ids=range_ids,
            user_words={node.node_id: node.words for node in span.user_messages},
            known=known,
            categories=self._categories,
        )

        async def write() -> ExtractionResult:
            async with _exclusive(self._folder):
                if not await cursor.is_at(start):
                    return ExtractionResult()  # another process was quicker
                done = await asyncio.to_thread(self._save, answer, seen, session_id)
                await cursor.move(span.end)
            return done

        return await finish_uncancelled(write())

    def _prompt(self, span: MessageSpan, seen: MemoryList) -> str:
        lines = (memory.as_json_line() for memory in seen.memories)
        catalog = fit_lines(self._folder.list_catalog(seen).splitlines(), self._room)
        return (
            f"<memory_catalog>\n{catalog}\n</memory_catalog>\n\n"
            f"<front_matter>\n{fit_lines(lines, self._room)}\n</front_matter>\n\n"
            f"<conversation>\n{span.shown()}\n</conversation>"
        )

    def _save(
        self, answer: ExtractionAnswer, seen: MemoryList, session_id: str
    ) -> ExtractionResult:
        """Write the files, then the catalog. A file that changed meanwhile stops everything."""
        known = self._folder.read()
        done = ExtractionResult(answer.explicit, unreadable=list(known.problems[:MOST_PROBLEMS]))
        planned: list[Memory] = []
        forgotten: list[Memory] = []
        rewritten = {one.memory_id for one in answer.memories if one.decision in _REWRITES}
        for entry in answer.memories:
            memory_id = entry.memory_id or ""
            if entry.decision is MemoryDecision.IGNORE:
                done.ignored += 1
            elif entry.decision is MemoryDecision.FORGET:
                if memory_id in rewritten:
                    done.ignored += 1  # its new text replaces what is to be forgotten
                elif known.get(memory_id) is not None and memory_id not in done.forgotten:
                    forgotten.append(_unchanged(memory_id, seen, known))
                    done.forgotten.append(memory_id)
            elif entry.decision in _REWRITES:
                current = _unchanged(memory_id, seen, known)
                planned.append(self._with_entry(current, entry, session_id))
                done.updated.append(memory_id)
            elif entry.decision is MemoryDecision.DUPLICATE or self._is_there(
                entry, session_id, [*known.memories, *planned]
            ):
                done.duplicates += 1
            else:
                planned.append(self._new_memory(entry, session_id))
                done.new.append(planned[-1].memory_id)
        done.summaries = {one.memory_id: one.summary for one in (*planned, *forgotten)}
        for memory in planned:
            self._writer.save(memory)
        for memory in forgotten:
            self._writer.forget(memory)
        if forgotten or any(entry.decision in _WRITES for entry in answer.memories):
            self._writer.write_catalog(self._folder.read().memories)
        return done

    def _new_memory(self, entry: ExtractedMemory, session_id: str) -> Memory:
        memory_id, now = new_id("mem"), utc_now()
        name = self._clean(entry.filename.replace("\\", "/").rpartition("/")[2])
        blank = Memory(
            memory_id=memory_id,
            category=entry.category,
            path=f"{entry.category}/{file_name(name, memory_id, now)}",
            summary="",
            content="",
            created_at=now,
            updated_at=now,
        )
        return self._with_entry(blank, entry, session_id)

    def _with_entry(self, memory: Memory, entry: ExtractedMemory, session_id: str) -> Memory:
        """Return the memory with a new text; its id, its path and a user's own fields stay."""
        return replace(
            memory,
            summary=self._clean_summary(entry),
            content=self._clean_content(entry),
            tags=[one_line(self._clean(tag)) for tag in entry.tags],
            updated_at=utc_now(),
            source_session_id=session_id,
            source_node_ids=list(dict.fromkeys([*memory.source_node_ids, *entry.source_node_ids])),
        )

    def _is_there(
        self, entry: ExtractedMemory, session_id: str, memories: Sequence[Memory]
    ) -> bool:
        """Return whether this memory exists, or an interrupted scan has written it in other words.

        The texts are compared as they are stored: without secrets.
        """
        summary, content = self._clean_summary(entry), self._clean_content(entry)
        for memory in memories:
            has_summary, has_content = memory.summary == summary, memory.content == content
            if has_summary and has_content:
                return True
            is_of_these_words = (
                memory.category == entry.category
                and memory.source_session_id == session_id
                and set(memory.source_node_ids) >= set(entry.source_node_ids)
            )
            if is_of_these_words and (has_summary or has_content):
                return True
        return False

    def _clean_summary(self, entry: ExtractedMemory) -> str:
        return one_line(self._clean(entry.summary))

    def _clean_content(self, entry: ExtractedMemory) -> str:
        return self._clean(entry.content).strip()


def _unchanged(memory_id: str, seen: MemoryList, known: MemoryList) -> Memory:
    """Return a memory as it is on disk, if it has not changed since the model saw it.

    Raises:
        AgentCoreError: `memory_write_failed`, it was changed or deleted.
    """
    before, current = seen.get(memory_id), known.get(memory_id)
    if before is None or current is None or before.version != current.version:
        path = before.path if before else memory_id
        raise write_failed(f"{path} was changed during the extraction")
    return current


@asynccontextmanager
async def _exclusive(folder: MemoryFolder) -> AsyncGenerator[None]:
    """Hold the folder's lock; a cancelled wait for it releases it."""
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


def answer_schema() -> str:
    """Return the JSON Schema of an answer, with every reference resolved."""
    return json.dumps(model_schema(ExtractionAnswer), sort_keys=True, ensure_ascii=False)


def parse_answer(text: str) -> ExtractionAnswer:
    """Parse an answer; a sentence around the object is ignored.

    Raises:
        SchemaError: it does not have the form; names the place.
    """
    text = unfenced(text)
    begin, end = text.find("{"), text.rfind("}")
    try:
        value = json.loads(text[begin : end + 1] if 0 <= begin < end else text)
        return ExtractionAnswer.model_validate(value, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _refused(f"{json_path(first['loc'])}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise _refused(f"it is not JSON: {str(error)[:200]}") from None


def with_plain_ids(
    answer: ExtractionAnswer, *, range_ids: Collection[str], memory_ids: Collection[str]
) -> ExtractionAnswer:
    """Return the answer with every id as it is, without the label that the model saw it with."""
    entries = [
        entry.model_copy(
            update={
                "memory_id": entry.memory_id and find_id(entry.memory_id, memory_ids),
                "source_node_ids": [find_id(one, range_ids) for one in entry.source_node_ids],
            }
        )
        for entry in answer.memories
    ]
    return answer.model_copy(update={"memories": entries})


def check_provenance(
    answer: ExtractionAnswer,
    *,
    range_ids: Collection[str],
    user_words: Mapping[str, str],
    known: Mapping[str, str],
    categories: Collection[str],
) -> None:
    """Check that the sources, the category and the text of every entry are allowed.

    Args:
        answer: the model's answer.
        range_ids: ids of the messages it was asked about.
        user_words: the user's own words in those that the user wrote, by id.
        known: the category of every existing memory, by id.
        categories: the categories in use.

    Raises:
        SchemaError: names the entry and what is wrong with it.
    """
    for number, entry in enumerate(answer.memories):
        place = f"$.memories[{number}]"
        if unknown := [one for one in entry.source_node_ids if one not in range_ids]:
            raise _refused(f"{place}.source_node_ids: {unknown[0]!r} is not a message of the range")
        is_forget = entry.decision is MemoryDecision.FORGET
        if is_forget or entry.category != "reference":
            takes = entry.decision.value if is_forget else entry.category
            if not set(entry.source_node_ids) <= user_words.keys():
                raise _refused(f"{place}.source_node_ids: {takes} takes the user's words only")
        if is_forget:
            if entry.memory_id not in known:
                raise _refused(f"{place}.memory_id: {entry.memory_id!r} is not a memory")
            if not any(may_ask_to_forget(user_words[one]) for one in entry.source_node_ids):
                raise _refused(f"{place}.source_node_ids: no words there ask to forget anything")
            continue
        if entry.category not in categories:
            raise _refused(f"{place}.category: {entry.category} is not in use")
        if entry.decision in _REWRITES and known.get(entry.memory_id or "") != entry.category:
            raise _refused(
                f"{place}.memory_id: {entry.memory_id!r} is not a {entry.category} memory"
            )
        if entry.decision in _WRITES:
            _check_text(entry, place)


def _check_text(entry: ExtractedMemory, place: str) -> None:
    if not entry.summary.strip() or not entry.content.strip():
        raise _refused(f"{place}: there is nothing to remember in it")
    parts = entry.filename.replace("\\", "/").split("/")
    if ".." in parts or parts[0] in {"", "~"}:
        raise _refused(f"{place}.filename: {entry.filename!r} leads out of the memory folder")


def _refused(what: str) -> SchemaError:
    return SchemaError(ErrorCode.SCHEMA_ERROR, f"the extraction's answer cannot be used: {what}")

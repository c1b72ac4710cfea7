"""What becomes of a call's result: wrapped, and moved out of the message if it is too large.

Everything that a call can leave is bounded here: text, JSON, pictures, errors and metadata.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from agent_core.errors import ErrorCode, StorageError
from agent_core.tools.base import ArtifactWriter, Tool, ToolOutput, ToolReturn
from agent_core.tools.bounds import shortened_facts, shortened_name, shortened_text, text_bytes
from agent_core.tools.pictures import with_shown_pictures
from agent_core.tools.result_files import SUMMARY_BYTES, ResultFiles
from agent_core.tools.results import QUICK_VALUES, TooManyValuesError, storable_text, wrap
from agent_core.types import (
    ArtifactRecord,
    ArtifactRefBlock,
    ArtifactSource,
    ContentBlock,
    Draft,
    ErrorPayload,
    JsonBlock,
    RunIdentity,
    TextBlock,
    ToolCall,
    ToolResult,
)

MAX_REFERENCES = 50
"""References to artifacts in one result; more of them are listed in one artifact."""

_BYTES_PER_TOKEN = 4
_BLOCK_BYTES = 32
_FACTS_BYTES = 8_192
_MESSAGE_BYTES = 8_192
_FEW_BLOCKS = 16


class Artifacts(Protocol):
    """Where files beside a session are kept."""

    async def put(
        self,
        data: ArtifactSource,
        *,
        session_id: str,
        agent_id: str | None = None,
        run_id: str | None = None,
        node_id: str | None = None,
        tool_call_id: str | None = None,
        kind: str,
        filename: str,
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> ArtifactRecord:
        """Store `data` (a path is moved), redacted.

        Raises:
            StorageError: it could not be stored.
        """
        ...

    async def read(self, artifact_id: str) -> bytes:
        """An artifact's content.

        Raises:
            StorageError: there is none, or it cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class BoundedResult:
    """A result that fits a message, and what the call adds to the conversation."""

    result: ToolResult
    adds: Sequence[Draft] = ()


class ResultLimiter:
    """Makes every return value and every failure a result of bounded size.

    `limit_bytes` bounds the content as JSON; `limit_tokens`, where given, bounds what it costs a
    model, at four bytes a token. Without `artifacts`, what does not fit is left out.
    """

    def __init__(
        self, artifacts: Artifacts | None, *, limit_bytes: int, limit_tokens: int | None = None
    ) -> None:
        self._artifacts = artifacts
        self._limit = min(limit_bytes, (limit_tokens or limit_bytes) * _BYTES_PER_TOKEN)

    def within(self, limit_tokens: int) -> "ResultLimiter":
        """The same, for a model that can be given `limit_tokens` at once."""
        return ResultLimiter(self._artifacts, limit_bytes=self._limit, limit_tokens=limit_tokens)

    def writer(self, run: RunIdentity, call: ToolCall) -> ArtifactWriter:
        """Where this call may keep files."""

        async def write(
            data: ArtifactSource,
            *,
            filename: str,
            kind: str = "tool_output",
            mime_type: str | None = None,
            summary: str | None = None,
        ) -> str:
            if self._artifacts is None:
                raise StorageError(ErrorCode.STORAGE_ERROR, "there are no artifacts here")
            record = await self._artifacts.put(
                data,
                session_id=run.session_id,
                agent_id=run.agent_id,
                run_id=run.run_id,
                tool_call_id=call.tool_call_id,
                kind=shortened_name(storable_text(kind)),
                filename=filename,
                mime_type=mime_type and shortened_name(storable_text(mime_type)),
                summary=summary and shortened_text(storable_text(summary), SUMMARY_BYTES),
            )
            return record.artifact_id

        return write

    async def keep(
        self, returned: ToolReturn | ToolOutput, run: RunIdentity, call: ToolCall, *, tool: Tool
    ) -> BoundedResult:
        """Wrap a return value; what is too large becomes an artifact, with head and tail here.

        Raises:
            TypeError: the value has no form in JSON.
        """
        adds: Sequence[Draft] = ()
        if isinstance(returned, ToolOutput):
            returned, adds = returned.answer, returned.adds
        result = await _wrapped(returned)
        limit = None if tool.keeps_own_limits else self._limit
        return BoundedResult(await self._bounded(result, run, call, limit=limit), adds)

    async def limit_failure(
        self, error: ErrorPayload, run: RunIdentity, call: ToolCall
    ) -> BoundedResult:
        """The answer to a call that failed; a text too long for it becomes an artifact."""
        result = await _wrapped(ToolResult(is_error=True, error=error))
        return BoundedResult(await self._bounded(result, run, call, limit=self._limit))

    async def _bounded(
        self, result: ToolResult, run: RunIdentity, call: ToolCall, *, limit: int | None
    ) -> ToolResult:
        """The result with every part of it within bounds; content only if there is a `limit`."""
        files = self._files(run, call)
        content = await with_shown_pictures(result.content, files, kept_above=self._limit)
        content = await _without_many_references(content, files)
        if limit is not None and sum(map(_size, content)) > limit:
            content = await _shortened(content, limit, files)
        changes: dict[str, Any] = {"tool_call_id": call.tool_call_id, "tool_name": call.name}
        changes["metadata"] = shortened_facts(result.metadata, _FACTS_BYTES)
        left_out: dict[str, Any] = {}
        if changes["metadata"] != result.metadata:
            left_out["metadata"] = result.metadata
        if result.error is not None:
            changes["error"] = error = _shortened_error(result.error, self._limit)
            if error != result.error:
                left_out["error"] = result.error.model_dump(mode="json")
        if left_out:
            content = [*content, *await _facts(left_out, files)]
        return result.model_copy(update={**changes, "content": content})

    def _files(self, run: RunIdentity, call: ToolCall) -> ResultFiles:
        if self._artifacts is None:
            return ResultFiles(None, None)
        return ResultFiles(self.writer(run, call), self._artifacts.read)


async def _wrapped(returned: object) -> ToolResult:
    try:
        return wrap(returned, most=QUICK_VALUES)
    except TooManyValuesError:
        return await asyncio.to_thread(wrap, returned)


async def _facts(facts: dict[str, Any], files: ResultFiles) -> list[ContentBlock]:
    raw = orjson.dumps(facts, option=orjson.OPT_INDENT_2)
    summary = f"{' and '.join(facts)} in full, {len(raw)} bytes"
    return await files.copy(raw, "details.json", "application/json", summary=summary)


async def _without_many_references(
    content: Sequence[ContentBlock], files: ResultFiles
) -> list[ContentBlock]:
    """References with bounded summaries, and no more of them than `MAX_REFERENCES`."""
    short = [_with_short_summary(block) for block in content]
    references = [block for block in short if isinstance(block, ArtifactRefBlock)]
    if len(references) <= MAX_REFERENCES:
        return short
    listed = [block.model_dump(mode="json", exclude={"type"}) for block in references]
    summary = f"{len(references)} artifacts are listed here"
    raw = orjson.dumps(listed, option=orjson.OPT_INDENT_2)
    others = [block for block in short if not isinstance(block, ArtifactRefBlock)]
    return [*others, await files.add(raw, "artifacts.json", "application/json", summary=summary)]


def _with_short_summary(block: ContentBlock) -> ContentBlock:
    match block:
        case ArtifactRefBlock() | JsonBlock():
            changes: dict[str, str] = {}
            if block.summary and text_bytes(block.summary) > SUMMARY_BYTES:
                changes["summary"] = shortened_text(block.summary, SUMMARY_BYTES)
            if isinstance(block, ArtifactRefBlock) and block.mime_type:
                changes["mime_type"] = shortened_name(block.mime_type)
            return block.model_copy(update=changes) if changes else block
        case _:
            return block


async def _shortened(
    content: Sequence[ContentBlock], limit: int, files: ResultFiles
) -> list[ContentBlock]:
    """The content within the limit: what is large of it, or many small parts, is one artifact."""
    sizes = [_size(block) for block in content]
    words = [n for n, block in enumerate(content) if isinstance(block, TextBlock | JsonBlock)]
    share = limit // max(1, len(words))
    moved = [n for n in words if len(words) > _FEW_BLOCKS or sizes[n] > share]
    if not moved:
        return [*content]
    large = [block for n in moved if isinstance(block := content[n], TextBlock | JsonBlock)]
    room = limit - sum(sizes) + sum(sizes[n] for n in moved)
    raw, filename, mime_type = await asyncio.to_thread(_written, large)
    summary = f"{len(raw)} bytes; the beginning and the end stand in the message"
    reference = await files.copy(raw, filename, mime_type, summary=summary)
    text = shortened_text(raw.decode(), max(room, limit // _FEW_BLOCKS))
    gone, place = set(moved), moved[0]
    after = [block for n, block in enumerate(content) if n > place and n not in gone]
    return [*content[:place], TextBlock(text=text), *reference, *after]


def _written(blocks: Sequence[TextBlock | JsonBlock]) -> tuple[bytes, str, str]:
    """The blocks as one file: its content, name and type."""
    match blocks:
        case [JsonBlock(data=data)]:
            raw = orjson.dumps(data, option=orjson.OPT_INDENT_2)
            return raw, "output.json", "application/json"
        case _:
            texts = [
                block.text if isinstance(block, TextBlock) else orjson.dumps(block.data).decode()
                for block in blocks
            ]
            return "\n".join(texts).encode(), "output.txt", "text/plain"


def _shortened_error(error: ErrorPayload, limit: int) -> ErrorPayload:
    changes: dict[str, Any] = {
        "type": shortened_name(error.type),
        "message": shortened_text(error.message, min(_MESSAGE_BYTES, limit)),
        "details": shortened_facts(error.details, _FACTS_BYTES),
    }
    return error.model_copy(update=changes)


def _size(block: ContentBlock) -> int:
    """Bytes that a block takes in a message, pictures aside."""
    match block:
        case TextBlock(text=text):
            return _BLOCK_BYTES + text_bytes(text)
        case JsonBlock(data=data):
            return _BLOCK_BYTES + len(orjson.dumps(data)) + text_bytes(block.summary or "")
        case ArtifactRefBlock():
            return 2 * _BLOCK_BYTES + text_bytes(block.summary or "")
        case _:
            return _BLOCK_BYTES

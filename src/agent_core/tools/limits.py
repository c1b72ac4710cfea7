"""Bounds everything that a call can leave: text, JSON, pictures, errors and metadata.

Content that is too large for a message moves into an artifact.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from msgspec import Struct, field

from agent_core.artifacts.images import (
    PICTURES,
    UnusableImageError,
    decode_base64,
    encode_base64,
    fitted,
    media_type,
)
from agent_core.artifacts.store import ArtifactStore
from agent_core.errors import ErrorCode, StorageError
from agent_core.redaction import log_failure
from agent_core.text import plural, shorten_name, shorten_text, utf8_size
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.tools.base import ArtifactWriter, Tool, ToolAnswer, ToolReturn
from agent_core.tools.results import QUICK_VALUES, ReadResult, read_result, unshown_result
from agent_core.tools.values import KeptFile, TooManyValuesError, storable_text, text_of
from agent_core.types import (
    ArtifactRefBlock,
    ArtifactSource,
    ContentBlock,
    Draft,
    ErrorPayload,
    ImageBlock,
    JsonBlock,
    RunIdentity,
    TextBlock,
    ToolCall,
    ToolResult,
)

logger = logging.getLogger(__name__)

MAX_REFERENCES = 50
"""References to artifacts in one result; more of them are listed in one artifact."""
MAX_FILES = 16
"""Files or texts in one result that are artifacts of their own; more of them are one artifact."""
MAX_IMAGES = 20
"""Pictures of one result that a model is shown."""
MAX_SHOWN_BYTES = 10_000_000
"""Total bytes of the pictures of one result shown to a model: they are part of its message."""
MAX_IMAGE_BYTES = 3_750_000
"""A larger picture is made smaller or not shown: services refuse more than 5 MB of base64."""

_BYTES_PER_TOKEN = 4
_BLOCK_BYTES = 32
_FACTS_BYTES = 8_192
_MESSAGE_BYTES = 8_192
_SUMMARY_BYTES = 1_000
_FEW_BLOCKS = 16
_SHOWN_BYTES = 1_000
_MAX_SUFFIX = 8


class BoundedResult(Struct, frozen=True):
    """A result that fits a message, and what the call adds to the conversation."""

    result: ToolResult
    adds: Sequence[Draft] = ()


class ResultLimiter:
    """Makes every return value and every failure a result of bounded size.

    `limit_bytes` bounds the content as JSON; `limit_tokens`, where given, bounds what it costs a
    model, at four bytes a token. Without `artifacts`, what does not fit is left out.
    """

    def __init__(
        self,
        artifacts: ArtifactStore | None,
        *,
        limit_bytes: int,
        limit_tokens: int | None = None,
        max_image_bytes: int = MAX_IMAGE_BYTES,
    ) -> None:
        self._artifacts = artifacts
        self._max_image_bytes = max_image_bytes
        self._limit = min(limit_bytes, (limit_tokens or limit_bytes) * _BYTES_PER_TOKEN)

    def within(self, limit_tokens: int) -> "ResultLimiter":
        """The same, for a model that can be given `limit_tokens` at once."""
        return ResultLimiter(
            self._artifacts,
            limit_bytes=self._limit,
            limit_tokens=limit_tokens,
            max_image_bytes=self._max_image_bytes,
        )

    def writer(self, run: RunIdentity, call: ToolCall) -> ArtifactWriter:
        """Return the writer with which this call may keep files."""

        async def write(
            data: ArtifactSource,
            *,
            filename: str,
            kind: str = "tool_output",
            mime_type: str | None = None,
            summary: str | None = None,
        ) -> str:
            if self._artifacts is None:
                message = "there are no artifacts here; return the content itself"
                raise StorageError(ErrorCode.STORAGE_ERROR, message)
            record = await self._artifacts.put(
                data,
                session_id=run.session_id,
                agent_id=run.agent_id,
                run_id=run.run_id,
                tool_call_id=call.tool_call_id,
                kind=shorten_name(storable_text(kind)),
                filename=filename,
                mime_type=mime_type and shorten_name(storable_text(mime_type)),
                summary=summary and shorten_text(storable_text(summary), _SUMMARY_BYTES),
            )
            return record.artifact_id

        return write

    async def limit(
        self,
        returned: ToolReturn | ToolAnswer,
        run: RunIdentity,
        call: ToolCall,
        *,
        tool: Tool | None = None,
    ) -> BoundedResult:
        """Wrap a return value; if it is too large, it becomes an artifact, shown by head and tail.

        The call has already been made: any fault of its value is reported in the result.
        """
        adds: Sequence[Draft] = ()
        if isinstance(returned, ToolAnswer):
            returned, adds = returned.answer, returned.adds
        limit = None if tool is not None and tool.keeps_own_limits else self._limit
        try:
            try:
                read = read_result(returned, most=QUICK_VALUES)
            except TooManyValuesError:
                read = await asyncio.to_thread(read_result, returned)
            if not_shown := read.result.metadata.get("not_shown"):
                logger.warning("tool %s: parts of its return value: %s", call.name, not_shown)
            result = await self._bound(read, run, call, limit=limit)
        except Exception as error:  # noqa: BLE001 - a value may do anything
            what = f"the result of tool {call.name} cannot be kept"
            log_failure(logger, what, error=error, level=logging.WARNING)
            read = ReadResult(unshown_result(f"{type(error).__name__}: {text_of(error)}"))
            result = await self._bound(read, run, call, limit=None)
        return BoundedResult(result, adds)

    async def limit_failure(
        self, error: ErrorPayload, run: RunIdentity, call: ToolCall
    ) -> BoundedResult:
        """The answer to a call that failed; a text too long for it becomes an artifact."""
        failed = read_result(ToolResult(is_error=True, error=error))
        return BoundedResult(await self._bound(failed, run, call, limit=self._limit))

    def _is_small(self, result: ToolResult, limit: int | None) -> bool:
        """Return whether a result is certainly within all bounds: a few words or values."""
        if result.error is not None or result.metadata or len(result.content) != 1:
            return False
        block = result.content[0]
        is_plain = isinstance(block, TextBlock) or (
            isinstance(block, JsonBlock) and not block.summary
        )
        return is_plain and (limit is None or _size(block) <= limit)

    async def _bound(
        self, read: ReadResult, run: RunIdentity, call: ToolCall, *, limit: int | None
    ) -> ToolResult:
        """The result with every part of it within bounds; content only if there is a `limit`."""
        result = read.result
        if not read.files and self._is_small(result, limit):
            update = {"tool_call_id": call.tool_call_id, "tool_name": call.name}
            return result.model_copy(update=update)
        files = _ResultFiles(self._artifacts, self.writer(run, call))
        content = [*result.content, *await _keep_files(read.files, files)]
        content = await _bound_pictures(
            content, files, kept_above=self._limit, max_image_bytes=self._max_image_bytes
        )
        content = await _bound_references(content, files)
        if limit is not None and sum(map(_size, content)) > limit:
            content = await _shorten(content, limit, files)
        metadata = _shorten_facts(result.metadata, _FACTS_BYTES)
        left_out: JsonObject = {}
        if metadata != result.metadata:
            left_out["metadata"] = result.metadata
        error = result.error
        if error is not None:
            changes = {
                "type": shorten_name(error.type),
                "message": shorten_text(error.message, min(_MESSAGE_BYTES, self._limit)),
                "details": _shorten_facts(error.details, _FACTS_BYTES),
            }
            error = error.model_copy(update=changes)
            if error != result.error:
                left_out["error"] = (result.error or error).model_dump(mode="json")
        if left_out:
            raw = orjson.dumps(left_out, option=orjson.OPT_INDENT_2)
            summary = f"{' and '.join(left_out)} in full, {len(raw)} bytes"
            content += await files.copy(raw, "details.json", "application/json", summary=summary)
        return result.model_copy(
            update={
                "tool_call_id": call.tool_call_id,
                "tool_name": call.name,
                "metadata": metadata,
                "error": error,
                "content": content,
            }
        )


class _ResultFiles:
    """The artifacts of one result. If the disk takes none, the result is only shortened."""

    def __init__(self, artifacts: ArtifactStore | None, write: ArtifactWriter) -> None:
        self._artifacts = artifacts
        self._write = write

    @property
    def can_keep(self) -> bool:
        """Return whether there are artifacts."""
        return self._artifacts is not None

    async def add(
        self, raw: bytes, filename: str, mime_type: str, *, summary: str
    ) -> ArtifactRefBlock | TextBlock:
        """Keep a part that is not shown; return the block that replaces it."""
        if self._artifacts is None:
            return TextBlock(text=f"[{summary}; it is left out]")
        try:
            artifact_id = await self._write(
                raw, filename=filename, mime_type=mime_type, summary=summary
            )
        except StorageError as error:
            reason = shorten_text(error.message, _SUMMARY_BYTES)
            return TextBlock(text=f"[{summary}; it could not be kept as an artifact: {reason}]")
        return ArtifactRefBlock(artifact_id=artifact_id, summary=summary, mime_type=mime_type)

    async def copy(
        self, raw: bytes, filename: str, mime_type: str, *, summary: str
    ) -> list[ContentBlock]:
        """Keep a part that is shown whole or shortened; return the blocks to put beside it."""
        if self._artifacts is None:
            return []
        return [await self.add(raw, filename, mime_type, summary=summary)]

    async def read(self, artifact_id: str) -> bytes | str:
        """An artifact's content, or why it cannot be read."""
        if self._artifacts is None:
            return "there are no artifacts here"
        try:
            return await self._artifacts.read(artifact_id)
        except StorageError as error:
            return shorten_text(error.message, _SUMMARY_BYTES)


async def _keep_files(read: Sequence[KeptFile], files: _ResultFiles) -> list[ContentBlock]:
    """The bytes that a value holds: pictures to be shown, and artifacts for the rest."""
    kept: list[ContentBlock] = []
    surplus: list[JsonObject] = []
    for number, file in enumerate(read, 1):
        if file.is_picture:
            kept.append(ImageBlock(mime_type=file.mime_type, data=encode_base64(file.content)))
        elif len(kept) < MAX_FILES:
            summary = f"{file.mime_type}, {len(file.content)} bytes: file {number} of this result"
            name = filename_for(f"file-{number}", file.mime_type)
            kept.append(await files.add(file.content, name, file.mime_type, summary=summary))
        else:
            base64 = encode_base64(file.content)
            surplus.append({"file": number, "mime_type": file.mime_type, "base64": base64})
    if surplus:
        raw = await asyncio.to_thread(orjson.dumps, surplus)
        summary = f"{plural(len(surplus), 'more file')}, in base64"
        kept.append(await files.add(raw, "files.json", "application/json", summary=summary))
    return kept


def _shorten_facts(facts: Mapping[str, JsonValue], limit_bytes: int) -> JsonObject:
    """Return the facts that fit into `limit_bytes` of JSON, small ones first.

    `left_out` lists the names of the rest.
    """
    whole = orjson.dumps(facts)
    if len(whole) <= limit_bytes:
        return dict(facts)
    sizes = {name: len(orjson.dumps({name: value})) for name, value in facts.items()}
    kept: set[str] = set()
    for name in sorted(facts, key=sizes.__getitem__):
        limit_bytes -= sizes[name]
        if limit_bytes < 0:
            break
        kept.add(name)
    left_out = [shorten_name(name) for name in facts if name not in kept]
    names = ", ".join(left_out[:10])
    note = f"{plural(len(left_out), 'value')} of {len(whole)} bytes in all: {names}"
    return {name: facts[name] for name in facts if name in kept} | {"left_out": note}


async def _bound_references(
    content: Sequence[ContentBlock], files: _ResultFiles
) -> list[ContentBlock]:
    """References with bounded summaries, and no more of them than `MAX_REFERENCES`."""
    short: list[ContentBlock] = []
    for block in content:
        if isinstance(block, ArtifactRefBlock | JsonBlock):
            changes = {"summary": block.summary and shorten_text(block.summary, _SUMMARY_BYTES)}
            if isinstance(block, ArtifactRefBlock):
                changes["mime_type"] = block.mime_type and shorten_name(block.mime_type)
            short.append(block.model_copy(update=changes))
        else:
            short.append(block)
    references = [block for block in short if isinstance(block, ArtifactRefBlock)]
    if len(references) <= MAX_REFERENCES:
        return short
    listed = [block.model_dump(mode="json", exclude={"type"}) for block in references]
    summary = f"{len(references)} artifacts are listed here"
    raw = orjson.dumps(listed, option=orjson.OPT_INDENT_2)
    others = [block for block in short if not isinstance(block, ArtifactRefBlock)]
    return [*others, await files.add(raw, "artifacts.json", "application/json", summary=summary)]


async def _shorten(
    content: Sequence[ContentBlock], limit: int, files: _ResultFiles
) -> list[ContentBlock]:
    """Shorten the content to the limit: large parts, or many small ones, become one artifact."""
    match content:
        case [JsonBlock() as block]:
            if (kept := await _move_texts(block, limit, files)) is not None:
                return kept
        case _:
            pass
    sizes = [_size(block) for block in content]
    words = [n for n, block in enumerate(content) if isinstance(block, TextBlock | JsonBlock)]
    share = limit // max(1, len(words))
    moved = [n for n in words if len(words) > _FEW_BLOCKS or sizes[n] > share]
    if not moved:
        return [*content]
    large = [block for n in moved if isinstance(block := content[n], TextBlock | JsonBlock)]
    room = limit - sum(sizes) + sum(sizes[n] for n in moved)
    raw, filename, mime_type = await asyncio.to_thread(_as_file, large)
    summary = f"{len(raw)} bytes; the message has the beginning and the end"
    reference = await files.copy(raw, filename, mime_type, summary=summary)
    text = shorten_text(raw.decode(), max(room, limit // _FEW_BLOCKS))
    gone, place = set(moved), moved[0]
    after = [block for n, block in enumerate(content) if n > place and n not in gone]
    return [*content[:place], TextBlock(text=text), *reference, *after]


async def _move_texts(
    block: JsonBlock, limit: int, files: _ResultFiles
) -> list[ContentBlock] | None:
    """Move the longest texts of a JSON value to artifacts of their own, with their line breaks.

    Returns:
        The value with the beginnings and ends of these texts, and the references; None if it would
        still not fit.
    """
    size = _size(block)
    data: Any = orjson.loads(orjson.dumps([block.data]))
    long = sorted(_find_texts(data), key=lambda found: -len(found[0][found[1]]))[:MAX_FILES]
    moved: list[tuple[Any, Any]] = []
    while size > limit and len(moved) < len(long):
        holder, key = long[len(moved)]
        size -= len(orjson.dumps(holder[key])) - 2 * _SHOWN_BYTES
        moved.append((holder, key))
    if size > limit or not files.can_keep:
        return None
    shown = _SHOWN_BYTES + (limit - size) // (2 * len(moved))  # JSON may take twice the bytes
    references: list[ContentBlock] = []
    for holder, key in moved:
        raw: bytes = holder[key].encode()
        summary = f"{len(raw)} bytes: all of a text that the message has cut"
        kept = await files.add(raw, "text.txt", "text/plain", summary=summary)
        note = "" if isinstance(kept, TextBlock) else f"[all of it: artifact:{kept.artifact_id}]"
        holder[key] = f"{shorten_text(holder[key], shown)}\n{note}"
        references.append(kept)
    return [block.model_copy(update={"data": data[0]}), *references]


def _find_texts(data: Any) -> list[tuple[Any, Any]]:
    """Return the places of the long texts in a JSON value: the list or object, and the key."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [data]
    while waiting:
        holder: Any = waiting.pop()
        keys: Iterable[Any] = holder if hasattr(holder, "keys") else range(len(holder))
        for key in keys:
            value: Any = holder[key]
            if not isinstance(value, str):
                waiting += [value] if hasattr(value, "__getitem__") else []
            elif len(value) > 2 * _SHOWN_BYTES:
                found.append((holder, key))
    return found


def _as_file(blocks: Sequence[TextBlock | JsonBlock]) -> tuple[bytes, str, str]:
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


def _size(block: ContentBlock) -> int:
    """Return the bytes that a block takes in a message, not counting pictures."""
    match block:
        case TextBlock(text=text):
            return _BLOCK_BYTES + utf8_size(text)
        case JsonBlock(data=data):
            return _BLOCK_BYTES + len(orjson.dumps(data)) + utf8_size(block.summary or "")
        case ArtifactRefBlock():
            return 2 * _BLOCK_BYTES + utf8_size(block.summary or "")
        case _:
            return _BLOCK_BYTES


class _PictureRoom(Struct):
    """Room left for pictures, and the pictures for which there was none."""

    images: int = MAX_IMAGES
    size: int = MAX_SHOWN_BYTES
    surplus: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def take(self, content: bytes) -> bool:
        """Take the room for a picture, if there is any."""
        if self.images < 1 or self.size < len(content):
            return False
        self.images -= 1
        self.size -= len(content)
        return True


async def _bound_pictures(
    content: Sequence[ContentBlock],
    files: _ResultFiles,
    *,
    kept_above: int,
    max_image_bytes: int,
) -> list[ContentBlock]:
    """Return the content with pictures a model can read, and words in place of all others.

    Args:
        content: of the result.
        files: where pictures are kept that cannot be shown, and those named by artifact come from.
        kept_above: bytes of base64 from which on a picture that is shown is kept as a file too.
        max_image_bytes: a larger picture is made smaller, or kept as a file only.
    """
    room, shown = _PictureRoom(), list[ContentBlock]()
    for block in content:
        match block:
            case ImageBlock(artifact_id=str(artifact_id), mime_type=declared):  # the tool keeps it
                reference = ArtifactRefBlock(
                    artifact_id=artifact_id, mime_type=shorten_name(declared)
                )
                raw = await files.read(artifact_id) if room.images > 0 else b""
                if isinstance(raw, str):
                    what = f"{shorten_name(declared)} of artifact {artifact_id}"
                    shown.append(TextBlock(text=f"[{what} is left out: {raw}]"))
                    continue
                with suppress(UnusableImageError):
                    known = _image_type(raw)
                    if known and room.images > 0:
                        known, raw = await _fitted(raw, known, max_bytes=max_image_bytes)
                    if known and room.take(raw):
                        shown.append(ImageBlock(mime_type=known, data=encode_base64(raw)))
                shown.append(reference)
            case ImageBlock(data=str(data), mime_type=declared):
                shown += await _show_data(
                    data,
                    declared,
                    room,
                    files,
                    kept_above=kept_above,
                    max_image_bytes=max_image_bytes,
                )
            case _:
                shown.append(block)
    if room.surplus:
        summary = f"{plural(len(room.surplus), 'more picture')}; at most {MAX_IMAGES} are shown,"
        summary += f" and of {MAX_SHOWN_BYTES} bytes in all"
        raw = orjson.dumps(room.surplus)
        shown.append(await files.add(raw, "images.json", "application/json", summary=summary))
    return shown


async def _show_data(
    data: str,
    declared: str,
    room: _PictureRoom,
    files: _ResultFiles,
    *,
    kept_above: int,
    max_image_bytes: int,
) -> list[ContentBlock]:
    """Show a picture that is part of the result."""
    content = await asyncio.to_thread(decode_base64, data)
    mime_type = shorten_name(declared)
    if content is None:
        return [TextBlock(text=f"[{mime_type} data that is not base64 is left out]")]
    known = _image_type(content)
    fits, reason = content, ""
    shown_as = known
    if room.images > 0 and known is not None:
        try:
            shown_as, fits = await _fitted(content, known, max_bytes=max_image_bytes)
        except UnusableImageError as error:
            reason = f"{known}, {len(content)} bytes: too large to be shown to a model ({error})"
    elif known is None:
        reason = f"{mime_type}, {len(content)} bytes, is not an image that a model can see"
        reason += " (PNG, JPEG, GIF or WebP)"
    if room.images > 0 and reason:
        room.images -= 1
        kept_as = known or mime_type
        if known is None and declared in PICTURES:
            kept_as = "application/octet-stream"
        name = filename_for("image", kept_as)
        return [await files.add(content, name, kept_as, summary=reason)]
    if shown_as is None or not room.take(fits):
        room.surplus.append({"mime_type": known or mime_type, "data": encode_base64(content)})
        return []
    image = ImageBlock(mime_type=shown_as, data=encode_base64(fits))
    if fits is content and len(data) <= kept_above:
        return [image]
    summary = f"the picture above, {len(content)} bytes"
    if fits is not content:
        summary += f"; the model sees a smaller one of {len(fits)} bytes"
    name = filename_for("image", known or shown_as)
    return [image, *await files.copy(content, name, known or shown_as, summary=summary)]


def _image_type(content: bytes) -> str | None:
    """Return the media type of a picture that a result may have; None for anything else."""
    kind = media_type(content)
    return kind if kind in PICTURES else None


async def _fitted(content: bytes, kind: str, *, max_bytes: int) -> tuple[str, bytes]:
    """A picture within the limit of its size; only one beyond it costs a thread."""
    if len(content) <= max_bytes:
        return kind, content
    return await asyncio.to_thread(fitted, content, kind, max_bytes=max_bytes)


def filename_for(stem: str, mime_type: str) -> str:
    """A file name with the usual ending of a media type."""
    import mimetypes  # noqa: PLC0415 - few runs name a file

    suffix = mimetypes.guess_extension(mime_type.partition(";")[0].strip().lower()) or ".bin"
    return stem + (suffix if len(suffix) <= _MAX_SUFFIX else ".bin")

"""Makes a `ToolResult` that can be stored and sent of whatever a handler returns or raises.

Models, files and programs produce text that breaks SQLite, UTF-8 or JSON (NULs, lone surrogates,
integers of 5,000 digits, lists 10,000 deep). It is made harmless here, once.
"""

import asyncio
import base64
import concurrent.futures
import contextvars
import inspect
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Self, cast

from msgspec import Struct

from agent_core.errors import AgentCoreError, ErrorCode, ToolError
from agent_core.providers.jsontext import unfenced
from agent_core.text import plural, shorten_text
from agent_core.text.json_text import JsonObject, array, unique_names
from agent_core.tools.base import ArtifactWriter
from agent_core.tools.callables import is_async
from agent_core.tools.values import (
    MAX_VALUES,
    SMALL_BYTES,
    KeptFile,
    TooManyValuesError,
    ValueWriter,
    read_text,
    storable,
    storable_facts,
    storable_text,
    text_of,
)
from agent_core.types import (
    ArtifactRefBlock,
    ArtifactSource,
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolResult,
)

QUICK_VALUES = 20_000
"""So many are converted without a pause that the event loop would notice."""

_CONTENT = (ArtifactRefBlock, ImageBlock, JsonBlock, TextBlock)
_MAX_REASONS = 5


class ReadResult(Struct, frozen=True):
    """A returned value as a result, and the bytes in it that become files."""

    result: ToolResult
    files: Sequence[KeptFile] = ()


def wrap(value: object) -> ToolResult:
    """Make a result of a handler's return value, where no files can be kept.

    See `read_result`. A picture is shown, a few bytes are base64, and other files are named.
    """
    read = read_result(value)
    content = [*read.result.content]
    for file in read.files:
        if file.is_picture:
            data = base64.b64encode(file.content).decode()
            content.append(ImageBlock(mime_type=file.mime_type, data=data))
        elif len(file.content) <= SMALL_BYTES:
            content.append(JsonBlock(data=base64.b64encode(file.content).decode()))
        else:
            text = f"[{file.mime_type}, {len(file.content)} bytes; it is left out]"
            content.append(TextBlock(text=text))
    return read.result.model_copy(update={"content": content}) if read.files else read.result


def read_result(value: object, *, most: int = MAX_VALUES) -> ReadResult:
    """Make a result of a handler's return value: text as text, everything else as JSON.

    A block of content, or a list of nothing but such blocks, is the content of the result.
    Models, dataclasses, paths and times inside become plain JSON, and so do blocks that have no
    place in a result (calls, reasoning). Bytes become text or files; a few bytes inside a value
    become base64.

    It never fails because of the value: the call has been made. A value that JSON cannot express is
    left out, and a text says so.

    Raises:
        TooManyValuesError: it has more than `most` parts, and might be read in a thread.
    """
    writer = ValueWriter(most, takes_files=True)
    try:
        result = _result_of(value, writer)
    except TooManyValuesError as error:
        if most < MAX_VALUES:
            raise
        return ReadResult(unshown_result(str(error)))
    except BaseException as error:  # noqa: BLE001 - a program's value may do anything
        return ReadResult(unshown_result(f"{type(error).__name__}: {text_of(error)}"))
    if writer.left_out:
        result = _with_note(result, writer.left_out)
    return ReadResult(result, writer.files)


def unshown_result(*reasons: str, part: str = "") -> ToolResult:
    """Return the answer to a call that was made but whose value cannot be shown."""
    what = f"{part}its return value"
    text = f"The call was made; {what} cannot be shown ({'; '.join(reasons)})."
    metadata = {"not_shown": list(reasons)}
    return ToolResult(content=[TextBlock(text=storable_text(text))], metadata=metadata)


def _with_note(result: ToolResult, left_out: Iterable[str]) -> ToolResult:
    """Return the result with a text that names the parts left out."""
    reasons = [*left_out]
    if len(reasons) > _MAX_REASONS:
        more = plural(len(reasons) - _MAX_REASONS, "more kind")
        reasons = [*reasons[:_MAX_REASONS], more]
    note = unshown_result(*reasons, part="parts of " if result.content else "")
    changes = {
        "content": [*result.content, *note.content],
        "metadata": {**result.metadata, **note.metadata},
    }
    return result.model_copy(update=changes)


def _result_of(value: object, writer: ValueWriter) -> ToolResult:
    match value:
        case ToolResult():
            changes: dict[str, Any] = {"content": [_block(each, writer) for each in value.content]}
            if value.metadata:
                changes["metadata"] = storable_facts(value.metadata)
            if error := value.error:
                clean = {
                    "type": storable_text(error.type),
                    "message": storable_text(error.message),
                    "details": storable_facts(error.details),
                }
                changes["error"] = error.model_copy(update=clean)
            return value.model_copy(update=changes)
        case str():
            text_block = TextBlock.of_checked(type="text", text=storable_text(value))
            content: list[ContentBlock] = [text_block]
        case ArtifactRefBlock() | ImageBlock() | JsonBlock() | TextBlock():
            return _result_of(ToolResult(content=[value]), writer)
        case list() if value and all(isinstance(each, _CONTENT) for each in cast("Any", value)):
            return _result_of(ToolResult(content=cast("Any", value)), writer)
        case bytes() | bytearray() | memoryview() if text := read_text(bytes(cast("Any", value))):
            return _result_of(text, writer)
        case _:
            data = writer.write(value)
            is_whole_file = bool(writer.files) and isinstance(data, str)
            is_left_out = bool(writer.left_out) and isinstance(data, str)
            block = JsonBlock.of_checked(type="json", data=data, summary=None, artifact_id=None)
            content = [] if is_whole_file or is_left_out else [block]
    return ToolResult.of_checked(
        tool_call_id="", tool_name="", content=content, is_error=False, error=None, metadata={}
    )


def parse_answer(text: str, *, is_strict: bool = False) -> Any:
    """Return the JSON value that an answer is, with or without a fence around it.

    Raises:
        ValueError: it is not JSON, or, if `is_strict`, an object has a name twice.
    """
    hook = unique_names if is_strict else None
    try:
        # A model may write NaN, which a number of the expected type may be.
        return storable(json.loads(unfenced(text), parse_constant=str, object_pairs_hook=hook))
    except (RecursionError, TooManyValuesError) as error:
        raise ValueError("it is nested too deeply") from error


def failure_of(tool_name: str, error: BaseException) -> ErrorPayload:
    """The error of a call; anything but an error of the core's is `internal_error`."""
    code: Any = getattr(error, "code", None)
    if isinstance(error, AgentCoreError) and isinstance(code, ErrorCode):
        return ErrorPayload(
            type=storable_text(type(error).__name__),
            code=code,
            message=storable_text(str(error.message)),
            retryable=bool(error.retryable),
            details=storable_facts(error.details),
        )
    notes: Any = getattr(error, "__notes__", None)
    parts = [error, *array(notes)]
    texts = "\n".join(map(text_of, map(text_of, parts)))  # a text may be one that is not plain
    text = f"{tool_name} broke: {type(error).__name__}: {texts}"
    return ErrorPayload(
        type="ToolError", code=ErrorCode.INTERNAL_ERROR, message=storable_text(text)
    )


def _block(block: ContentBlock, writer: ValueWriter) -> ContentBlock:
    changes: JsonObject = {}
    match block:
        case TextBlock():
            changes["text"] = storable_text(block.text)
        case JsonBlock():
            changes["data"] = writer.write(block.data)
        case ArtifactRefBlock() | ImageBlock():
            changes["mime_type"] = block.mime_type and storable_text(block.mime_type)
        case _:
            return JsonBlock(data=writer.write(block.model_dump(mode="json")))
    if isinstance(block, JsonBlock | ArtifactRefBlock):
        changes["summary"] = block.summary and storable_text(block.summary)
    return block.model_copy(update=changes)


logger = logging.getLogger(__name__)

PROGRESS_BYTES = 2_000
"""A longer line of progress is shortened."""

PROGRESS_BURST = 20
"""So many lines are shown at once; of more, the latest wait."""

_PROGRESS_SECONDS = 0.1
_MANY_LINES = 1_000
_SLOW_SECONDS = 5.0


async def in_own_thread(function: Callable[[], Any]) -> Any:
    """Run a foreign function in a thread that nothing has to wait for.

    A pooled thread that never comes back would keep others waiting and the process from ending.
    A thread that keeps running after its call was cancelled is reported in the log.
    """
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    state = contextvars.copy_context()

    def work() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(state.run(function))
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            if not isinstance(error, Exception) or isinstance(error, StopIteration):
                # It would end the event loop or pass for one of its signals.
                error = RuntimeError(f"{type(error).__name__}: {error}")
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="tool", daemon=True)
    thread.start()
    try:
        return await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        if not outcome.done():
            logger.warning("a tool continues in %s after its call was cancelled", thread.name)
        raise


class OpenCall:
    """Functions for a call to use while it runs, from the event loop and from any thread.

    Everything is handed to the loop in order. Once the call has ended, progress is ignored and an
    artifact is refused.

    Args:
        show: shows one line of progress; called in the event loop.
        write: keeps an artifact; awaited in the event loop.
        is_cancelled: whether the run is being cancelled.
    """

    def __init__(
        self, show: Callable[[str], None], write: ArtifactWriter, is_cancelled: Callable[[], bool]
    ) -> None:
        self._show = show
        self._write = write
        self._is_run_cancelled = is_cancelled
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_over = False
        self._lines: deque[str] = deque(maxlen=PROGRESS_BURST)
        self._is_due = False
        self._shown = 0
        self._allowed = float(PROGRESS_BURST)
        self._counted_at = time.monotonic()
        self._writing: set[concurrent.futures.Future[str]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Show pending progress, and end everything that threads still wait for."""
        with self._lock:
            self._is_over = True
            lines, writing = list(self._lines), list(self._writing)
            self._lines.clear()
        for line in lines:
            self._show(line)
        for each in writing:
            each.cancel()

    def progress(self, text: str) -> None:
        """Show a line to the user. Lines that come too fast to be read are left out."""
        line = storable_text(shorten_text(str(text), PROGRESS_BYTES))
        with self._lock:
            if self._is_over:
                return
            self._lines.append(line)
            if self._is_due:
                return
            self._is_due = True
        if threading.get_ident() == self._thread:
            self._show_lines()
        else:
            try:
                self._loop.call_soon_threadsafe(self._show_lines)
            except RuntimeError:  # the loop is closed; no line can be shown any more
                logger.debug("progress of a call came after the end of the event loop")

    def is_cancelled(self) -> bool:
        """Return whether the call should stop: its run is being cancelled, or it has ended."""
        return self._is_over or self._is_run_cancelled()

    def artifact(
        self,
        data: ArtifactSource,
        *,
        filename: str,
        kind: str = "tool_output",
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> Any:
        """Keep a file. In a plain function it returns the id, in a coroutine it is awaited."""
        writing = self._write(
            data, filename=filename, kind=kind, mime_type=mime_type, summary=summary
        )
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            try:
                return self._start(writing).result()
            except concurrent.futures.CancelledError:
                raise _call_ended() from None
        return writing if running is self._loop else asyncio.wrap_future(self._start(writing))

    def _start(self, writing: Coroutine[Any, Any, str]) -> concurrent.futures.Future[str]:
        with self._lock:
            try:
                if self._is_over:
                    raise RuntimeError
                future = asyncio.run_coroutine_threadsafe(writing, self._loop)
            except RuntimeError:  # the call has ended, or the loop is closed
                writing.close()
                raise _call_ended() from None
            self._writing.add(future)
        future.add_done_callback(self._writing.discard)
        return future

    def _show_lines(self) -> None:
        with self._lock:
            self._is_due = False
            now = time.monotonic()
            pause = _PROGRESS_SECONDS if self._shown < _MANY_LINES else _SLOW_SECONDS
            earned = (now - self._counted_at) / pause
            self._allowed = min(PROGRESS_BURST, self._allowed + earned)
            self._counted_at = now
            count = min(int(self._allowed), len(self._lines))
            lines = [self._lines.popleft() for _ in range(count)]
            self._allowed -= count
            self._shown += count
            if self._lines:
                self._is_due = True
                self._loop.call_later(pause, self._show_lines)
        for line in lines:
            self._show(line)


def _call_ended() -> ToolError:
    return ToolError(ErrorCode.CANCELLED, "the call has ended; its artifact was not kept")


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call an async or a plain function; a plain one does not hold up the event loop."""
    if is_async(function):
        result = await function(*args, **kwargs)
    else:
        result = await in_own_thread(partial(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result

"""Makes a `ToolResult` that can be stored and sent of whatever a handler returns or raises.

Models, files and programs produce text that breaks SQLite, UTF-8 or JSON (NULs, lone surrogates,
integers of 5,000 digits, lists 10,000 deep). It is made harmless here, once.
"""

import asyncio
import concurrent.futures
import contextvars
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Self, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from agent_core.errors import AgentCoreError, ErrorCode, ToolError
from agent_core.providers.jsontext import unfenced
from agent_core.text import join_surrogates, shorten_text
from agent_core.tools.base import ArtifactWriter
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

MAX_DEPTH = 100
"""Nesting beyond this becomes text; JSON writers stop at about 250."""

MAX_VALUES = 2_000_000
"""Values in one answer. A list that contains itself ten times has more than any memory holds."""

MAX_TEXT = 256 * 1024 * 1024
"""Characters in one answer that is not a single text."""

QUICK_VALUES = 20_000
"""So many are converted without a pause that the event loop would notice."""


class TooManyValuesError(TypeError):
    """The value has more parts than may be converted."""


_CONTENT = (ArtifactRefBlock, ImageBlock, JsonBlock, TextBlock)


def wrap(value: object, *, most: int = MAX_VALUES) -> ToolResult:
    """Make a result of what a handler returned: text as text, everything else as JSON.

    A block of content, or a list of nothing but such blocks, is the content of the result.
    Pydantic models, dataclasses, paths and times inside become plain JSON. Blocks that have no
    place in a result (calls, reasoning) become JSON too.

    Raises:
        TypeError: the value, or something in it, has no form in JSON: a generator, a socket.
        TooManyValuesError: it has more than `most` parts.
    """
    match value:
        case ToolResult():
            walk = _Walk(most)
            changes: dict[str, Any] = {"content": [_block(each, walk) for each in value.content]}
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
            return _result(TextBlock.of_checked(type="text", text=storable_text(value)))
        case ArtifactRefBlock() | ImageBlock() | JsonBlock() | TextBlock():
            return wrap(ToolResult(content=[value]), most=most)
        case list() if value and all(isinstance(each, _CONTENT) for each in cast("Any", value)):
            return wrap(ToolResult(content=cast("Any", value)), most=most)
        case _:
            return _result(_json_block(_Walk(most).value(value)))


def _result(block: ContentBlock) -> ToolResult:
    """One block of our own making, which is not looked at again."""
    return ToolResult.of_checked(
        tool_call_id="", tool_name="", content=[block], is_error=False, error=None, metadata={}
    )


def _json_block(data: Any) -> JsonBlock:
    return JsonBlock.of_checked(type="json", data=data, summary=None, artifact_id=None)


def storable_text(text: str) -> str:
    """`text` without NULs and lone surrogates; each becomes U+FFFD."""
    text = str.replace(text, "\0", "\N{REPLACEMENT CHARACTER}")  # of a subclass, too: plain text
    return text if text.isascii() else join_surrogates(text)


def storable(value: object) -> Any:
    """`value` as JSON that every store and service takes.

    Raises:
        TypeError: something in it has no form in JSON.
    """
    return _Walk(MAX_VALUES).value(value)


def parse_answer(text: str) -> Any:
    """The JSON value that an answer is, with or without a fence around it.

    Raises:
        ValueError: it is none.
    """
    try:
        return storable(json.loads(unfenced(text)))
    except (RecursionError, TypeError) as error:
        raise ValueError("it is nested too deeply") from error


def storable_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` as JSON; what has no form in JSON is named by its type. Never fails."""
    try:
        return cast("dict[str, Any]", _Walk(MAX_VALUES, is_lenient=True).value(facts))
    except TooManyValuesError as error:
        return {"left_out": str(error)}


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
    parts = [error, *(cast("list[Any]", notes) if isinstance(notes, list) else ())]
    texts = "\n".join(map(text_of, map(text_of, parts)))  # a text may be one that is not plain
    text = f"{tool_name} broke: {type(error).__name__}: {texts}"
    return ErrorPayload(
        type="ToolError", code=ErrorCode.INTERNAL_ERROR, message=storable_text(text)
    )


def text_of(value: object) -> str:
    """The text of an exception or of its note; never fails."""
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - what a program calls an exception may have no text
        return "(its text cannot be read)"


class _Walk:
    """One conversion: how much of it is left, and which containers it is inside of."""

    def __init__(self, most: int, *, is_lenient: bool = False) -> None:
        self._values_left = most
        self._text_left = MAX_TEXT
        self._is_lenient = is_lenient
        self._within: set[int] = set()

    def value(self, value: object, depth: int = 0) -> Any:
        """The value as plain JSON."""
        self._values_left -= 1
        if self._values_left < 0 or self._text_left < 0:
            message = "the answer has too many parts; write it to a file and keep that instead"
            raise TooManyValuesError(message)
        match value:
            case None | bool():
                return value
            case Enum():
                return self.value(value.value, depth)
            case str():
                self._text_left -= len(value)
                return storable_text(value)
            case float():  # text for what JSON or SQLite cannot hold
                return float(value) if math.isfinite(value) else str(value)
            case int() if -(2**63) <= value < 2**64:
                return int(value)
            case int():
                # str() of an integer beyond 4,300 digits is a ValueError; hex() has no limit.
                return str(value) if value.bit_length() < 10_000 else hex(value)
            case Mapping() | list() | tuple() | set() | frozenset():
                return self._container(cast("Any", value), depth)
            case _:
                try:
                    plain = _plain(value)
                except TypeError:
                    if not self._is_lenient:
                        raise
                    return f"({type(value).__name__[:100]})"
                return self.value(plain, depth + 1) if depth < MAX_DEPTH else "(nested too deeply)"

    def _container(self, value: Any, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            return "(nested too deeply)"
        identity = id(cast("object", value))
        if identity in self._within:
            return "(contains itself)"
        self._within.add(identity)
        try:
            if isinstance(value, Mapping):
                table = cast("Mapping[object, object]", value)
                plain: dict[str, Any] = {}
                for key, item in table.items():
                    name = storable_text(key if type(key) is str else str(self.value(key)))
                    plain[name] = self.value(item, depth + 1)
                return plain
            items: list[Any] = []
            for item in value:
                items.append(self.value(item, depth + 1))  # noqa: PERF401 - a frame less
            return items
        finally:
            self._within.discard(identity)


def _block(block: ContentBlock, walk: _Walk) -> ContentBlock:
    changes: dict[str, Any] = {}
    match block:
        case TextBlock():
            changes["text"] = storable_text(block.text)
        case JsonBlock():
            changes["data"] = walk.value(block.data)
        case ArtifactRefBlock() | ImageBlock():
            changes["mime_type"] = block.mime_type and storable_text(block.mime_type)
        case _:
            return JsonBlock(data=walk.value(block.model_dump(mode="json")))
    if isinstance(block, JsonBlock | ArtifactRefBlock):
        changes["summary"] = block.summary and storable_text(block.summary)
    return block.model_copy(update=changes)


def _plain(value: object) -> object:
    """One step towards JSON. An iterator is not taken: it may have no end."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Iterator):
        kind = type(cast("object", value)).__name__
        message = f"a handler returned {kind}, which is read only once"
        raise TypeError(f"{message}; return a list of what it gives")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    try:
        return to_jsonable_python(value)
    except ValueError as error:
        message = f"a handler returned {type(value).__name__}, which has no form in JSON"
        raise TypeError(message) from error


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
    A thread that goes on after its call was cancelled is reported in the log.
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
            logger.warning("a tool goes on in %s after its call was cancelled", thread.name)
        raise


class OpenCall:
    """What a call may use while it runs, from the event loop and from any thread.

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
        """Show what waits, and end everything that threads still wait for."""
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
        """Whether the call should stop: its run is being cancelled, or it has ended."""
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

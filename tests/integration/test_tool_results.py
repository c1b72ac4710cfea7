"""Whatever a tool does, its call is answered within bounds and the run goes on."""

import asyncio
import base64
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_core import (
    AgentRuntime,
    ArtifactRefBlock,
    ErrorCode,
    EventType,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolContext,
    ToolDefinition,
    ToolError,
    ToolResult,
    tool,
)
from agent_core.context.history import MAX_PICTURE_BYTES
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.tools.limits import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_REFERENCES
from agent_core.types import (
    ErrorPayload,
    ReplayResult,
    RunStatus,
    RuntimeEvent,
    ToolCallBlock,
    ToolPermission,
    ToolResultBlock,
)
from isolation import Home
from runtimes import ask, collect, runtime
from sweeps import sampled

PNG = b"\x89PNG\r\n\x1a\n"
BOUND = 200_000
"""No stored node or event of these tests may be larger."""


def registered(made: AgentRuntime, handler: Callable[..., Any]) -> None:
    definition = ToolDefinition(
        name="t", description="the tool of the test", permission=ToolPermission.READONLY
    )
    made.register_tool(definition, handler)


async def answered(
    home: Home, project: Path, handler: Callable[..., Any]
) -> tuple[ToolResultBlock, ReplayResult]:
    """The answer to one call of the handler, from the database, after a run that went on."""
    async with runtime(home, project, [calls("t"), "done"]) as made:
        registered(made, handler)
        handle = await ask(made)
        history = await made.replay_session("s1", include_sensitive=True)
    assert (handle.status, handle.result_text) == (RunStatus.COMPLETED, "done")
    assert all(len(node.model_dump_json()) < BOUND for node in history.nodes)
    assert all(len(event.model_dump_json()) < BOUND for event in history.events)
    (result,) = (result for node in history.nodes for result in node.results)
    return result, history


def files_of(history: ReplayResult) -> list[bytes]:
    return [Path(artifact.path).read_bytes() for artifact in history.artifacts]


class NamelessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def _noted(notes: object) -> Exception:
    error = ValueError("noted")
    vars(error)["__notes__"] = notes
    return error


def _with_note() -> Exception:
    error = ValueError("short")
    error.add_note("n" * 3_000_000)
    return error


BREAKS: dict[str, Callable[[], BaseException]] = {
    "a long text": lambda: ValueError("x" * 3_000_000),
    "a long note": _with_note,
    "a long list": lambda: KeyError(["x"] * 1_000_000),
    "a group": lambda: ExceptionGroup("g" * 1_000_000, [ValueError("y" * 1_000_000)]),
    "a long message": lambda: ToolError(ErrorCode.TIMEOUT, "x" * 3_000_000),
    "large details": lambda: ToolError(ErrorCode.TIMEOUT, "late", details={"a": "y" * 3_000_000}),
    "odd details": lambda: ToolError(
        ErrorCode.TIMEOUT, "late", details={"a": object(), "b": {1, 2}, "c": float("nan")}
    ),
    "a long name": lambda: type("E" * 100_000, (Exception,), {})("named"),
    "half characters": lambda: ValueError("a\ud800b\0c"),
    "no text": NamelessError,
    "a text that ends the program": UnspeakableError,
    "notes without text": lambda: _noted([NamelessError(), UnspeakableError(), 5]),
    "notes that are no list": lambda: _noted(5),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "a base exception": lambda: type("Own", (BaseException,), {})("own"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "colour"),
    sampled(
        [(kind, "async") for kind in BREAKS] + [(kind, "plain") for kind in BREAKS],
        keep=3,
    ),
)
async def test_whatever_a_tool_raises_is_an_answer_of_bounded_size(
    home: Home, project: Path, kind: str, colour: str
) -> None:
    def plain(arguments: dict[str, Any], context: ToolContext) -> None:
        raise BREAKS[kind]()

    async def coroutine(arguments: dict[str, Any], context: ToolContext) -> None:
        raise BREAKS[kind]()

    result, history = await answered(home, project, plain if colour == "plain" else coroutine)
    assert result.is_error
    assert result.error is not None
    assert len(result.error.message) < 10_000
    if "long" in kind and kind != "a long name":
        assert any(len(content) > 900_000 for content in files_of(history))


async def test_an_exception_keeps_its_beginning_its_end_and_the_rest_as_an_artifact(
    home: Home, project: Path
) -> None:
    async def fail(arguments: dict[str, Any], context: ToolContext) -> None:
        raise ValueError("first " + "x" * 3_000_000 + " last")

    result, history = await answered(home, project, fail)
    assert result.error is not None
    assert result.error.message.startswith("t broke: ValueError: first x")
    assert result.error.message.endswith("x last")
    (reference,) = result.content
    assert isinstance(reference, ArtifactRefBlock)
    (content,) = files_of(history)
    assert "first " + "x" * 3_000_000 + " last" in json.loads(content)["error"]["message"]


def _large_metadata() -> ToolResult:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    facts = {"deep": deep, "huge": "y" * 3_000_000, "odd": object(), "small": 1}
    return ToolResult(content=[TextBlock(text="ok")], metadata=facts)


def _referenced() -> ToolResult:
    refs = [ArtifactRefBlock(artifact_id=f"a{i}", summary="s" * 10_000) for i in range(3_000)]
    return ToolResult(content=[*refs])


def _shared() -> object:
    inner: list[Any] = ["x" * 20_000]
    for _ in range(30):
        inner = [inner, inner]
    return inner


def _self_contained() -> object:
    inner: list[Any] = []
    inner.extend([inner] * 10)
    return inner


LARGE: dict[str, Callable[[], Any]] = {
    "text": lambda: "line\n" * 1_000_000,
    "json": lambda: [{"n": n, "text": "word"} for n in range(100_000)],
    "3,000 small texts": lambda: ToolResult(
        content=[TextBlock(text=f"{n} " + "w" * 30) for n in range(3_000)]
    ),
    "3,000 tiny texts": lambda: ToolResult(content=[TextBlock(text="") for _ in range(3_000)]),
    "one block, 3,000 times": lambda: ToolResult(content=[TextBlock(text="w" * 30)] * 3_000),
    "3,000 small JSON": lambda: ToolResult(
        content=[JsonBlock(data={"n": n, "w": "w" * 30}) for n in range(3_000)]
    ),
    "a long summary": lambda: ToolResult(content=[JsonBlock(data=1, summary="s" * 3_000_000)]),
    "metadata": _large_metadata,
    "references": _referenced,
    "a long failure": lambda: ToolResult(
        is_error=True,
        error=ErrorPayload(
            type="T" * 1_000_000,
            code=ErrorCode.TIMEOUT,
            message="m" * 3_000_000,
            details={"d": ["x"] * 1_000_000},
        ),
    ),
    "calls": lambda: ToolResult(
        content=[
            ToolCallBlock(tool_call_id=f"c{n}", name="code.write_file", arguments={"a": "b" * 100})
            for n in range(3_000)
        ]
    ),
    "a shared part": _shared,
    "itself": _self_contained,
    "half characters": lambda: {"a\ud800": "b\0" * 100_000, "\0": ["\udfff"]},
}


@pytest.mark.parametrize("kind", sampled(LARGE, keep=3))
async def test_whatever_a_tool_returns_is_kept_within_bounds_and_in_few_artifacts(
    home: Home, project: Path, kind: str
) -> None:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> Any:
        return LARGE[kind]()

    result, history = await answered(home, project, handler)
    assert len(history.artifacts) <= 2
    assert len(result.content) <= MAX_REFERENCES
    assert len(result.model_dump_json()) < 100_000


async def test_many_small_blocks_are_one_artifact_with_all_of_them(
    home: Home, project: Path
) -> None:
    texts = [f"block {n} " + "w" * 30 for n in range(3_000)]

    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(content=[TextBlock(text=text) for text in texts])

    result, history = await answered(home, project, handler)
    assert [content.decode().split("\n") for content in files_of(history)] == [texts]
    text, reference = result.content
    assert isinstance(text, TextBlock)
    assert text.text.startswith("block 0 ")
    assert "block 2999 " in text.text
    assert isinstance(reference, ArtifactRefBlock)


async def test_a_small_window_takes_smaller_results(home: Home, project: Path) -> None:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> str:
        return "word " * 6_000  # 30 kB: within the limit in bytes

    config = '[model]\nprovider = "custom"\nname = "script"\ncontext_window = 8192\n'
    async with runtime(home, project, [calls("t"), "done"], config=config) as made:
        registered(made, handler)
        await ask(made)
        history = await made.replay_session("s1")
    (result,) = (result for node in history.nodes for result in node.results)
    assert len(result.model_dump_json()) < 8192 / 2 * 4 + 1000
    assert [artifact.size_bytes for artifact in history.artifacts] == [30_000]


async def test_a_full_disk_costs_the_long_form_and_not_the_answer(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, [calls("t"), "done"]) as made:

        async def handler(arguments: dict[str, Any], context: ToolContext) -> str:
            folder = home.path / "sessions" / "s1"
            folder.mkdir(parents=True)
            (folder / "artifacts").write_text("a file where the folder should be")
            return "x" * 1_000_000

        registered(made, handler)
        handle = await ask(made)
        history = await made.replay_session("s1")
    assert handle.status is RunStatus.COMPLETED
    (result,) = (result for node in history.nodes for result in node.results)
    assert not result.is_error
    text, note = result.content
    assert isinstance(text, TextBlock)
    assert text.text.startswith("xxx")
    assert isinstance(note, TextBlock)
    assert "could not be kept" in note.text


# --- pictures ------------------------------------------------------------------------------------


def picture(size: int, head: bytes = PNG) -> bytes:
    body = bytes(n * 7 % 251 for n in range(251))
    return (head + body * (size // len(body) + 1))[:size]


def image(content: bytes, mime_type: str = "image/png") -> ImageBlock:
    return ImageBlock(mime_type=mime_type, data=base64.b64encode(content).decode())


async def pictured(
    home: Home, project: Path, *blocks: ImageBlock
) -> tuple[list[Any], list[bytes], list[Any]]:
    """What the model was shown in the same run and in the next one, and the files kept."""

    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(content=[TextBlock(text="see"), *blocks])

    provider = ScriptedProvider([calls("t"), "seen", "again"])
    async with runtime(home, project, provider) as made:
        registered(made, handler)
        await ask(made)
        history = await made.replay_session("s1")
    async with runtime(home, project, provider) as made:
        assert (await ask(made)).status is RunStatus.COMPLETED
    shown = [_results(request.messages) for request in provider.requests[1:]]
    assert shown[0] == shown[1]  # a new process reads the same from the database
    return shown[0], files_of(history), history.artifacts


def _results(messages: Any) -> list[Any]:
    return [
        part
        for message in messages
        for block in message.content
        if isinstance(block, ToolResultBlock)
        for part in block.content
    ]


async def test_a_large_picture_reaches_the_model_and_its_file_is_the_picture(
    home: Home, project: Path
) -> None:
    content = picture(100_000)
    shown, files, artifacts = await pictured(home, project, image(content))
    assert shown[:2] == [TextBlock(text="see"), image(content)]
    assert files == [content]
    assert (artifacts[0].mime_type, artifacts[0].filename) == ("image/png", "image.png")


async def test_a_picture_that_the_tool_has_kept_itself_reaches_the_model(
    home: Home, project: Path
) -> None:
    content = picture(100_000)

    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        known = await context.artifact(content, filename="chart.png", mime_type="image/png")
        missing = ImageBlock(mime_type="m" * 100_000, artifact_id="art_missing")
        return ToolResult(content=[ImageBlock(mime_type="image/x", artifact_id=known), missing])

    provider = ScriptedProvider([calls("t"), "seen"])
    async with runtime(home, project, provider) as made:
        registered(made, handler)
        await ask(made)
        history = await made.replay_session("s1")
    shown = _results(provider.requests[1].messages)
    (artifact,) = history.artifacts
    assert shown[0] == image(content)
    assert isinstance(shown[1], ArtifactRefBlock)
    assert shown[1].artifact_id == artifact.artifact_id
    assert isinstance(shown[2], TextBlock)
    assert "artifact art_missing is left out" in shown[2].text
    assert len(shown[2].text) < 1_000


@pytest.mark.sweep
async def test_many_pictures_by_artifact_are_no_more_than_references(
    home: Home, project: Path
) -> None:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        known = await context.artifact(picture(100), filename="chart.png")
        block = ImageBlock(mime_type="image/png", artifact_id=known)
        return ToolResult(content=[block] * 3_000)

    result, _ = await answered(home, project, handler)
    pictures = [block for block in result.content if isinstance(block, ImageBlock)]
    assert len(pictures) == MAX_IMAGES
    assert len(result.content) <= MAX_IMAGES + 1


@pytest.mark.long
@pytest.mark.timeout(90)  # many megabytes of pictures
async def test_pictures_are_bounded_in_a_result_and_older_ones_give_way_in_a_request(
    home: Home, project: Path
) -> None:
    sizes = [[3_300_000] * 3 + [200_000] * 2, [1_000_000] * 2, [3_300_000] * 2]
    made = [[image(picture(size + n)) for n, size in enumerate(each)] for each in sizes]
    results = iter(made)

    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(content=[TextBlock(text="see"), *next(results)])

    provider = ScriptedProvider([*(calls("t") for _ in made), "done"])
    async with runtime(home, project, provider) as opened:
        registered(opened, handler)
        assert (await ask(opened)).status is RunStatus.COMPLETED
        history = await opened.replay_session("s1")
    seen = [
        [part for part in _results(request.messages) if isinstance(part, ImageBlock)]
        for request in provider.requests
    ]
    assert all(sum(len(each.data or "") for each in one) <= MAX_PICTURE_BYTES for one in seen)
    assert seen[1] == made[0][:3]
    assert len(seen[-1]) >= 4
    newest = _results(provider.requests[-1].messages[-1:])
    kept = [part for part in newest if not isinstance(part, ArtifactRefBlock)]
    assert kept == [TextBlock(text="see"), *made[-1]]
    (listed,) = (each for each in history.artifacts if each.mime_type == "application/json")
    surplus = json.loads(Path(listed.path).read_bytes())
    assert [each["data"] for each in surplus] == [each.data for each in made[0][3:]]


async def test_the_media_type_of_a_picture_is_text_that_can_be_stored(
    home: Home, project: Path
) -> None:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        good = image(picture(100)).model_copy(update={"mime_type": "image/png\ud800"})
        bad = ImageBlock(mime_type="image/\ud800\0", data="!")
        return ToolResult(content=[good, bad])

    result, _ = await answered(home, project, handler)
    assert result.content[0] == image(picture(100))
    assert result.model_dump_json()


@pytest.mark.sweep
async def test_the_description_of_an_artifact_is_bounded(home: Home, project: Path) -> None:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> str:
        long = "l\ud800" + "x" * 3_000_000
        return await context.artifact(b"x", filename=long, kind=long, mime_type=long, summary=long)

    _, history = await answered(home, project, handler)
    (artifact,) = history.artifacts
    assert len(artifact.model_dump_json()) < 5_000


async def test_a_picture_is_what_its_bytes_say(home: Home, project: Path) -> None:
    jpeg = picture(500, b"\xff\xd8\xff\xe0")
    webp = picture(500, b"RIFF\x00\x00\x00\x00WEBP")
    wrapped = base64.encodebytes(picture(500)).decode()  # with line ends
    shown, files, _ = await pictured(
        home,
        project,
        image(jpeg, "image/png"),
        image(webp, "application/x-odd"),
        ImageBlock(mime_type="image/png", data=wrapped),
    )
    expected = [image(jpeg, "image/jpeg"), image(webp, "image/webp"), image(picture(500))]
    assert shown[1:] == expected
    assert files == []


async def test_a_picture_that_is_none_is_kept_and_not_shown(home: Home, project: Path) -> None:
    shown, files, artifacts = await pictured(
        home,
        project,
        image(b"not a picture" * 10),
        image(b"<svg xmlns=''/>", "image/svg+xml"),
        ImageBlock(mime_type="image/png", data="%%%"),
    )
    assert files == [b"not a picture" * 10, b"<svg xmlns=''/>"]
    assert [each.mime_type for each in artifacts] == ["application/octet-stream", "image/svg+xml"]
    assert not any(isinstance(block, ImageBlock) for block in shown)
    assert "is not an image" in shown[1].summary
    assert "not base64" in shown[3].text


@pytest.mark.sweep
async def test_a_picture_beyond_the_limit_is_kept_and_refused_with_the_reason(
    home: Home, project: Path
) -> None:
    content = PNG + bytes(MAX_IMAGE_BYTES)
    shown, files, _ = await pictured(home, project, image(content))
    assert files == [content]
    assert not any(isinstance(block, ImageBlock) for block in shown)
    assert "too large to be shown" in shown[1].summary


async def test_many_pictures_are_shown_up_to_a_number_and_the_rest_is_one_artifact(
    home: Home, project: Path
) -> None:
    pictures = [image(picture(200 + n)) for n in range(MAX_IMAGES + 300)]
    shown, files, _ = await pictured(home, project, *pictures)
    assert [block for block in shown if isinstance(block, ImageBlock)] == pictures[:MAX_IMAGES]
    (listed,) = files
    assert [each["data"] for each in orjson.loads(listed)] == [
        each.data for each in pictures[MAX_IMAGES:]
    ]


# --- plain functions in threads ------------------------------------------------------------------


async def test_a_plain_function_may_use_its_context(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    def work(context: ToolContext) -> dict[str, Any]:
        """Work."""
        for n in range(5):
            context.progress(f"step {n}")
        artifact_id = context.artifact(b"made in a thread", filename="made.txt")
        context.progress("kept")
        return {"artifact_id": artifact_id, "cancelled": context.cancelled}

    async with runtime(home, project, [calls("work"), "done"]) as made:
        made.register_tool(work)
        handle = await made.start("go", session_id="s1")
        events = await collect(handle)
        history = await made.replay_session("s1")
    assert handle.status is RunStatus.COMPLETED
    assert lines_of(events) == ["step 0", "step 1", "step 2", "step 3", "step 4", "kept"]
    kinds = [event.event_type for event in events]
    assert kinds.index(EventType.TOOL_COMPLETED) > max(
        place for place, kind in enumerate(kinds) if kind is EventType.TOOL_PROGRESS
    )
    (artifact,) = history.artifacts
    (result,) = (result for node in history.nodes for result in node.results)
    expected = {"artifact_id": artifact.artifact_id, "cancelled": False}
    assert result.content == [JsonBlock(data=expected)]
    assert files_of(history) == [b"made in a thread"]


def lines_of(events: list[RuntimeEvent]) -> list[str]:
    return [e.payload["text"] for e in events if e.event_type is EventType.TOOL_PROGRESS]


async def test_a_loop_of_its_own_in_a_thread_may_await_an_artifact(
    home: Home, project: Path
) -> None:
    def handler(arguments: dict[str, Any], context: ToolContext) -> str:
        async def keep() -> str:
            return await context.artifact(b"from another loop", filename="a.txt")

        return asyncio.run(keep())

    _, history = await answered(home, project, handler)
    assert files_of(history) == [b"from another loop"]


@pytest.mark.parametrize("colour", sampled(["plain", "async"], keep=1))
async def test_a_flood_of_progress_is_thinned_out_and_its_last_line_is_shown(
    home: Home, project: Path, colour: str
) -> None:
    def flood(context: ToolContext) -> str:
        for n in range(20_000):
            context.progress(f"{n} " + "x" * 100_000 * (n == 19_999))
        return "ok"

    def plain(arguments: dict[str, Any], context: ToolContext) -> str:
        return flood(context)

    async def coroutine(arguments: dict[str, Any], context: ToolContext) -> str:
        return flood(context)

    handler = plain if colour == "plain" else coroutine
    _, history = await answered(home, project, handler)
    lines = lines_of(history.events)
    assert len(lines) < 200
    assert lines[-1].startswith("19999 ")
    assert len(lines[-1]) < 3_000
    numbers = [int(line.split()[0]) for line in lines]
    assert numbers == sorted(numbers)


async def test_a_thread_that_never_returns_is_left_behind_and_reported(
    home: Home, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began, release = threading.Event(), threading.Event()
    is_refused = threading.Event()
    seen: list[bool] = []

    def hang(arguments: dict[str, Any], context: ToolContext) -> str:
        began.set()
        release.wait(15)
        context.progress("too late")
        seen.append(context.cancelled)
        try:
            context.artifact(b"too late", filename="late.txt")
        except ToolError:
            is_refused.set()
        return "late"

    async with runtime(home, project, [calls("t"), "done", "next"]) as made:
        registered(made, hang)
        handle = await made.start("go", session_id="s1")
        await asyncio.to_thread(began.wait, 10)
        started = time.monotonic()
        with caplog.at_level(logging.WARNING, "agent_core.tools.results"):
            await handle.cancel()
        assert time.monotonic() - started < 12
        assert handle.status is RunStatus.CANCELLED
        release.set()
        assert await asyncio.to_thread(is_refused.wait, 10)
        assert (await ask(made, "and now?")).result_text == "done"
        history = await made.replay_session("s1")
    assert "continues in" in caplog.text
    assert seen == [True]
    assert history.artifacts == []
    assert lines_of(history.events) == []


async def test_a_thread_that_waits_for_an_artifact_is_freed_when_its_run_is_cancelled(
    home: Home, project: Path
) -> None:
    ended = threading.Event()
    asked = threading.Event()

    def keep(arguments: dict[str, Any], context: ToolContext) -> str:
        try:
            for _ in range(100_000):
                asked.set()
                context.artifact(b"x" * 100_000, filename="x.bin")
        finally:
            ended.set()
        return "all"

    async with runtime(home, project, [calls("t"), "done"]) as made:
        registered(made, keep)
        handle = await made.start("go", session_id="s1")
        await asyncio.to_thread(asked.wait, 10)
        await handle.cancel()
        assert handle.status is RunStatus.CANCELLED
        assert await asyncio.to_thread(ended.wait, 5)


# --- generators ----------------------------------------------------------------------------------


def _numbers() -> Iterator[int]:
    yield 1


async def _async_numbers() -> AsyncIterator[int]:
    yield 1


def _endless() -> Iterator[int]:
    while True:
        yield 1


RETURNED: dict[str, Callable[[], Any]] = {
    "a generator": _numbers,
    "an async generator": _async_numbers,
    "an endless generator inside": lambda: {"numbers": _endless()},
    "an iterator": lambda: iter([1, 2]),
    "a file": lambda: Path(__file__).open(encoding="utf-8"),  # noqa: SIM115
}


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.parametrize("kind", sampled(RETURNED, keep=2))
async def test_what_a_plain_function_returns_has_to_be_a_value(
    home: Home, project: Path, kind: str
) -> None:
    def handler(arguments: dict[str, Any], context: ToolContext) -> Any:
        return RETURNED[kind]()

    result, _ = await answered(home, project, handler)
    assert not result.is_error
    (said,) = (block for block in result.content if isinstance(block, TextBlock))
    assert said.text.startswith("The call was made")
    assert "return a list" in said.text


async def test_a_plain_function_may_return_a_coroutine(home: Home, project: Path) -> None:
    async def later() -> str:
        return "later"

    def handler(arguments: dict[str, Any], context: ToolContext) -> Awaitable[str]:
        return later()

    result, _ = await answered(home, project, handler)
    assert result.content == [TextBlock(text="later")]


async def test_a_name_of_ten_thousand_letters_is_shortened_in_every_event(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, [calls("n" * 10_000, x="y" * 20_000), "done"]) as made:
        handle = await made.start("go", session_id="s1")
        events = await collect(handle)
        history = await made.replay_session("s1")
    assert handle.status is RunStatus.COMPLETED
    assert max(len(event.model_dump_json()) for event in events) < 3_000
    (result,) = (result for node in history.nodes for result in node.results)
    assert len(result.model_dump_json()) < 3_000


# --- arguments -----------------------------------------------------------------------------------

ARGUMENTS: dict[str, str] = {
    "nothing closed": '{"n": 1',
    "a trailing comma": '{"n": 1,}',
    "no object": "[1]",
    "a text": '"n"',
    "NaN": '{"n": NaN}',
    "infinity": '{"n": -Infinity}',
    "a huge number": '{"n": ' + "9" * 5_000 + "}",
    "an exponent": '{"n": 1e9999}',
    "brackets": '{"n": ' + "[" * 100_000,
    "closed brackets": '{"n": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "two values": '{"n": 1}{"n": 2}',
    "a control character": '{"n": "\x01"}',
    "a comment": '{"n": 1 /* one */}',
    "single quotes": "{'n': 1}",
    "an unknown name": '{"n": 1, "' + "m" * 20_000 + '": 1}',
    "a wrong type": '{"n": "' + "x" * 20_000 + '"}',
    "half a character": '{"n": "\\ud800"}',
    "a NUL": '{"n": "\\u0000"}',
    "null": '{"n": null}',
    "two of a name": '{"n": 1, "n": "x"}',
}


@pytest.mark.parametrize("kind", sampled(ARGUMENTS, keep=3))
async def test_arguments_that_do_not_fit_are_answered_and_the_run_goes_on(
    home: Home, project: Path, kind: str
) -> None:
    @tool(permission="readonly")
    def typed(n: int) -> int:
        return n

    async def raw(arguments: dict[str, Any], context: ToolContext) -> None: ...

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    definition = ToolDefinition(
        name="raw", description="raw", input_schema=schema, permission=ToolPermission.READONLY
    )
    written = [ScriptedCall(name=name, arguments=ARGUMENTS[kind]) for name in ("typed", "raw")]
    async with runtime(home, project, [Calls(calls=written), "done"]) as made:
        made.register_tool(typed)
        made.register_tool(definition, raw)
        handle = await ask(made)
        history = await made.replay_session("s1")
    assert handle.result_text == "done"
    results = [result for node in history.nodes for result in node.results]
    assert [result.error and result.error.code for result in results] == [
        ErrorCode.VALIDATION_ERROR,
        ErrorCode.VALIDATION_ERROR,
    ]
    assert all(len(result.model_dump_json()) < 5_000 for result in results)

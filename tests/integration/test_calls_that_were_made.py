"""A tool that has acted is never reported as broken because of what it returned."""

import asyncio
import base64
import contextlib
import json
import math
import socket
import sqlite3
import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, field_serializer

from agent_core import (
    ArtifactRefBlock,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolDefinition,
    ToolResult,
    tool,
)
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import ReplayResult, RunStatus, ToolResultBlock
from isolation import Home
from runtimes import Asked, ask, runtime
from sweeps import sampled

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SMALL = bytes(range(128, 160))
LARGE = bytes(range(256)) * 40


async def answered(
    home: Home, project: Path, function: Callable[[], Any]
) -> tuple[ToolResultBlock, ReplayResult]:
    """The answer to one call of a tool that writes, read from the database; it was called once."""
    made = 0

    async def act() -> Any:
        nonlocal made
        made += 1
        return function()

    script = ScriptedProvider([calls("act"), "done"])
    allow = Asked("allow_once")
    async with runtime(home, project, script, permission_callback=allow) as opened:
        handle = await opened.start("go", session_id="s1", tools=[tool(act)])
        assert await handle.wait() is RunStatus.COMPLETED
        history = await opened.replay_session("s1", include_sensitive=True)
    script.assert_complete()
    assert made == 1
    (result,) = (result for node in history.nodes for result in node.results)
    assert_strict(home)
    return result, history


def assert_strict(home: Home) -> None:
    """Everything that is stored is JSON as other programs read it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is stored")

    with contextlib.closing(sqlite3.connect(home.path / "sessions.sqlite")) as database:
        for table, column in (("nodes", "content_json"), ("events", "payload_json")):
            for (text,) in database.execute(f"SELECT {column} FROM {table}"):  # noqa: S608
                json.loads(text, parse_constant=refuse)


class Broken(BaseModel):
    order: str = "o1"
    total: int = 0

    @field_serializer("total")
    def write_total(self, total: int) -> int:
        raise RuntimeError("the rate is unknown")


class Loose(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    order: str = "o1"
    line: Any = None


class Plain:
    """An object of a program, without a form in JSON."""


class Fussy(dict[str, Any]):
    def items(self) -> Any:
        yield "kept", 1
        raise ConnectionError("the cursor is closed")


def _generator() -> Iterator[int]:
    yield 1


@contextlib.contextmanager
def _context() -> Generator[None]:
    yield


def _closed_socket() -> socket.socket:
    made = socket.socket()
    made.close()
    return made


UNWRITTEN: dict[str, Callable[[], Any]] = {
    "an object": Plain,
    "a socket": _closed_socket,
    "a lock": threading.Lock,
    "a generator": _generator,
    "a context manager": _context,
    "a class": lambda: Plain,
    "a function": lambda: print,
    "a module": lambda: json,
    "an event loop": asyncio.get_running_loop,
}


@pytest.mark.parametrize("kind", sampled(UNWRITTEN, keep=2))
async def test_a_value_without_a_form_in_json_leaves_the_call_made(
    home: Home, project: Path, kind: str
) -> None:
    result, _ = await answered(home, project, UNWRITTEN[kind])
    assert not result.is_error
    (said,) = result.content
    assert isinstance(said, TextBlock)
    assert said.text.startswith("The call was made")


@pytest.mark.parametrize("kind", sampled(UNWRITTEN, keep=1))
async def test_what_can_be_read_beside_such_a_value_is_kept(
    home: Home, project: Path, kind: str
) -> None:
    result, _ = await answered(
        home,
        project,
        lambda: {"id": 7, "handle": UNWRITTEN[kind](), "rest": [1, UNWRITTEN[kind]()]},
    )
    assert not result.is_error
    data, said = result.content
    assert isinstance(data, JsonBlock)
    assert data.data["id"] == 7
    assert data.data["rest"][0] == 1
    assert isinstance(said, TextBlock)
    assert said.text.startswith("The call was made")


@pytest.mark.parametrize(
    "value",
    sampled([Broken(), [Broken()], {"a": Broken()}, Loose(line=Broken())], keep=1),
    ids=repr,
)
async def test_a_serializer_that_breaks_costs_its_own_part(
    home: Home, project: Path, value: Any
) -> None:
    result, _ = await answered(home, project, lambda: value)
    assert not result.is_error
    data, said = result.content
    assert isinstance(data, JsonBlock)
    assert "o1" in json.dumps(data.data)
    assert isinstance(said, TextBlock)
    assert "the rate is unknown" in said.text


async def test_a_mapping_that_breaks_half_way_is_kept_as_far_as_it_goes(
    home: Home, project: Path
) -> None:
    result, _ = await answered(home, project, Fussy)
    data, said = result.content
    assert isinstance(data, JsonBlock)
    assert data.data == {"kept": 1}
    assert isinstance(said, TextBlock)
    assert "the cursor is closed" in said.text


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: bytes


@dataclass
class Row:
    name: str
    data: bytes
    more: list[Any] = field(default_factory=list[Any])


@attrs.define
class Attributes:
    name: str
    data: bytes


class Record(msgspec.Struct):
    name: str
    data: bytes


class Stored(BaseModel):
    name: str
    data: bytes


def _cycle() -> Any:
    row = Row("r", b"", [])
    row.more.append(row)
    return row


def _loop() -> Any:
    order = Loose()
    order.line = order
    return order


WRITTEN: dict[str, tuple[Callable[[], Any], Any]] = {
    "a set": (lambda: {3, 1, 2}, [1, 2, 3]),
    "a date": (lambda: date(2026, 1, 2), "2026-01-02"),
    "a decimal": (lambda: Decimal("1.50"), "1.50"),
    "a path": (lambda: Path("/a/b"), "/a/b"),
    "an enum": (lambda: Colour.RED, "red"),
    "a uuid": (lambda: uuid.UUID(int=1), str(uuid.UUID(int=1))),
    "nan": (lambda: {"x": math.nan, "y": [math.inf]}, {"x": None, "y": [None]}),
    "keys": (
        lambda: {1: "a", "1": "b", None: "c", False: "d", (1, 2): "e", date(2026, 1, 2): "f"},
        {"1": "a", "1 (str)": "b", "null": "c", "false": "d", "[1, 2]": "e", "2026-01-02": "f"},
    ),
    "half characters": (lambda: ["\ud800"], ["\ufffd"]),
    "a huge number": (lambda: [10**30], [str(10**30)]),
    "a deque": (lambda: deque([1]), [1]),
    "views": (lambda: [OrderedDict(a=1).keys(), {"a": 2}.values()], [["a"], [2]]),
    "a range": (lambda: range(2), [0, 1]),
    "an exception": (lambda: [ValueError("no")], ["ValueError: no"]),
    "a cycle": (_cycle, {"name": "r", "data": "", "more": ["(contains itself)"]}),
    "a named tuple": (lambda: Pair(1, SMALL), [1, base64.b64encode(SMALL).decode()]),
}


@pytest.mark.parametrize("kind", sampled(WRITTEN, keep=2))
async def test_values_of_many_kinds_are_written_as_json(
    home: Home, project: Path, kind: str
) -> None:
    function, expected = WRITTEN[kind]
    result, _ = await answered(home, project, function)
    assert not result.is_error
    (data,) = result.content
    assert isinstance(data, JsonBlock)
    assert data.data == expected


async def test_a_model_that_contains_itself_is_written_without_that_part(
    home: Home, project: Path
) -> None:
    result, _ = await answered(home, project, _loop)
    data = result.content[0]
    assert isinstance(data, JsonBlock)
    assert data.data["order"] == "o1"
    assert len(json.dumps(data.data)) < 1_000


HOLDERS: dict[str, Callable[[bytes], Any]] = {
    "a dict": lambda raw: {"name": "n", "data": raw},
    "a bytearray": lambda raw: {"name": "n", "data": bytearray(raw)},
    "a view": lambda raw: {"name": "n", "data": memoryview(raw)},
    "a dataclass": lambda raw: Row("n", raw),
    "attrs": lambda raw: Attributes("n", raw),
    "a struct": lambda raw: Record("n", raw),
    "a model": lambda raw: Stored(name="n", data=raw),
    "models in a list": lambda raw: {"all": [Stored(name="n", data=raw)]},
}


@pytest.mark.parametrize("holder", sampled(HOLDERS, keep=1))
async def test_bytes_are_base64_if_small_and_files_if_not(
    home: Home, project: Path, holder: str
) -> None:
    small, _ = await answered(home, project, lambda: HOLDERS[holder](SMALL))
    (data,) = small.content
    assert isinstance(data, JsonBlock)
    assert base64.b64encode(SMALL).decode() in json.dumps(data.data)


@pytest.mark.parametrize("holder", sampled(HOLDERS, keep=1))
async def test_large_bytes_are_an_artifact_beside_the_rest(
    home: Home, project: Path, holder: str
) -> None:
    result, history = await answered(home, project, lambda: HOLDERS[holder](LARGE))
    data, reference = result.content
    assert isinstance(data, JsonBlock)
    assert '"n"' in json.dumps(data.data)
    assert isinstance(reference, ArtifactRefBlock)
    assert Path(history.artifacts[0].path).read_bytes() == LARGE


@pytest.mark.parametrize("holder", sampled(HOLDERS, keep=1))
async def test_a_picture_is_shown_beside_the_rest(home: Home, project: Path, holder: str) -> None:
    result, _ = await answered(home, project, lambda: HOLDERS[holder](PNG))
    data, image = result.content
    assert isinstance(data, JsonBlock)
    assert image == ImageBlock(mime_type="image/png", data=base64.b64encode(PNG).decode())


async def test_bytes_alone_are_text_if_they_are_utf_8(home: Home, project: Path) -> None:
    result, _ = await answered(home, project, lambda: "grüß".encode())
    assert result.content == [TextBlock(text="grüß")]


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_bytes_alone_are_an_artifact(home: Home, project: Path, content: bytes) -> None:
    result, history = await answered(home, project, lambda: content)
    (reference,) = result.content
    assert isinstance(reference, ArtifactRefBlock)
    assert Path(history.artifacts[0].path).read_bytes() == content


async def test_a_picture_alone_is_shown(home: Home, project: Path) -> None:
    result, _ = await answered(home, project, lambda: PNG)
    assert result.content == [
        ImageBlock(mime_type="image/png", data=base64.b64encode(PNG).decode())
    ]


async def test_many_files_are_bounded(home: Home, project: Path) -> None:
    result, history = await answered(home, project, lambda: [LARGE] * 100)
    assert len(result.content) < 30
    assert len(history.artifacts) < 30


async def test_a_finished_result_with_such_values_is_kept_as_far_as_it_can_be_read(
    home: Home, project: Path
) -> None:
    result, _ = await answered(
        home,
        project,
        lambda: ToolResult(
            content=[TextBlock(text="ok"), JsonBlock(data={"a": Plain(), "raw": LARGE})],
            metadata={"plain": Plain(), "raw": LARGE},
        ),
    )
    assert not result.is_error
    assert result.content[0] == TextBlock(text="ok")
    assert {block.type for block in result.content} == {"text", "json", "artifact_ref"}


async def test_a_tool_whose_result_cannot_be_kept_has_been_called(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent_core.tools.limits._shorten", fail)
    result, _ = await answered(home, project, lambda: "x" * 1_000_000)
    assert not result.is_error
    (said,) = result.content
    assert isinstance(said, TextBlock)
    assert said.text.startswith("The call was made")
    assert "No space left" in said.text


async def test_a_plain_handler_is_treated_alike(home: Home, project: Path) -> None:
    async with runtime(home, project, [calls("t"), "done"]) as opened:
        opened.register_tool(
            ToolDefinition(name="t", description="", permission="readonly"),
            lambda arguments, context: {"raw": LARGE, "it": Plain()},
        )
        await ask(opened)
        history = await opened.replay_session("s1", include_sensitive=True)
    (result,) = (result for node in history.nodes for result in node.results)
    assert not result.is_error
    assert [block.type for block in result.content] == ["json", "text", "artifact_ref"]


async def test_a_coroutine_that_is_returned_is_awaited(home: Home, project: Path) -> None:
    async def inner() -> str:
        return "awaited"

    result, _ = await answered(home, project, inner)
    assert result.content == [TextBlock(text="awaited")]


async def test_a_write_after_such_a_call_still_runs(home: Home, project: Path) -> None:
    made: list[str] = []

    @tool
    async def first() -> Any:
        made.append("first")
        return Plain()

    @tool
    async def second() -> str:
        made.append("second")
        return "ok"

    script = ScriptedProvider([[*calls("first").calls, *calls("second").calls], "done"])
    allow = Asked("allow_once")
    async with runtime(home, project, script, permission_callback=allow) as opened:
        await opened.run("go", tools=[first, second])
    assert made == ["first", "second"]

"""Lists with entries that are wrong, or that do not end: whatever can be used is offered."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_core.mcp.config import StdioServer
from mcp_bench import bench, plain
from sweeps import sampled

USUAL: dict[str, Any] = {"type": "object"}


def listing(diary: Path, *entries: Any, cursors: list[Any] | None = None) -> StdioServer:
    """A server that lists these entries after its usual tools."""
    server = plain(diary)
    said = {"PLAIN_TOOLS": json.dumps(entries)}
    said |= {"PLAIN_CURSORS": json.dumps(cursors)} if cursors else {}
    return server.model_copy(update={"env": {**server.env, **said}})


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


@pytest.mark.parametrize(
    "entry",
    sampled(
        [
            {"name": "x"},
            {"name": "x", "inputSchema": None},
            {"name": "x", "inputSchema": True},
            {"name": "x", "inputSchema": {}},
            {"name": "x", "inputSchema": []},
            {"name": "x", "inputSchema": {"properties": {}, "required": None}},
            {"name": "x", "inputSchema": {"type": ["object", "null"], "properties": []}},
            {"name": "x", "input_schema": USUAL},
            {"name": "x", "inputSchema": USUAL, "title": {"en": "X"}},
            {"name": "x", "inputSchema": USUAL, "title": None, "description": 7},
            {"name": "x", "inputSchema": USUAL, "icons": "x.png", "_meta": []},
            {"name": "x", "inputSchema": USUAL, "execution": "sync"},
            {"name": "x", "inputSchema": USUAL, "annotations": "readonly"},
            {"name": "x", "inputSchema": USUAL, "outputSchema": {"type": "nonsense"}},
            {"name": "x", "inputSchema": USUAL, "outputSchema": 7},
        ],
        keep=3,
    ),
)
async def test_odd_fields_cost_neither_the_tool_nor_the_others(
    diary: Path, entry: dict[str, Any]
) -> None:
    async with bench(diary, {"shop": listing(diary, entry)}) as bench_:
        assert {"mcp.shop.echo", "mcp.shop.x"} <= (await bench_.tools()).keys()
        assert bench_.failures == []
        assert await bench_.text("mcp.shop.x") == "written"


@pytest.mark.parametrize(
    ("entry", "words"),
    sampled(
        [
            ({"inputSchema": USUAL}, "the tool 11 of its list is left out: its name is missing"),
            ({"name": 7, "inputSchema": USUAL}, "its name cannot be read"),
            (
                {"name": "x", "inputSchema": "{}"},
                "the tool 'x' of its list is left out: its inputSch",
            ),
            ({"name": "x", "inputSchema": [USUAL]}, "its inputSchema cannot be read"),
            ({"name": "x", "inputSchema": {"type": "string"}}, "its inputSchema cannot be read"),
            ({"name": "x", "inputSchema": {**USUAL, "properties": {"a": 7}}}, "'x'"),
            ({"name": "x", "inputSchema": {**USUAL, "properties": {"a": {"type": "x"}}}}, "'x'"),
            (None, "it is not an object"),
            ("x", "it is not an object"),
        ],
        keep=2,
    ),
)
async def test_an_unusable_entry_is_left_out_by_name(diary: Path, entry: Any, words: str) -> None:
    async with bench(diary, {"shop": listing(diary, entry)}) as bench_:
        tools = await bench_.tools()
        assert "mcp.shop.echo" in tools
        assert "mcp.shop.x" not in tools
        [failure] = bench_.failures
        assert words in failure.message
        assert await bench_.text("mcp.shop.echo", text="on") == "on"


async def test_of_two_tools_with_one_name_the_first_is_used(diary: Path) -> None:
    first = {"name": "x", "description": "The first.", "inputSchema": USUAL}
    other = {"name": "x", "description": "Another.", "inputSchema": USUAL}
    async with bench(diary, {"shop": listing(diary, first, first, other)}) as bench_:
        tools = await bench_.tools()
        assert tools["mcp.shop.x"].definition.description == "The first."
        [failure] = bench_.failures
        assert "lists the tool 'x' twice, and the first one is used" in failure.message


@pytest.mark.parametrize(
    ("cursors", "words"),
    [
        (["more"], "pages of its list of tools do not end"),
        (["a", "b", "a"], "pages of its list of tools do not end"),
        ([{"page": 2}], "its cursor cannot be read"),
        (["", None], ""),
        ([2, ""], ""),
    ],
)
async def test_a_cursor_that_does_not_advance_ends_the_list(
    diary: Path, cursors: list[Any], words: str
) -> None:
    async with bench(diary, {"shop": listing(diary, cursors=cursors)}) as bench_:
        assert "mcp.shop.echo" in await bench_.tools()
        said = [failure.message for failure in bench_.failures]
        assert words in "".join(said)
        assert len(said) == bool(words)


@pytest.mark.parametrize(("trait", "words"), [("bom", "byte order mark"), ("pretty", "one line")])
async def test_output_that_is_spelled_wrong_is_named_at_once(
    diary: Path, trait: str, words: str
) -> None:
    async with bench(diary, {"shop": plain(diary, trait, timeout_ms=60_000)}) as bench_:
        assert await bench_.tools() == {}
        assert words in bench_.failures[0].message


async def test_a_tool_that_runs_as_a_task_only_is_left_out_with_the_reason(diary: Path) -> None:
    task = {"name": "x", "inputSchema": USUAL, "execution": {"taskSupport": "required"}}
    both = {"name": "y", "inputSchema": USUAL, "execution": {"taskSupport": "optional"}}
    async with bench(diary, {"shop": listing(diary, task, both)}) as bench_:
        tools = await bench_.tools()
        assert "mcp.shop.x" not in tools
        assert "mcp.shop.y" in tools
        assert "it runs as a task only" in bench_.failures[0].message

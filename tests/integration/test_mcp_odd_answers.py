"""Answers to calls that are a little off: nothing of a call that was made is lost."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_core.errors import ToolError
from agent_core.mcp.config import HttpServer
from integration.test_mcp_http import http_server, ordinary
from mcp_bench import Bench, bench, plain
from sweeps import paired, sampled
from tables import together

WORDS = "made it: 42"


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


TEXT = {"type": "text", "text": WORDS}
ODD: list[Any] = [
    {"content": [TEXT], "isError": "false"},
    {"content": [TEXT], "isError": None, "_meta": None},
    {"content": [TEXT], "resultType": "done"},
    {"content": [TEXT], "resultType": 7},
    {"content": [TEXT], "resultType": None, "structuredContent": None},
    {"content": [{**TEXT, "annotations": {"audience": ["robot"], "priority": "high"}}]},
    {"content": [{**TEXT, "annotations": "loud"}]},
    {"content": [{**TEXT, "_meta": 1}]},
    {"content": [TEXT, None, 7]},
    {"content": WORDS},
    {"content": [WORDS]},
    {"content": None, "structuredContent": {"said": WORDS}},
    {"structuredContent": {"said": WORDS}},
    {"structuredContent": WORDS},
    {"toolResult": WORDS},
    {"text": WORDS},
    {"output": {"said": [WORDS]}},
    WORDS,
    [TEXT],
    [{"said": WORDS}],
]


@pytest.mark.parametrize("result", sampled(ODD, keep=3))
async def test_words_over_stdio_are_kept(diary: Path, result: Any) -> None:
    line = f'{{"jsonrpc":"2.0","id":ID,"result":{json.dumps(result)}}}'
    async with bench(diary, {"shop": plain(diary, "typed")}) as bench_:
        for name in ("mcp.shop.raw", "mcp.shop.typed"):
            kept = await bench_.call(name, line=line)
            assert not kept.is_error
            assert WORDS in kept.model_dump_json()
        assert len(bench_.lines("call")) == 2


@asynccontextmanager
async def answering(
    tmp_path: Path, result: Any, *, kind: str = "application/json", batch: bool = False
) -> AsyncGenerator[Bench]:
    """A server over HTTP whose calls are answered with this result, or with these bytes."""

    async def answer(_: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message.get("method") != "tools/call":
            return ordinary(message)
        reply: Any = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        text = json.dumps([reply] if batch else reply)
        if kind == "text/event-stream":
            text = f"event: message\ndata: {text}\n\n"
        headers = {"Content-Type": kind} if kind else {}
        return web.Response(body=text.encode(), headers=headers)

    async with http_server(answer) as origin:
        server = HttpServer(url=f"{origin}/mcp")
        async with bench(tmp_path / "diary", {"shop": server}) as bench_:
            yield bench_


@together(
    ("result", "kind"),
    paired(
        [ODD[0], ODD[9], ODD[12], ODD[15], WORDS, [TEXT]],
        ["application/json", "text/event-stream"],
    ),
)
async def test_words_over_http_are_kept(tmp_path: Path, result: Any, kind: str) -> None:
    async with answering(tmp_path, result, kind=kind) as bench_:
        kept = await bench_.call("mcp.shop.greet")
        assert not kept.is_error
        assert WORDS in kept.model_dump_json()


@together("kind", ["text/plain", "application/octet-stream", "text/json"])
async def test_an_odd_content_type_loses_nothing(tmp_path: Path, kind: str) -> None:
    async with answering(tmp_path, {"content": [TEXT]}, kind=kind) as bench_:
        assert await bench_.text("mcp.shop.greet") == WORDS


async def test_a_batch_of_one_answer_is_an_answer(tmp_path: Path) -> None:
    async with answering(tmp_path, {"content": [TEXT]}, batch=True) as bench_:
        assert await bench_.text("mcp.shop.greet") == WORDS


@pytest.mark.parametrize("result", [{}, {"content": 7}, {"content": [None]}, [], None])
async def test_an_answer_that_says_nothing_does_not_invite_to_call_again(
    diary: Path, result: Any
) -> None:
    line = f'{{"jsonrpc":"2.0","id":ID,"result":{json.dumps(result)}}}'
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        with pytest.raises(ToolError) as refused:
            await bench_.call("mcp.shop.raw", line=line)
        assert "made the call" in refused.value.message
        assert not refused.value.retryable


async def test_the_words_of_an_error_and_its_data_are_kept(diary: Path) -> None:
    error = {"code": -32603, "message": "no", "data": {"why": WORDS}}
    line = f'{{"jsonrpc":"2.0","id":ID,"error":{json.dumps(error)}}}'
    async with bench(diary, {"shop": plain(diary)}) as bench_:
        with pytest.raises(ToolError) as refused:
            await bench_.call("mcp.shop.raw", line=line)
        assert "failed the call: no" in refused.value.message
        assert WORDS in refused.value.message

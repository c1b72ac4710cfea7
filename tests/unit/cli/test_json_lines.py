"""Answers of an editor, as they come over its pipe."""

import asyncio
import os

import pytest

from agent_core.cli.json_lines import Lines


@pytest.mark.parametrize("result", ['{"outcome": {"outcome": "selected"}}', "null"])
async def test_an_answer_with_an_error_has_no_result(result: str) -> None:
    (source, writing), (reading, sink) = os.pipe(), os.pipe()
    lines = Lines(source, sink)
    try:
        fault = '{"code": 1, "message": "no"}'
        line = f'{{"jsonrpc": "2.0", "id": 3, "result": {result}, "error": {fault}}}\n'
        os.write(writing, line.encode())
        message = await lines.receive()
    finally:
        await lines.close()
        for descriptor in (source, writing, reading, sink):
            os.close(descriptor)
    error = {"code": 1, "message": "no"}
    assert message == {"jsonrpc": "2.0", "id": 3, "error": error}


async def test_no_message_waits_for_ever_once_it_is_closed() -> None:
    (source, writing), (reading, sink) = os.pipe(), os.pipe()
    lines = Lines(source, sink)
    text = "x" * 2**20  # more than a pipe holds
    sending = [asyncio.create_task(lines.send({"text": text})) for _ in range(2)]
    try:
        assert await asyncio.to_thread(os.read, reading, 100)  # the first one is being written
    finally:
        await lines.close()
        for descriptor in (source, writing, reading, sink):
            os.close(descriptor)
    for each in sending:
        with pytest.raises(ConnectionError):
            await each

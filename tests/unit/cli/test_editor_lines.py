"""Answers of an editor, as they come over its pipe."""

import os

import pytest

from agent_core.cli.acp.lines import Lines


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

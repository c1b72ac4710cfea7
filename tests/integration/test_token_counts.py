"""Counts of tokens that a service makes up, in whole runtimes."""

from pathlib import Path

import pytest

from agent_core import ModelRequest, RunStatus
from agent_core.providers.scripted import Says, ScriptedProvider
from agent_core.text import estimate_text
from agent_core.types import TextBlock, Usage
from isolation import Home
from runtimes import ask, runtime
from sweeps import sampled

WINDOW = 8192
CONFIG = f"""
[model]
provider = "custom"
name = "script"
context_window = {WINDOW}

[memory]
enabled = false

[compact]
enabled = false
"""


def tokens(request: ModelRequest) -> int:
    return sum(
        estimate_text(block.text)
        for message in request.messages
        for block in message.content
        if isinstance(block, TextBlock)
    )


@pytest.mark.parametrize("count", sampled([0, 1, 7, 10**6, 10**12], keep=1))
async def test_a_count_that_no_tokenizer_has_neither_fills_the_window_nor_empties_it(
    home: Home, project: Path, count: int
) -> None:
    usage = Usage(input_tokens=count, total_tokens=count)
    provider = ScriptedProvider(lambda _: Says(text="blah " * 400, usage=usage))
    async with runtime(home, project, provider, config=CONFIG) as made:
        for number in range(24):
            handle = await ask(made, f"question {number}")
            assert handle.status is RunStatus.COMPLETED
    sizes = [tokens(request) for request in provider.requests]
    assert max(sizes) < WINDOW
    assert sizes[-1] > WINDOW // 4

"""What the first request of a plain run costs before the user's words."""

import json
import os
from pathlib import Path

import pytest

from agent_core import ModelRequest
from agent_core.providers.estimates import estimate_tools
from agent_core.providers.scripted import Says, ScriptedProvider
from agent_core.text import estimate_text
from isolation import Home
from runtimes import ask, runtime

MOST = 1500
"""Tokens of the system prompt and of the definitions of all built-in tools together."""


async def first_request(home: Home, project: Path) -> ModelRequest:
    provider = ScriptedProvider([Says(text="Hello.")])
    async with runtime(home, project, provider) as made:
        await ask(made, "hi")
    return provider.requests[0]


async def test_system_prompt_and_tools_fit_by_the_estimate(home: Home, project: Path) -> None:
    request = await first_request(home, project)
    system = sum(estimate_text(block.content) for block in request.system)
    assert {"code.run_command", "agent.create_sub_agent"} <= {tool.name for tool in request.tools}
    assert system + estimate_tools(request.tools) <= MOST


async def test_system_prompt_and_tools_fit_as_a_tokenizer_counts(home: Home, project: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    if not os.environ.get("TIKTOKEN_CACHE_DIR"):
        pytest.skip("TIKTOKEN_CACHE_DIR names no folder with tiktoken's tables")
    encoding = tiktoken.get_encoding("o200k_base")
    request = await first_request(home, project)
    texts = [block.content for block in request.system]
    texts += [
        f"{tool.name}\n{tool.description}\n{json.dumps(tool.input_schema, separators=(',', ':'))}"
        for tool in request.tools
    ]
    assert sum(len(encoding.encode(text)) for text in texts) <= MOST

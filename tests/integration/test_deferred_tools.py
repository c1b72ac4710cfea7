"""Definitions that are held back until the model asks for them, in whole runtimes."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_core import ModelRequest, RunStatus
from agent_core.context.messages import plain_text
from agent_core.errors import ErrorCode
from agent_core.providers.scripted import Calls, Says, ScriptedCall, ScriptedProvider
from agent_core.types import NodeType, ToolResultBlock
from isolation import Home
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import sampled

PLAIN = Path(__file__).parents[1] / "mcp_servers" / "plain.py"
DEFERRING = CONFIG + "\n[tools]\ndefer_above_tokens = 0\n"
SMALL = """
[model]
provider = "custom"
name = "script"
context_window = 8192

[compact]
keep_recent_tokens = 100
auto_background = false

[tools]
defer_above_tokens = 0
"""


@pytest.fixture(autouse=True)
def server(home: Home) -> None:
    entry = {"command": sys.executable, "args": ["-S", str(PLAIN)]}
    home.write("mcp.json", json.dumps({"mcpServers": {"plain": entry}}))


def calls(*each: tuple[str, Mapping[str, Any]]) -> Calls:
    return Calls(calls=[ScriptedCall(name=name, arguments=dict(given)) for name, given in each])


def results(request: ModelRequest) -> list[ToolResultBlock]:
    blocks = [block for message in request.messages for block in message.content]
    return [block for block in blocks if isinstance(block, ToolResultBlock)]


def prefix(request: ModelRequest) -> tuple[object, ...]:
    return ([block.content for block in request.system], request.tools)


FIND = calls(("internal.find_tools", {"query": "echo"}))
ECHO = calls(("mcp.plain.echo", {"text": "here"}))


async def test_names_and_first_sentences_stand_in_the_prompt_and_definitions_do_not(
    home: Home, project: Path
) -> None:
    provider = ScriptedProvider([Says(text="ok")])
    async with runtime(home, project, provider, config=DEFERRING) as made:
        await ask(made)
    request = provider.requests[0]
    (catalog,) = [block for block in request.system if block.block_id == "tool_catalog"]
    assert "- mcp__plain__echo: Says it again.\n" in catalog.content
    assert "- mcp__plain__long\n" in catalog.content
    names = {tool.name for tool in request.tools}
    assert {"internal.find_tools", "internal.call_tool", "code.read_file"} <= names
    assert not [name for name in names if name.startswith("mcp.")]


@pytest.mark.long
@pytest.mark.parametrize("setting", ["", "[tools]\ndefer_above_tokens = 100000\n"])
async def test_few_definitions_are_not_held_back(home: Home, project: Path, setting: str) -> None:
    provider = ScriptedProvider([Says(text="ok")])
    async with runtime(home, project, provider, config=CONFIG + setting) as made:
        await ask(made)
    names = {tool.name for tool in provider.requests[0].tools}
    assert "mcp.plain.echo" in names
    assert "internal.find_tools" not in names


async def test_definitions_of_more_than_a_tenth_of_the_window_are_held_back(
    home: Home, project: Path
) -> None:
    provider = ScriptedProvider([Says(text="ok")])
    config = CONFIG.replace("32000", "2500")
    async with runtime(home, project, provider, config=config) as made:
        await ask(made)
    assert "internal.find_tools" in {tool.name for tool in provider.requests[0].tools}


def by_name(name: str, given: Mapping[str, Any]) -> Calls:
    return calls((name, given))


def through_call_tool(name: str, given: Mapping[str, Any]) -> Calls:
    return calls(("internal.call_tool", {"name": name, "arguments": given}))


def through_call_tool_as_text(name: str, given: Mapping[str, Any]) -> Calls:
    return calls(("internal.call_tool", {"name": name, "arguments": json.dumps(given)}))


@pytest.mark.parametrize(
    "spell", sampled([by_name, through_call_tool, through_call_tool_as_text], keep=1)
)
async def test_a_definition_that_was_asked_for_follows_and_its_tool_can_be_called(
    home: Home, project: Path, spell: Callable[[str, Mapping[str, Any]], Calls]
) -> None:
    echo = spell("mcp.plain.echo", {"text": "here"})
    provider = ScriptedProvider([FIND, echo, Says(text="done")])
    async with runtime(home, project, provider, config=DEFERRING) as made:
        handle = await ask(made)
        assert handle.status is RunStatus.COMPLETED
    first, second, third = provider.requests
    assert prefix(first) == prefix(second) == prefix(third)
    assert third.messages[: len(second.messages)] == second.messages
    (definition,) = [
        plain_text(message.content)
        for message in second.messages
        if message.metadata.get("source_type") == NodeType.TOOL_CONTEXT
    ]
    assert definition.startswith('<tool name="mcp.plain.echo">')
    assert '"required": ["text"]' in definition
    assert plain_text(results(third)[-1].content) == "here"


async def test_a_call_without_the_definition_says_what_to_do_first(
    home: Home, project: Path
) -> None:
    provider = ScriptedProvider([ECHO, FIND, ECHO, Says(text="done")])
    async with runtime(home, project, provider, config=DEFERRING) as made:
        await ask(made)
    refused = results(provider.requests[1])[-1]
    assert refused.error is not None
    assert refused.error.code is ErrorCode.TOOL_NOT_AVAILABLE
    assert 'internal.find_tools with {"query": "mcp.plain.echo"}' in refused.error.message
    assert plain_text(results(provider.requests[-1])[-1].content) == "here"


@pytest.mark.parametrize("spell", [by_name, through_call_tool])
async def test_permissions_are_those_of_the_tool_that_is_meant(
    home: Home, project: Path, spell: Callable[[str, Mapping[str, Any]], Calls]
) -> None:
    asked = Asked("deny")
    find = calls(("internal.find_tools", {"query": "mcp.plain.write"}))
    provider = ScriptedProvider([find, spell("mcp.plain.write", {}), Says(text="done")])
    async with runtime(
        home, project, provider, config=DEFERRING, permission_callback=asked
    ) as made:
        await ask(made)
    (request,) = asked.requests
    assert request.tool_name == "mcp.plain.write"
    denied = results(provider.requests[-1])[-1]
    assert denied.error is not None
    assert denied.error.code is ErrorCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("given", "code"),
    sampled(
        [
            ({}, ErrorCode.VALIDATION_ERROR),
            ({"name": "mcp.plain.nothing"}, ErrorCode.TOOL_NOT_AVAILABLE),
            (
                {"name": "internal.call_tool", "arguments": {"name": "x"}},
                ErrorCode.VALIDATION_ERROR,
            ),
            ({"name": "mcp.plain.echo", "arguments": "{"}, ErrorCode.VALIDATION_ERROR),
            ({"name": "mcp.plain.echo", "arguments": {}}, ErrorCode.VALIDATION_ERROR),
        ],
        keep=1,
    ),
)
async def test_a_call_that_means_nothing_is_an_error_that_says_so(
    home: Home, project: Path, given: dict[str, Any], code: ErrorCode
) -> None:
    provider = ScriptedProvider([FIND, calls(("internal.call_tool", given)), Says(text="done")])
    async with runtime(home, project, provider, config=DEFERRING) as made:
        await ask(made)
    refused = results(provider.requests[-1])[-1]
    assert refused.error is not None
    assert refused.error.code is code


async def test_words_find_tools_and_nonsense_finds_none(home: Home, project: Path) -> None:
    again = calls(("internal.find_tools", {"query": "something CHANGES"}))
    nonsense = calls(("internal.find_tools", {"query": "zebra"}))
    provider = ScriptedProvider([again, again, nonsense, Says(text="done")])
    async with runtime(home, project, provider, config=DEFERRING) as made:
        await ask(made)
    found, known, nothing = (
        json.loads(plain_text(r.content) or "null") for r in results(provider.requests[-1])
    )
    assert found["tools"][0] == "mcp__plain__write"
    assert known["already_loaded"]
    assert nothing is None
    texts = [message.metadata.get("source_type") for message in provider.requests[-1].messages]
    assert texts.count(NodeType.TOOL_CONTEXT) == len(found["tools"])


@pytest.mark.long
async def test_what_was_read_is_known_after_a_restart_and_after_a_compaction(
    home: Home, project: Path
) -> None:
    said = [FIND, *("word " * 1000 for _ in range(4)), ECHO, "said", ECHO, "said again"]
    summary = '{"summary": "They talked at length, in as many words as that takes."}'

    def reply(request: ModelRequest) -> str | Calls:
        return summary if request.metadata.get("purpose") == "compact" else said.pop(0)

    first = ScriptedProvider(reply)
    async with runtime(home, project, first, config=SMALL) as made:
        for number in range(4):
            await ask(made, f"question {number}")
    then = ScriptedProvider(reply)
    async with runtime(home, project, then, config=SMALL) as made:
        assert (await ask(made, "say it")).status is RunStatus.COMPLETED
        assert plain_text(results(then.requests[-1])[-1].content) == "here"
        summarising = await made.compact_session("s1")
        assert await summarising.wait() is RunStatus.COMPLETED
        assert (await ask(made, "and again")).status is RunStatus.COMPLETED
    last = then.requests[-1]
    assert any("They talked at length" in plain_text(m.content) for m in last.messages)
    assert plain_text(results(last)[-1].content) == "here"


async def test_a_child_with_few_tools_is_shown_their_definitions(home: Home, project: Path) -> None:
    task = {"task": "echo", "allowed_tools": ["mcp.plain.echo"]}
    config = CONFIG + "\n[tools]\ndefer_above_tokens = 100\n"
    script = [calls(("agent.create_sub_agent", task)), ECHO, Says(text="child"), Says(text="done")]
    provider = ScriptedProvider(script)
    async with runtime(home, project, provider, config=config) as made:
        await ask(made)
    parent, child, *_ = provider.requests
    assert "internal.find_tools" in {tool.name for tool in parent.tools}
    assert {tool.name for tool in child.tools} == {"mcp.plain.echo"}
    assert plain_text(results(provider.requests[2])[-1].content) == "here"


async def test_a_fork_has_what_its_parent_has_read(home: Home, project: Path) -> None:
    fork = calls(("agent.fork_agent", {"task": "echo"}))
    provider = ScriptedProvider([FIND, fork, ECHO, Says(text="child"), Says(text="done")])
    async with runtime(home, project, provider, config=DEFERRING) as made:
        await ask(made)
    assert plain_text(results(provider.requests[3])[-1].content) == "here"


async def test_a_tool_that_changes_in_mid_run_is_offered_anew_and_asked_for_again(
    home: Home, project: Path
) -> None:
    asked = Asked("allow_for_session")
    write, change = calls(("mcp.plain.write", {})), calls(("mcp.plain.change", {}))
    provider = ScriptedProvider([write, write, change, write, Says(text="done")])
    async with runtime(home, project, provider, permission_callback=asked) as made:
        await ask(made)

    def described(request: ModelRequest) -> str:
        (found,) = [tool for tool in request.tools if tool.name == "mcp.plain.write"]
        return found.description

    assert described(provider.requests[2]) == "Changes something."
    assert described(provider.requests[3]) == "Changes something else."
    assert not results(provider.requests[-1])[-1].is_error
    questions = [request.tool_name for request in asked.requests]
    assert questions == ["mcp.plain.write", "mcp.plain.change", "mcp.plain.write"]


@pytest.mark.sweep
async def test_a_definition_that_changes_after_it_was_read_is_read_again(
    home: Home, project: Path
) -> None:
    find = calls(("internal.find_tools", {"query": "mcp.plain.write mcp.plain.change"}))
    write, change = calls(("mcp.plain.write", {})), calls(("mcp.plain.change", {}))
    provider = ScriptedProvider([find, change, write, find, write, Says(text="done")])
    async with runtime(
        home, project, provider, config=DEFERRING, permission_callback=Asked("allow_once")
    ) as made:
        await ask(made)
    answers = results(provider.requests[-1])
    assert answers[2].error is not None
    assert "has changed" in answers[2].error.message
    assert not answers[4].is_error

"""What the first request of a plain run costs before the user's words, and what it is sent."""

import json
import re
from pathlib import Path

import pytest

from agent_core import ErrorCode, ModelRequest
from agent_core.providers.estimates import estimate_tools
from agent_core.providers.requests import wire_name, with_wire_names
from agent_core.providers.scripted import Says, ScriptedProvider, calls
from agent_core.runtime.built_in import built_in_definitions
from agent_core.text import estimate_text
from agent_core.types.tools import CODE_TOOLS
from isolation import Home
from runtimes import CONFIG, ask, runtime

MOST = 1150
"""Tokens of the system prompt and of the definitions of all built-in tools together."""
MOST_CHARACTERS = 4_850
"""The same in characters, which are counted where no tokenizer is installed."""
TOO_MUCH = (
    "the system prompt and the tools, which every request carries, have grown: shorten the new "
    "description or schema, or raise MOST and MOST_CHARACTERS in this file and say why"
)

CANONICAL = re.compile(r"\b(?:agent|code|internal)\.[a-z_]+\b")
"""A name of a tool that no service knows: there `.` is `__`."""


async def first_request(home: Home, project: Path, *, config: str = CONFIG) -> ModelRequest:
    provider = ScriptedProvider([Says(text="Hello.")])
    async with runtime(home, project, provider, config=config) as made:
        await ask(made, "hi")
    return provider.requests[0]


def sent(request: ModelRequest) -> tuple[list[str], list[str]]:
    """Return the text of the system part, and the tools as OpenAI's services are sent them."""
    functions = [
        {
            "description": tool.description,
            "name": wire_name(tool.name),
            "parameters": tool.input_schema,
        }
        for tool in request.tools
    ]
    tools = [{"function": each, "type": "function"} for each in functions]
    texts = [json.dumps(tool, separators=(",", ":"), ensure_ascii=False) for tool in tools]
    return [block.content for block in request.system], texts


async def test_system_prompt_and_tools_fit_by_the_estimate(home: Home, project: Path) -> None:
    request = await first_request(home, project)
    system = sum(estimate_text(block.content) for block in request.system)
    assert {"code.run_command", "agent.create_sub_agent"} <= {tool.name for tool in request.tools}
    assert system + estimate_tools(request.tools) <= MOST, TOO_MUCH
    texts, tools = sent(request)
    characters = len("".join([*texts, *tools]).replace(str(project), ""))
    assert characters <= MOST_CHARACTERS, TOO_MUCH


async def test_system_prompt_and_tools_fit_as_a_tokenizer_counts(home: Home, project: Path) -> None:
    tables = pytest.importorskip("bpe_openai", reason="it needs `pip install bpe-openai`")
    encoding = tables.get_encoding("o200k_base")
    system, tools = sent(await first_request(home, project))
    texts = [text.replace(str(project), "/home/user/project") for text in [*system, *tools]]
    assert sum(len(encoding.encode(text)) for text in texts) <= MOST, TOO_MUCH


async def test_nothing_is_sent_about_skills_and_memories_that_are_not_there(
    home: Home, project: Path
) -> None:
    request = await first_request(home, project)
    assert not {"internal.load_skill", "internal.recall_memory"} & {t.name for t in request.tools}
    assert "agent.list_agent_definitions" in {tool.name for tool in request.tools}
    (system, _) = sent(request)
    assert not re.search("skills? |memory catalog|recall", "\n".join(system[1:]), re.IGNORECASE)


async def test_memory_without_memories_changes_no_byte(home: Home, project: Path) -> None:
    without = CONFIG + "\n[memory]\nenabled = false\n"
    off = sent(await first_request(home, project, config=without))
    on = sent(await first_request(home, project))
    assert on == off


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("internal.load_skill", {"name": "x"}), ("internal.recall_memory", {"query": "x"})],
)
async def test_a_tool_without_a_catalog_is_not_available(
    home: Home, project: Path, name: str, arguments: dict[str, str]
) -> None:
    provider = ScriptedProvider([calls(name, **arguments), Says(text="No.")])
    async with runtime(home, project, provider) as made:
        await ask(made, "hi")
    (result,) = [
        b for m in provider.requests[1].messages for b in m.content if b.type == "tool_result"
    ]
    assert result.error is not None
    assert result.error.code is ErrorCode.TOOL_NOT_AVAILABLE


async def test_text_names_tools_as_the_service_sees_them(home: Home, project: Path) -> None:
    home.write("skills/tidy.md", "---\nname: tidy\ndescription: Tidies up.\n---\nTidy up.\n")
    home.write("memory/user/tabs.md", "---\nid: mem_7\nsummary: Prefers tabs\n---\nTabs.\n")
    home.write("memory/MEMORY.md", "- [mem_7](user/tabs.md) user: Prefers tabs\n")
    home.write("AGENTS.md", "Be brief.\n")
    request = await first_request(home, project)
    assert {"internal.load_skill", "internal.recall_memory"} <= {t.name for t in request.tools}
    texts = [block.content for block in request.system]
    texts += [f"{tool.description} {tool.input_schema}" for tool in request.tools]
    assert [CANONICAL.findall(text) for text in texts if CANONICAL.search(text)] == []
    assert any("internal__load_skill" in text for text in texts)


def test_no_definition_names_a_tool_that_services_do_not_know() -> None:
    for name, definition in built_in_definitions().items():
        assert not CANONICAL.search(f"{definition.description} {definition.input_schema}"), name


def test_errors_name_every_built_in_tool_as_the_service_sees_it() -> None:
    for name in [*built_in_definitions(), *CODE_TOOLS, "mcp.files.read"]:
        wire = name.replace(".", "__")
        assert with_wire_names(f"use {name}, then {name}.") == f"use {wire}, then {wire}."
    same = "agent.py, code.search.md and src/code.search are files; code.md, too"
    assert with_wire_names(same) == same


async def test_an_instruction_file_in_the_prompt_is_not_listed_as_well(
    home: Home, project: Path
) -> None:
    (project / "AGENTS.md").write_text("Be brief.\n")
    (project / "deep").mkdir()
    (project / "deep" / "AGENTS.md").write_text("Be deep.\n")
    config = CONFIG + '[context]\ninstructions = "preloaded"\n'
    request = await first_request(home, project, config=config)
    blocks = {b.block_id: b.content for b in request.system}
    assert "Be brief." in blocks["instructions:AGENTS.md"]
    listed = blocks["system.instruction_catalog"].splitlines()
    assert [line for line in listed if line.startswith("- ")] == ["- deep/AGENTS.md"]

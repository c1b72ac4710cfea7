"""Definitions: what a file may say, and what an id means when several sources give it."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent_core.agents.definitions import (
    COMPACT_ID,
    AgentDefinitions,
    check_definition,
    check_definitions,
    load_compact_definition,
    read_definition,
)
from agent_core.config.models import Config, ModelConfig
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.types import AgentDefinition, AgentSource
from tables import together

HEAD = "id: reviewer\nname: Reviewer\ndescription: Looks.\n"
CONFIG = Config(model=ModelConfig(provider="scripted", name="x"))


def defined(**fields: Any) -> AgentDefinition:
    given: dict[str, Any] = {"agent_definition_id": "reviewer", "name": "n", "description": "d"}
    return AgentDefinition(**given | fields)


def write(home: Path, head: str = HEAD, body: str = "Look hard.", name: str = "a.md") -> Path:
    path = home / "agents" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\n{head}---\n{body}\n", encoding="utf-8")
    return path


def test_a_file_says_everything_a_definition_has(tmp_path: Path) -> None:
    more = "model_profile: {name: big}\nsuggested_tools: [code.search]\ntags: [a, b]\n"
    found = read_definition(write(tmp_path, f"{HEAD}{more}overrides: builtin:reviewer\n"))
    assert found == AgentDefinition(
        agent_definition_id="reviewer",
        name="Reviewer",
        description="Looks.",
        body="Look hard.",
        model_profile={"name": "big"},
        suggested_tools=["code.search"],
        tags=["a", "b"],
        overrides="builtin:reviewer",
        source=AgentSource.USER,
    )


@together(
    ("head", "said"),
    [
        ("name: n\ndescription: d\n", "needs id"),
        ("id: x\n", "needs name, description"),
        (HEAD + "system_prompt: obey\n", "unknown keys: system_prompt"),
        (HEAD + "source: builtin\n", "unknown keys: source"),
        (HEAD + "tags: a\n", "tags"),
        (HEAD.replace("reviewer", "a/b"), "agent_definition_id"),
        (HEAD.replace("reviewer", "[1, 2]"), "agent_definition_id"),
        ("id: [unclosed\n", "front matter"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_reason(
    tmp_path: Path, head: str, said: str
) -> None:
    path = write(tmp_path, head)
    with pytest.raises(ConfigError, match=said) as caught:
        read_definition(path)
    assert caught.value.code is ErrorCode.INVALID_AGENT_DEFINITION
    assert str(path) in caught.value.message
    assert "AgentDefinition" not in caught.value.message  # a file has keys, not classes


def test_a_file_without_a_head_or_text_or_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agents" / "a.md"
    path.parent.mkdir()
    for content in (b"just text", b"", b"\xff\xfe\x00", b"---\n" + b"x" * 300_000, b"---\nid: x\n"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"a\.md"):
            read_definition(path)


def test_a_folder_that_is_not_there_holds_no_definitions(tmp_path: Path) -> None:
    found = AgentDefinitions(tmp_path).listed()
    assert {each.source for each in found} == {AgentSource.BUILTIN}


def test_files_that_are_hidden_or_no_markdown_are_left_alone(tmp_path: Path) -> None:
    for name in (".swap.md", "notes.txt", "a.md~"):
        write(tmp_path, "broken\n", name=name)
    os.mkfifo(tmp_path / "agents" / "pipe.txt")
    assert AgentDefinitions(tmp_path).find("reviewer") is None


def test_only_markdown_files_that_can_be_read_are_opened(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    os.mkfifo(tmp_path / "agents" / "pipe.md")
    with pytest.raises(ConfigError, match=r"pipe\.md"):
        AgentDefinitions(tmp_path)


@together(
    ("overrides", "code"),
    [
        (None, ErrorCode.DUPLICATE_AGENT_DEFINITION),
        ("user:reviewer", None),
        ("builtin:reviewer", ErrorCode.INVALID_AGENT_OVERRIDE),
        ("code:reviewer", ErrorCode.INVALID_AGENT_OVERRIDE),
        ("user:another", ErrorCode.INVALID_AGENT_OVERRIDE),
        ("reviewer", ErrorCode.INVALID_AGENT_OVERRIDE),
    ],
)
def test_code_replaces_a_users_definition_only_by_naming_it(
    tmp_path: Path, overrides: str | None, code: ErrorCode | None
) -> None:
    write(tmp_path)
    definitions = AgentDefinitions(tmp_path)
    if code is None:
        definitions.register(defined(overrides=overrides))
        assert definitions.get("reviewer").source is AgentSource.CODE
        return
    with pytest.raises(ConfigError) as caught:
        definitions.register(defined(overrides=overrides))
    assert caught.value.code is code
    assert definitions.get("reviewer").source is AgentSource.USER


def test_nothing_overrides_within_one_source(tmp_path: Path) -> None:
    definitions = AgentDefinitions(tmp_path, [defined()])
    with pytest.raises(ConfigError) as caught:
        definitions.register(defined(overrides="code:reviewer"))
    assert caught.value.code is ErrorCode.DUPLICATE_AGENT_DEFINITION


def test_a_users_file_cannot_replace_code(tmp_path: Path) -> None:
    write(tmp_path, f"{HEAD}overrides: code:reviewer\n")
    with pytest.raises(ConfigError) as caught:
        AgentDefinitions(tmp_path, [defined()])
    assert caught.value.code is ErrorCode.INVALID_AGENT_OVERRIDE


def test_both_may_replace_a_built_in_one_and_code_wins(tmp_path: Path) -> None:
    head = HEAD.replace("reviewer", "default_sub_agent")
    write(tmp_path, f"{head}overrides: builtin:default_sub_agent\n")
    from_code = defined(agent_definition_id="default_sub_agent", overrides="user:default_sub_agent")
    definitions = AgentDefinitions(tmp_path, [from_code])
    assert definitions.get("default_sub_agent").source is AgentSource.CODE


@pytest.mark.parametrize("overrides", [None, f"builtin:{COMPACT_ID}"])
def test_the_definition_that_compacts_is_neither_listed_nor_replaced(
    tmp_path: Path, overrides: str | None
) -> None:
    definitions = AgentDefinitions(tmp_path)
    assert definitions.find(COMPACT_ID) is None
    assert COMPACT_ID not in {each.agent_definition_id for each in definitions.listed()}
    assert load_compact_definition().body
    with pytest.raises(ConfigError):
        definitions.register(defined(agent_definition_id=COMPACT_ID, overrides=overrides))


def test_an_unknown_id_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="default_worker_agent") as caught:
        AgentDefinitions(tmp_path).get("nobody")
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


def test_suggested_tools_must_exist_but_a_servers_are_not_known_yet() -> None:
    tools = {"code.search"}
    check_definition(defined(suggested_tools=["code.search", "mcp.s.t"]), CONFIG, tools)
    with pytest.raises(ConfigError, match=r"code\.fly"):
        check_definition(defined(suggested_tools=["code.fly"]), CONFIG, tools)


@pytest.mark.parametrize("profile", ["nobody", {"contextwindow": 1}])
def test_a_model_profile_has_to_be_one(profile: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_definition(defined(model_profile=profile), CONFIG, set())
    assert caught.value.code is ErrorCode.INVALID_AGENT_DEFINITION


def test_the_configured_defaults_have_to_be_there(tmp_path: Path) -> None:
    agents = CONFIG.agents.model_copy(update={"default_fork_agent_definition": "nobody"})
    config = CONFIG.model_copy(update={"agents": agents})
    with pytest.raises(ConfigError, match="default_fork_agent_definition") as caught:
        check_definitions(AgentDefinitions(tmp_path), config, set())
    assert caught.value.code is ErrorCode.CONFIG_ERROR


def test_what_is_built_in_would_be_accepted_from_anybody(tmp_path: Path) -> None:
    found = [*AgentDefinitions(tmp_path).listed(), load_compact_definition()]
    assert {each.source for each in found} == {AgentSource.BUILTIN}
    assert [AgentDefinition.model_validate(each.model_dump()) for each in found] == found

import json
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ConfigError, ErrorCode
from agent_core.hooks.file import HookFile, HookPoint, Matcher, load_hooks, matches
from agent_core.hooks.matchers import KnownTools, find_impossible, find_unmet
from agent_core.types import ToolCall, ToolDefinition
from tables import together

COMMAND = {"type": "command", "command": "true"}


def write(home: Path, document: Any) -> Path:
    path = home / "hooks.json"
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_there_are_no_hooks(tmp_path: Path) -> None:
    assert load_hooks(tmp_path, max_timeout_ms=600_000) is None


def test_groups_keep_the_order_of_the_file(tmp_path: Path) -> None:
    groups = [
        {"matcher": "code.write_file", "hooks": [COMMAND, {**COMMAND, "timeout_ms": 5}]},
        {"matcher": {"tag": "write", "path_prefix": "src/"}, "hooks": [COMMAND]},
        {"hooks": [COMMAND]},
    ]
    write(tmp_path, {"version": 1, "hooks": {"PreToolUse": groups}})
    file = load_hooks(tmp_path, max_timeout_ms=600_000)
    assert file is not None
    first, second, third = file.hooks[HookPoint.PRE_TOOL_USE]
    assert first.matcher == Matcher(tool="code.write_file")
    assert [hook.timeout_ms for hook in first.hooks] == [None, 5]
    assert second.matcher == Matcher(tag="write", path_prefix="src/")
    assert third.matcher is None
    assert HookPoint.STOP not in file.hooks


BROKEN: list[tuple[Any, str]] = [
    ("{", "line 1, column 2: not JSON"),
    ("null", "must be an object"),
    ("[]", "must be an object"),
    ("", "not JSON"),
    ("\ufeff{}", "version: is missing"),
    ("[" * 100_000, "nested too deeply"),
    ('{"version": 1, "version": 1}', "given twice"),
    ({}, "version: is missing"),
    ({"version": 2}, "version: must be 1"),
    ({"version": 1, "hook": {}}, "hook: is not a known key"),
    ({"version": 1, "hooks": {"Later": []}}, "hooks.Later"),
    ({"version": 1, "hooks": {"Stop": [{}]}}, "hooks.Stop[0].hooks: is missing"),
    ({"version": 1, "hooks": {"Stop": [{"hooks": [{**COMMAND, "env": {}}]}]}}, "env: is not"),
    ({"version": 1, "hooks": {"Stop": [{"hooks": [{**COMMAND, "timeout_ms": 0}]}]}}, "timeout"),
    ({"version": 1, "hooks": {"Stop": [{"hooks": [{**COMMAND, "type": "x"}]}]}}, "type"),
    ({"version": 1, "hooks": {"Stop": [{"hooks": [{**COMMAND, "command": ""}]}]}}, "command"),
    ({"version": 1, "hooks": {"Stop": [{"matcher": {"x": 1}, "hooks": []}]}}, "matcher.x"),
]


@together(("document", "fault"), BROKEN)
def test_a_broken_file_names_itself_and_the_fault(
    tmp_path: Path, document: Any, fault: str
) -> None:
    path = write(tmp_path, document)
    with pytest.raises(ConfigError) as broken:
        load_hooks(tmp_path, max_timeout_ms=600_000)
    assert broken.value.code is ErrorCode.CONFIG_ERROR
    assert str(path) in broken.value.message
    assert fault in broken.value.message


def test_a_file_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hooks.json").mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        load_hooks(tmp_path, max_timeout_ms=600_000)
    other = tmp_path / "other"
    other.mkdir()
    write(other, " " * 1_000_001)
    with pytest.raises(ConfigError, match="larger than"):
        load_hooks(other, max_timeout_ms=600_000)


def heard(matcher: Matcher | None, project: Path, **arguments: Any) -> bool:
    call = ToolCall(tool_call_id="c", name="code.write_file", arguments=arguments)
    definition = ToolDefinition(name=call.name, description="", tags={"code", "write"})
    return matches(matcher, call, definition, project=project)


def test_all_that_a_matcher_names_must_match(tmp_path: Path) -> None:
    assert heard(None, tmp_path)
    assert heard(Matcher(), tmp_path)
    assert heard(Matcher(tool="code.write_file", tag="write"), tmp_path)
    assert not heard(Matcher(tool="code.write"), tmp_path)
    assert not heard(Matcher(tag="wri"), tmp_path)
    assert not heard(Matcher(tool="code.write_file", tag="readonly"), tmp_path)


@together(
    ("path", "is_heard"),
    [
        ("src/a.py", True),
        ("./src/deep/a.py", True),
        ("docs/../src/a.py", True),
        ("src", True),
        ("src-secret/a.py", False),
        ("lib/src/a.py", False),
        ("", False),
        (None, False),
        ("~nobody-has-this-name/a.py", True),
        ("a\0b", True),
        ("a\ud800", True),
        ("loop/../src/a.py", True),
        ("loop/a.py", True),
        (7, True),
        (["src/a.py"], True),
    ],
)
def test_a_path_prefix_is_a_folder_of_the_project(
    tmp_path: Path, path: object, is_heard: bool
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert heard(Matcher(path_prefix="src/"), tmp_path, path=path) is is_heard


@together("prefix", ["~nobody-has-this-name/", "a\0b", "loop/"])
def test_a_prefix_that_cannot_be_resolved_matches_every_path(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert heard(Matcher(path_prefix=prefix), tmp_path, path="a.py")
    assert not heard(Matcher(path_prefix=prefix), tmp_path)


def test_a_tilde_counts_as_a_home_and_as_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/somewhere/else")
    assert heard(Matcher(path_prefix="."), tmp_path, path="~/a.py")
    assert heard(Matcher(path_prefix="/somewhere"), tmp_path, path="~/a.py")


def test_a_tag_matches_a_call_of_an_unknown_tool(tmp_path: Path) -> None:
    call = ToolCall(tool_call_id="c", name="my.tool", arguments={})
    assert matches(Matcher(tag="write"), call, None, project=tmp_path)


def test_a_path_counts_as_it_is_written_and_as_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "src")
    matcher = Matcher(path_prefix="src/")
    assert heard(matcher, tmp_path, path="link/a.py")
    assert heard(matcher, tmp_path, path=str(tmp_path / "src" / "a.py"))
    assert heard(matcher, tmp_path, cwd="src")
    assert heard(Matcher(path_prefix=str(tmp_path / "src")), tmp_path, path="src/a.py")


def test_without_a_call_only_an_empty_matcher_matches(tmp_path: Path) -> None:
    assert matches(Matcher(), None, None, project=tmp_path)
    for matcher in (Matcher(tool="x"), Matcher(tag="x"), Matcher(path_prefix="x")):
        assert not matches(matcher, None, None, project=tmp_path)


def test_a_timeout_above_the_maximum_is_named(tmp_path: Path) -> None:
    hook = {**COMMAND, "timeout_ms": 2000}
    text = json.dumps({"version": 1, "hooks": {"Stop": [{"hooks": [COMMAND, hook]}]}})
    (tmp_path / "hooks.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_hooks(tmp_path, max_timeout_ms=1000)
    assert "hooks.Stop[0].hooks[1].timeout_ms is above tools.max_timeout_ms" in str(refused.value)
    assert load_hooks(tmp_path, max_timeout_ms=2000) is not None


@together("number", ["NaN", "Infinity", "-Infinity", "1e400", "1.5", "1e12", "true"])
def test_a_number_that_is_no_timeout_is_refused(tmp_path: Path, number: str) -> None:
    hook = '{"type": "command", "command": "true", "timeout_ms": %s}' % number  # noqa: UP031
    text = '{"version": 1, "hooks": {"Stop": [{"hooks": [%s]}]}}' % hook  # noqa: UP031
    (tmp_path / "hooks.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_hooks(tmp_path, max_timeout_ms=600_000)
    assert refused.value.code is ErrorCode.CONFIG_ERROR


DEFINITIONS = {
    "code.write_file": ToolDefinition(name="code.write_file", description="", tags={"write"}),
    "agent.create_sub_agent": ToolDefinition(name="agent.create_sub_agent", description=""),
    "notes.add": ToolDefinition(name="notes.add", description="", tags={"declarative"}),
}
BUILT_IN = {"code.write_file", "code.edit_file", "code.run_command", "agent.create_sub_agent"}
IMPOSSIBLE: list[tuple[str, Any, str]] = [
    ("PreToolUse", "code.write", "no tool code.write (did you mean code.write_file?)"),
    ("PreToolUse", "code.write_file|code.edit_file", "(code.write_file, code.edit_file)"),
    ("PreToolUse", "Bash|Edit", "(code.run_command, code.edit_file)"),
    ("PreToolUse", "Write(src/**)", "a matcher names one tool"),
    ("PreToolUse", "code.write_file ", "(code.write_file)"),
    ("PreToolUse", "code\\..*", "a matcher names one tool"),
    ("PreToolUse", "*", "hooks without a matcher run for every tool"),
    ("PostToolUse", ".*", "hooks without a matcher run for every tool"),
    ("PreToolUse", "Code.Write_File", "did you mean code.write_file?"),
    ("PreToolUse", "code__write_file", "did you mean code.write_file?"),
    ("PreToolUse", "mcp__github__push", "mcp.<server>.<tool>"),
    ("PreToolUse", "mcp.github", "mcp.<server>.<tool>"),
    ("PreToolUse", {"tool": "code.write_file", "tag": "readonly"}, "its tags are: write"),
    ("PreToolUse", {"tool": "notes.add", "tag": "write"}, "its tags are: declarative"),
    ("PreToolUse", {"tool": "agent.create_sub_agent", "path_prefix": "src"}, "neither path"),
    ("Stop", "code.write_file", "Stop is about no call"),
    ("UserPromptSubmit", {"tag": "write"}, "UserPromptSubmit is about no call"),
]


def file_of(event: str, matcher: Any) -> HookFile:
    groups = [{"hooks": [COMMAND]}, {"matcher": matcher, "hooks": [COMMAND]}]
    return HookFile.model_validate({"version": 1, "hooks": {event: groups}})


@together(("event", "matcher", "problem"), IMPOSSIBLE)
def test_a_matcher_that_no_tool_can_meet_is_named(event: str, matcher: Any, problem: str) -> None:
    found = find_impossible(file_of(event, matcher), BUILT_IN, lambda: DEFINITIONS)
    assert found is not None
    assert found.startswith(f"hooks.{event}[1].matcher: ")
    assert problem in found


@together(
    "matcher",
    [
        *("code.write_file", "agent.create_sub_agent", "mcp.github.push", "my_tool", {"tag": "x"}),
        {"tool": "code.write_file", "tag": "write", "path_prefix": "src"},
        {"tool": "notes.add", "path_prefix": "src"},
        {"tool": "mcp.github.push", "tag": "write"},
        {},
    ],
)
def test_a_matcher_that_some_tool_may_meet_is_possible(matcher: Any) -> None:
    definitions = DEFINITIONS | {
        "code.write_file": DEFINITIONS["code.write_file"].model_copy(
            update={"input_schema": {"properties": {"path": {}}}}
        )
    }
    assert find_impossible(file_of("PreToolUse", matcher), BUILT_IN, lambda: definitions) is None
    assert find_impossible(file_of("Stop", {}), BUILT_IN, lambda: definitions) is None


UNMET = {
    "Edit": "there is no tool Edit (did you mean code.edit_file?)",
    "my_tols": "there is no tool my_tols (did you mean my_tools?)",
    "My_Tools": "there is no tool My_Tools (did you mean my_tools?)",
    "mcp.githb.push": "there is no MCP server githb (did you mean github?)",
    "mcp.github.pull": "the MCP server github has no tool pull",
}


@together("name", UNMET)
def test_a_matcher_that_no_known_tool_meets_is_named(name: str) -> None:
    known = KnownTools(
        names={*BUILT_IN, "my_tools"},
        tags={"mine"},
        servers={"github", "later"},
        served={"github": ["mcp.github.push"]},
    )
    (problem,) = find_unmet(file_of("PreToolUse", name), known)
    assert problem == f"hooks.PreToolUse[1].matcher: {UNMET[name]}; its hooks do not run"
    for met in ("my_tools", "mcp.github.push", "mcp.later.tool", {"tag": "mine"}, {"tag": "write"}):
        assert not [*find_unmet(file_of("PreToolUse", met), known)]
    (problem,) = find_unmet(file_of("PreToolUse", {"tag": "wirte"}), known)
    assert "no tool has the tag 'wirte' (did you mean write?)" in problem

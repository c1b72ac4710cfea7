"""The user's own tools, one JSON file each."""

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_core.config.models import Config, ModelConfig
from agent_core.config.paths import Setup
from agent_core.errors import ErrorCode, StorageError, ToolError
from agent_core.process import Launcher
from agent_core.process.environment import UNATTENDED
from agent_core.tools import Concurrency, Tool, ToolContext
from agent_core.tools.base import CutCallError
from agent_core.tools.declarative import declarative_tools
from agent_core.types import ArtifactRefBlock, TextBlock, ToolPermission, ToolResult
from tool_facts import Kept

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["text"],
}
ECHO: dict[str, Any] = {
    "name": "my.echo",
    "description": "Says it again.",
    "input_schema": SCHEMA,
    "command_type": "exec",
    "command": "echo",
    "args": ["{{args.text}}", "{{args.count}}"],
}


@pytest.fixture
def setup(home: Path, project: Path) -> Setup:
    (home / "tools").mkdir()
    return Setup(
        home=home,
        project=project,
        config_path=home / "config.toml",
        config=Config(model=ModelConfig(provider="p", name="n")),
        session_db=home / "sessions.sqlite",
        sessions_dir=home / "sessions",
        memory_dir=home / "memory",
        plans_dir=project / ".soong-agent" / "plans",
        tasks_dir=project / ".soong-agent" / "tasks",
    )


def put(setup: Setup, file: object, name: str = "a.json") -> None:
    text = file if isinstance(file, str) else json.dumps(file)
    (setup.home / "tools" / name).write_text(text, encoding="utf-8")


def only(setup: Setup, **changes: object) -> Tool:
    put(setup, ECHO | changes)
    (made,), problems = declarative_tools(setup, launcher=Launcher(), environ=os.environ)
    assert problems == []
    return made


async def answer(made: Tool, context: ToolContext, **arguments: object) -> ToolResult:
    action = await made.prepare(made.parse(arguments), context)
    result = await action.run()
    assert isinstance(result, ToolResult)
    return result


def text_of(result: ToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, TextBlock))


async def test_a_program_gets_its_arguments_one_by_one(setup: Setup, context: ToolContext) -> None:
    made = only(setup, tags=["demo"])
    assert made.definition.tags == {"declarative", "demo"}
    assert made.definition.permission is ToolPermission.WRITE
    assert made.concurrency is Concurrency.WRITE
    result = await answer(made, context, text="a  $(b); 'c", count=2)
    assert text_of(result) == "a  $(b); 'c 2\n"
    assert not result.is_error


async def test_a_shell_reads_values_as_words(
    setup: Setup, context: ToolContext, project: Path
) -> None:
    made = only(
        setup,
        command_type="shell",
        command="printf '%s|' {{args.text}} end",
        args=[],
        tags=["write"],
    )
    result = await answer(made, context, text="x; touch pwned $(touch pwned)")
    assert text_of(result) == "x; touch pwned $(touch pwned)|end|"
    assert list_of(project) == []


def list_of(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_arguments_arrive_as_json_too_and_a_result_may_come_back(
    setup: Setup, context: ToolContext
) -> None:
    script = (
        "import json, sys; a = json.load(sys.stdin);"
        "print(json.dumps({'content': [{'type': 'json', 'data': a}], 'is_error': True}))"
    )
    made = only(setup, command=sys.executable, args=["-c", script])
    result = await answer(made, context, text="é", count=None)
    assert result.is_error
    assert result.content[0].model_dump()["data"] == {"text": "é"}


async def test_the_defaults_of_a_schema_apply(setup: Setup, context: ToolContext) -> None:
    more: dict[str, Any] = {
        "type": "object",
        "properties": {"deep": {"type": "boolean", "default": False}},
    }
    properties: dict[str, Any] = {
        "mode": {"type": "string", "default": "fast"},
        "note": {"type": ["string", "null"]},
        "more": {**more, "default": {}},
    }
    schema = {"type": "object", "properties": properties, "required": ["mode"]}
    words = ["{{args.mode}}", "{{args.note}}", "{{args.more}}"]
    made = only(setup, input_schema=schema, args=words)
    assert text_of(await answer(made, context)) == 'fast {"deep":false}\n'
    given = await answer(made, context, mode="slow", note="x", more={"deep": True})
    assert text_of(given) == 'slow x {"deep":true}\n'
    properties["mode"]["default"] = 5
    put(setup, ECHO | {"input_schema": schema, "args": words})
    tools, (problem,) = declarative_tools(setup, launcher=Launcher(), environ=os.environ)
    assert tools == []
    assert "the default of mode does not fit" in problem.message


async def test_a_default_applies_wherever_the_schema_holds(
    setup: Setup, context: ToolContext
) -> None:
    deep: dict[str, Any] = {"type": "object", "properties": {"y": {"default": "deep"}}}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/word"},
            "b": {"allOf": [{"type": "string"}, {"default": "all"}]},
            "c": {"$ref": "#/definitions/of~1old/deep"},
            "d": {"type": "array", "items": {"$ref": "#deep"}},
            "e": {"type": "object", "additionalProperties": deep},
            "f": {"$ref": "#/$defs/word", "default": "own"},
        },
        "$defs": {
            "word": {"$ref": "#/$defs/text", "default": "defs"},
            "text": {"type": "string", "default": "farther"},
            "anchored": {**deep, "$anchor": "deep"},
        },
        "definitions": {"of/old": {"deep": {"allOf": [deep]}}},
    }
    words = [f"{{{{args.{name}}}}}" for name in "abcdef"]
    made = only(setup, input_schema=schema, args=words)
    items: list[dict[str, str]] = [{}]
    given = await answer(made, context, c={}, d=items, e={"x": {}})
    assert text_of(given) == 'defs all {"y":"deep"} [{"y":"deep"}] {"x":{"y":"deep"}} own\n'
    schema["$defs"]["word"]["default"] = 5
    put(setup, ECHO | {"input_schema": schema, "args": words})
    _, (problem,) = declarative_tools(setup, launcher=Launcher(), environ=os.environ)
    assert "the default of a does not fit" in problem.message


@pytest.mark.parametrize("printed", ['{"content": 5}', '{"a": 1}', "[1]", "{", '{"content": []} x'])
async def test_anything_else_it_prints_is_text(
    setup: Setup, context: ToolContext, printed: str
) -> None:
    made = only(setup, args=["{{args.text}}"])
    assert text_of(await answer(made, context, text=printed)) == printed + "\n"


async def test_a_program_that_fails_is_an_error_with_its_output(
    setup: Setup, context: ToolContext
) -> None:
    made = only(setup, command="sh", args=["-c", "echo out; echo bad >&2; exit 3"])
    result = await answer(made, context, text="")
    assert result.is_error
    assert text_of(result) == "out\nbad\n"
    assert result.metadata == {"exit_code": 3}
    assert result.error is not None
    assert "code 3" in result.error.message


async def test_a_program_that_takes_too_long_is_stopped(setup: Setup, context: ToolContext) -> None:
    made = only(setup, command="sh", args=["-c", "echo said; sleep 60"], timeout_ms=200)
    result = await answer(made, context, text="")
    assert result.error is not None
    assert result.error.code is ErrorCode.TIMEOUT
    assert text_of(result).startswith("said\n")


async def test_a_tool_that_cannot_be_started_says_why(setup: Setup, context: ToolContext) -> None:
    script = setup.home / "tools" / "check"
    script.write_bytes(b"#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(ToolError, match="'/no/such/interpreter' does not exist") as refusal:
        await answer(only(setup, command="./check"), context, text="")
    assert not refusal.value.retryable
    gone = only(setup, working_dir=str(setup.project / "gone"))
    with pytest.raises(ToolError, match=r"gone does not exist") as refusal:
        await answer(gone, context, text="")
    assert not refusal.value.retryable
    shell = {"command_type": "shell", "args": [], "tags": ["dangerous"]}
    result = await answer(only(setup, command=str(script), **shell), context, text="")
    assert result.error is not None
    assert "'/no/such/interpreter' does not exist" in result.error.message


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has subreapers")
async def test_a_daemon_of_a_tool_ends_with_its_call(setup: Setup, context: ToolContext) -> None:
    daemon = "setsid sh -c 'echo $$ > pid; exec sleep 60' >/dev/null 2>&1 </dev/null &"
    script = f"{daemon} while ! [ -s pid ]; do sleep 0.01; done; echo {{{{args.text}}}}"
    made = only(setup, command_type="shell", command=script, args=[], tags=["dangerous"])
    result = await answer(made, context, text="x")
    assert text_of(result).startswith("x\nleft running, and stopped: ")
    (line,) = result.metadata["left_running_and_stopped"]
    assert "sleep 60" in line
    with pytest.raises(ProcessLookupError):
        os.kill(int((setup.project / "pid").read_text()), 0)


async def test_a_cancelled_tool_hands_over_its_output(setup: Setup, context: ToolContext) -> None:
    script = "echo said; echo why >&2; touch said; sleep 60"
    made = only(setup, command="sh", args=["-c", script])
    running = asyncio.create_task(answer(made, context, text=""))
    while not (setup.project / "said").exists():  # noqa: ASYNC110 - nothing signals a new file
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(CutCallError) as cut:
        await running
    assert text_of(cut.value.result).startswith("said\nwhy\n")


async def test_output_beyond_its_limit_becomes_an_artifact(
    setup: Setup, context: ToolContext, kept: Kept
) -> None:
    made = only(setup, command="seq", args=["1", "1000"], stdout_limit_bytes=100)
    result = await answer(made, context, text="")
    (reference,) = (b for b in result.content if isinstance(b, ArtifactRefBlock))
    assert kept.artifacts[reference.artifact_id].endswith(b"1000\n")


async def test_it_sees_only_the_environment_it_lists(
    setup: Setup, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "t")
    monkeypatch.setenv("OTHER_TOKEN", "o")
    made = only(setup, command="/usr/bin/env", args=[], env_allowlist=["MY_TOKEN"])
    names = {
        line.partition("=")[0] for line in text_of(await answer(made, context, text="")).split()
    }
    assert names - {"_", "LANG", "TZ", "TERM", "USER", "LOGNAME"} == {"MY_TOKEN", *UNATTENDED}


async def test_a_program_beside_the_file_runs_and_one_in_the_project_does_not(
    setup: Setup, context: ToolContext, project: Path
) -> None:
    for folder, word in ((setup.home / "tools", "mine"), (project, "theirs")):
        program = folder / "run.sh"
        program.write_text(f"#!/bin/sh\necho {word} $(pwd)\n", encoding="utf-8")
        program.chmod(0o755)
    made = only(setup, command="./run.sh", args=[])
    assert text_of(await answer(made, context, text="")) == f"mine {project}\n"


async def test_who_is_asked_for_what(setup: Setup, context: ToolContext) -> None:
    async def access(**changes: object) -> Any:
        made = only(setup, **changes)
        return (await made.prepare(made.parse({"text": "x"}), context)).access

    assert (await access()).asks
    assert not (await access(permission="readonly")).asks
    assert (await access(permission="readonly", tags=["write"])).asks
    dangerous = await access(permission="readonly", tags=["dangerous"])
    assert dangerous.asks
    assert dangerous.dangerous
    assert "echo x" in dangerous.target


BROKEN: list[tuple[object, str]] = [
    ("", "not JSON"),
    ("null", "tool"),
    ("[]", "tool"),
    ("[" * 100_000, "deep"),
    ('{"name": "a", "name": "b"}', "twice"),
    (ECHO | {"comand": "x"}, "comand"),
    ({k: v for k, v in ECHO.items() if k != "command"}, "command"),
    (ECHO | {"name": "no spaces"}, "name"),
    (ECHO | {"args": ["{{args.other}}"]}, "other"),
    (ECHO | {"args": ["{{env.HOME}}"]}, "not of the form"),
    (ECHO | {"command": "{{args.text}}"}, "chosen by an argument"),
    (ECHO | {"command_type": "shell"}, "args is for"),
    (ECHO | {"command_type": "shell", "args": [], "permission": "readonly"}, "tagged"),
    (ECHO | {"command_type": "shell", "args": [], "command": "a '{{args.text}}'"}, "placeholder"),
    (ECHO | {"input_schema": {"type": "obj"}, "args": []}, "schema"),
    (ECHO | {"input_schema": {"properties": []}, "args": []}, "schema"),
    (ECHO | {"timeout_ms": 0}, "timeout_ms"),
    (ECHO | {"timeout_ms": 600_001}, "timeout_ms is above tools.max_timeout_ms (600000)"),
    (ECHO | {"timeout_ms": float("inf")}, "Infinity is not a number that JSON has"),
    (ECHO | {"timeout_ms": 1.5}, "timeout_ms"),
    (ECHO | {"timeout_ms": True}, "timeout_ms"),
    (ECHO | {"stdout_limit_bytes": 10**30}, "stdout_limit_bytes"),
    (ECHO | {"stderr_limit_bytes": -1}, "stderr_limit_bytes"),
    (ECHO | {"working_dir": "${NOPE}/x"}, "NOPE"),
]


@pytest.mark.parametrize(("file", "reason"), BROKEN)
def test_a_file_that_cannot_be_used_is_reported_and_the_others_work(
    setup: Setup, file: object, reason: str
) -> None:
    put(setup, file, "broken.json")
    put(setup, ECHO, "good.json")
    tools, problems = declarative_tools(setup, launcher=Launcher(), environ=os.environ)
    assert [each.name for each in tools] == ["my.echo"]
    assert len(problems) == 1
    assert problems[0].code is ErrorCode.CONFIG_ERROR
    assert "broken.json" in str(problems[0])
    assert reason in str(problems[0])


def test_a_name_that_is_taken_is_reported(setup: Setup) -> None:
    put(setup, ECHO, "a.json")
    put(setup, ECHO, "b.json")
    os.mkfifo(setup.home / "tools" / "pipe.json")
    tools, problems = declarative_tools(setup, launcher=Launcher(), environ=os.environ)
    assert len(tools) == 1
    assert ["b.json" in str(problems[0]), "pipe.json" in str(problems[1])] == [True, True]


def test_without_a_folder_or_switched_off_there_are_none(setup: Setup) -> None:
    put(setup, ECHO)
    config = setup.config.model_copy(
        update={"tools": setup.config.tools.model_copy(update={"declarative_enabled": False})}
    )
    off = replace(setup, config=config)
    assert declarative_tools(off, launcher=Launcher()) == ([], [])


async def test_a_value_that_no_argument_can_hold_is_refused(
    setup: Setup, context: ToolContext
) -> None:
    made = only(setup)
    with pytest.raises(ToolError) as refusal:
        await made.prepare(made.parse({"text": "a\0b"}), context)
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("sh", ["-c", "echo {{args.word}}"]),
        ("/bin/bash", ["-lc", "{{args.word}}"]),
        ("python3", ["-c", "print({{args.word}})"]),
        ("perl", ["-e", "{{args.word}}"]),
        ("node", ["-e", "{{args.word}}"]),
        ("env", ["A=1", "sh", "-c", "{{args.word}}"]),
        ("xargs", ["sh", "-c", "{{args.word}}"]),
        ("timeout", ["5", "bash", "-c", "ls {{args.word}}"]),
        ("find", [".", "-exec", "sh", "-c", "echo {{args.word}}", ";"]),
        ("ssh", ["host", "{{args.word}}"]),
        ("awk", ["/{{args.word}}/", "file"]),
        ("sed", ["s/{{args.word}}/b/", "file"]),
        ("sh", ["-c", 'eval "$1"', "sh", "{{args.word}}"]),
    ],
)
def test_an_exec_tool_gives_no_value_to_what_runs_text(
    setup: Setup, command: str, args: list[str]
) -> None:
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    put(setup, ECHO | {"command": command, "args": args, "input_schema": schema})
    tools, (problem,) = declarative_tools(setup, launcher=Launcher(), environ=os.environ)
    assert tools == []
    assert "args: " in str(problem)


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("sh", ["-c", 'ls "$1"', "sh", "{{args.word}}"]),
        ("python3", ["tool.py", "{{args.word}}"]),
        ("./own-tool", ["Hello {{args.word}}, it's me; $(x)"]),
        ("awk", ["-v", "q={{args.word}}", "{ print q }", "file"]),
        ("git", ["log", "--author={{args.word}}"]),
        ("find", [".", "-name", "{{args.word}}"]),
    ],
)
def test_an_exec_tool_gives_values_to_programs_as_arguments(
    setup: Setup, command: str, args: list[str]
) -> None:
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    assert only(setup, command=command, args=args, input_schema=schema).name


async def test_a_program_has_run_even_if_its_output_cannot_be_kept(
    setup: Setup, context: ToolContext
) -> None:
    async def refuse(*_: object, **__: object) -> str:
        raise StorageError(ErrorCode.STORAGE_ERROR, "No space left on device")

    made = only(setup, command="seq", args=["1", "1000"], stdout_limit_bytes=100)
    result = await answer(made, dataclasses.replace(context, artifact=refuse), text="")
    assert not result.is_error
    assert text_of(result).startswith("1\n")
    assert "No space left on device" in text_of(result)

"""`code.run_command`: programs with arguments, bounded, and asked for exactly."""

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.config.models import ToolsConfig
from agent_core.errors import ErrorCode, StorageError, ToolError
from agent_core.tools import Action, ToolContext
from agent_core.tools.base import CutCallError
from agent_core.tools.workspace import Workspace
from agent_core.types import JsonBlock, ToolResult
from tool_facts import Code, Kept

Limited = Callable[..., Code]


@pytest.fixture
def limited(workspace: Workspace, context: ToolContext) -> Limited:
    def make(**limits: int) -> Code:
        return Code(replace(workspace, limits=ToolsConfig(**limits)), context)  # pyright: ignore[reportArgumentType]

    return make


def program(folder: Path, name: str, text: str = "#!/bin/sh\necho ran\n") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


async def refusal_of(code: Code, **arguments: object) -> ToolError:
    with pytest.raises(ToolError) as refusal:
        await code("run_command", **arguments)
    return refusal.value


async def test_g14_a_program_runs_with_its_arguments_as_they_are(code: Code) -> None:
    answer = await code("run_command", argv=[sys.executable, "-c", "print(1)"])
    assert answer == {
        "exit_code": 0,
        "stdout": "1\n",
        "stderr": "",
        "stdout_artifact_id": None,
        "stderr_artifact_id": None,
        "truncated": False,
        "timed_out": False,
    }
    echoed = await code("run_command", argv=["echo", "$HOME", "*", "; ls"])
    assert echoed["stdout"] == "$HOME * ; ls\n"


@pytest.mark.parametrize("argv", ["echo hi", [], ["echo", 1], [["echo"]], ["a\0b"], ["\ud800"]])
async def test_g15_a_shell_string_is_no_argument_list(code: Code, argv: object) -> None:
    assert (await refusal_of(code, argv=argv)).code is ErrorCode.VALIDATION_ERROR


async def test_g16_outside_the_project_nothing_runs(
    code: Code, project: Path, tmp_path: Path
) -> None:
    (project / "out").symlink_to(tmp_path)
    for cwd in ("..", str(tmp_path), "out", "/"):
        refusal = await refusal_of(code, argv=["touch", "made"], cwd=cwd)
        assert refusal.code is ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS
    assert not (tmp_path / "made").exists()


async def test_g17_a_command_that_takes_too_long_is_stopped(limited: Limited) -> None:
    code = limited(default_timeout_ms=300)
    result = await stopped(code, argv=["sh", "-c", "echo said; sleep 60"])
    assert result.error is not None
    assert result.error.code is ErrorCode.TIMEOUT
    (block,) = result.content
    assert isinstance(block, JsonBlock)
    assert block.data["timed_out"] is True
    assert block.data["stdout"] == "said\n"
    own = await stopped(code, argv=["sleep", "60"], timeout_ms=100)
    assert own.error is not None
    assert "100 ms" in own.error.message


async def stopped(code: Code, **arguments: object) -> ToolResult:
    result = await (await code.prepare("run_command", **arguments)).run()
    assert isinstance(result, ToolResult)
    assert result.is_error
    return result


async def test_a_timeout_has_an_upper_bound(limited: Limited) -> None:
    refusal = await refusal_of(limited(max_timeout_ms=5000), argv=["true"], timeout_ms=5001)
    assert refusal.code is ErrorCode.VALIDATION_ERROR
    assert refusal.details["path"] == "$.timeout_ms"


async def test_a_program_that_fails_is_an_answer(code: Code) -> None:
    answer = await code("run_command", argv=["sh", "-c", "echo no >&2; exit 7"])
    assert (answer["exit_code"], answer["stderr"]) == (7, "no\n")


async def test_e6_output_beyond_its_limit_becomes_an_artifact(limited: Limited, kept: Kept) -> None:
    code = limited(stdout_limit_bytes=100)
    answer = await code("run_command", argv=["seq", "1", "1000"])
    assert answer["truncated"] is True
    assert len(answer["stdout"]) < 200
    whole = "".join(f"{n}\n" for n in range(1, 1001)).encode()
    assert kept.artifacts == {answer["stdout_artifact_id"]: whole}
    assert answer["stderr_artifact_id"] is None


async def test_the_environment_is_the_allowlist(
    workspace: Workspace, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code = Code(replace(workspace, env={"PATH": os.environ["PATH"], "A": "1"}), context)
    script = "import os, json; print(json.dumps(sorted(os.environ)))"
    answer = await code("run_command", argv=[sys.executable, "-c", script])
    assert set(json.loads(answer["stdout"])) - {"LC_CTYPE", "_"} == {"A", "PATH"}
    access = (await code.prepare("run_command", argv=["true"])).access
    assert access.env_names == ("A", "PATH")


async def test_a_command_runs_in_the_folder_that_was_agreed_to(
    code: Code, project: Path, home: Path
) -> None:
    (project / "sub").mkdir()
    answer = await code("run_command", argv=["pwd"], cwd="sub")
    assert answer["stdout"].strip() == str(project / "sub")
    action = await code.prepare("run_command", argv=["touch", "made"], cwd="sub")
    (project / "sub").rmdir()
    (project / "sub").symlink_to(home)
    with pytest.raises(ToolError):
        await action.run()
    assert not (home / "made").exists()


async def test_the_program_that_was_agreed_to_is_the_one_that_runs(
    workspace: Workspace, context: ToolContext, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    program(second, "tool", "#!/bin/sh\necho second\n")
    path = f"{first}:{second}:{os.environ['PATH']}"
    code = Code(replace(workspace, env={"PATH": path}), context)
    action = await code.prepare("run_command", argv=["tool"])
    program(first, "tool", "#!/bin/sh\necho first\n")
    answer = await action.run()
    assert isinstance(answer, dict)
    assert answer["stdout"] == "second\n"


async def test_h6_a_command_always_asks_and_shows_what_it_is(code: Code, project: Path) -> None:
    access = (await code.prepare("run_command", argv=["ls", "a b"])).access
    assert access.asks
    assert access.dangerous
    assert access.summary == "ls 'a b'"
    assert access.cwd == str(project)
    assert access.reason is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"argv": ["no-such-program-here"]}, ErrorCode.FILE_NOT_FOUND),
        ({"argv": ["./plain"]}, ErrorCode.VALIDATION_ERROR),
        ({"argv": [""]}, ErrorCode.VALIDATION_ERROR),
        ({"argv": ["ls"], "cwd": "nowhere"}, ErrorCode.FILE_NOT_FOUND),
        ({"argv": ["ls"], "cwd": "plain"}, ErrorCode.FILE_NOT_FOUND),
        ({"argv": ["echo", "x" * 5_000_000]}, ErrorCode.VALIDATION_ERROR),
        ({"argv": ["ls"], "env": {"A": "1"}}, ErrorCode.VALIDATION_ERROR),
        ({"argv": ["ls"], "timeout_ms": 0}, ErrorCode.VALIDATION_ERROR),
    ],
)
async def test_a_command_that_cannot_run_is_a_clear_error(
    code: Code, project: Path, arguments: dict[str, object], expected: ErrorCode
) -> None:
    (project / "plain").write_text("", encoding="utf-8")
    refusal = await refusal_of(code, **arguments)
    assert refusal.code is expected
    assert len(str(refusal)) < 1000


async def test_a_cancelled_command_is_gone(code: Code, project: Path) -> None:
    script = (
        "import os, time; print('so far', flush=True); open('pid', 'w').write(str(os.getpid()));"
        " time.sleep(60)"
    )
    action = await code.prepare("run_command", argv=[sys.executable, "-c", script])
    running = asyncio.create_task(done(action))
    while not (pid := written(project / "pid")):  # noqa: ASYNC110 - nothing signals a new file
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(CutCallError) as cut:
        await running
    (block,) = cut.value.result.content
    assert isinstance(block, JsonBlock)
    assert block.data["stdout"] == "so far\n"
    await asyncio.sleep(0.05)
    assert not written(Path(f"/proc/{pid}/cmdline"))


async def test_a_script_that_cannot_be_started_is_explained(code: Code, project: Path) -> None:
    program(project, "check", "#!/bin/sh\r\necho ran\r\n")
    (project / "folder").mkdir()
    for name, reason in {"./check": "CRLF", "./folder": "it is a folder"}.items():
        refusal = await refusal_of(code, argv=[name])
        assert reason in refusal.message
        assert not refusal.retryable
    answer = await code("run_command", argv=["sh", "-c", "./check"])
    assert answer["exit_code"] in {126, 127}
    assert "'./check' cannot be started" in answer["not_started"]
    program(project, "strict", "#!/bin/sh -e\r\nno-such\r\n")
    answer = await code("run_command", argv=["./strict"])
    assert "CRLF" in answer["not_started"]
    program(project, "odd", "#!/no/such/python\nraise SystemExit(127)\n")
    for argv in (["env", "./odd"], ["bash", "-c", "cd . && ./odd x"], ["sh", "-c", "A=b ./odd"]):
        answer = await code("run_command", argv=argv)
        assert "'/no/such/python' does not exist" in answer["not_started"]
    program(project, "ends", "#!/bin/sh\r\nexit 126\r\n")
    program(project, "lacks", "#!/bin/sh\r\nno-such\r\n")
    for argv in (
        *(["sh", "strict"], ["sh", "ends"], ["sh", "lacks"], [sys.executable, "odd"]),
        *(["cat", "check", "nofile"], ["diff", "check", "strict"]),
        ["sh", "-c", "cat check; sh lacks; exit 127"],
        ["sh", "-c", "echo 'no ./check: here' >&2; exit 3"],
    ):
        answer = await code("run_command", argv=argv)
        assert answer["exit_code"] != 0
        assert "not_started" not in answer


async def test_a_command_says_what_it_left_running(code: Code) -> None:
    answer = await code("run_command", argv=["sh", "-c", "sleep 60 & echo started"])
    assert (answer["exit_code"], answer["stdout"]) == (0, "started\n")
    (line,) = answer["left_running_and_stopped"]
    assert "sleep 60" in line


async def done(action: Action) -> object:
    return await action.run()


def written(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


async def test_a_command_has_run_even_if_its_output_cannot_be_kept(
    workspace: Workspace, context: ToolContext
) -> None:
    async def refuse(*_: object, **__: object) -> str:
        raise StorageError(ErrorCode.STORAGE_ERROR, "No space left on device")

    limits = ToolsConfig(stdout_limit_bytes=100)
    code = Code(replace(workspace, limits=limits), dataclasses.replace(context, artifact=refuse))
    answer = await code("run_command", argv=["seq", "1", "1000"])
    assert answer["exit_code"] == 0
    assert answer["stdout"].startswith("1\n")
    assert "No space left on device" in answer["not_kept"]

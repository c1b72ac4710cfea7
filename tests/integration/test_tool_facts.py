"""What the events of a tool call say about it, for people and editors that watch a run."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import PermissionDecision, PermissionRequest
from agent_core.providers.scripted import calls
from agent_core.types import Decision, RuntimeEvent
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import sampled

KEY = "sesame-opens-the-mountain"


async def facts_of(
    home: Home,
    project: Path,
    *script: Any,
    config: str = CONFIG,
    answers: Any = None,
) -> list[RuntimeEvent]:
    """The events of the calls of one run, two for each."""
    asked = answers or Asked("allow_once")
    async with runtime(
        home, project, [*script, "done"], config=config, permission_callback=asked
    ) as made:
        events = await collect(await made.start("go"))
    return [event for event in events if event.event_type.startswith("tool_")]


def command(script: str, **arguments: Any) -> Any:
    return calls("code.run_command", argv=[sys.executable, "-c", script], **arguments)


async def test_a_read_names_its_file_and_line_and_nothing_else(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("one\n" * 9, encoding="utf-8")
    started, ended = await facts_of(
        home, project, calls("code.read_file", path="a.txt", start_line=4)
    )
    assert started.payload["kind"] == "read"
    assert started.payload["paths"] == [{"path": str(project / "a.txt"), "line": 4}]
    assert set(ended.payload) == {"tool_name", "is_error", "duration_ms", "found"}


@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    sampled(
        [
            ("search", {"query": "one"}, "3 matches"),
            ("search", {"query": "one", "limit": 2}, "more than 2 matches"),
            ("search", {"query": "three"}, "0 matches"),
            ("search", {"query": "two"}, "1 match"),
            ("list_dir", {"path": "."}, "2 entries"),
            ("read_file", {"path": "a.txt"}, "4 lines"),
            ("read_file", {"path": "a.txt", "start_line": 4}, "1 line"),
            ("read_file", {"path": "a.txt", "max_lines": 2}, None),
            ("read_file", {"path": "empty"}, None),
            ("read_file", {"path": "missing"}, None),
        ],
        keep=3,
    ),
)
async def test_a_look_says_how_much_it_has_found(
    home: Home, project: Path, name: str, arguments: dict[str, Any], found: str | None
) -> None:
    (project / "a.txt").write_text("one\none\none\ntwo", encoding="utf-8")
    (project / "empty").touch()
    *_, ended = await facts_of(home, project, calls(f"code.{name}", **arguments))
    assert ended.payload.get("found") == found


async def test_a_command_has_its_exit_code_and_last_lines(home: Home, project: Path) -> None:
    script = "import sys; print(*range(50), sep=chr(10)); print('no', file=sys.stderr); sys.exit(3)"
    started, ended = await facts_of(home, project, command(script))
    assert started.payload["kind"] == "execute"
    assert "paths" not in started.payload
    assert ended.event_type == "tool_completed"
    assert ended.payload["exit_code"] == 3
    assert ended.payload["output"].splitlines() == [*map(str, range(31, 50)), "no"]
    assert ended.payload["output_hidden_lines"] == 31
    assert ended.node_id is not None


async def test_output_is_bounded_and_as_it_stands_on_a_screen(home: Home, project: Path) -> None:
    script = (
        "print(chr(27) + '[31mred' + chr(27) + '[0m'); print('10%' + chr(13) + '100%');"
        "print(chr(27) + ']52;c;aGk=' + chr(7) + 'end'); print('x' * 9000)"
    )
    _, ended = await facts_of(home, project, command(script))
    assert ended.payload["output"].startswith("…xxx")
    assert len(ended.payload["output"]) == 4000
    assert ended.payload["output_hidden_lines"] == 3
    _, ended = await facts_of(home, project, command(script.partition("print('x'")[0]))
    assert ended.payload["output"].splitlines() == ["red", "100%", "end"]


@pytest.mark.sweep
async def test_a_flood_says_that_not_all_of_it_is_counted(home: Home, project: Path) -> None:
    _, ended = await facts_of(home, project, command("print('line\\n' * 400000)"))
    assert ended.payload["output_truncated"] is True
    assert ended.payload["output_hidden_lines"] > 1000
    assert len(json.dumps(ended.payload)) < 6000


@pytest.mark.long
async def test_a_command_whose_time_was_up_has_its_output_and_no_code(
    home: Home, project: Path
) -> None:
    script = "import time; print('begun', flush=True); time.sleep(60)"
    *_, ended = await facts_of(home, project, command(script, timeout_ms=3000))
    assert ended.event_type == "tool_failed"
    assert (ended.payload["code"], ended.payload["output"]) == ("timeout", "begun")
    assert "exit_code" not in ended.payload


async def test_a_change_shows_its_diff_with_a_true_count(home: Home, project: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(3000))
    started, ended = await facts_of(
        home, project, calls("code.write_file", path="b.txt", content=lines)
    )
    assert started.payload["kind"] == "edit"
    assert started.payload["paths"] == [{"path": str(project / "b.txt"), "line": 1}]
    shown = ended.payload["diff"].splitlines()
    assert shown[:4] == ["--- /dev/null", "+++ b.txt", "@@ -0,0 +1,3000 @@", "+0"]
    assert len(shown) == 1000
    assert len(shown) + ended.payload["diff_hidden_lines"] == 3003
    assert ended.payload["diff_is_whole"] is False


@pytest.mark.sweep
async def test_the_hidden_lines_of_a_diff_that_was_cut_before_are_counted_too(
    home: Home, project: Path
) -> None:
    lines = "".join(f"{number:0400}\n" for number in range(5000))
    _, ended = await facts_of(home, project, calls("code.write_file", path="b.txt", content=lines))
    shown = ended.payload["diff"].splitlines()
    assert len(ended.payload["diff"]) <= 64_000
    assert len(shown) + ended.payload["diff_hidden_lines"] == 5003


async def test_a_change_that_failed_shows_no_diff(home: Home, project: Path) -> None:
    class Meanwhile:
        async def __call__(self, request: PermissionRequest) -> PermissionDecision:
            (project / "b.txt").write_text("made meanwhile", encoding="utf-8")
            return PermissionDecision(decision=Decision.ALLOW_ONCE)

    _, ended = await facts_of(
        home, project, calls("code.write_file", path="b.txt", content="x"), answers=Meanwhile()
    )
    assert ended.event_type == "tool_failed"
    assert "diff" not in ended.payload


@pytest.mark.parametrize(
    "answer", sampled([each for each in Decision if each is not Decision.ALLOW_READS], keep=1)
)
async def test_time_that_people_take_is_not_the_time_of_a_call(
    home: Home, project: Path, answer: Decision
) -> None:
    class Slow:
        async def __call__(self, request: PermissionRequest) -> PermissionDecision:
            await asyncio.sleep(1.5)
            return PermissionDecision(decision=answer)

    *_, ended = await facts_of(
        home, project, calls("code.write_file", path="b.txt", content="x"), answers=Slow()
    )
    assert ended.payload["duration_ms"] < 1500
    if answer is not Decision.DENY:
        assert ended.payload["waited_ms"] >= 1400


async def test_secrets_are_in_neither_output_nor_diff(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    (project / "key.txt").write_text(KEY, encoding="utf-8")
    events = await facts_of(
        home,
        project,
        command("print(open('key.txt').read())"),
        calls("code.write_file", path="b.txt", content=f"key = {KEY}\n"),
        config=CONFIG + 'api_key_env = "MY_KEY"\n',
    )
    assert "exit_code" in events[1].payload
    assert "diff" in events[3].payload
    assert KEY not in str([event.payload for event in events])


@pytest.mark.sweep
async def test_a_declarative_tool_is_a_command(home: Home, project: Path) -> None:
    tools = home.path / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    (tools / "fail.json").write_text(
        json.dumps(
            {
                "name": "my.fail",
                "description": "Fail.",
                "permission": "write",
                "input_schema": {"type": "object", "properties": {}},
                "command_type": "exec",
                "command": sys.executable,
                "args": ["-c", "print('seen'); raise SystemExit(4)"],
            }
        ),
        encoding="utf-8",
    )
    started, ended = await facts_of(home, project, calls("my.fail"))
    assert started.payload["kind"] == "execute"
    assert (ended.event_type, ended.payload["exit_code"]) == ("tool_failed", 4)
    assert ended.payload["output"] == "seen"

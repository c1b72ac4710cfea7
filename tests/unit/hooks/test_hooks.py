import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import pytest

from agent_core.config.models import HooksConfig, ToolsConfig
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.events import Journal
from agent_core.extensions import ExtensionContext, Extensions
from agent_core.hooks import HookRunner, RunHooks, load_hooks
from agent_core.process import Launcher
from agent_core.types import (
    AgentRole,
    EventLevel,
    EventType,
    Node,
    RunIdentity,
    TextBlock,
    ToolCall,
    ToolDefinition,
    ToolResult,
    user_text,
)

CALL = ToolCall(tool_call_id="call_1", name="code.write_file", arguments={"path": "a.txt"})
WRITE = ToolDefinition(name="code.write_file", description="", tags={"code", "write"})
RUN = RunIdentity(session_id="sess_1", agent_id="agent_1", run_id="run_1")


class Notes:
    """A journal that keeps what is noted."""

    def __init__(self) -> None:
        self.path: list[Node] = []
        self.events: list[tuple[EventType, dict[str, Any]]] = []
        self.levels: set[EventLevel] = set()

    async def commit(self) -> None:
        """All of it is stored."""

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
        tool_call_id: str | None = None,
    ) -> None:
        self.events.append((event_type, dict(payload or {})))
        self.levels.add(level)

    def clean(self, value: str) -> str:
        return value.replace("hush", "…")

    @property
    def types(self) -> list[EventType]:
        return [event_type for event_type, _ in self.events]


class Place:
    """A home with hooks and a project to run them in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self.home.mkdir()
        self.project.mkdir()
        self.notes = Notes()
        self.runner: HookRunner | None = None

    def script(self, name: str, text: str) -> str:
        path = self.home / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o700)
        return str(path)

    def write(self, **hooks: list[dict[str, Any]]) -> None:
        text = json.dumps({"version": 1, "hooks": hooks})
        (self.home / "hooks.json").write_text(text, encoding="utf-8")
        self.runner = None

    def hooks(self, run: RunIdentity = RUN, **config: Any) -> Extensions:
        if self.runner is None:
            self.runner = HookRunner(
                load_hooks(self.home, max_timeout_ms=600_000),
                hooks=HooksConfig(**config),
                tools=ToolsConfig(),
                project=self.project,
                env={"PATH": os.environ["PATH"]},
                launcher=Launcher(),
            )
        hooks = RunHooks(self.runner, run, cast("Journal", self.notes))
        return Extensions(ExtensionContext(run=run), [hooks])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def on(command: str, **group: Any) -> dict[str, Any]:
    return {**group, "hooks": [{"type": "command", "command": command}]}


async def make_call(hooks: Extensions) -> None:
    async def act() -> str:
        return "written"

    await hooks.run_tool(CALL, act)


def answering(**answer: Any) -> str:
    return f"echo '{json.dumps(answer)}'"


def closed(command: str) -> dict[str, Any]:
    return {"type": "command", "command": command, "on_failure": "deny"}


async def test_h8_a_deny_is_an_error_with_a_summary_of_the_hook(place: Place) -> None:
    command = answering(decision="deny", reason="not on Fridays")
    place.write(PreToolUse=[on(command, matcher="code.write_file")])
    with pytest.raises(PermissionDeniedError) as denied:
        await place.hooks().before_tool_call(CALL, WRITE)
    assert denied.value.code is ErrorCode.PERMISSION_DENIED
    assert "not on Fridays" in denied.value.message
    assert denied.value.details["hook_summary"] == {
        "event": "PreToolUse",
        "command": command,
        "decision": "deny",
        "reason": "not on Fridays",
    }
    assert place.notes.types == [EventType.HOOK_STARTED, EventType.HOOK_DENIED]
    assert place.notes.levels == {EventLevel.DEBUG}


LONG: dict[str, dict[str, Any]] = {
    "reason": {"reason": "r" * 50_000},
    "logs": {"logs": ["l"] * 10_000},
    "log": {"logs": "l" * 50_000},
    "metadata": {"metadata": {"m": "x" * 50_000}},
}


@pytest.mark.parametrize("part", LONG)
async def test_what_a_hook_says_is_recorded_within_bounds(place: Place, part: str) -> None:
    answer = place.home / "answer.json"
    answer.write_text(json.dumps({"decision": "deny"} | LONG[part]), encoding="utf-8")
    place.write(PreToolUse=[on(f"cat {answer}")], Stop=[on(f"cat {answer}")])
    with pytest.raises(PermissionDeniedError) as denied:
        await place.hooks().before_tool_call(CALL, WRITE)
    assert len(denied.value.message) < 5_000
    assert len(json.dumps(denied.value.details)) < 5_000
    assert denied.value.details["hook_summary"]["decision"] == "deny"
    assert len((await place.hooks().before_stop("")) or "") < 5_000
    assert place.notes.types.count(EventType.HOOK_DENIED) == 2
    assert all(len(json.dumps(payload)) < 10_000 for _, payload in place.notes.events)


async def test_h9_a_project_has_no_hooks(place: Place) -> None:
    folder = place.project / ".soong-agent"
    folder.mkdir()
    document = {"version": 1, "hooks": {"PreToolUse": [on(answering(decision="deny"))]}}
    (folder / "hooks.json").write_text(json.dumps(document), encoding="utf-8")
    await place.hooks().before_tool_call(CALL, WRITE)
    assert place.notes.events == []


async def test_a_hook_gets_the_facts_as_json_and_runs_in_the_project(place: Place) -> None:
    place.write(
        SessionStart=[on("cat > start.json")],
        UserPromptSubmit=[on("cat > prompt.json")],
        PreToolUse=[on("cat > before.json")],
        PostToolUse=[on("cat > after.json", matcher={"tag": "write"})],
        Stop=[on("cat > stop.json")],
    )
    hooks = place.hooks()
    await hooks.run_started()
    await hooks.on_message(user_text("do it, \ud800"))
    await hooks.before_tool_call(CALL, WRITE)
    await make_call(hooks)
    await hooks.after_tool_call(CALL, ToolResult(content=[TextBlock(text="written")]))
    assert await hooks.before_stop("It is done.") is None

    def told(name: str) -> dict[str, Any]:
        return json.loads((place.project / name).read_text(encoding="utf-8"))

    base = {
        "session_id": "sess_1",
        "run_id": "run_1",
        "agent_id": "agent_1",
        "agent_role": "main",
        "cwd": str(place.project),
    }
    call = {"tool_call_id": "call_1", "tool_name": CALL.name, "arguments": CALL.arguments}
    assert told("start.json") == {"event": "SessionStart", **base}
    assert told("prompt.json") == {"event": "UserPromptSubmit", **base, "prompt": "do it, \ud800"}
    assert told("before.json") == {"event": "PreToolUse", **base, **call}
    after = told("after.json")
    assert after["result"]["content"] == [{"type": "text", "text": "written"}]
    assert after["result_text"] == "written"
    assert after["outcome"] == "completed"
    end = {"result_text": "It is done.", "denied_before": 0}
    assert told("stop.json") == {"event": "Stop", **base, **end}


async def test_hooks_run_one_after_another_and_a_deny_ends_the_round(place: Place) -> None:
    place.write(
        PreToolUse=[
            on("sleep 0.05; echo 1 >> order"),
            on("echo 2 >> order; " + answering(decision="deny")),
            on("echo 3 >> order"),
        ]
    )
    with pytest.raises(PermissionDeniedError):
        await place.hooks().before_tool_call(CALL, WRITE)
    assert (place.project / "order").read_text(encoding="utf-8").split() == ["1", "2"]


async def test_the_session_starts_once_in_a_process(place: Place) -> None:
    place.write(SessionStart=[on("echo x >> starts")], UserPromptSubmit=[on("echo y >> prompts")])
    child = RUN.model_copy(update={"run_id": "run_2", "parent_run_id": "run_1"})
    other = RUN.model_copy(update={"session_id": "sess_2"})
    for run in (RUN, child, RUN, other):
        hooks = place.hooks(run)
        await hooks.run_started()
        await hooks.on_message(user_text("hello"))
    assert (place.project / "starts").read_text(encoding="utf-8") == "x\n" * 2
    assert (place.project / "prompts").read_text(encoding="utf-8") == "y\n" * 3


async def test_only_before_a_tool_and_at_the_stop_may_a_hook_deny(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    deny = [on(answering(decision="deny", reason="tests first"))]
    place.write(
        SessionStart=deny, UserPromptSubmit=deny, PreToolUse=deny, PostToolUse=deny, Stop=deny
    )
    hooks = place.hooks()
    await hooks.run_started()
    await hooks.on_message(user_text("hello"))
    await make_call(hooks)
    await hooks.after_tool_call(CALL, ToolResult())
    await hooks.on_message(user_text("hello again"))
    assert place.notes.types.count(EventType.HOOK_COMPLETED) == 4
    for event in ("SessionStart", "UserPromptSubmit", "PostToolUse"):
        assert caplog.text.count(f"a deny of a {event} hook has no effect") == 1
    assert await hooks.before_stop("") == "tests first"
    with pytest.raises(PermissionDeniedError):
        await hooks.before_tool_call(CALL, WRITE)


async def test_a_compaction_is_not_stopped_from_ending(place: Place) -> None:
    place.write(Stop=[on(answering(decision="deny"))])
    compaction = RUN.model_copy(update={"role": AgentRole.COMPACT})
    assert await place.hooks(compaction).before_stop("") is None


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("exit 3", "exit code 3"),
        (answering(decision="allow") + "; exit 1", "exit code 1"),
        ("echo a log line; " + answering(decision="allow"), "cannot be read"),
        ("echo not json", "cannot be read: Invalid JSON"),
        ('echo \'{"decision": "maybe"}\'', "cannot be read: decision: "),
        ('echo \'{"decision": "allow", "more": 1}\'', "cannot be read: more: "),
        ("echo null", "cannot be read"),
        ("yes '[' | head -c 90000", "too long"),
        ("kill -9 $$", "exit code 137"),
        ("no-such-program-here", "exit code 127"),
        (r"printf '#!/bin/sh\r\n' > s; chmod +x s; ./s", "its lines end with CRLF"),
    ],
)
async def test_a_failed_hook_is_recorded_and_stops_nothing(
    place: Place, command: str, error: str
) -> None:
    place.write(PreToolUse=[on(command), on("echo ran >> second")])
    await place.hooks().before_tool_call(CALL, WRITE)
    kind, payload = place.notes.events[1]
    assert kind is EventType.HOOK_FAILED
    assert payload["code"] == ErrorCode.HOOK_FAILED
    assert error in payload["error"]
    assert "pydantic" not in payload["error"]
    assert (place.project / "second").exists()


DENY = '{"decision": "deny", "reason": "no"}'
NESTED = '{"permissionDecision": "deny", "permissionDecisionReason": "no"}'
DENIALS: dict[str, str | bytes] = {
    "beside log lines": f"looking …\n[info] {DENY} at 12:00\ndone",
    "as the second object": f'{{"level": "info", "msg": "a {{ b"}}\n{DENY}',
    "over several lines": '{\n  "decision":\n    "deny",\n  "reason": "no"\n}\n',
    "in a fence": f"```json\n{DENY}\n```",
    "in a list": f"[{DENY}]",
    "encoded twice": json.dumps(DENY),
    "with other keys": '{"decision": "deny", "reason": "no", "version": 2}',
    "with a wrong value beside it": '{"decision": "deny", "reason": "no", "logs": 5}',
    "as block": '{"decision": "block", "reason": "no"}',
    "in capitals": '{"Decision": "DENY", "Reason": "no"}',
    "of another agent": f'{{"continue": true, "hookSpecificOutput": {NESTED}}}',
    "without continuing": '{"continue": false, "stopReason": "no"}',
    "for one tool": '{"permission": "deny", "user_message": "no"}',
    "not quite JSON": "{'decision': 'deny', }  # \"reason\": \"no\"",
    "cut off": '{"reason": "no", "decision": "deny", "logs": ["a',
    "in colour": '\x1b[1;39m{\x1b[34;1m"decision"\x1b[0m: \x1b[32m"deny"\x1b[0m, "reason": "no"}',
    "after a byte order mark": f"\ufeff{DENY}",
    "in UTF-16": DENY.encode("utf-16"),
    "in UTF-16 without a mark": DENY.encode("utf-16-le"),
    "in an object without an answer": f'{{"output": [{DENY}]}}',
    "in lists": f"[[{DENY}]]",
    "as YAML": "decision: deny\nreason: no",
    "with bare names": '{decision: deny, "reason": "no"}',
    "with a stop": '{"decision": "deny.", "reason": "no"}',
    "with escaped letters": 'log\n{"decision": "\\u0064eny", "reason": "no"}',
    "in words": "checked\nBlock: no",
    "as an item": "- deny, no",
    "in markup": "<b>deny</b>: no",
    "behind another one in a flood": (
        b'{"decision": "allow", "metadata": {"decision": "deny"}}'
        + b" " * 70_000
        + DENY.encode()
        + b" " * 70_000
    ),
    "in a flood": b"[" * 70_000 + DENY.encode() + b"{" * 70_000,
}


@pytest.mark.parametrize("form", DENIALS)
async def test_a_deny_counts_wherever_it_can_be_read(place: Place, form: str) -> None:
    printed = DENIALS[form]
    raw = printed if isinstance(printed, bytes) else printed.encode()
    (place.home / "printed").write_bytes(raw)
    place.write(PreToolUse=[on(f"cat {place.home}/printed")])
    with pytest.raises(PermissionDeniedError, match=": no") as denied:
        await place.hooks().before_tool_call(CALL, WRITE)
    assert denied.value.details["hook_summary"]["reason"] == "no"
    assert place.notes.types == [EventType.HOOK_STARTED, EventType.HOOK_DENIED]


ENDS: dict[str, tuple[str, str]] = {
    "with exit code 1": (f"echo '{DENY}'; exit 1", "no"),
    "by a signal": (f"echo '{DENY}'; kill -9 $$", "no"),
    "on stderr": (f"echo '{DENY}' >&2", "no"),
    "as the word on stderr": ("echo deny >&2; exit 1", "deny"),
    "in words": ("echo deny because it is Friday", "because it is Friday"),
    "at its timeout": (f"echo '{DENY}'; sleep 30", "no"),
    "with exit code 2": ("echo 'not on Fridays' >&2; exit 2", "not on Fridays"),
    "with exit code 2 and its reason on stdout": ("echo 'not on Fridays'; exit 2", "not on"),
    "with exit code 2 and no word": ("exit 2", "no reason was given"),
    "with an allow and exit code 2": (answering(decision="allow") + "; exit 2", "allow"),
    "with the reason on stderr": ("echo because >&2; " + answering(decision="block"), "because"),
    "with the word alone": ("echo block", "no reason was given"),
    "with the word on a line": ("echo looking; echo DENY; echo done", "no reason was given"),
    "with a line that is no JSON": ("echo 'decision: block'; echo because >&2", "because"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_deny_counts_however_the_hook_ends(place: Place, end: str) -> None:
    command, reason = ENDS[end]
    timeout_ms = 1_500 if end == "at its timeout" else 30_000
    hook = {"type": "command", "command": command, "timeout_ms": timeout_ms}
    place.write(PreToolUse=[{"hooks": [hook]}])
    with pytest.raises(PermissionDeniedError) as denied:
        await place.hooks().before_tool_call(CALL, WRITE)
    assert reason in denied.value.details["hook_summary"]["reason"]


NO_DENIALS = {
    "an allow about an earlier deny": answering(metadata={"last": {"decision": "deny"}}),
    "the same beside a log line": "echo log; " + answering(metadata={"x": {"decision": "deny"}}),
    "a reason that quotes one": answering(reason=f"unlike {DENY}"),
    "words": "echo 'nothing to block, deny or reject'",
    "a log on stderr": "echo 'deny list: read' >&2",
    "a repeated call": """echo '{"arguments": {"decision": "deny"}, "tool_name": "x"}'""",
    "changed arguments": answering(
        hookSpecificOutput={"permissionDecision": "allow", "updatedInput": {"decision": "deny"}}
    ),
}


@pytest.mark.parametrize("what", NO_DENIALS)
async def test_what_only_mentions_a_deny_is_none(place: Place, what: str) -> None:
    place.write(PreToolUse=[on(NO_DENIALS[what])])
    await place.hooks().before_tool_call(CALL, WRITE)


async def test_a_hook_that_stops_the_agent_does_not_object_to_its_end(place: Place) -> None:
    ends = answering(**{"continue": False, "stopReason": "enough"})
    place.write(Stop=[{"hooks": [closed(ends)]}])
    assert await place.hooks().before_stop("") is None
    assert place.notes.types == [EventType.HOOK_STARTED, EventType.HOOK_COMPLETED]
    place.write(Stop=[on("echo 'the tests fail' >&2; exit 2")])
    assert await place.hooks().before_stop("") == "the tests fail"


OTHER_ALLOWS: dict[str, dict[str, Any]] = {
    "approve": {"decision": "approve", "reason": "fine"},
    "continue": {"continue": True, "suppressOutput": True, "stopReason": None},
    "a message for the user": {"systemMessage": "hi"},
    "a permission": {"permission": "allow", "agent_message": "hi"},
    "a nested allow": {"hookSpecificOutput": {"permissionDecision": "allow"}},
    "changed arguments": {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "allow",
            "updatedInput": {"path": "b.txt"},
        }
    },
    "a question": {"hookSpecificOutput": {"permissionDecision": "ask"}},
    "a nested behavior": {"hookSpecificOutput": {"decision": {"behavior": "allow"}}},
}


@pytest.mark.parametrize("form", OTHER_ALLOWS)
async def test_an_allow_in_the_form_of_other_agents_is_no_failure(
    place: Place, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.write(PreToolUse=[{"hooks": [closed(answering(**OTHER_ALLOWS[form]))]}])
    with caplog.at_level("INFO", "agent_core.hooks"):
        await place.hooks().before_tool_call(CALL, WRITE)
    assert place.notes.types == [EventType.HOOK_STARTED, EventType.HOOK_COMPLETED]
    ignored = {"changed arguments": "updatedInput", "a question": '"ask"'}
    assert ignored.get(form, "") in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        {"decision": "approve", "more": 1},
        {"continue": "maybe"},
        {"hookSpecificOutput": {"permisionDecision": "allow"}},
        {"hookSpecificOutput": {"permissionDecision": "maybe"}},
        {"hookSpecificOutput": "allow"},
        {"decision": None, "continue": True},
        {
            "continue": True,
            "hookSpecificOutput": json.loads('{"decision":' * 700 + "1" + "}" * 700),
        },
    ],
)
async def test_an_answer_in_no_known_form_is_a_failure(
    place: Place, answer: dict[str, Any]
) -> None:
    place.write(PreToolUse=[{"hooks": [closed(answering(**answer))]}])
    with pytest.raises(PermissionDeniedError, match="cannot be read"):
        await place.hooks().before_tool_call(CALL, WRITE)


FAILURES = {
    "breaks": "exit 3",
    "is missing": "/no/such/guard",
    "is unreadable": "echo maybe",
    "is unsure": answering(decision="maybe"),
    "allows beside other text": "echo log; " + answering(decision="allow"),
    "hangs": "sleep 30",
}


@pytest.mark.long
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_guard_that_fails_closed_denies(place: Place, failure: str) -> None:
    hook = {"type": "command", "command": FAILURES[failure], "on_failure": "deny"}
    guard = {"hooks": [hook | {"timeout_ms": 300 if failure == "hangs" else 30_000}]}
    place.write(PreToolUse=[guard], Stop=[guard], PostToolUse=[guard], UserPromptSubmit=[guard])
    hooks = place.hooks()
    with pytest.raises(PermissionDeniedError, match='its on_failure is "deny"') as denied:
        await hooks.before_tool_call(CALL, WRITE)
    assert denied.value.code is ErrorCode.PERMISSION_DENIED
    assert denied.value.details["hook_summary"]["command"] == hook["command"]
    kind, payload = place.notes.events[1]
    assert (kind, payload["decision"]) == (EventType.HOOK_FAILED, "deny")
    assert 'its on_failure is "deny"' in (await hooks.before_stop("") or "")
    await hooks.on_message(user_text("hello"))  # only recorded, as a deny is
    await make_call(hooks)
    await hooks.after_tool_call(CALL, ToolResult())


async def test_a_hook_that_hangs_is_stopped_with_its_children(place: Place) -> None:
    hang = "(sleep 60; echo late >> late) & sleep 60"
    hook = {"type": "command", "command": hang, "timeout_ms": 200}
    place.write(PreToolUse=[{"hooks": [hook]}])
    started = perf_counter()
    await place.hooks().before_tool_call(CALL, WRITE)
    assert perf_counter() - started < 30
    assert "within 200 ms" in place.notes.events[1][1]["error"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has subreapers")
async def test_a_daemon_of_a_hook_ends_with_it(place: Place) -> None:
    daemon = "setsid sh -c 'echo $$ > pid; exec sleep 60' >/dev/null 2>&1 </dev/null &"
    place.write(PreToolUse=[on(f"{daemon} while ! [ -s pid ]; do sleep 0.01; done")])
    await place.hooks().before_tool_call(CALL, WRITE)
    pid = int((place.project / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_cancelled_hook_leaves_nothing_behind(place: Place) -> None:
    pid_file = place.project / "pid"
    os.mkfifo(place.project / "begun")
    place.write(PreToolUse=[on("echo $$ > pid; echo x > begun; sleep 30")])
    task = asyncio.create_task(place.hooks().before_tool_call(CALL, WRITE))
    await asyncio.to_thread((place.project / "begun").read_bytes)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = int(pid_file.read_text(encoding="utf-8"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_what_a_hook_says_is_kept(place: Place) -> None:
    answer = answering(metadata={"ticket": 7}, logs=["looked"], reason="fine")
    place.write(PreToolUse=[on(f"echo complaint >&2; {answer}")])
    await place.hooks().before_tool_call(CALL, WRITE)
    kind, payload = place.notes.events[1]
    assert kind is EventType.HOOK_COMPLETED
    assert payload["decision"] == "allow"
    assert payload["metadata"] == {"ticket": 7}
    assert payload["logs"] == ["looked"]
    assert payload["stderr"] == "complaint"


@pytest.mark.parametrize("sign", ["x", "é", "汉"])
@pytest.mark.parametrize("is_long", [False, True])
async def test_metadata_of_a_hook_is_measured_in_bytes(
    place: Place, sign: str, is_long: bool
) -> None:
    metadata = {"m": sign * ((1991 // len(sign.encode())) + is_long)}
    size = len(json.dumps(metadata, ensure_ascii=False).encode())
    (place.project / "said").write_text(json.dumps({"metadata": metadata}), encoding="utf-8")
    place.write(PreToolUse=[on("cat said")])
    await place.hooks().before_tool_call(CALL, WRITE)
    _, payload = place.notes.events[1]
    left_out = {"left_out": f"{size} bytes; at most 2000 are kept"}
    assert payload["metadata"] == (left_out if is_long else metadata)


async def test_hooks_see_no_more_of_the_environment_than_commands(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    place.write(PreToolUse=[on("env > env")])
    await place.hooks().before_tool_call(CALL, WRITE)
    assert "SOME_API_KEY" not in (place.project / "env").read_text(encoding="utf-8")


async def test_hooks_can_be_switched_off(place: Place) -> None:
    place.write(PreToolUse=[on(answering(decision="deny"))])
    await place.hooks(enabled=False).before_tool_call(CALL, WRITE)
    assert place.notes.events == []


async def test_arguments_are_data_whatever_they_hold(place: Place) -> None:
    place.write(PreToolUse=[on("cat > seen.json")])
    arguments = {"path": "$(touch pwned); `touch pwned`", "n": 10**30, "s": "\ud800\0"}
    call = ToolCall(tool_call_id="c", name="x", arguments=arguments)
    await place.hooks().before_tool_call(call, WRITE)
    assert json.loads((place.project / "seen.json").read_bytes())["arguments"] == arguments
    assert not (place.project / "pwned").exists()


async def test_a_hook_that_lets_a_call_pass_is_summarised_for_the_question(place: Place) -> None:
    command = answering(decision="allow", reason="looks fine")
    place.write(PreToolUse=[on("true"), on(command), on("exit 3")])
    assert await place.hooks().before_tool_call(CALL, WRITE) == {
        "event": "PreToolUse",
        "command": command,
        "decision": "allow",
        "reason": "looks fine",
    }
    place.write(PreToolUse=[])
    assert await place.hooks().before_tool_call(CALL, WRITE) is None

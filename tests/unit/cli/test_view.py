"""What a run looks like, line by line."""

from io import StringIO
from typing import Any

import pytest

from agent_core.cli.terminal import Terminal
from agent_core.cli.view import RunView
from agent_core.tools.patch import unified_diff
from agent_core.types import NEVER_BEGAN, EventType, RuntimeEvent, Usage, utc_now
from tables import together


class Screen(StringIO):
    """Both streams of a terminal."""

    def isatty(self) -> bool:
        return True


class ScreenWithSigns(Screen):
    encoding = "utf-8"


def on_screen() -> tuple[RunView, Terminal, Screen]:
    screen = Screen()
    terminal = Terminal(screen, screen, environ={"TERM": "dumb"})
    return RunView(terminal), terminal, screen


def happens(kind: EventType, payload: dict[str, Any], call_id: str | None = None) -> RuntimeEvent:
    return RuntimeEvent(
        tool_call_id=call_id,
        event_id="evt_1",
        session_id="sess_1",
        event_type=kind,
        payload=payload,
        created_at=utc_now(),
    )


def test_an_interrupt_is_told_on_a_line_of_its_own_wherever_the_cursor_is() -> None:
    view, terminal, screen = on_screen()
    terminal.line("> code.search x")
    screen.write("^C")
    view.interrupted()
    terminal.text("half an ans")
    screen.write("^C")
    view.interrupted()
    terminal.ask("> ")
    screen.write("^C")
    view.interrupted()

    told = "cancelling; once more to leave at once\n"
    assert screen.getvalue() == (f"> code.search x\n^C\n{told}half an ans^C\n{told}> ^C\n{told}")


def test_a_tool_whose_summary_is_its_name_is_named_once() -> None:
    view, _, screen = on_screen()
    for summary in ("agent.task_create", "release"):
        payload = {"tool_name": "agent.task_create", "summary": summary}
        view.event(happens(EventType.TOOL_STARTED, payload))
    assert screen.getvalue() == "> agent.task_create\n> agent.task_create release\n"


def test_a_takeover_is_shown() -> None:
    view, _, screen = on_screen()
    view.event(happens(EventType.RUN_TAKEN_OVER, {"takeovers": 1, "reason": "owner_lost"}))
    assert screen.getvalue() == "another process continues the run\n"


def test_a_call_of_a_child_does_not_end_the_call_of_its_parent_with_the_same_id() -> None:
    view, _, screen = on_screen()

    def of(run_id: str, kind: EventType, payload: dict[str, Any]) -> RuntimeEvent:
        made = {"run_id": run_id, "agent_id": f"agent_of_{run_id}"}
        return happens(kind, payload, "call_0").model_copy(update=made)

    started = {"tool_name": "agent.create_sub_agent", "summary": "agent.create_sub_agent"}
    view.event(of("run_1", EventType.TOOL_STARTED, started))
    child = {"child_run_id": "run_2", "agent_definition_id": "scout"}
    view.event(of("run_1", EventType.CHILD_AGENT_CREATED, child))
    inside = {"tool_name": "my.tool", "summary": "my.tool", "kind": "read", "duration_ms": 3000}
    view.child_event(of("run_2", EventType.TOOL_STARTED, inside))
    view.child_event(of("run_2", EventType.TOOL_COMPLETED, inside))
    view.event(of("run_1", EventType.TOOL_COMPLETED, started))
    assert screen.getvalue().splitlines()[2:] == [
        "  * scout: my.tool  3.0 s",
        "  agent.create_sub_agent ok",
    ]
    assert view.last_call is not None
    assert view.last_call.started is not None


async def test_what_happens_during_a_question_is_shown_after_its_answer() -> None:
    view, terminal, screen = on_screen()
    ended = {"tool_name": "my.tool", "is_error": False, "duration_ms": 3}
    async with terminal.question():
        terminal.line("may it?")
        terminal.ask("> ")
        view.event(happens(EventType.TOOL_COMPLETED, ended))
        assert screen.getvalue() == "may it?\n> "
        terminal.line("yes")
    assert screen.getvalue() == "may it?\n> yes\n> my.tool ok (3 ms)\n"


def test_only_the_last_message_is_the_answer_where_it_has_a_stream_of_its_own() -> None:
    out, err = StringIO(), StringIO()
    view = RunView(Terminal(out, err, environ={}))
    for text, calls in (("Let me look.", [{"name": "a"}]), ("Almost.", []), ("Done.", [])):
        view.event(happens(EventType.MODEL_STARTED, {}))
        view.event(happens(EventType.MODEL_TEXT_DELTA, {"text": text}))
        view.event(happens(EventType.MODEL_COMPLETED, {"tool_calls": calls}))
    assert out.getvalue() == ""
    view.end("Done.", None, None)
    assert out.getvalue() == "Done.\n"
    assert "Let me look.\n" in err.getvalue()
    assert "Almost." in err.getvalue()


def test_an_answer_whose_events_have_lost_a_secret_is_written_once() -> None:
    out, err = StringIO(), StringIO()
    view = RunView(Terminal(out, err, environ={}))
    text = "It is [redacted:api_key], and [redacted:token]."
    view.event(happens(EventType.MODEL_TEXT_DELTA, {"text": text}))
    view.event(happens(EventType.MODEL_COMPLETED, {"tool_calls": []}))
    view.end("It is sk-1, and t-2.", None, None)
    assert out.getvalue() == "It is sk-1, and t-2.\n"
    assert err.getvalue() == ""


@together(
    ("kind", "payload", "shown"),
    [
        ("tool_completed", {"exit_code": 0, "duration_ms": 400}, "exit code 0 (400 ms)"),
        ("tool_completed", {"exit_code": 1, "duration_ms": 1400}, "exit code 1 (1.4 s)"),
        ("tool_completed", {"exit_code": 143}, "exit code 143, killed by SIGTERM"),
        ("tool_completed", {"exit_code": 255}, "exit code 255"),
        ("tool_failed", {"code": "timeout", "message": "late"}, "timed out: late"),
        ("tool_failed", {"code": "cancelled", "message": "m", "duration_ms": 1}, "cancelled: m"),
        ("tool_failed", {"code": "cancelled", "message": "m"}, "not run: m"),
        ("tool_failed", {"code": "cancelled", "message": NEVER_BEGAN, "duration_ms": 1}, "not run"),
        (
            "tool_failed",
            {"code": "cancelled", "message": "m", "reason": "interrupted_effect_unknown"},
            "unknown: m",
        ),
        ("tool_failed", {}, "failed"),
        ("tool_denied", {"code": "permission_denied", "message": "no"}, "denied: no"),
        (
            "tool_denied",
            {"message": "the user denied t: too late", "denied_by": "the user"},
            "denied by the user: too late",
        ),
        (
            "tool_denied",
            {"message": "t was not allowed, because …", "denied_by": "nobody"},
            "denied: nobody could be asked",
        ),
        (
            "tool_denied",
            {"message": "plan mode: use other tools", "denied_by": "plan mode"},
            "denied by plan mode",
        ),
        (
            "tool_denied",
            {"message": "a.test is not listed", "denied_by": "[permissions.network_policy]"},
            "denied by [permissions.network_policy]: a.test is not listed",
        ),
        ("tool_completed", {"duration_ms": 75_000}, "ok (1 m 15 s)"),
    ],
)
def test_the_end_of_a_call_says_how(kind: str, payload: dict[str, Any], shown: str) -> None:
    view, _, screen = on_screen()
    view.event(happens(EventType(kind), {"tool_name": "t", **payload}))
    assert screen.getvalue() == f"> t {shown}\n"


@together("term", ["xterm", "dumb"])
def test_what_happened_around_a_command_stays_on_the_screen_once(term: str) -> None:
    screen = ScreenWithSigns()
    view = RunView(Terminal(screen, screen, environ={"TERM": term, "NO_COLOR": "1"}))
    remark = "left running, and stopped: npm run dev"
    named = {"tool_name": "code.run_command", "kind": "execute"}
    view.event(happens(EventType.TOOL_STARTED, named, "call_1"))
    if term == "dumb":  # elsewhere the line of a progress is drawn over
        view.event(happens(EventType.TOOL_PROGRESS, named | {"text": remark}, "call_1"))
    view.event(happens(EventType.TOOL_COMPLETED, named | {"remarks": [remark]}, "call_1"))
    assert screen.getvalue().count(remark) == 1


def test_a_diff_counts_what_it_hides() -> None:
    view, _, screen = on_screen()
    added = "".join(f"+{number}\n" for number in range(100))
    diff = f"--- a\n+++ a\n@@ -0,0 +1,100 @@\n{added}"
    ended = {"tool_name": "t", "diff": diff, "diff_hidden_lines": 7}
    view.event(happens(EventType.TOOL_COMPLETED, ended))
    lines = screen.getvalue().splitlines()
    assert lines[1:3] == ["    1 + 0", "    2 + 1"]
    assert len(lines) == 42
    assert lines[-1] == "  ... 67 more lines of the diff"


def test_a_changed_line_is_shown_to_its_end_on_further_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view, _, screen = on_screen()
    monkeypatch.setattr(Terminal, "width", 40)
    kept, changed = "kept " * 20, "".join(f"word-{number:02} " for number in range(12))
    diff = unified_diff(f"{kept}\nold\n", f"{kept}\n{changed}{'x' * 3000}\n", shown="a")
    view.event(happens(EventType.TOOL_COMPLETED, {"tool_name": "t", "diff": diff}))
    first, removed, *added = screen.getvalue().splitlines()[1:]
    assert first == "  1   kept kept kept kept kept kept..."
    assert removed == "  2 - old"
    assert added[:4] == [
        "  2 + word-00 word-01 word-02 word-03",
        "      word-04 word-05 word-06 word-07",
        "      word-08 word-09 word-10 word-11",
        "      " + "x" * 33,
    ]
    assert all(len(line) <= 40 for line in added)
    assert added[-1].endswith("x...")
    assert len(added) < 15, "a line without end does not take the screen"


def test_a_diff_shows_line_ends_that_are_missing_and_no_others() -> None:
    view, _, screen = on_screen()
    diff = unified_diff("a\u2028b\r\none", "a\u2028b\r\n1\n", shown="a")
    view.event(happens(EventType.TOOL_COMPLETED, {"tool_name": "t", "diff": diff}))
    assert screen.getvalue().splitlines()[1:] == [
        "  1   a\\u2028b",
        "  2 - one",
        "    \\ No newline at end of file",
        "  2 + 1",
    ]


def test_what_is_said_before_a_call_and_the_tokens_keep_their_words_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = ScreenWithSigns()
    monkeypatch.setattr(Terminal, "width", 40)
    terminal = Terminal(screen, screen, environ={"TERM": "xterm", "NO_COLOR": "1"})
    view = RunView(terminal)
    said = "I look at the JSON provider and its tests first."
    view.event(happens(EventType.MODEL_TEXT_DELTA, {"text": said}))
    view.event(happens(EventType.MODEL_COMPLETED, {"tool_calls": [{"name": "a"}]}))
    spent = Usage(input_tokens=123456, output_tokens=1234, total_tokens=124690, cost=0.0276)
    view.end(None, None, spent)
    assert "I look at the JSON provider and its\ntests first.\n" in screen.getvalue()
    tokens = "tokens: 123456 in, 1234 out, 124690 in\nall, $0.0276\n"
    assert tokens in screen.getvalue()


def test_a_call_that_was_not_run_says_so_once() -> None:
    view, _, screen = on_screen()
    payload = {"tool_name": "x", "code": "cancelled", "message": "not run: a write has failed"}
    view.event(happens(EventType.TOOL_FAILED, payload, "call_1"))
    assert screen.getvalue() == "> x not run: a write has failed\n"

"""What a run looks like, line by line."""

from io import StringIO
from typing import Any

from agent_core.cli.terminal import Terminal
from agent_core.cli.view import RunView
from agent_core.types import EventType, RuntimeEvent, utc_now


class Screen(StringIO):
    """Both streams of a terminal."""

    def isatty(self) -> bool:
        return True


def on_screen() -> tuple[RunView, Terminal, Screen]:
    screen = Screen()
    terminal = Terminal(screen, screen, environ={"TERM": "dumb"})
    return RunView(terminal), terminal, screen


def happens(kind: EventType, payload: dict[str, Any]) -> RuntimeEvent:
    return RuntimeEvent(
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

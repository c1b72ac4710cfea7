"""A run's story on a terminal."""

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_core.redaction import visible
from kgent.records.events import Event
from kgent.records.logs import ToolCallRecord
from kgent.review.story import Story

_COLOURS = {"completed": "green", "incomplete": "yellow", "failed": "red", "lost": "red"}
_SEVERITIES = {"warning": "yellow", "error": "red"}
_MAX_TEXT = 2000


def show(story: Story, console: Console) -> None:
    """Print the story."""
    console.print(_head(story))
    if story.prompt.strip():
        console.print(Panel(_plain(story.prompt.strip()[:_MAX_TEXT]), title="Prompt", expand=False))
    if story.calls:
        console.print(_calls(story.calls))
    if story.artifacts is not None and story.artifacts.artifacts:
        console.print(_artifacts(story))
    console.print(_events(story.events))
    for problem in story.problems:
        console.print(Text(f"! {visible(problem)}", style="red"))


def _head(story: Story) -> RenderableType:
    state = story.state
    rows = Table.grid(padding=(0, 2))
    colour = _COLOURS.get(story.outcome, "cyan")
    rows.add_row("status", Text(story.outcome, style=f"bold {colour}"))
    if story.is_lost:
        rows.add_row("", Text("the run was lost: its process ended without closing it", "red"))
    if state.failure_reason:
        rows.add_row("reason", _plain(state.failure_reason))
    facts = {
        "run": state.run_id,
        "task": state.task_id,
        "session": state.session_id,
        "profile": state.profile_id,
        "engine": f"{state.engine} {state.model.get('name') or ''}".strip(),
        "began": state.started_at or state.created_at,
        "ended": state.ended_at or "-",
        "usage": ", ".join(f"{name} {count}" for name, count in state.usage.items()) or "-",
        "fingerprint": state.config_fingerprint[:16],
    }
    for name, value in facts.items():
        rows.add_row(name, _plain(value))
    return Panel(Group(rows), title=f"kgent run {story.root.name}", expand=False)


def _calls(calls: list[ToolCallRecord]) -> Table:
    table = Table(title="Tool calls", title_justify="left")
    for name in ("tool", "status", "ms", "result"):
        table.add_column(name, overflow="fold")
    for call in calls:
        style = "" if call.status == "completed" else "yellow"
        table.add_row(
            _plain(call.tool_name),
            Text(call.status, style=style),
            str(call.duration_ms or 0),
            _plain(call.result_summary or ""),
        )
    return table


def _artifacts(story: Story) -> Table:
    table = Table(title="Files", title_justify="left")
    for name in ("path", "kind", "bytes", "sha256", "made by"):
        table.add_column(name, overflow="fold")
    for one in story.artifacts.artifacts if story.artifacts else []:
        gone = one.status == "missing"
        table.add_row(
            Text(visible(one.path), style="red" if gone else ""),
            _plain(one.kind),
            "missing" if gone else str(one.bytes),
            (one.sha256 or "")[:12],
            _plain(one.created_by),
        )
    return table


def _events(events: list[Event]) -> Table:
    table = Table(title="Events", title_justify="left")
    for name in ("#", "time", "event", "summary"):
        table.add_column(name, overflow="fold")
    for event in events:
        style = _SEVERITIES.get(event.severity, "")
        table.add_row(
            str(event.sequence),
            _plain(event.timestamp[11:23]),
            Text(visible(event.type), style=style),
            _plain(event.summary),
        )
    return table


def _plain(text: str) -> Text:
    """Text from a run folder: nothing in it acts on the terminal, and nothing is markup."""
    return Text(visible(text, zero_width=False))

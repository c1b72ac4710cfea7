"""Output of a run's report on a terminal."""

from collections.abc import Iterator

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_core.text import plural, shortened, visible
from kgent.review.report import (
    OUTCOMES,
    FolderReport,
    describe_request,
    describe_usage,
    explain_no_answer,
    read_answer,
)
from kgent.runtime.state import ATTEMPTS

_COLOURS = {"good": "green", "bad": "red", "fair": "yellow", "busy": "cyan"}
_SEVERITIES = {"warning": "yellow", "error": "red"}
_MAX_TEXT = 2000
_TEXTS = {"call", "cause", "reason", "result", "summary"}
"""Columns that are wrapped before the words of others."""
_MAX_ANSWER = 100_000


def print_report(report: FolderReport, console: Console) -> None:
    """Print the report on a terminal."""
    state = report.state
    head = Table.grid(padding=(0, 2))
    head.add_row("status", Text(report.outcome, f"bold {_colour(report.outcome)}"))
    if report.is_lost:
        head.add_row("", Text("the run was lost: its process ended without closing it", "red"))
    if state.failure_reason:
        head.add_row("reason", _plain(state.failure_reason))
    facts = {
        "run": state.run_id,
        "task": state.task_id,
        "session": state.session_id,
        "profile": state.profile_id,
        "engine": f"{state.engine} {state.model.get('name') or ''}".strip(),
        "began": state.started_at or state.created_at,
        "ended": state.ended_at or "-",
        "usage": describe_usage(state) or "-",
        "fingerprint": state.config_fingerprint[:16],
    }
    for name, value in facts.items():
        head.add_row(name, _plain(value))
    console.print(Panel(Group(head), title=f"kgent run {report.root.name}", expand=False))
    prompts = {"Prompt": report.prompt.strip()}
    if (task := report.task.strip()) != prompts["Prompt"]:
        prompts = {"Task": task, "Last prompt": prompts["Prompt"]}
    for title, text in prompts.items():
        if text:
            console.print(Panel(_plain(text[:_MAX_TEXT]), title=title, expand=False))
    _print_answer(report, console)
    for table in _tables(report):
        if table.title == "Events":
            _print_files(report, console)
        if table.row_count or table.title == "Events":
            console.print(table)
    for problem in report.problems:
        console.print(Text(f"! {visible(problem)}", style="red"))


def _print_answer(report: FolderReport, console: Console) -> None:
    """Print the answer without a frame, so that it can be copied."""
    answer = read_answer(report)
    shown = explain_no_answer(report) if answer is None else shortened(answer, _MAX_ANSWER)
    console.print(Text("Answer", "bold"))
    console.file.write(f"{visible(shown, zero_width=False)}\n\n")


def _print_files(report: FolderReport, console: Console) -> None:
    """Print a line for each file, with its whole path last; files of attempts are only counted."""
    files = report.artifacts.artifacts if report.artifacts else []
    own = [one for one in files if not one.path.startswith(f"{ATTEMPTS}/")]
    if own:
        console.print(Text("Files", "bold"))
    for one in own:
        gone = one.status == "missing"
        size, sha256 = "missing" if gone else str(one.bytes), (one.sha256 or "")[:12]
        facts = f"{size:7}  {sha256:12}  {visible(one.kind):11}  {visible(one.created_by):15}"
        path = Text(f"  {visible(one.path, one_line=True)}", style="red" if gone else "")
        console.print(Text(facts) + path, soft_wrap=True)
    if more := len(files) - len(own):
        console.print(f"and {plural(more, 'record')} of attempts, in {ATTEMPTS}/")


def _tables(report: FolderReport) -> Iterator[Table]:
    attempts = report.state.attempts
    table = _grid("Attempts", "#", "cause", "status", "began", "seal", "reason")
    for one in attempts if len(attempts) > 1 else ():
        status = Text(one.status, style=_colour(one.status))
        began, seal = one.created_at[:19].replace("T", " "), (one.seal or "")[:8]
        cause = _plain(" by ".join(filter(None, (one.cause, one.by))))
        table.add_row(str(one.number), cause, status, began, seal, _plain(one.reason or ""))
    yield table
    table = _grid("Requests", "request", "call", "answer", "reason")
    for asked in report.state.requests:
        call = _plain(describe_request(asked))
        said = " by ".join(filter(None, (asked.answer, asked.by)))
        answer = Text(visible(said) or "open", style="" if asked.answer else "yellow")
        table.add_row(_plain(asked.request_id), call, answer, _plain(asked.reason or ""))
    yield table
    table = _grid("Tool calls", "tool", "status", "ms", "result")
    for call in report.calls:
        style = "" if call.status == "completed" else "yellow"
        status, ms = Text(call.status, style=style), str(call.duration_ms or 0)
        table.add_row(_plain(call.tool_name), status, ms, _plain(call.result_summary or ""))
    yield table
    table = _grid("Events", "#", "time", "event", "summary")
    for event in report.events:
        kind = Text(visible(event.type), style=_SEVERITIES.get(event.severity, ""))
        time, summary = _plain(event.timestamp[11:23]), _plain(event.summary)
        table.add_row(str(event.sequence), time, kind, summary)
    yield table


def _grid(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name not in _TEXTS)
    return table


def _colour(outcome: str) -> str:
    return _COLOURS[OUTCOMES.get(outcome, "busy")]


def _plain(text: str) -> Text:
    """Return text from a run folder without control characters and markup."""
    return Text(visible(text, zero_width=False))

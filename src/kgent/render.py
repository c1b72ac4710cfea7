"""A run's report on a terminal, and as one HTML page without external resources."""

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agent_core.text import visible
from kgent.review import RunReport

_COLOURS = {"completed": "green", "incomplete": "yellow", "failed": "red", "lost": "red"}
_SEVERITIES = {"warning": "yellow", "error": "red"}
_MAX_TEXT = 2000

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{border:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:top;
overflow-wrap:anywhere;min-width:4.5em}
pre{background:var(--soft);padding:.7rem;overflow-x:auto;white-space:pre-wrap;
overflow-wrap:anywhere}
summary{cursor:pointer}.status{font-weight:700;padding:.1rem .6rem;border-radius:.6rem;color:#fff}
.completed{background:#2a7d3b}.incomplete{background:#a86a00}.failed,.lost{background:#b3261e}
.pending,.running{background:#2b6cb0}
.warning td{background:#a86a0022}.error td{background:#b3261e22}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def print_report(report: RunReport, console: Console) -> None:
    """Print the report on a terminal."""
    state = report.state
    head = Table.grid(padding=(0, 2))
    head.add_row("status", Text(report.outcome, f"bold {_COLOURS.get(report.outcome, 'cyan')}"))
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
        "usage": _usage(report),
        "fingerprint": state.config_fingerprint[:16],
    }
    for name, value in facts.items():
        head.add_row(name, _plain(value))
    console.print(Panel(Group(head), title=f"kgent run {report.root.name}", expand=False))
    if prompt := report.prompt.strip():
        console.print(Panel(_plain(prompt[:_MAX_TEXT]), title="Prompt", expand=False))
    for table in _tables(report):
        if table.row_count or table.title == "Events":
            console.print(table)
    for problem in report.problems:
        console.print(Text(f"! {visible(problem)}", style="red"))


def _tables(report: RunReport) -> Iterator[Table]:
    table = _grid("Tool calls", "tool", "status", "ms", "result")
    for call in report.calls:
        style = "" if call.status == "completed" else "yellow"
        status, ms = Text(call.status, style=style), str(call.duration_ms or 0)
        table.add_row(_plain(call.tool_name), status, ms, _plain(call.result_summary or ""))
    yield table
    table = _grid("Files", "path", "kind", "bytes", "sha256", "made by")
    for one in report.artifacts.artifacts if report.artifacts else []:
        gone = one.status == "missing"
        path = Text(visible(one.path), style="red" if gone else "")
        size, sha256 = "missing" if gone else str(one.bytes), (one.sha256 or "")[:12]
        table.add_row(path, _plain(one.kind), size, sha256, _plain(one.created_by))
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
        table.add_column(name, overflow="fold")
    return table


def _plain(text: str) -> Text:
    """Text from a run folder: nothing in it acts on the terminal, and nothing is markup."""
    return Text(visible(text, zero_width=False))


def _usage(report: RunReport) -> str:
    return ", ".join(f"{name} {count}" for name, count in report.state.usage.items()) or "-"


def render_page(report: RunReport) -> str:
    """Render the report as HTML."""
    state, model = report.state, report.state.model
    facts = {
        "Run": state.run_id,
        "Task": state.task_id,
        "Session": state.session_id,
        "Profile": state.profile_id,
        "Engine": f"{state.engine} {model.get('provider') or ''} {model.get('name') or ''}",
        "Created": state.created_at,
        "Ended": state.ended_at or "-",
        "Reason": state.failure_reason or "-",
        "Usage": _usage(report),
        "Fingerprint": state.config_fingerprint,
        "Folder": state.sandbox_root,
    }
    calls = [
        (call.tool_name, call.status, call.duration_ms or 0, call.result_summary or "",
         _fold_json("arguments", call.args_summary))
        for call in report.calls
    ]  # fmt: skip
    files = [
        (one.path, one.kind, one.status, one.bytes if one.bytes is not None else "-",
         one.sha256 or "-", one.created_by)
        for one in (report.artifacts.artifacts if report.artifacts else [])
    ]  # fmt: skip
    errors = [(one.timestamp, one.category.value, one.code, one.message) for one in report.errors]
    events = [
        (event.sequence, event.timestamp, event.type, event.actor, event.summary,
         _fold_json("data", event.data) if event.data else "")
        for event in report.events
    ]  # fmt: skip
    severities = [event.severity for event in report.events]
    call_head = ("Tool", "Status", "ms", "Result", "Arguments")
    file_head = ("Path", "Kind", "Status", "Bytes", "SHA-256", "Made by")
    event_head = ("#", "Time", "Event", "Actor", "Summary", "Data")
    problems = "".join(f"<li>{_text(line)}</li>" for line in report.problems)
    badge = f'<span class="status {_text(report.outcome)}">{_text(report.outcome)}</span>'
    parts = [
        f"<h1>{_text(state.run_id)} {badge}</h1>",
        f"<ul>{problems}</ul>" if problems else "",
        _table(("", ""), facts.items()),
        _section("Prompt", _pre(report.prompt)),
        _section("Tool calls", _table(call_head, calls, html_column=4)),
        _section("Files", _table(file_head, files)),
        _section("Errors", _table(("Time", "Category", "Code", "Message"), errors)),
        _section("Events", _table(event_head, events, html_column=5, classes=severities)),
        _section("System prompt", _fold("show", report.system_prompt)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_text(state.run_id)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    html_column: int | None = None,
    classes: Sequence[str] = (),
) -> str:
    """A table; `html_column` holds markup of ours, everything else is text."""
    body: list[str] = []
    for number, row in enumerate(rows):
        cells = (
            f"<td>{cell if column == html_column else _text(cell)}</td>"
            for column, cell in enumerate(row)
        )
        kind = f' class="{_text(classes[number])}"' if classes else ""
        body.append(f"<tr{kind}>{''.join(cells)}</tr>")
    if not body:
        return ""
    titles = "".join(f"<th>{_text(title)}</th>" for title in head) if any(head) else ""
    return f"<table>{f'<tr>{titles}</tr>' if titles else ''}{''.join(body)}</table>"


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>\n{body}" if body else ""


def _fold_json(label: str, value: object) -> str:
    return _fold(label, json.dumps(value, indent=1, ensure_ascii=False))


def _fold(label: str, text: str) -> str:
    return f"<details><summary>{label}</summary>{_pre(text)}</details>" if text.strip() else ""


def _pre(text: str) -> str:
    return f"<pre>{_text(text)}</pre>" if text.strip() else ""


def _text(value: object) -> str:
    return escape(visible(str(value), zero_width=False))

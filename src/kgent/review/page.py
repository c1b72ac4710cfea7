"""A run's story as one self-contained page: no script, no link, nothing loaded from elsewhere."""

import json
from collections.abc import Iterable, Sequence
from html import escape

from agent_core.redaction import visible
from kgent.review.story import Story

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


def page(story: Story) -> str:
    """The story as HTML."""
    state = story.state
    facts = {
        "Run": state.run_id,
        "Task": state.task_id,
        "Session": state.session_id,
        "Profile": state.profile_id,
        "Engine": f"{state.engine} {state.model.get('provider') or ''}"
        f" {state.model.get('name') or ''}",
        "Created": state.created_at,
        "Ended": state.ended_at or "-",
        "Reason": state.failure_reason or "-",
        "Usage": ", ".join(f"{name} {count}" for name, count in state.usage.items()) or "-",
        "Fingerprint": state.config_fingerprint,
        "Folder": state.sandbox_root,
    }
    parts = [
        f"<h1>{_text(state.run_id)} {_badge(story.outcome)}</h1>",
        _list(story.problems),
        _table(("", ""), facts.items()),
        _section("Prompt", _pre(story.prompt)),
        _section("Tool calls", _calls(story)),
        _section("Files", _files(story)),
        _section("Errors", _errors(story)),
        _section("Events", _events(story)),
        _section("System prompt", _folded("show", story.system_prompt)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_text(state.run_id)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _calls(story: Story) -> str:
    rows = (
        (call.tool_name, call.status, call.duration_ms or 0, call.result_summary or "",
         _folded("arguments", json.dumps(call.args_summary, indent=1, ensure_ascii=False)))
        for call in story.calls
    )  # fmt: skip
    return _table(("Tool", "Status", "ms", "Result", "Arguments"), rows, html_columns={4})


def _files(story: Story) -> str:
    artifacts = story.artifacts.artifacts if story.artifacts else []
    rows = (
        (one.path, one.kind, one.status, one.bytes if one.bytes is not None else "-",
         one.sha256 or "-", one.created_by)
        for one in artifacts
    )  # fmt: skip
    return _table(("Path", "Kind", "Status", "Bytes", "SHA-256", "Made by"), rows)


def _errors(story: Story) -> str:
    rows = (
        (error.timestamp, error.category.value, error.code, error.message) for error in story.errors
    )
    return _table(("Time", "Category", "Code", "Message"), rows)


def _events(story: Story) -> str:
    rows = [
        (event.sequence, event.timestamp, event.type, event.actor, event.summary,
         _folded("data", json.dumps(event.data, indent=1, ensure_ascii=False))
         if event.data else "")
        for event in story.events
    ]  # fmt: skip
    classes = [event.severity for event in story.events]
    head = ("#", "Time", "Event", "Actor", "Summary", "Data")
    return _table(head, rows, html_columns={5}, classes=classes)


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    html_columns: Iterable[int] = (),
    classes: Sequence[str] = (),
) -> str:
    """A table; `html_columns` hold markup of ours, everything else is text."""
    trusted = set(html_columns)
    body: list[str] = []
    for number, row in enumerate(rows):
        cells = (
            f"<td>{cell if column in trusted else _text(cell)}</td>"
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


def _folded(label: str, text: str) -> str:
    return f"<details><summary>{label}</summary>{_pre(text)}</details>" if text.strip() else ""


def _pre(text: str) -> str:
    return f"<pre>{_text(text)}</pre>" if text.strip() else ""


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>" if lines else ""


def _badge(outcome: str) -> str:
    return f'<span class="status {_text(outcome)}">{_text(outcome)}</span>'


def _text(value: object) -> str:
    return escape(visible(str(value), zero_width=False))

"""A run as one self-contained HTML page: the outcome first, then the details."""

import base64
import csv
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import cast
from urllib.parse import quote

from agent_core.errors import AgentCoreError
from agent_core.text import gist_of_arguments, plural, short_line, shortened
from agent_core.text.json_text import JsonObject, JsonValue, shown_json
from agent_core.text.pages import (
    facts_list,
    fold,
    plain,
    preformatted,
    render_markdown,
    section,
    table,
    whole_page,
)
from kgent.config.models import DELIVERABLES
from kgent.records.conversation import CONVERSATION_FILE
from kgent.review.report import (
    OUTCOMES,
    FolderReport,
    describe_request,
    describe_usage,
    explain_no_answer,
    message_blocks,
    read_answer,
    read_bytes,
    read_messages,
)
from kgent.review.verification import FolderCheck
from kgent.sandbox.manifest import ArtifactRecord

MAX_SHOWN_BYTES = 200_000
MAX_IMAGE_BYTES = 5_000_000


_MAX_ROWS, _MAX_COLUMNS = 200, 40
_IMAGES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
_MAX_DOCUMENTS = 40
_TOO_LARGE = "<p>It is too large to be shown here.</p>"
_MAX_ALL_BYTES = 20_000_000
_TEXT_COST = 20  # rendering text takes this much longer than an image of the same size
_MAX_MESSAGES = 500
_MAX_EVENTS = 2000
_MAX_CHARS = 20_000
_MAX_GIST = 120
_MAX_PROBLEMS = 100
_WHO = {"user": "Prompt", "assistant": "Model", "tool": "Tool"}


def render_page(
    report: FolderReport, check: FolderCheck | None = None, *, beside: Path | None = None
) -> str:
    """Render the report as HTML.

    Args:
        report: the run.
        check: the result of `verify`.
        beside: the folder of the page, for relative links to files; absolute without it.
    """
    state = report.state
    colour = OUTCOMES.get(report.outcome, "busy")
    sections = (
        section("Outcome", _outcome(report, check)),
        section("Answer", _answer(report)),
        section("Deliverables", _deliverables(report, beside)),
        section("Conversation", _conversation(report)),
        section("Attempts", _attempts(report)),
        section("Tool calls", _calls(report)),
        section("Errors", _errors(report)),
        section("Files", _files(report, beside)),
        section("Prompt and profile", _prompts(report)),
        section("Events", _events(report)),
        section("Evidence", _evidence(report, check)),
    )
    return whole_page(
        f"{report.outcome}: {state.profile_id}, {state.run_id}",
        header=(
            f'<p class="status {colour}">{plain(report.outcome)}</p>'
            f"<h1>{plain(state.profile_id)}</h1>"
            f'<p class="muted">{plain(state.run_id)}</p>'
        ),
        main="\n".join(part for part in sections if part),
        footer=(
            f"<p>Created by {plain(state.program or 'kgent')}, from the run folder "
            f"{plain(report.root)}.</p>"
        ),
    )


# --- the sections ---------------------------------------------------------------------------------


def _outcome(report: FolderReport, check: FolderCheck | None) -> str:
    state = report.state
    parts: list[str] = []
    if state.failure_reason:
        parts.append(f'<p class="notice bad">{plain(state.failure_reason)}</p>')
    parts += [f'<p class="notice bad">{plain(line)}</p>' for line in report.problems]
    lines = [f'<li class="good">{plain(path)}: there</li>' for path in state.found]
    lines += [f'<li class="bad">{plain(path)}: missing</li>' for path in state.missing]
    lines += [f'<li class="bad">{plain(path)}: {plain(why)}</li>'
              for path, why in state.invalid.items()]  # fmt: skip
    for one in state.checks:
        kind, command = "good" if one.is_passed else "bad", plain(shlex.join(one.argv))
        came_out = plain(one.reason or "passed")
        lines.append(f'<li class="{kind}">check <code>{command}</code>: {came_out}</li>')
    if lines:
        parts.append(f"<p>Required:</p><ul>{''.join(lines)}</ul>")
    if check is not None:
        parts.append(_verdict(check))
    model = " ".join(part for part in state.model.values() if part)
    facts = {
        "Engine": f"{state.engine} {model}".strip(),
        "Began": _moment(state.started_at or state.created_at),
        "Took": _duration(state.started_at or state.created_at, state.ended_at),
        "Usage": describe_usage(state),
        "Cost": f"{state.cost:.6f} USD" if state.cost is not None else "",
        "Parameters": ", ".join(f"{name} = {value}" for name, value in state.parameters.items()),
    }
    return "\n".join([*parts, facts_list(facts)])


def _verdict(check: FolderCheck) -> str:
    remarks = fold(plural(len(check.remarks), "remark"), _lines(check.remarks))
    remarks = remarks if check.remarks else ""
    if check.is_sound:
        return (
            f'<p class="notice good">The folder is sound: {check.checked} files are as the run'
            f" left them. The seal proves it, if it is the one that the run printed.</p>{remarks}"
        )
    return (
        '<div class="notice bad"><p>The folder is not as the run left it:</p>'
        f"{_lines(check.problems)}</div>{remarks}"
    )


def _lines(texts: Sequence[str]) -> str:
    """Render a list of texts that may be long."""
    listed = list(texts[:_MAX_PROBLEMS])
    if more := len(texts) - len(listed):
        listed.append(f"and {more} more")
    return f"<ul>{''.join(f'<li>{plain(text)}</li>' for text in listed)}</ul>"


def _answer(report: FolderReport) -> str:
    text = read_answer(report)
    if text is None:
        return f'<p class="muted">{plain(explain_no_answer(report))}</p>'
    return render_markdown(shortened(text, _MAX_CHARS))


def _deliverables(report: FolderReport, beside: Path | None) -> str:
    room, parts = _MAX_ALL_BYTES, list[str]()
    made = [one for one in _artifacts(report) if one.path.startswith(f"{DELIVERABLES}/")]
    made.sort(key=lambda one: not one.required)
    for number, one in enumerate(made):
        if one.status == "missing":
            body = '<p class="bad">It is missing.</p>'
        else:
            limit, size = MAX_SHOWN_BYTES, one.bytes or 0
            cost = size * _TEXT_COST
            if _suffix(one.path) in _IMAGES:
                limit, cost = MAX_IMAGE_BYTES, size
            body = _TOO_LARGE
            if number < _MAX_DOCUMENTS and size <= limit and cost <= room:
                room -= cost
                body = _document(report.root, one, limit=limit)
        size = f'<span class="muted">{one.bytes:,} bytes</span>' if one.bytes is not None else ""
        title = f"{_link(report, one, beside)} {size}"
        parts.append(f'<article class="card"><h3>{title}</h3>{body}</article>')
    return "\n".join(parts)


def _document(root: Path, one: ArtifactRecord, *, limit: int) -> str:
    try:
        content = read_bytes(root / one.name, limit + 1)  # it may have grown since the run
        return render_document(one.path, content) if len(content) <= limit else _TOO_LARGE
    except (OSError, ValueError, AgentCoreError):
        return '<p class="bad">It cannot be read any more.</p>'


def _link(report: FolderReport, one: ArtifactRecord, beside: Path | None) -> str:
    if one.status == "missing":
        return plain(one.path)
    try:
        place = report.root / one.name
        shown = str(place) if beside is None else os.path.relpath(place, beside.resolve())
    except ValueError:
        return plain(one.path)
    scheme = "file://" if beside is None else "./"
    return f'<a href="{scheme}{quote(os.fsencode(shown))}">{plain(one.path)}</a>'


def _artifacts(report: FolderReport) -> list[ArtifactRecord]:
    return report.artifacts.artifacts if report.artifacts else []


def _conversation(report: FolderReport) -> str:
    found = read_messages(report.root) or []
    parts = [_message(one) for one in found[:_MAX_MESSAGES]]
    if more := len(found) - len(parts):
        parts.append(f"<p>{plural(more, 'more message')} in {CONVERSATION_FILE}.</p>")
    return "\n".join(parts)


def _message(one: Mapping[str, JsonValue]) -> str:
    role, parts = str(one.get("role", "")), list[str]()
    for block in message_blocks(one):
        name, text = plain(block.get("name", "")), str(block.get("text", ""))
        match block.get("type"):
            case "text":
                parts.append(preformatted(shortened(text, _MAX_CHARS)))
            case "reasoning":
                parts.append(fold("reasoning", preformatted(shortened(text, _MAX_CHARS))))
            case "tool_call":
                given = shortened(_json(block.get("arguments")), _MAX_CHARS)
                label = f"calls <code>{name}</code> {_gist(block.get('arguments'))}"
                parts.append(fold(label, preformatted(given)))
            case "tool_result":
                kind = ' <span class="bad">error</span>' if block.get("is_error") else ""
                given, gist = _json(block.get("content")), _gist(block.get("content"), "summary")
                label = f"<code>{name}</code> answers{kind} {gist}"
                parts.append(fold(label, preformatted(shortened(given, _MAX_CHARS))))
            case _:
                parts.append(preformatted(shortened(_json(dict(block)), _MAX_CHARS)))
    who = _WHO.get(role, role)
    kind = role if role in _WHO else "other"
    return f'<div class="message {kind}"><p class="who">{plain(who)}</p>{"".join(parts)}</div>'


def _gist(value: object, key: str = "") -> str:
    """Return the subject of a call, or a field, as a muted line, which labels a folded block."""
    fields = cast("JsonObject", value) if isinstance(value, dict) else {}
    text = str(fields.get(key, "")) if key else gist_of_arguments(fields)
    return f'<span class="muted">{plain(short_line(text, _MAX_GIST))}</span>' if text else ""


def _json(value: object) -> str:
    return value if isinstance(value, str) else shown_json(value, indent=1)


def _calls(report: FolderReport) -> str:
    parts: list[str] = []
    for call in report.calls[:_MAX_MESSAGES]:
        colour = {"completed": "good", "failed": "bad"}.get(call.status, "fair")
        label = (
            f'<code>{plain(call.tool_name)}</code> <span class="{colour}">{call.status}</span>'
            f' <span class="muted">{call.duration_ms or 0} ms</span>'
            f" {_gist(call.args_summary)}"
        )
        links = "".join(f"<li>{plain(path)}</li>" for path in call.artifacts)
        body = f"<p>{plain(call.result_summary or '')}</p>" + preformatted(_json(call.args_summary))
        parts.append(fold(label, body + (f"<p>Files:</p><ul>{links}</ul>" if links else "")))
    if more := len(report.calls) - len(parts):
        parts.append(f"<p>{plural(more, 'more call')} in logs/tools.jsonl.</p>")
    return "\n".join(parts)


def _attempts(report: FolderReport) -> str:
    """Return the attempts and the questions of a run; nothing if one attempt did it all."""
    state, parts = report.state, list[str]()
    if len(state.attempts) > 1:
        rows = [
            (
                plain(one.path),
                plain(" by ".join(filter(None, (one.cause, one.by)))),
                f'<span class="{OUTCOMES.get(one.status, "busy")}">{plain(one.status)}</span>',
                _moment(one.created_at),
                plain(one.reason or ""),
                f"<code>{plain((one.seal or '-')[:16])}</code>",
            )
            for one in state.attempts
        ]
        parts.append(table(("Records", "Cause", "Status", "Began", "Reason", "Seal"), rows))
    if state.requests:
        rows = [
            (
                f"<code>{plain(asked.request_id)}</code>",
                f"<code>{plain(describe_request(asked))}</code>",
                plain(" by ".join(filter(None, (asked.answer, asked.by))) or "open"),
                plain(asked.reason or ""),
            )
            for asked in state.requests
        ]
        parts.append(table(("Request", "Call", "Answer", "Reason"), rows))
    return "\n".join(parts)


def _errors(report: FolderReport) -> str:
    rows = [
        (_time(one.timestamp), plain(one.category.value), plain(one.code), plain(one.message))
        for one in report.errors[:_MAX_MESSAGES]
    ]
    return table(("Time", "Category", "Code", "Message"), rows)


def _files(report: FolderReport, beside: Path | None) -> str:
    rows = [
        (
            _link(report, one, beside),
            plain(one.kind),
            plain(one.status),
            f"{one.bytes:,}" if one.bytes is not None else "-",
            plain(one.created_by),
            f"<code>{plain((one.sha256 or '-')[:16])}</code>",
        )
        for one in _artifacts(report)[:_MAX_EVENTS]
    ]
    head = ("Path", "Kind", "Status", "Bytes", "Made by", "SHA-256")
    return fold(plural(len(_artifacts(report)), "file"), table(head, rows))


def _prompts(report: FolderReport) -> str:
    task = preformatted(shortened(report.task, _MAX_CHARS))
    return "\n".join(
        [
            preformatted(shortened(report.prompt, _MAX_CHARS)),
            fold("The prompt of the first attempt", task) if report.task != report.prompt else "",
            fold("System prompt", preformatted(shortened(report.system_prompt, _MAX_CHARS))),
        ]
    ).strip()


def _events(report: FolderReport) -> str:
    shown = report.events[:_MAX_EVENTS]
    rows = [
        (str(one.sequence), _time(one.timestamp), plain(one.type), plain(one.summary),
         fold("data", preformatted(_json(one.data))) if one.data else "")
        for one in shown
    ]  # fmt: skip
    severities = (one.severity for one in shown)
    head = ("#", "Time", "Event", "Summary", "Data")
    return fold(plural(len(report.events), "event"), table(head, rows, classes=severities))


def _evidence(report: FolderReport, check: FolderCheck | None) -> str:
    state = report.state
    facts = {
        "Seal": (check.seal or "-") if check else "",
        "Fingerprint": state.config_fingerprint,
        "Run": state.run_id,
        "Task": state.task_id,
        "Session": state.session_id,
        "Profile file": state.config_path,
        "Created": state.created_at,
        "Ended": state.ended_at or "-",
        **{f"SHA-256 of {name}": value for name, value in state.manifests.items()},
    }
    named = {plain(name): value for name, value in facts.items()}
    return facts_list(named)


# --- times ----------------------------------------------------------------------------------------


def _time(stamp: str) -> str:
    return plain(stamp[11:19] or stamp)


def _moment(stamp: str) -> str:
    return stamp[:19].replace("T", " ") + " UTC" if stamp else ""


def _duration(began: str, ended: str | None) -> str:
    """Return the time between two stamps; nothing if one is missing, or the clock was set back."""
    try:
        span = datetime.fromisoformat(ended or "") - datetime.fromisoformat(began)
    except (TypeError, ValueError):  # of a changed folder: without a zone, or no stamp
        return ""
    if span.days < 0:
        return ""
    minutes, seconds = divmod(span.days * 86_400 + span.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min {seconds} s"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


# --- a file as inert HTML, which can neither run code nor load anything ---------------------------


def render_document(path: str, content: bytes) -> str:
    """Return the content of a file as HTML in the format of its ending, or else as text."""
    suffix = _suffix(path)
    if suffix in _IMAGES:
        encoded = base64.b64encode(content).decode()
        return f'<img alt="{plain(path)}" src="data:{_IMAGES[suffix]};base64,{encoded}">'
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "<p>It is neither text nor an image that can be shown here.</p>"
    render = _RENDERERS.get(suffix, preformatted)
    return render(text) or "<p>It is empty.</p>"


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _render_json(text: str) -> str:
    try:
        return preformatted(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return preformatted(text)


def _render_table(delimiter: str) -> Callable[[str], str]:
    def render(text: str) -> str:
        try:
            rows = list(_read_rows(text, delimiter))
        except csv.Error:
            return preformatted(text)
        if not rows:
            return ""
        head, *body = rows
        shown = [[plain(cell) for cell in row[:_MAX_COLUMNS]] for row in body[:_MAX_ROWS]]
        more = len(body) - len(shown)
        note = f"<p>The first {len(shown)} rows are shown.</p>" if more else ""
        return table(head[:_MAX_COLUMNS], shown or [[""]]) + note

    return render


def _read_rows(text: str, delimiter: str) -> Iterator[list[str]]:
    for number, row in enumerate(csv.reader(text.splitlines(), delimiter=delimiter)):
        if number > _MAX_ROWS + 1:
            return
        yield row


_RENDERERS: dict[str, Callable[[str], str]] = {
    ".md": render_markdown,
    ".markdown": render_markdown,
    ".json": _render_json,
    ".csv": _render_table(","),
    ".tsv": _render_table("\t"),
}

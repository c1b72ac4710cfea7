"""A run as one HTML page that needs nothing else: the outcome first, then what it rests on."""

import base64
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from agent_core.errors import AgentCoreError
from agent_core.text import short_line
from kgent.config import DELIVERABLES
from kgent.conversation import CONVERSATION
from kgent.documents import (
    MAX_IMAGE_BYTES,
    MAX_SHOWN_BYTES,
    is_image,
    plain,
    preformatted,
    render_document,
    render_markdown,
    table,
)
from kgent.records import ARCHIVE, TRANSCRIPT_FILE
from kgent.review import MAX_TEXT_BYTES, RunReport, read_bytes
from kgent.run_folder import ProducedFile
from kgent.verification import FolderCheck

_MAX_DOCUMENTS = 40
_TOO_LARGE = "<p>It is too large to be shown here.</p>"
_MAX_ALL_BYTES = 20_000_000
_TEXT_COST = 20  # a text takes so much more time than an image of the same size
_MAX_MESSAGES = 500
_MAX_EVENTS = 2000
_MAX_CHARS = 20_000
_MAX_GIST = 120
_MAX_PROBLEMS = 100
_TELLING = ("path", "argv", "skill_id", "pattern", "query", "content")
"""The arguments that tell most about a call, the first of them first."""
_BLOCK = re.compile(r"^(`{3,})text\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)
_WHO = {"user": "Prompt", "assistant": "Model", "tool": "Tool"}

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--muted:#59636e;--line:#d1d9e0;
--soft:#f4f6f8;--link:#0757b8;--good:#1a6b33;--fair:#8a5300;--bad:#b3261e;--busy:#1f5fae}
@media(prefers-color-scheme:dark){:root{--page:#14181d;--text:#e6e9ed;--muted:#a3adb8;
--line:#39424d;--soft:#1e242b;--link:#7ab7ff;--good:#6fd08c;--fair:#f0b95c;--bad:#ff8f85;
--busy:#8abfff}}
*{box-sizing:border-box}
body{font:16px/1.55 system-ui,sans-serif;margin:0;background:var(--page);color:var(--text)}
header,main,footer{max-width:62rem;margin:0 auto;padding:0 clamp(1rem,4vw,2rem)}
header{padding-top:1.5rem}footer{padding-bottom:2rem;color:var(--muted);font-size:.875rem}
h1{font-size:1.5rem;line-height:1.25;margin:.25rem 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1rem 0 .4rem;overflow-wrap:anywhere}
h4,h5,h6{font-size:1rem;margin:.9rem 0 .3rem}
a{color:var(--link)}p,ul,ol{margin:.4rem 0}li{overflow-wrap:anywhere}
.muted{color:var(--muted)}.good{color:var(--good)}.fair{color:var(--fair)}.bad{color:var(--bad)}
.busy{color:var(--busy)}
.status{display:inline-block;font-weight:700;border:2px solid;border-radius:2rem;
padding:.05rem .8rem}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:.6rem 0}
.facts dt{color:var(--muted)}.facts dd{margin:0;overflow-wrap:anywhere}
.notice{border-left:4px solid;padding:.4rem .8rem;margin:.8rem 0;background:var(--soft);
overflow-wrap:anywhere}
.card{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .9rem;margin:.7rem 0}
.card>h3{margin-top:0}
.document{overflow-wrap:anywhere}
.scrolls{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}
th,td{border:1px solid var(--line);padding:.3rem .55rem;text-align:left;vertical-align:top}
th.right,td.right{text-align:right}th.center,td.center{text-align:center}
th{background:var(--soft)}td{overflow-wrap:break-word;max-width:32rem}
tr.warning td:nth-child(3){color:var(--fair)}tr.error td:nth-child(3){color:var(--bad)}
pre{background:var(--soft);border-radius:.4rem;padding:.6rem .8rem;margin:.4rem 0;font-size:.85rem;
line-height:1.45;white-space:pre-wrap;overflow-wrap:anywhere}
code{font-size:.9em}img{max-width:100%;height:auto;background:#fff}
summary{cursor:pointer;overflow-wrap:anywhere;padding:.15rem 0}
details>details,details>pre{margin-left:.4rem}
h3 .muted{font-weight:400;font-size:.875rem}summary .muted{font-size:.875rem}
.message{border-left:3px solid var(--line);padding:0 0 0 .9rem;margin:.9rem 0}
.message.tool{margin:.15rem 0}.message.tool .who{display:none}
.message.assistant{border-color:var(--busy)}
.who{font-weight:600;font-size:.85rem;color:var(--muted)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
@media(max-width:30rem){.facts{grid-template-columns:1fr;gap:0}.facts dd{margin-bottom:.4rem}}
@media print{:root{--page:#fff;--text:#000;--muted:#444;--line:#999;--soft:#f4f4f4;--link:#000;
--good:#1a6b33;--fair:#8a5300;--bad:#b3261e;--busy:#1f5fae}body{font-size:11pt}
header,main,footer{max-width:none;padding:0}.card,.message,pre,tr{break-inside:avoid}
h2,h3{break-after:avoid}}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)
_COLOURS = {"completed": "good", "incomplete": "fair", "failed": "bad", "lost": "bad"}


def render_page(
    report: RunReport, check: FolderCheck | None = None, *, beside: Path | None = None
) -> str:
    """Render the report as HTML.

    Args:
        report: the run.
        check: what `verify` found.
        beside: the folder of the page, for links to files; without it they are absolute.
    """
    state = report.state
    colour = _COLOURS.get(report.outcome, "busy")
    sections = (
        _section("Outcome", _outcome(report, check)),
        _section("Answer", _answer(report)),
        _section("Deliverables", _deliverables(report, beside)),
        _section("Conversation", _conversation(report)),
        _section("Tool calls", _calls(report)),
        _section("Errors", _errors(report)),
        _section("Files", _files(report, beside)),
        _section("Prompt and profile", _prompts(report)),
        _section("Events", _events(report)),
        _section("Evidence", _evidence(report, check)),
    )
    main = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{plain(report.outcome)}: {plain(state.profile_id)}, {plain(state.run_id)}</title>"
        f"<style>{_STYLE}</style></head>\n<body>\n"
        f'<header><p class="status {colour}">{plain(report.outcome)}</p>'
        f"<h1>{plain(state.profile_id)}</h1>"
        f'<p class="muted">{plain(state.run_id)}</p></header>\n'
        f"<main>\n{main}\n</main>\n"
        f"<footer><p>Made by {plain(state.program or 'kgent')}, from the run folder "
        f"{plain(report.root)}.</p></footer>\n</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    if not body:
        return ""
    key = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{key}">\n<h2 id="{key}">{title}</h2>\n{body}\n</section>'


def _facts(facts: Mapping[str, str]) -> str:
    rows = (f"<dt>{name}</dt><dd>{plain(value)}</dd>" for name, value in facts.items() if value)
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _fold(label: str, body: str, *, is_open: bool = False) -> str:
    """`label` and `body` are HTML already."""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{label}</summary>{body}</details>" if body else ""


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…\n({len(text)} characters)"


# --- the sections ---------------------------------------------------------------------------------


def _outcome(report: RunReport, check: FolderCheck | None) -> str:
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
    usage = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in state.usage.items())
    facts = {
        "Engine": f"{state.engine} {model}".strip(),
        "Began": _moment(state.started_at or state.created_at),
        "Took": _duration(state.started_at or state.created_at, state.ended_at),
        "Usage": usage,
        "Cost": f"{state.cost:.6f} USD" if state.cost is not None else "",
        "Parameters": ", ".join(f"{name} = {value}" for name, value in state.parameters.items()),
    }
    return "\n".join([*parts, _facts(facts)])


def _verdict(check: FolderCheck) -> str:
    if check.is_sound:
        return (
            f'<p class="notice good">The folder is sound: {check.checked} files are as the run'
            " left them. The seal proves it, if it is the one that the run printed.</p>"
        )
    listed = check.problems[:_MAX_PROBLEMS]
    if more := len(check.problems) - len(listed):
        listed.append(f"and {more} more")
    shown = "".join(f"<li>{plain(problem)}</li>" for problem in listed)
    return (
        '<div class="notice bad"><p>The folder is not as the run left it:</p>'
        f"<ul>{shown}</ul></div>"
    )


def _answer(report: RunReport) -> str:
    text = _final_text(report)
    return render_markdown(_shortened(text)) if text else ""


def _final_text(report: RunReport) -> str:
    """The last text of the model; from the transcript where there is no conversation."""
    for one in reversed(_messages(report)):
        if one.get("role") == "assistant":
            texts = [str(block.get("text", "")) for block in _blocks(one, "text")]
            return "\n\n".join(texts).strip()
    try:
        raw = read_bytes(report.root / TRANSCRIPT_FILE, MAX_TEXT_BYTES)
    except (OSError, AgentCoreError):
        return ""
    result = raw.decode("utf-8", "replace").rpartition("\n## Result\n")[2]
    blocks = [found[2] for found in _BLOCK.finditer(result)]
    blocks = blocks[1:] if report.state.error is not None else blocks
    return blocks[-1] if blocks else ""


def _deliverables(report: RunReport, beside: Path | None) -> str:
    room, parts = _MAX_ALL_BYTES, list[str]()
    made = [one for one in _artifacts(report) if one.path.startswith(f"{DELIVERABLES}/")]
    made.sort(key=lambda one: not one.required)
    for number, one in enumerate(made):
        if one.status == "missing":
            body = '<p class="bad">It is missing.</p>'
        else:
            limit, size = MAX_SHOWN_BYTES, one.bytes or 0
            cost = size * _TEXT_COST
            if is_image(one.path):
                limit, cost = MAX_IMAGE_BYTES, size
            body = _TOO_LARGE
            if number < _MAX_DOCUMENTS and size <= limit and cost <= room:
                room -= cost
                body = _document(report.root, one, limit=limit)
        size = f'<span class="muted">{one.bytes:,} bytes</span>' if one.bytes is not None else ""
        title = f"{_link(report, one, beside)} {size}"
        parts.append(f'<article class="card"><h3>{title}</h3>{body}</article>')
    return "\n".join(parts)


def _document(root: Path, one: ProducedFile, *, limit: int) -> str:
    try:
        content = read_bytes(root / one.name, limit + 1)  # it may have grown since the run
        return render_document(one.path, content) if len(content) <= limit else _TOO_LARGE
    except (OSError, ValueError, AgentCoreError):
        return '<p class="bad">It cannot be read any more.</p>'


def _link(report: RunReport, one: ProducedFile, beside: Path | None) -> str:
    if one.status == "missing":
        return plain(one.path)
    try:
        place = report.root / one.name
        shown = str(place) if beside is None else os.path.relpath(place, beside.resolve())
    except ValueError:
        return plain(one.path)
    scheme = "file://" if beside is None else "./"
    return f'<a href="{scheme}{quote(os.fsencode(shown))}">{plain(one.path)}</a>'


def _artifacts(report: RunReport) -> list[ProducedFile]:
    return report.artifacts.artifacts if report.artifacts else []


def _messages(report: RunReport) -> list[dict[str, Any]]:
    try:
        raw = read_bytes(report.root / ARCHIVE / CONVERSATION, _MAX_ALL_BYTES)
    except (OSError, AgentCoreError):
        return []
    found: list[dict[str, Any]] = []
    for line in raw.splitlines():
        try:
            one: object = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(one, dict):
            found.append(cast("dict[str, Any]", one))
    return found


def _blocks(one: Mapping[str, Any], *kinds: str) -> Iterator[Mapping[str, Any]]:
    content: object = one.get("content")
    for block in cast("list[object]", content) if isinstance(content, list) else []:
        if isinstance(block, dict):
            table = cast("Mapping[str, Any]", block)
            if not kinds or table.get("type") in kinds:
                yield table


def _conversation(report: RunReport) -> str:
    found = _messages(report)
    parts = [_message(one) for one in found[:_MAX_MESSAGES]]
    if more := len(found) - len(parts):
        parts.append(f"<p>{more} more messages are in archive/{CONVERSATION}.</p>")
    return "\n".join(parts)


def _message(one: Mapping[str, Any]) -> str:
    role, parts = str(one.get("role", "")), list[str]()
    for block in _blocks(one):
        name, text = plain(block.get("name", "")), str(block.get("text", ""))
        match block.get("type"):
            case "text":
                parts.append(preformatted(_shortened(text)))
            case "reasoning":
                parts.append(_fold("reasoning", preformatted(_shortened(text))))
            case "tool_call":
                given = _shortened(_json(block.get("arguments")))
                label = f"calls <code>{name}</code> {_gist(block.get('arguments'), *_TELLING)}"
                parts.append(_fold(label, preformatted(given)))
            case "tool_result":
                kind = ' <span class="bad">error</span>' if block.get("is_error") else ""
                given, gist = _json(block.get("content")), _gist(block.get("content"), "summary")
                label = f"<code>{name}</code> answers{kind} {gist}"
                parts.append(_fold(label, preformatted(_shortened(given))))
            case _:
                parts.append(preformatted(_shortened(_json(dict(block)))))
    who = _WHO.get(role, role)
    kind = role if role in _WHO else "other"
    return f'<div class="message {kind}"><p class="who">{plain(who)}</p>{"".join(parts)}</div>'


def _gist(value: object, *keys: str) -> str:
    """The first of these fields as a muted line, to tell folded blocks apart."""
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    for key in keys:
        if text := fields.get(key):
            shown = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            return f'<span class="muted">{plain(short_line(shown, _MAX_GIST))}</span>'
    return ""


def _json(value: object) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to be shown)"


def _calls(report: RunReport) -> str:
    parts: list[str] = []
    for call in report.calls[:_MAX_MESSAGES]:
        colour = {"completed": "good", "failed": "bad"}.get(call.status, "fair")
        label = (
            f'<code>{plain(call.tool_name)}</code> <span class="{colour}">{call.status}</span>'
            f' <span class="muted">{call.duration_ms or 0} ms</span>'
            f" {_gist(call.args_summary, *_TELLING)}"
        )
        links = "".join(f"<li>{plain(path)}</li>" for path in call.artifacts)
        body = f"<p>{plain(call.result_summary or '')}</p>" + preformatted(_json(call.args_summary))
        parts.append(_fold(label, body + (f"<p>Files:</p><ul>{links}</ul>" if links else "")))
    if more := len(report.calls) - len(parts):
        parts.append(f"<p>{more} more calls are in logs/tools.jsonl.</p>")
    return "\n".join(parts)


def _errors(report: RunReport) -> str:
    rows = [
        (_time(one.timestamp), plain(one.category.value), plain(one.code), plain(one.message))
        for one in report.errors[:_MAX_MESSAGES]
    ]
    return table(("Time", "Category", "Code", "Message"), rows)


def _files(report: RunReport, beside: Path | None) -> str:
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
    return _fold(f"{len(_artifacts(report))} files", table(head, rows))


def _prompts(report: RunReport) -> str:
    return "\n".join(
        [
            preformatted(_shortened(report.prompt)),
            _fold("System prompt", preformatted(_shortened(report.system_prompt))),
        ]
    ).strip()


def _events(report: RunReport) -> str:
    shown = report.events[:_MAX_EVENTS]
    rows = [
        (str(one.sequence), _time(one.timestamp), plain(one.type), plain(one.summary),
         _fold("data", preformatted(_json(one.data))) if one.data else "")
        for one in shown
    ]  # fmt: skip
    severities = (one.severity for one in shown)
    head = ("#", "Time", "Event", "Summary", "Data")
    return _fold(f"{len(report.events)} events", table(head, rows, classes=severities))


def _evidence(report: RunReport, check: FolderCheck | None) -> str:
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
    return _facts(named)


# --- times ----------------------------------------------------------------------------------------


def _time(stamp: str) -> str:
    return plain(stamp[11:19] or stamp)


def _moment(stamp: str) -> str:
    return stamp[:19].replace("T", " ") + " UTC" if stamp else ""


def _duration(began: str, ended: str | None) -> str:
    try:
        seconds = (datetime.fromisoformat(ended or "") - datetime.fromisoformat(began)).seconds
    except ValueError:
        return ""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"

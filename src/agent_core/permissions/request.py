"""The question about a call: the text for a person, and the coverage of an answer for the session.

The question is complete, bounded and never misleading. A grant never covers more than its question
names. A call with a reason of its own has no grant: its answer is for this call only.
"""

import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from agent_core.opening import read_bytes
from agent_core.redaction.redactor import Redactor
from agent_core.text import noun, shortened, visible
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    Access,
    Decision,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
    new_id,
)

if TYPE_CHECKING:
    from agent_core.types import PermissionRequest

MAX_SUMMARY = 1_000_000
"""Characters of a summary: more than a command can have, so that it is shown whole."""
MAX_REASON = 2_000
MAX_DIFF = 1_000_000
MAX_LINE = 4_000
MAX_PLACES = 50
MAX_COVERS = 2_000
_MAX_IN_EVENT = 8_000
_SMALL = 1_048_576
"""Bytes of the largest file that is compared by its content."""

_ALL_READS = (
    "every command that only reads, and opens only what may be read without a question, in the"
    " project"
)
_ALL_EDITS = "every edit of ordinary files of the project"
UNTIL_END = ", until the session ends"
WIDE_DECISIONS = frozenset({Decision.ALLOW_READS, Decision.ALLOW_EDITS})
"""The answers that cover more than calls like the one in question."""
WIDE = "wide"
"""Metadata key of a request: the wider answer that it takes, and the coverage of that answer."""
RULE, ALWAYS = "rule", "always"
"""Metadata keys: the rule that a request may save, and in its answer the order to save it."""
THIS_CALL_ONLY = "this call only"
REMOVED = "[redacted:"
"""First part of the mark that replaces a secret."""


SCOPE_ID = "scope_id"
"""Key of metadata: identifies the coverage of an answer where its words do not."""


class Grant(Struct, frozen=True):
    """Coverage of an answer: `covers` describes it; calls with the same `key` share the answer."""

    covers: str
    key: str


class WideGrant(Struct, frozen=True):
    """An answer that covers more than calls like this one, and the decision that gives it.

    Attributes:
        decision: the answer.
        grant: its coverage until the session ends.
        project: the folder of the project.
        rule: the rule that covers the same in every session, if it can be saved.
    """

    decision: Decision
    grant: Grant
    project: str
    rule: str | None = None


def build_wide_grant(access: Access, project_dir: Path) -> WideGrant | None:
    """Return the wider answer that a question about this call offers, or None."""
    project = os.path.realpath(project_dir)
    if access.reason is not None:
        return None
    if access.command is not None and access.reads:
        # Places outside need no question here: otherwise the call had a reason of its own.
        inside = (path for path in access.paths if path not in access.places)
        named = (access.cwd or project, *inside)
        if not all(Path(each).is_relative_to(project) for each in named):
            return None
        decision, what = Decision.ALLOW_READS, _ALL_READS
    elif access.edits and not access.dangerous:
        decision, what = Decision.ALLOW_EDITS, _ALL_EDITS
    else:
        return None
    covers = f"{what} {project}{UNTIL_END}"
    return WideGrant(decision, Grant(covers, _digest([decision, project])), project)


def build_grant(
    call: ToolCall, definition: ToolDefinition, access: Access, hosts: Sequence[str] | None
) -> Grant | None:
    """Return the coverage of an answer for the session; None: this call only.

    The key contains the whole definition of the tool, so that a tool that has changed since asks
    again, and the parts that the words may have left out.
    """
    if access.reason is not None:
        return None
    to_hosts = f" to {', '.join(hosts)}" if hosts else ""
    is_dangerous = access.dangerous or "dangerous" in definition.tags
    only_reads = definition.permission is ToolPermission.READONLY and not is_dangerous
    exact: list[Any] | None = None
    if access.scope:
        covers = f"{definition.name}: {access.scope}{to_hosts}"
    elif only_reads and hosts != []:
        covers = f"every call of {definition.name}{to_hosts}"
    else:
        covers = f"{definition.name} with exactly {_canonical(call.arguments)}{to_hosts}"
        exact = [call.arguments, access.target, access.cwd]
    tool = definition.model_dump() | {"tags": sorted(definition.tags)}
    key = _digest([tool, covers, exact, hosts, access.confined])
    if (cut := len(covers) - MAX_COVERS) > 0:
        shown = f"{covers[:MAX_COVERS]}… (+{cut} {noun(cut, 'character')})"
        covers = f"what has the SHA-256 {_digest(covers)}: {shown}"
    return Grant(covers, key)


def _digest(value: Any) -> str:
    return sha256(_canonical(value).encode(errors="surrogatepass")).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def build_request(
    call: ToolCall,
    definition: ToolDefinition,
    access: Access,
    run: RunIdentity,
    *,
    hosts: Sequence[str] | None,
    covers: str | None,
    scope_id: str | None = None,
    wide: WideGrant | None = None,
    rule: str | None = None,
    asked_by: str | None = None,
    project_dir: Path,
    redactor: Redactor,
) -> "PermissionRequest":
    """Build the question whether `run` may make this call, free of secrets and control characters.

    Args:
        call: what the model asked for.
        definition: the tool.
        access: what the call would touch.
        run: who makes it.
        hosts: the hosts it names, if it is a network call.
        covers: the coverage of an answer for the session; None for this call only.
        scope_id: identifies this coverage in the process, if its words do not.
        wide: the wider answer that the question offers, if any.
        rule: the rule that an answer "always" would add, if it can.
        asked_by: the user's rule that asks, if any.
        project_dir: the folder of calls without one.
        redactor: removes secrets.
    """
    from agent_core.types import PermissionRequest  # noqa: PLC0415 - few runs need it

    line = partial(shown_line, redactor=redactor)
    metadata: dict[str, Any] = {"tool_call_id": call.tool_call_id}
    metadata |= _agent_facts(run, line)
    metadata["project"] = line(str(project_dir))
    metadata["sandbox"] = line(access.confined or "off")
    scope = line(covers or THIS_CALL_ONLY)
    metadata |= {} if _is_unique(scope) else {SCOPE_ID: scope_id}
    if access.command is not None and access.command.problem:
        metadata["no_rule"] = line(access.command.problem)
    if access.target is not None:
        metadata["target"] = line(access.target, limit=MAX_SUMMARY)
        if "\n" in access.target:
            metadata["lines"] = _visible_lines(redactor.text(access.target))
    if access.reason is not None:
        metadata["reason"] = line(access.reason)
    if access.places:
        metadata["places"] = [line(place) for place in access.places[:MAX_PLACES]]
        if (more := len(access.places) - MAX_PLACES) > 0:
            metadata["places"].append(f"… (+{more} more)")
    if rule is not None:
        metadata[RULE] = rule
    if wide is not None:
        metadata[WIDE] = {"decision": wide.decision.value, "covers": line(wide.grant.covers)}
        if wide.rule is not None:
            metadata[WIDE][RULE] = wide.rule
    if asked_by is not None:
        metadata["asked_by"] = line(asked_by)
    if access.diff is not None:
        metadata["diff"] = shortened(_visible_diff(redactor.text(access.diff)), MAX_DIFF)
        metadata["diff_is_whole"] = metadata["diff"] == access.diff
    hook_summary = access.hook_summary and {
        key: line(value) if isinstance(value, str) else value
        for key, value in access.hook_summary.items()
    }
    dangerous = access.dangerous and not access.reads
    return PermissionRequest(
        request_id=new_id("req"),
        session_id=run.session_id,
        agent_id=run.agent_id,
        run_id=run.run_id,
        parent_agent_id=run.parent_agent_id,
        parent_run_id=run.parent_run_id,
        agent_role=run.role,
        tool_name=definition.name,
        permission=definition.permission,
        tags=set(definition.tags),
        args_summary=line(access.summary, limit=MAX_SUMMARY),
        target_scope=scope,
        cwd=line(access.cwd or str(project_dir)),
        env_summary=line(", ".join(access.env_names)),
        network_host=line(",".join(hosts)) if hosts else None,
        dangerous=dangerous,
        hook_summary=None if hook_summary is None else dict(hook_summary),
        suggested_decision=Decision.DENY if dangerous or access.reason else Decision.ALLOW_ONCE,
        metadata=metadata,
    )


def shown_line(text: str, redactor: Redactor, limit: int = MAX_LINE) -> str:
    """Return a text as one line for people, without secrets and control characters."""
    return shortened(visible(redactor.text(text), one_line=True), limit)


def _visible_lines(text: str) -> str:
    """Return a text of several lines with its other control characters spelled out."""
    lines = (visible(each, one_line=True) for each in text.split("\n"))
    return shortened("\n".join(lines), MAX_SUMMARY)


def _visible_diff(diff: str) -> str:
    """Return a diff with its control characters spelled out, apart from the ends of lines."""
    if "\r\n" not in diff:
        return visible(diff)
    return "\r\n".join(map(visible, diff.split("\r\n")))


def _agent_facts(run: RunIdentity, line: Callable[[str], str]) -> JsonObject:
    """Return facts that identify a child agent; none for the agent that the user talks to."""
    if run.parent_agent_id is None:
        return {}
    facts: JsonObject = {"agent_path": agent_path(run)}
    if run.agent_definition_id is not None:
        facts["agent_definition"] = run.agent_definition_id
    if run.task:
        facts["agent_task"] = line(run.task)
    return facts


def wide_of(request: "PermissionRequest") -> tuple[Decision, str] | None:
    """Return the wider answer that a question takes, and its coverage in words."""
    match request.metadata.get(WIDE):
        case {"decision": str(decision), "covers": str(covers)}:
            return Decision(decision), covers
        case _:
            return None


def coverage_of(request: "PermissionRequest", decision: Decision) -> tuple[str, ...] | None:
    """Return the coverage of an answer beyond its call; questions that share it get one answer.

    None if it covers no other call, or if the words of the question do not identify it.
    """
    if decision in WIDE_DECISIONS:
        offered = wide_of(request)
        return (decision, offered[1]) if offered and offered[0] is decision else None
    scope = request.target_scope or THIS_CALL_ONLY
    if decision is not Decision.ALLOW_FOR_SESSION or scope == THIS_CALL_ONLY:
        return None
    if not _is_unique(scope):
        scope_id = request.metadata.get(SCOPE_ID)
        return (request.tool_name, str(scope_id)) if scope_id else None
    return (request.tool_name, scope, str(request.metadata.get("sandbox")))


def _is_unique(scope: str) -> bool:
    """Return whether no other scope has the same words, as with a secret removed or an escape."""
    return REMOVED not in scope and "\\" not in scope


def rule_of(request: "PermissionRequest", decision: Decision) -> str | None:
    """Return the rule that an answer with "always" saves; None if the question offers no rule."""
    if decision is Decision.DENY:
        return None
    facts: object = request.metadata
    if decision in WIDE_DECISIONS:
        offered = wide_of(request)
        facts = request.metadata[WIDE] if offered and offered[0] is decision else None
    match facts:
        case {"rule": str(rule)}:
            return rule
        case _:
            return None


def coverage_of_rule(rule: str) -> str:
    """Tell which calls the narrowest rule for a call covers, and in which projects."""
    if any(line.startswith("path = ") for line in rule.splitlines()):
        return "this path, whichever project the session works in"
    if any(line.startswith("command = ") for line in rule.splitlines()):
        return "this command in every project, not only in this one"
    if any(line.startswith("host = ") for line in rule.splitlines()):
        return "such calls to these hosts in every project, not only in this one"
    return "every call of this tool, whatever its arguments, in every project"


def shown_rule(rule: str) -> str:
    """Return a rule on one line, without the name of its table."""
    return "; ".join(rule.splitlines()[1:])


def without_rules(request: "PermissionRequest") -> "PermissionRequest":
    """Return a request without its rule, for runtimes that cannot save rules."""
    facts = {key: value for key, value in request.metadata.items() if key != RULE}
    if (offered := wide_of(request)) is not None:
        facts[WIDE] = {"decision": offered[0].value, "covers": offered[1]}
    return request.model_copy(update={"metadata": facts})


def agent_path(run: RunIdentity) -> list[str]:
    """The agents above a run's and its own, from the root down: no child starts children."""
    return [each for each in (run.parent_agent_id, run.agent_id) if each is not None]


def access_hash(
    call: ToolCall, definition: ToolDefinition, access: Access, request: "PermissionRequest"
) -> str:
    """Return a hash of everything one answer is for: all effects, and the files as they are now.

    Blocks on files: not for the event loop.
    """
    would_do = to_builtins(replace(access, hook_summary=None, met=()), enc_hook=str)
    named = [access.target, *access.paths, *access.places, *access.runs]
    if access.command is not None:
        named += [view.program for view in access.command.views]
    files = sorted({each for each in named if each and PurePath(each).is_absolute()})
    tool = definition.model_dump() | {"tags": sorted(definition.tags)}
    where = [request.cwd, request.network_host, request.target_scope]
    return _digest([tool, call.arguments, would_do, where, [(f, _state(f)) for f in files]])


def _state(path: str) -> list[Any]:
    """Return facts that change with a file's content; for a folder only its kind."""
    try:
        found = Path(path).stat()
        if not stat.S_ISREG(found.st_mode):
            return [stat.S_IFMT(found.st_mode)]
        if found.st_size <= _SMALL:
            return [found.st_mode, sha256(read_bytes(path)).hexdigest()]
    except (OSError, ValueError) as error:
        return [type(error).__name__]
    return [found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def event_payload(request: "PermissionRequest") -> JsonObject:
    """The request as an event's payload, cut and without diff: the call is in the history."""
    payload = request.model_dump(mode="json")
    payload["tags"] = sorted(request.tags)
    payload["args_summary"] = shortened(request.args_summary, _MAX_IN_EVENT)
    metadata = payload["metadata"]
    metadata.pop("diff", None)
    metadata.pop("diff_is_whole", None)
    metadata.pop("lines", None)
    if "target" in metadata:
        metadata["target"] = shortened(metadata["target"], _MAX_IN_EVENT)
    return payload

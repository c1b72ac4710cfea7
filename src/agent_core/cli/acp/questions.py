"""Questions about calls as an editor shows them, and its answers."""

from pathlib import Path

from acp.schema import AllowedOutcome, DeniedOutcome, PermissionOption, ToolCallUpdate

from agent_core.cli.acp.updates import diff_content, fenced, text_content
from agent_core.cli.question import fact_lines
from agent_core.permissions.request import (
    ALWAYS,
    THIS_CALL_ONLY,
    WIDE_DECISIONS,
    rule_of,
    shown_rule,
    wide_of,
)
from agent_core.text import shortened
from agent_core.types import Decision, PermissionDecision, PermissionRequest

_LONGEST_TITLE = 500
_DECISIONS = {
    "allow_once": Decision.ALLOW_ONCE,
    "allow_for_session": Decision.ALLOW_FOR_SESSION,
    "allow_reads": Decision.ALLOW_READS,
    "allow_edits": Decision.ALLOW_EDITS,
    "deny": Decision.DENY,
}
_ALWAYS = "+rule"
"""Suffix of the id of an option that also saves a rule."""


def question_of(request: PermissionRequest, call_id: str, project: Path) -> ToolCallUpdate:
    """Return the call that a question is about, as the editor shows it beside the options."""
    facts = "\n".join(line.removeprefix("  ") for line in fact_lines(request))
    rules = [rule for _, rule in _rules(request)]
    diff = str(request.metadata.get("diff") or "")
    danger = "dangerous: " if request.dangerous else ""
    return ToolCallUpdate(
        tool_call_id=call_id,
        title=shortened(f"{danger}{request.tool_name} {request.args_summary}", _LONGEST_TITLE),
        kind="edit" if diff else None,
        status="pending",
        content=[
            text_content(fenced(facts)),
            *(text_content(f"A rule for all sessions:\n{fenced(rule)}") for rule in rules),
            *diff_content(diff, project, is_whole=request.metadata.get("diff_is_whole") is True),
        ],
    )


def answers_of(request: PermissionRequest) -> list[PermissionOption]:
    """Return the options of a question."""
    scope = request.target_scope or THIS_CALL_ONLY
    once = PermissionOption(option_id="allow_once", name="Allow once", kind="allow_once")
    always = PermissionOption(
        option_id="allow_for_session",
        name=f"Allow for this session: {shortened(scope, _LONGEST_TITLE)}",
        kind="allow_always",
    )
    reject = PermissionOption(option_id="deny", name="Reject", kind="reject_once")
    wide = [
        PermissionOption(
            option_id=offered[0].value,
            name=f"Allow for this session: {shortened(offered[1], _LONGEST_TITLE)}",
            kind="allow_always",
        )
        for offered in (wide_of(request),)
        if offered is not None
    ]
    return [once, *[always] * (scope != THIS_CALL_ONLY), *wide, *_rule_options(request), reject]


def decision_of(outcome: AllowedOutcome | DeniedOutcome) -> PermissionDecision:
    """Return the answer that the user has chosen; anything unknown denies the call."""
    if outcome.outcome == "cancelled":
        return _decided(Decision.DENY, "the question was dismissed in the editor")
    name, is_always = outcome.option_id.removesuffix(_ALWAYS), _ALWAYS in outcome.option_id
    return _decided(_DECISIONS.get(name, Decision.DENY), always=is_always)


def _rule_options(request: PermissionRequest) -> list[PermissionOption]:
    """Return an option for each rule that the question offers to save, in the rule's words."""
    return [
        PermissionOption(
            option_id=f"{decision.value}{_ALWAYS}",
            name=shortened(f"Always{_reach(rule)}, by a rule: {shown_rule(rule)}", _LONGEST_TITLE),
            kind="allow_always",
        )
        for decision, rule in _rules(request)
    ]


def _reach(rule: str) -> str:
    is_of_place = any(line.startswith("path = ") for line in rule.splitlines())
    return "" if is_of_place else ", in every project"


def _rules(request: PermissionRequest) -> list[tuple[Decision, str]]:
    """Return the rules that the question offers to save, each with the answer that saves it."""
    offered = ((each, rule_of(request, each)) for each in (Decision.ALLOW_ONCE, *WIDE_DECISIONS))
    return [(decision, rule) for decision, rule in offered if rule is not None]


def _decided(
    decision: Decision, reason: str | None = None, *, always: bool = False
) -> PermissionDecision:
    metadata = {"decided_by": "editor"} | ({ALWAYS: True} if always else {})
    return PermissionDecision(decision=decision, reason=reason, metadata=metadata)

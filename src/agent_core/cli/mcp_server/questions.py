"""Questions about calls as a form for the user of an MCP client, and what the form answers."""

from collections.abc import Mapping

from agent_core.cli.question import fact_lines, is_remembered, what_lines
from agent_core.permissions.request import MAX_REASON
from agent_core.text import lines_of_diff, visible
from agent_core.text.json_text import JsonSchema, JsonValue
from agent_core.types import Decision, PermissionDecision, PermissionRequest

DECISIONS = (Decision.ALLOW_ONCE, Decision.ALLOW_FOR_SESSION, Decision.DENY)
"""The answers that a client can give, if the question offers them."""
_NAMES = {
    Decision.ALLOW_ONCE: "Allow once",
    Decision.ALLOW_FOR_SESSION: "Allow for this session",
    Decision.DENY: "Deny",
}


def decisions_of(request: PermissionRequest) -> list[Decision]:
    """Return the answers that a question takes from a client."""
    return [
        each
        for each in DECISIONS
        if each is not Decision.ALLOW_FOR_SESSION or is_remembered(request)
    ]


def words_of_question(request: PermissionRequest) -> str:
    """Return everything that a person needs to decide, the whole diff included."""
    lines = [*what_lines(request), f"  tool: {visible(request.tool_name, one_line=True)}"]
    lines += fact_lines(request)
    if is_remembered(request):
        scope = visible(request.target_scope or "", one_line=True)
        lines.append(f"  for the session it would cover: {scope}")
    diff = lines_of_diff(str(request.metadata.get("diff") or ""))
    lines += [f"    {visible(line, one_line=True)}" for line in diff]
    return "\n".join(lines)


def form_of(request: PermissionRequest) -> tuple[str, JsonSchema]:
    """Return the message and the schema of the form that asks a question."""
    offered = decisions_of(request)
    schema = {
        "type": "object",
        "properties": {
            "decision": {
                "type": "string",
                "title": "Decision",
                "enum": [str(each) for each in offered],
                "enumNames": [_NAMES[each] for each in offered],
            },
            "reason": {
                "type": "string",
                "title": "Reason",
                "description": "for the agent, if you deny it",
                "maxLength": MAX_REASON,
            },
        },
        "required": ["decision"],
    }
    return f"The agent asks for your permission.\n{words_of_question(request)}", schema


def decision_of(
    request: PermissionRequest, action: str, content: Mapping[str, JsonValue] | None
) -> PermissionDecision:
    """Return the decision of a form; only a decision that the question offers allows anything."""
    given = content or {}
    reason = given.get("reason")
    reason = reason if isinstance(reason, str) and reason.strip() else None
    if action == "accept" and given.get("decision") in decisions_of(request):
        return _decided(Decision(str(given["decision"])), reason)
    refusals = {
        "accept": "the form came back without a valid decision",
        "decline": "the user declined in the MCP client",
        "cancel": "the question was dismissed in the MCP client",
    }
    return _decided(Decision.DENY, reason or refusals.get(action, refusals["accept"]))


def _decided(decision: Decision, reason: str | None) -> PermissionDecision:
    """Return a decision that was taken in a client."""
    metadata = {"decided_by": "mcp"}
    return PermissionDecision(decision=decision, reason=reason, metadata=metadata)

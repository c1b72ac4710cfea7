"""Read answers in the form of other agents' hooks that do not deny.

Only known fields with values of their type are accepted, so that a misspelt deny stays a failure.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from agent_core.text.json_text import JsonObject

_ALLOWS = frozenset(("allow", "allowed", "approve", "approved"))
_OPEN = frozenset(("ask", "defer"))
"""Decisions that leave a call to the permissions of the user."""
_DECISIONS = ("decision", "permission", "permissionDecision", "behavior")
_NESTED: Mapping[str, str] = {"hookSpecificOutput": "", "decision": "hookSpecificOutput"}
"""The objects of an answer, and the object that each of them is in."""
_REASONS = ("permissionDecisionReason", "systemMessage")
_OWN = ("reason", "metadata", "logs")
_FIELDS: Mapping[str, type] = {
    **dict.fromkeys(("continue", "suppressOutput"), bool),
    **dict.fromkeys(("stopReason", "systemMessage", "permissionDecisionReason"), str),
    **dict.fromkeys(("hookEventName", "additionalContext", "additional_context"), str),
    **dict.fromkeys(("user_message", "agent_message", "userMessage", "agentMessage"), str),
    **dict.fromkeys(("updatedInput", "updated_input", "modifiedArgs"), dict),
    "followup_message": str,
}
_WITHOUT_EFFECT = frozenset(("continue", "hookEventName", "stopReason", *_REASONS))
"""Fields that are obeyed or say nothing more; every other one is named as ignored."""


def read_other_form(text: str) -> tuple[JsonObject, list[str]] | None:
    """Return an answer as the fields of a `HookAnswer`, and what it asks for and does not get.

    None if it is in no known form. The text has been searched for a deny before.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    answer: JsonObject = {}
    ignored: list[str] = []
    if not _take(cast("JsonObject", document), answer, ignored, ""):
        return None
    return answer, ignored


def _take(document: JsonObject, answer: JsonObject, ignored: list[str], inside: str) -> bool:
    """Add the fields of an object to the answer; return whether all of them are known."""
    for name, value in document.items():
        if value is None and (name in _FIELDS or name == "reason"):
            continue
        if isinstance(value, dict) and _NESTED.get(name) == inside:
            if not _take(value, answer, ignored, name):
                return False
        elif name in _DECISIONS:
            word = value.strip().lower() if isinstance(value, str) else None
            if word in _OPEN:
                ignored.append(f'{name} "{word}"')
            elif word not in _ALLOWS:
                return False
        elif name in _OWN and not inside:
            answer[name] = value
        elif name in _FIELDS and isinstance(value, _FIELDS[name]):
            if name in _REASONS and not answer.get("reason") and not document.get("reason"):
                answer["reason"] = value
            elif name not in _WITHOUT_EFFECT:
                ignored.append(name)
        else:
            return False
    return True

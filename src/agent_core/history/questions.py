"""The facts of a question about a call, as people read them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_core.text.json_text import JsonValue
from agent_core.text.languages import ENGLISH, Language

if TYPE_CHECKING:
    from agent_core.types import PermissionRequest

_REASONS = {
    "sensitive": "this is a sensitive path",
    "outside_roots": "this is outside the project and the allowed folders",
    "program_home": "this belongs to the program itself",
    "outside_sandbox": "this runs outside the sandbox",
}


def request_facts(request: "PermissionRequest", say: Language = ENGLISH) -> list[tuple[str, str]]:
    """Return the facts a person needs to decide, most important first, each with its name."""
    metadata = request.metadata
    reason = str(metadata.get("reason") or "")
    target = str(metadata.get("target") or "")
    agent = request.agent_role
    if request.parent_run_id:
        definition = metadata.get("agent_definition")
        agent += f" {definition}," if definition else ""
        above = say("child of run {run}", run=request.parent_run_id)
        agent += f" {request.agent_id}, {above}"
    hook = request.hook_summary or {}
    facts = [
        ("target", str(metadata.get("lines") or target)),
        ("reason", say(_REASONS.get(reason, reason))),
        ("paths", ", ".join(metadata.get("places") or ())),
        ("asked by", str(metadata.get("asked_by") or "")),
        ("host", request.network_host or ""),
        ("arguments", "" if request.args_summary == target else request.args_summary),
        ("in", request.cwd),
        ("sandbox", str(metadata.get("sandbox") or "")),
        ("environment", request.env_summary),
        ("agent", agent),
        ("its task", str(metadata.get("agent_task") or "")),
        # Of a hook or an extension that let the call pass; empty if it gave no reason.
        ("hook", ": ".join(_texts_of(hook, "command", "reason")) if hook.get("reason") else ""),
    ]
    return [(say(name), value) for name, value in facts if value]


def _texts_of(summary: Mapping[str, JsonValue], *keys: str) -> list[str]:
    return [str(summary[key]) for key in keys if summary.get(key)]

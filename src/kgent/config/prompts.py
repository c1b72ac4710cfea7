"""The system prompt of a run, rendered from its profile."""

import json
from collections.abc import Iterable, Sequence

from kgent.config.models import KgentConfig
from kgent.skills.models import SkillSummary

_SHOWN_SCHEMA = 4000


def render_system_prompt(
    config: KgentConfig,
    skill_index: Sequence[SkillSummary],
    memory_summary: str | None,
    sandbox_rules: str,
) -> str:
    """Render role, responsibilities, style, constraints, sandbox, deliverables, skills, memory.

    Equal arguments give equal text; empty parts are left out.
    """
    required = _bullets(
        f"`{one.path}`"
        + (f" ({one.content_type})" if one.content_type else "")
        + ("" if one.allow_empty else ", not empty")
        + (
            f", fitting this JSON Schema: {_shown(one.content_schema)}"
            if one.content_schema
            else ""
        )
        for one in config.deliverables.required
    )
    skills = _bullets(f"{skill.id}: {skill.description}" for skill in skill_index)
    load_first = "Load a skill with `load_skill` before you do its kind of work:"
    profile = config.profile
    parts = [
        ("Role", profile.role.strip()),
        ("Responsibilities", _bullets(profile.responsibilities)),
        ("Style", _bullets(profile.style)),
        ("Constraints", _bullets(profile.constraints)),
        ("Sandbox rules", sandbox_rules.strip()),
        (
            "Required deliverables",
            required and f"The run is complete only when these files exist:\n{required}",
        ),
        ("Skills", skills and f"{load_first}\n{skills}"),
        ("Memory", (memory_summary or "").strip()),
    ]
    return "\n\n".join(f"# {title}\n\n{body}" for title, body in parts if body) + "\n"


def _shown(schema: object) -> str:
    text = json.dumps(schema, ensure_ascii=False)
    return text if len(text) <= _SHOWN_SCHEMA else f"{text[:_SHOWN_SCHEMA]}…"


def render_sandbox_rules(config: KgentConfig, inputs: Iterable[str] = ()) -> str:
    """Return the rules of the run folder for the model; `inputs` are paths in it."""
    files, shell = config.tools.filesystem, config.tools.shell
    write_rule = "Nothing can be written."
    if files.enabled and files.write:
        write_rule = (
            "Write only below `workspace/` (drafts, notes) and `deliverables/` (results);"
            f" at most {files.max_file_bytes} bytes a file."
        )
    rules = [
        "All paths are relative to the run folder.",
        "Read anything inside the run folder; nothing outside it, except the folders of skills.",
        write_rule,
    ]
    if inputs:
        listed = ", ".join(f"`{name}`" for name in inputs)
        rules.append(f"You are given, read-only: {listed}.")
    if shell.enabled:
        rules.append(f"Commands that may be run: {', '.join(shell.allowed_commands) or 'none'}.")
    rules.append("A refused call stays refused; do not look for a way around it.")
    return _bullets(rules)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line.strip()}" for line in lines if line.strip())

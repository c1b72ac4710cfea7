"""The system prompt of a run: always the same parts in the same order."""

from collections.abc import Iterable, Sequence

from kgent.config.models import KgentConfig
from kgent.skills.models import SkillSummary


def render_system_prompt(
    config: KgentConfig,
    skill_index: Sequence[SkillSummary],
    memory_summary: str | None,
    sandbox_rules: str,
) -> str:
    """Role, responsibilities, style, constraints, sandbox, deliverables, skills, memory.

    Equal arguments give equal text; parts with nothing to say are left out.
    """
    profile = config.profile
    parts = [
        ("Role", profile.role.strip()),
        ("Responsibilities", _bullets(profile.responsibilities)),
        ("Style", _bullets(profile.style)),
        ("Constraints", _bullets(profile.constraints)),
        ("Sandbox rules", sandbox_rules.strip()),
        ("Required deliverables", _deliverables(config)),
        ("Skills", _skills(skill_index)),
        ("Memory", (memory_summary or "").strip()),
    ]
    return "\n\n".join(f"# {title}\n\n{body}" for title, body in parts if body) + "\n"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line.strip()}" for line in lines if line.strip())


def _deliverables(config: KgentConfig) -> str:
    lines = [
        f"`{one.path}`"
        + (f" ({one.content_type})" if one.content_type else "")
        + ("" if one.allow_empty else ", not empty")
        for one in config.deliverables.required
    ]
    if not lines:
        return ""
    return f"The run is complete only when these files exist:\n{_bullets(lines)}"


def _skills(index: Sequence[SkillSummary]) -> str:
    if not index:
        return ""
    lines = _bullets(f"{skill.id}: {skill.description}" for skill in index)
    return f"Load a skill with `load_skill` before you do its kind of work:\n{lines}"

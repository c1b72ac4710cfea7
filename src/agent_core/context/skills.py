"""Skills and the plan template: texts that a model loads into its context on demand."""

import asyncio
import os
import re
from bisect import bisect
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from agent_core.assets import load_asset, parse_front_matter, read_fields
from agent_core.context.loaded import read_current, with_text
from agent_core.context.messages import SKILL_FILE, skill_folder
from agent_core.errors import ErrorCode, ToolError
from agent_core.opening import (
    HEAD_BYTES,
    MAX_TEXT_BYTES,
    FileVersion,
    read_text_file,
    version_of,
)
from agent_core.text import estimate_text, fit_lines, one_line, quoted, short_line
from agent_core.text.content import content_hash
from agent_core.text.json_text import JsonObject
from agent_core.tools.base import Action, LoadedTexts, Tool, ToolAnswer, ToolContext, View
from agent_core.tools.registry import model_tool
from agent_core.tools.schema import Arguments
from agent_core.tools.text import decode_text
from agent_core.types import Access, Node, NodeType, user_text


class PlanTemplate(Arguments):
    """Get the template of a plan."""

    goal: str | None = None
    suggested_dir: str | None = None


def plan_template_tool(plans_dir: Path, project: Path) -> Tool:
    """Build `agent.plan_template`, which adds the rules for a plan and writes no file.

    Args:
        plans_dir: created when first needed.
        project: resolved; a suggested folder must lie in it.
    """

    async def prepare(arguments: PlanTemplate, context: ToolContext, /) -> Action:
        folder, suggested = plans_dir, arguments.suggested_dir
        may_write_elsewhere = context.run.permission_mode != "plan"
        if suggested and may_write_elsewhere:
            try:
                folder = (project / suggested).resolve()
            except (OSError, RuntimeError, ValueError):
                folder = Path("/")
            if not folder.is_relative_to(project):
                message = f"suggested_dir {suggested!r} is not a folder of the project"
                details = {"path": "$.suggested_dir"}
                raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)

        async def run() -> ToolAnswer:
            if may_write_elsewhere:  # in plan mode nothing is made before the plan
                await asyncio.to_thread(_make_folder, plans_dir, project)
            shown = folder.relative_to(project) if folder.is_relative_to(project) else folder
            return _instruction(arguments.goal, str(shown))

        return Action(Access(summary=arguments.goal or "", target=str(folder)), run)

    return model_tool(PLAN_TEMPLATE, PlanTemplate, prepare)


def _instruction(goal: str | None, folder: str) -> ToolAnswer:
    template = load_asset("template.plan.default")
    origin = {"template_id": template.asset_id, "template_version": template.version}
    facts = f"Goal: {goal or 'as the user has stated it'}\nFolder: {folder}"
    node = user_text(f"{facts}\n\n{template.text}", NodeType.PLAN_INSTRUCTION, **origin)
    following = "follow the plan instruction; nothing has been written yet"
    return ToolAnswer({**origin, "folder": folder, "next": following}, [node])


def _make_folder(plans_dir: Path, project: Path) -> None:
    """Create the plans folder, unless a link leads it out of its project."""
    try:
        if plans_dir.is_relative_to(project):
            leads_out = not plans_dir.resolve().is_relative_to(project)
        else:  # a project may hold a link in place of the default folder or a parent of it
            leads_out = plans_dir == (project / ".soong-agent" / "plans").resolve()
        if leads_out:
            message = f"the plans folder {plans_dir} is a link that leads out of the project"
            raise ToolError(ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS, message)
        plans_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        message = f"the plans folder {plans_dir} cannot be created: {error}"
        raise ToolError(ErrorCode.PATH_CONFLICT, message) from error


_NAME = r"[\w][\w .:-]{0,79}"
_NAME_RULE = (
    "use up to 80 letters, digits, spaces and _ . : -, and begin with a letter, a digit or _"
)
_DESCRIPTION_CHARS = 1024
_LEAST_DESCRIPTION = 12
"""Characters below which a description says nothing, and is left out."""
_SUMMARY_CHARS = 300

LOAD_SKILL, PLAN_TEMPLATE = "internal.load_skill", "agent.plan_template"
"""The tools that load a skill and the rules for a plan."""


class Skill(Struct, frozen=True):
    """A skill as the catalog shows it; its body is read when it is loaded."""

    name: str
    description: str
    path: Path

    @property
    def folder(self) -> Path | None:
        """Return the folder with the skill's other files, if the skill has a folder."""
        return skill_folder(self.path)


class SkillCatalog(Struct, frozen=True):
    """All skills of the home, by name. `problems` names the skipped files and the reasons."""

    skills: tuple[Skill, ...] = ()
    problems: tuple[str, ...] = ()

    def text(self, budget: int) -> str:
        """Return names and descriptions within `budget` tokens; empty if there are no skills.

        Descriptions are shortened, all to the same length, before a name is left out.
        """
        if not self.skills:
            return ""
        lines = self._lines(_DESCRIPTION_CHARS)
        if sum(map(_cost, lines)) > budget:
            lengths = range(_LEAST_DESCRIPTION, _DESCRIPTION_CHARS)
            at = bisect(
                lengths, False, key=lambda most: sum(map(_cost, self._lines(most))) > budget
            )
            lines = self._lines(lengths[at - 1] if at else 0)
        return fit_lines(lines, budget)

    def left_out(self, budget: int) -> int:
        """Return the number of skills whose names do not fit into `budget` tokens."""
        if sum(map(_cost, self._lines(0))) <= budget:
            return 0
        return len(self.skills) + 1 - len(self.text(budget).splitlines())

    def _lines(self, most: int) -> list[str]:
        """Return the entries, with at most `most` characters of each description."""
        if most == 0:
            return [f"- {skill.name}" for skill in self.skills]
        return [f"- {skill.name}: {short_line(skill.description, most)}" for skill in self.skills]

    def current(self, node: Node) -> Node | None:
        """Return a loaded skill as it is on disk: the same node if unchanged; None if gone."""
        name = node.metadata.get("name")
        skill = next((each for each in self.skills if each.name == name), None)
        try:
            read = None if skill is None else read_current(node, skill.path)
        except OSError:
            return None
        if skill is None or read is None:
            return skill and node
        text, version = read
        return with_text(node, _body(text), version)

    def get(self, name: str) -> Skill:
        """Find a skill.

        Raises:
            ToolError: `skill_not_found`, naming the existing skills.
        """
        for skill in self.skills:
            if skill.name == name:
                return skill
        known = ", ".join(skill.name for skill in self.skills) or "none"
        raise ToolError(ErrorCode.SKILL_NOT_FOUND, f"no skill {name!r}; there are: {known}")


def find_skills(home: Path) -> SkillCatalog:
    """Read the heads of `<home>/skills/<name>.md` and `<home>/skills/<name>/SKILL.md`.

    Does file work: call it in a thread.
    """
    skills: dict[str, Skill] = {}
    problems: list[str] = []
    folder = f"{home}/skills"
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths
    except OSError:
        names = []
    for name in names:
        path = Path(folder, name)
        if path.is_dir():
            path /= SKILL_FILE
            if not path.is_file():
                continue
        elif path.suffix.lower() != ".md":
            continue
        try:
            version = version_of(path)
            skill = _read_skill(path) if version is None else _read_known_skill(path, version)
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
            continue
        if other := skills.get(skill.name):
            problems.append(f"{path}: the name {skill.name!r} is taken by {other.path}")
        else:
            skills[skill.name] = skill
    return SkillCatalog(tuple(map(skills.__getitem__, sorted(skills))), tuple(problems))


def _read_skill(path: Path) -> Skill:
    """Read a skill's head.

    Raises:
        OSError: the file cannot be read.
        ValueError: a required field is missing or wrong; the message is for its author.
    """
    content = read_text_file(path, HEAD_BYTES)
    text = decode_text(content, complete=len(content) < HEAD_BYTES)
    head = read_fields(text, ("name", "description"))
    name, description = head.text("name"), head.text("description")
    if not name or not description:
        raise ValueError(head.problem or "the front matter needs a name and a description")
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"the name {quoted(name, 100)} is not valid: {_NAME_RULE}")
    return Skill(name, one_line(description)[:_DESCRIPTION_CHARS], path)


@lru_cache(maxsize=1024)
def _read_known_skill(path: Path, _version: FileVersion) -> Skill:
    """Read a skill's head, once for each version of the file."""
    return _read_skill(path)


def _body(text: str) -> str:
    return parse_front_matter(text).body.strip()


def _cost(line: str) -> int:
    """Return the tokens that `fit_lines` counts for a line."""
    return estimate_text(line) + 1


class LoadSkill(Arguments):
    """Load a skill of the catalog; its text follows the result."""

    name: str


def load_skill_tool(catalog: SkillCatalog, view: View) -> Tool:
    """Build `internal.load_skill` for a run."""
    loaded = LoadedTexts(view, NodeType.SKILL_CONTEXT, "name")

    async def prepare(arguments: LoadSkill, context: ToolContext, /) -> Action:
        skill = catalog.get(arguments.name)
        access = Access(summary=skill.name, target=str(skill.path))
        return Action(access, lambda: _load(skill, loaded, context.tool_call_id))

    return model_tool(LOAD_SKILL, LoadSkill, prepare)


async def _load(skill: Skill, loaded: LoadedTexts, tool_call_id: str) -> ToolAnswer:
    async with loaded.in_order:
        try:
            content = await asyncio.to_thread(read_text_file, skill.path, MAX_TEXT_BYTES + 1)
        except OSError as error:
            message = f"the skill {skill.name!r} cannot be read from {skill.path}: {error.strerror}"
            raise ToolError(ErrorCode.SKILL_LOAD_FAILED, message) from error
        if len(content) > MAX_TEXT_BYTES:
            message = f"the skill {skill.name!r} is larger than {MAX_TEXT_BYTES} bytes: "
            raise ToolError(ErrorCode.SKILL_LOAD_FAILED, f"{message}{skill.path}")
        version = content_hash(content)
        is_new = loaded.add(skill.name, version)
    body = _body(decode_text(content))
    facts: JsonObject = {"name": skill.name, "path": str(skill.path), "hash": version}
    summary = " ".join(body.split())[:_SUMMARY_CHARS]
    answer = {**facts, "already_loaded": not is_new, "summary": summary}
    if skill.folder is not None:
        answer["folder"] = str(skill.folder)
    if not is_new:
        return ToolAnswer(answer, [])
    node = user_text(body, NodeType.SKILL_CONTEXT, **facts, tool_call_id=tool_call_id)
    return ToolAnswer(answer, [node])

"""How a plan begins: the template, as context. The plan itself is an ordinary file."""

import asyncio
from pathlib import Path

from pydantic import Field

from agent_core.assets import load_asset
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.base import Action, Tool, ToolContext, ToolOutput
from agent_core.tools.handler import model_tool
from agent_core.tools.schema import Arguments
from agent_core.types import Access, NodeType, user_text


class PlanTemplate(Arguments):
    """Arguments of `agent.plan_template`."""

    goal: str | None = Field(None, description="What the plan is for.")
    suggested_dir: str | None = Field(None, description="Another folder of the project.")


def plan_template_tool(plans_dir: Path, project: Path) -> Tool:
    """`agent.plan_template`: how to write a plan, as context. It writes no file.

    Args:
        plans_dir: created when first needed.
        project: resolved; a suggested folder has to lie in it.
    """

    async def prepare(arguments: PlanTemplate, _context: ToolContext, /) -> Action:
        folder, suggested = plans_dir, arguments.suggested_dir
        if suggested:
            try:
                folder = (project / suggested).resolve()
            except (OSError, RuntimeError, ValueError):
                folder = Path("/")
            if not folder.is_relative_to(project):
                message = f"suggested_dir {suggested!r} is not a folder of the project"
                details = {"path": "$.suggested_dir"}
                raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)

        async def run() -> ToolOutput:
            await asyncio.to_thread(_make_folder, plans_dir, project)
            shown = folder.relative_to(project) if folder.is_relative_to(project) else folder
            return _instruction(arguments.goal, str(shown))

        return Action(Access(summary=arguments.goal or "", target=str(folder)), run)

    description = "Get the template and the rules for writing a plan file. Writes nothing."
    return model_tool("agent.plan_template", description, PlanTemplate, prepare)


def _instruction(goal: str | None, folder: str) -> ToolOutput:
    template = load_asset("template.plan.default")
    origin = {"template_id": template.asset_id, "template_version": template.version}
    facts = f"Goal: {goal or 'as the user has stated it'}\nFolder: {folder}"
    node = user_text(f"{facts}\n\n{template.text}", NodeType.PLAN_INSTRUCTION, **origin)
    following = "follow the plan instruction; nothing has been written yet"
    return ToolOutput({**origin, "folder": folder, "next": following}, [node])


def _make_folder(plans_dir: Path, project: Path) -> None:
    """Create the plans folder, unless a link leads it out of the project it belongs to."""
    try:
        if plans_dir.is_relative_to(project):
            leads_out = not plans_dir.resolve().is_relative_to(project)
        else:  # a project may hold a link in place of the default folder, or of one above it
            leads_out = plans_dir == (project / ".soong-agent" / "plans").resolve()
        if leads_out:
            message = f"the plans folder {plans_dir} is a link that leads out of the project"
            raise ToolError(ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS, message)
        plans_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        message = f"the plans folder {plans_dir} cannot be created: {error}"
        raise ToolError(ErrorCode.PATH_CONFLICT, message) from error

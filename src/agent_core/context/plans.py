"""How a plan begins: the template, as context. The plan itself is an ordinary file."""

import asyncio
from functools import cache, partial
from pathlib import Path

from pydantic import Field

from agent_core.assets import load_asset
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolOutput
from agent_core.tools.schema import Arguments, model_check, model_schema
from agent_core.types import Access, NodeType, ToolDefinition, ToolPermission, user_text

_TEMPLATE = "template.plan.default"


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
        folder = _folder(arguments.suggested_dir, plans_dir, project)
        run = partial(_instruct, arguments.goal, folder, plans_dir, project)
        return Action(Access(summary=arguments.goal or "", target=str(folder)), run)

    definition = _definition()
    return Tool(definition, model_check(definition.name, PlanTemplate), prepare, Concurrency.READ)


@cache
def _definition() -> ToolDefinition:
    return ToolDefinition(
        name="agent.plan_template",
        description="Get the template and the rules for writing a plan file. Writes nothing.",
        input_schema=model_schema(PlanTemplate),
        permission=ToolPermission.READONLY,
        tags={"internal", "readonly"},
    )


def _folder(suggested: str | None, plans_dir: Path, project: Path) -> Path:
    if not suggested:
        return plans_dir
    try:
        folder = (project / suggested).resolve()
    except (OSError, RuntimeError, ValueError):
        folder = Path("/")
    if not folder.is_relative_to(project):
        message = f"suggested_dir {suggested!r} is not a folder of the project"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.suggested_dir"})
    return folder


async def _instruct(goal: str | None, folder: Path, plans_dir: Path, project: Path) -> ToolOutput:
    await asyncio.to_thread(_make_folder, plans_dir, project)
    template = load_asset(_TEMPLATE)
    facts = {"Goal": goal or "as the user has stated it", "Folder": _shown(folder, project)}
    stated = "\n".join(f"{name}: {text}" for name, text in facts.items())
    node = user_text(
        f"{stated}\n\n{template.text}",
        NodeType.PLAN_INSTRUCTION,
        template_id=template.asset_id,
        template_version=template.version,
    )
    answer = {
        "template_id": template.asset_id,
        "template_version": template.version,
        "folder": facts["Folder"],
        "next": "follow the plan instruction; nothing has been written yet",
    }
    return ToolOutput(answer, [node])


def _make_folder(plans_dir: Path, project: Path) -> None:
    """Create the plans folder, unless a link leads it out of the project it belongs to."""
    try:
        if _is_led_out(plans_dir, project):
            message = f"the plans folder {plans_dir} is a link that leads out of the project"
            raise ToolError(ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS, message)
        plans_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        message = f"the plans folder {plans_dir} cannot be created: {error}"
        raise ToolError(ErrorCode.PATH_CONFLICT, message) from error


def _is_led_out(plans_dir: Path, project: Path) -> bool:
    """Somebody who wrote the project made the default folder, or one above it, a link."""
    if plans_dir.is_relative_to(project):
        return not plans_dir.resolve().is_relative_to(project)
    return plans_dir == (project / ".soong-agent" / "plans").resolve()


def _shown(folder: Path, project: Path) -> str:
    return str(folder.relative_to(project)) if folder.is_relative_to(project) else str(folder)

"""What the six tools have in common: a name, an argument model, tags."""

from functools import cache
from inspect import cleandoc

from agent_core.tools.base import Prepare, Tool
from agent_core.tools.handler import lane_of
from agent_core.tools.schema import Arguments, model_check, model_schema
from agent_core.types import ToolDefinition, ToolPermission


def code_tool(
    name: str,
    arguments: type[Arguments],
    prepare: Prepare,
    *,
    permission: ToolPermission,
    tags: set[str],
    keeps_own_limits: bool = False,
) -> Tool:
    """A tool described by the docstring of its argument model.

    Args:
        name: without the `code.` in front.
        arguments: what `prepare` takes; its schema is what the model sees.
        prepare: looks before the leap.
        permission: whether it only reads.
        tags: beside `code` and the permission.
        keeps_own_limits: the general limit of results does not apply.
    """
    definition = _definition(name, arguments, permission, frozenset(tags))
    return Tool(
        definition=definition,
        parse=model_check(definition.name, arguments),
        prepare=prepare,
        lane=lane_of(definition),
        keeps_own_limits=keeps_own_limits,
        is_side_effect_free=permission is ToolPermission.READONLY,
    )


@cache
def _definition(
    name: str, arguments: type[Arguments], permission: ToolPermission, tags: frozenset[str]
) -> ToolDefinition:
    """One object for all workspaces: what is made of a definition is kept by identity."""
    schema = {key: value for key, value in model_schema(arguments).items() if key != "description"}
    return ToolDefinition(
        name=f"code.{name}",
        description=cleandoc(arguments.__doc__ or ""),
        input_schema=schema,
        permission=permission,
        tags={"code", permission.value, *tags},
    )

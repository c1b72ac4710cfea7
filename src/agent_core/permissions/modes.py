"""The permission modes: the calls they allow a run, and the note about them for the model.

A note before the user's message names the mode, so that the content of a prompt cache stays valid:
the tools are the same in every mode, and calls are refused.
"""

from agent_core.types import Access, ToolDefinition, ToolPermission

PLAN_MODE = (
    "The user has chosen plan mode: nothing but a plan may be written in this run. Whatever could"
    " change something else is refused: writing other files, commands that are not known to only"
    " read, tools that are not read-only, and the same for agents you start. Look at what you need"
    " to know, and answer with a plan: what you would change, where, in which order, and how to"
    " check it. If the user wants the plan as a file, agent__plan_template says where it goes."
)
PLAN_MODE_IS_OVER = (
    "Plan mode is over: changes are possible again, as far as the user's permissions allow."
)

_BUILT_IN = ("agent.", "internal.")
"""Prefixes of tools for the conversation and its plan; no other tool has such a name."""


def may_change(definition: ToolDefinition, access: Access) -> bool:
    """Return whether a call could change more than the run's own records and plans, if known.

    Known to only read: tools of permission `readonly` that are not dangerous, and commands that
    consist of programs and options that only read. A tool that writes files counts as
    changing, whatever permission the settings give it.
    """
    if definition.name.startswith(_BUILT_IN) or access.only_reads or access.writes_plan:
        return False
    is_dangerous = access.dangerous or not definition.tags.isdisjoint({"write", "dangerous"})
    writes = definition.permission is ToolPermission.WRITE or access.diff is not None
    return writes or is_dangerous

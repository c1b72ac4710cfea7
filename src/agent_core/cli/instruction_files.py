"""Says what the model sees of the instruction files at the beginning of a run."""

from collections.abc import Collection

from msgspec import Struct

from agent_core.config.paths import Setup
from agent_core.context.instructions import InstructionFile, find_instructions
from agent_core.tools.workspace import PathPolicy

_MOST_SHOWN = 6
_LISTED = "the model sees the paths, and reads a file when it applies"
_PRELOADED = "in the prompt, if they fit into an eighth of the window"


class FoundInstructions(Struct, frozen=True):
    """The instruction files of a project.

    Attributes:
        text: names the files, and says what the model sees of them; empty if there are none.
        problems: the files that cannot be read, with the reasons.
    """

    text: str
    problems: list[str]


def describe_instructions(setup: Setup, read: Collection[str] = ()) -> FoundInstructions:
    """Search the home and the project for instruction files; blocks on files.

    Args:
        setup: the settings.
        read: the shown paths of those that the session has read.
    """
    is_preloaded = setup.config.context.instructions == "preloaded"
    found = find_instructions(
        setup.settings_home,
        setup.project,
        is_closed=PathPolicy.of(setup).is_closed,
        preload=is_preloaded,
    )
    own = {shown for shown, _ in found.own}
    preloaded = [each for each in found.files if each.shown in own]
    listed = [each for each in found.files if each.shown not in own]
    parts: list[str] = []
    if preloaded:
        parts.append(f"{_named(preloaded, read)}: {_PRELOADED}")
    if listed:
        parts.append(f"{_named(listed, read)}: {_LISTED}")
    return FoundInstructions("; ".join(parts), found.problems)


def _named(files: list[InstructionFile], read: Collection[str]) -> str:
    names = [
        f"{each.shown} (read)" if each.shown in read else each.shown for each in files[:_MOST_SHOWN]
    ]
    if (more := len(files) - _MOST_SHOWN) > 0:
        names.append(f"{more} more")
    return ", ".join(names)

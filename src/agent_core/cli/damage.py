"""Warns of the rows of a session that cannot be read, where the rest of it is shown."""

from collections.abc import Sequence

from agent_core.cli.terminal import Style, Terminal
from agent_core.history.words import damage_lines
from agent_core.text import Clean
from agent_core.types import DamagedRow


def warn_of_damage(damaged: Sequence[DamagedRow], terminal: Terminal, clean: Clean) -> None:
    """Show the damage on standard error."""
    for line in damage_lines(damaged, clean):
        for part in terminal.wrap(line):
            terminal.line(part, Style.WARN)

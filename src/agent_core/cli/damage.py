"""Names the rows of a session that cannot be read, where the rest of it is shown."""

from collections.abc import Sequence

from agent_core.cli.terminal import Clean, Style, Terminal
from agent_core.text import plural, visible
from agent_core.types import DamagedRow

MOST_NAMED = 20
CURE = "nothing was changed; a backup may have them"


def damage_lines(damaged: Sequence[DamagedRow], clean: Clean) -> list[str]:
    """Return a line about the damage, and one for each row; empty without damage."""
    if not damaged:
        return []
    count = plural(len(damaged), "row")
    verb = "is" if len(damaged) == 1 else "are"
    lines = [f"{count} of the database {verb} missing or not read whole; {CURE}:"]
    lines += [f"  {visible(clean(str(row)), one_line=True)}" for row in damaged[:MOST_NAMED]]
    if len(damaged) > MOST_NAMED:
        lines.append(f"  and {len(damaged) - MOST_NAMED:,} more")
    return lines


def warn_of_damage(damaged: Sequence[DamagedRow], terminal: Terminal, clean: Clean) -> None:
    """Show the damage on standard error."""
    for line in damage_lines(damaged, clean):
        for part in terminal.wrap(line):
            terminal.line(part, Style.WARN)

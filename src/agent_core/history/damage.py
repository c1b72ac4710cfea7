"""Lines about the rows of a session that cannot be read."""

from collections.abc import Sequence

from agent_core.text import Clean, plural, visible
from agent_core.types import DamagedRow

MOST_NAMED = 20
_CURE = "nothing was changed; a backup may have them"


def damage_lines(damaged: Sequence[DamagedRow], clean: Clean) -> list[str]:
    """Return a line about the damage, and one for each row; empty without damage."""
    if not damaged:
        return []
    count = plural(len(damaged), "row")
    verb = "is" if len(damaged) == 1 else "are"
    lines = [f"{count} of the database {verb} missing or not read whole; {_CURE}:"]
    lines += [f"  {visible(clean(str(row)), one_line=True)}" for row in damaged[:MOST_NAMED]]
    if len(damaged) > MOST_NAMED:
        lines.append(f"  and {len(damaged) - MOST_NAMED:,} more")
    return lines

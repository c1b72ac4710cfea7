"""Names the sessions above and below a folder that has none."""

import shlex
from itertools import islice
from pathlib import Path

from agent_core.api import AgentRuntime
from agent_core.text import noun, plural, visible

_MOST_FOLDERS = 100
_MOST_COUNTED = 1000
_MOST_NAMED = 4


async def name_nearby(runtime: AgentRuntime, project: str | Path) -> str:
    """Return the end of a message: the sessions of the folders above, the nearest first, and below.

    It names the option that chooses the first folder; it is empty if no folder has sessions.
    """
    found = await runtime.sessions_nearby(project, limit=_MOST_FOLDERS)
    if not found:
        return ""
    named = [
        f"{_at_least(count, _MOST_COUNTED, 'session')} in {visible(folder, one_line=True)}"
        for folder, count in islice(found.items(), _MOST_NAMED)
    ]
    if (others := len(found) - _MOST_NAMED) > 0:
        most = _MOST_FOLDERS - _MOST_NAMED
        named.append(f"more in {_at_least(others, most, 'other folder')}")
    nearest, count = next(iter(found.items()))
    chosen = visible(shlex.quote(nearest), one_line=True)
    verb = "is" if count == 1 else "are"
    return f"; there {verb} {', '.join(named)}: --path {chosen} chooses that folder"


def _at_least(count: int, most: int, one: str) -> str:
    return plural(count, one) if count < most else f"{count:,} or more {noun(count, one)}"

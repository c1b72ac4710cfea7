"""Names the sessions above and below a folder that has none."""

import asyncio
import shlex
from itertools import islice
from pathlib import Path

from agent_core.api import AgentRuntime
from agent_core.text import plural, visible

_MOST_FOLDERS = 100_000
_MOST_NAMED = 4


async def name_nearby(runtime: AgentRuntime, project: str | Path) -> str:
    """Return the end of a message: the sessions of the folders above, the nearest first, and below.

    It names the option that chooses the first folder; it is empty if no folder has sessions.
    """
    used = await runtime.costs("project", limit=_MOST_FOLDERS)
    counts = {Path(each.key): each.sessions for each in used}
    here = await asyncio.to_thread(Path(project).resolve)
    near = [folder for folder in here.parents if folder in counts]
    near += [folder for folder in counts if here in folder.parents]
    if not near:
        return ""
    named = [
        f"{plural(counts[folder], 'session')} in {visible(str(folder), one_line=True)}"
        for folder in islice(near, _MOST_NAMED)
    ]
    if len(near) > _MOST_NAMED:
        named.append(f"more in {plural(len(near) - _MOST_NAMED, 'other folder')}")
    chosen = visible(shlex.quote(str(near[0])), one_line=True)
    verb = "is" if counts[near[0]] == 1 else "are"
    return f"; there {verb} {', '.join(named)}: --path {chosen} chooses that folder"

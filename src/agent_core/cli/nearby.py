"""Names sessions to people: one by a short id, and those above and below a folder that has none."""

import asyncio
import os
import shlex
from contextlib import suppress
from itertools import islice
from pathlib import Path

from agent_core.api import AgentRuntime
from agent_core.cli.setup import read_command_setup
from agent_core.errors import AgentCoreError, ConfigError
from agent_core.text import noun, plural, visible

_MOST_FOLDERS = 100
_MOST_COUNTED = 1000
_MOST_NAMED = 4
_MOST_LOOKED_AT = 50


async def short_id_of(runtime: AgentRuntime, session_id: str) -> str:
    """Return the beginning of a session's id that is enough to name it; the id if none is known."""
    with suppress(AgentCoreError):
        for summary in await runtime.session_summaries(_MOST_NAMED, query=session_id):
            if summary.session_id == session_id:
                return summary.short_id
    return session_id


async def model_option(model: str | None) -> str:
    """Return the option that names the model in a command; empty if it works without one."""
    if model is None:
        return ""
    try:
        await asyncio.to_thread(read_command_setup, None, None)
    except ConfigError:
        return f" --model {visible(shlex.quote(model), one_line=True)}"
    return ""


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


async def describe_no_session(runtime: AgentRuntime, project: str | Path, begin: str) -> str:
    """Return the message of `--continue` where no session has an answer.

    Args:
        runtime: reads the sessions.
        project: the absolute path of the folder.
        begin: the words for doing it without `--continue`.
    """
    message = "no session of this project has an answer yet"
    if nearby := await name_nearby(runtime, project):
        return message + nearby
    if vanished := await name_vanished(runtime, project):
        return f"{message}; {vanished}"
    return f"{message}; {begin} without --continue"


async def name_vanished(runtime: AgentRuntime, project: str | Path) -> str:
    """Return a sentence about a session whose folder is gone; empty if there is none.

    It names the session that was last used beside this folder, as a renamed folder leaves it, or
    else the last one of any folder that is gone.
    """
    found = await runtime.session_summaries(limit=_MOST_LOOKED_AT)
    gone = [each for each in found if not await asyncio.to_thread(os.path.isdir, each.cwd)]
    if not gone:
        return ""
    place = str(project).rpartition("/")[0]
    beside = [each for each in gone if each.cwd.rpartition("/")[0] == place]
    last = [*beside, *gone][0]
    folder = visible(last.cwd, one_line=True)
    return (
        f"session {last.short_id} works in {folder}, which is gone:"
        f" --session-id {last.short_id} --move-session continues it here"
    )


def _at_least(count: int, most: int, one: str) -> str:
    return plural(count, one) if count < most else f"{count:,} or more {noun(count, one)}"

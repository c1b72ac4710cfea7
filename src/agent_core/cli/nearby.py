"""Names sessions to people: one by a short id, and those above and below a folder that has none."""

import asyncio
import os
import shlex
from contextlib import suppress
from itertools import islice
from pathlib import Path

from agent_core.api import AgentRuntime
from agent_core.cli.setup import read_command_setup
from agent_core.cli.terminal import Style
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, StorageError
from agent_core.text import noun, plural, shorten_name, visible

_MOST_FOLDERS = 100
_MOST_COUNTED = 1000
_MOST_NAMED = 4
_MOST_LOOKED_AT = 50
_MOST_COMPARED = 200
_NEAR = 0.75
"""Share of an id that has to be as it was written."""
_MADE = "sess_"
"""The beginning of ids that are made for sessions."""


async def short_id_of(runtime: AgentRuntime, session_id: str) -> str:
    """Return the beginning of a session's id that is enough to name it; the id if none is known."""
    with suppress(AgentCoreError):
        for summary in await runtime.session_summaries(_MOST_NAMED, query=session_id):
            if summary.session_id == session_id:
                return summary.short_id
    return session_id


async def resolve_session(runtime: AgentRuntime, prefix: str) -> str:
    """Return the session that a person names; see `AgentRuntime.resolve_session_id`.

    Raises:
        StorageError: `session_not_found`: no id begins so; the message names a near one.
        AgentCoreError: `validation_error`: several do.
    """
    try:
        return await runtime.resolve_session_id(prefix)
    except StorageError as error:
        if error.code is ErrorCode.SESSION_NOT_FOUND and (near := await _near(runtime, prefix)):
            raise StorageError(
                error.code, f"{error.message}{near}", details=error.details
            ) from None
        raise


async def resolve_run(runtime: AgentRuntime, prefix: str) -> str:
    """Return the run that a person names; see `AgentRuntime.resolve_run_id`.

    Raises:
        StorageError: `run_not_found`: no id begins so; the message says where runs are listed.
        AgentCoreError: `validation_error`: several do.
    """
    try:
        return await runtime.resolve_run_id(prefix)
    except StorageError as error:
        if error.code is not ErrorCode.RUN_NOT_FOUND:
            raise
        named = visible(shorten_name(prefix), one_line=True)
        message = f"there is no run {named}; soong-agent sessions show <session> lists its runs"
        with suppress(AgentCoreError):
            short = await short_id_of(runtime, await runtime.resolve_session_id(prefix))
            cure = f"soong-agent sessions show {short} lists its runs"
            message = f"{named} is a session, and a run is needed; {cure}"
        raise StorageError(error.code, message, details=error.details) from None


async def describe_new_session(runtime: AgentRuntime, session_id: str) -> tuple[str, Style]:
    """Return a line about a session that begins under this id, and its style.

    The line is empty if there is such a session, and a warning if the id is nearly another one.

    Only an id that begins with `sess_`, as those that are made for sessions do, may be shortened.
    """
    try:
        found = await runtime.resolve_session_id(session_id)
    except StorageError:
        found = None
    except AgentCoreError:  # several begin so
        return "", Style.DIM
    if found == session_id or (found and session_id.startswith(_MADE)):
        return "", Style.DIM
    near = "" if found else await _near(runtime, session_id)
    line = f"new session {visible(session_id, one_line=True)}{near}"
    return line, Style.WARN if near else Style.DIM


async def _near(runtime: AgentRuntime, written: str) -> str:
    """Return a question that names the only session whose id is nearly as written."""
    from difflib import SequenceMatcher  # noqa: PLC0415 - for ids that are wrong

    bare = written.removeprefix(_MADE)
    ratios: dict[str, float] = {}
    for session in await runtime.list_sessions(_MOST_COMPARED):
        begun = session.session_id.removeprefix(_MADE)[: len(bare) + 1]
        matcher = SequenceMatcher(None, bare, begun[: len(bare)], autojunk=False)
        ratios[session.session_id] = max(
            matcher.ratio(), SequenceMatcher(None, bare, begun, autojunk=False).ratio()
        )
    best = max(ratios.values(), default=0.0)
    nearest = [session_id for session_id, ratio in ratios.items() if ratio == best]
    if best < _NEAR or len(nearest) > 1:
        return ""
    return f" (did you mean {await short_id_of(runtime, nearest[0])}?)"


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

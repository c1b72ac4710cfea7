"""Exchanges that other programs add to the session of a conversation."""

from collections.abc import Iterable

from msgspec.structs import replace

from agent_core.api import AgentRuntime
from agent_core.cli.terminal import Style, Terminal
from agent_core.text import Clean


class Elsewhere:
    """Notices runs of the session that the conversation has neither begun nor shown.

    Args:
        runtime: of the conversation.
        clean: takes secrets out of shown text.
    """

    def __init__(self, runtime: AgentRuntime, clean: Clean) -> None:
        self._runtime = runtime
        self._clean = clean
        self._known: set[str] = set()

    def begin(self, run_ids: Iterable[str] = ()) -> None:
        """Begin a session of which these runs are known."""
        self._known = {*run_ids}

    def know(self, run_id: str) -> None:
        """Note a run that the conversation has begun."""
        self._known.add(run_id)

    async def show(self, session_id: str, terminal: Terminal) -> bool:
        """Show the last of the unknown runs that have ended; return whether there are any."""
        runs = await self._runtime.session_runs(session_id)
        ended = [run for run in runs if run.parent_run_id is None and run.status.is_terminal]
        added = {run.run_id for run in ended} - self._known
        if not added:
            return False
        from agent_core.cli.chat.recap import RecapWriter, read_recap  # noqa: PLC0415 - few chats

        self._known |= added
        recap = await read_recap(self._runtime, session_id)
        of_others = [each for each in recap.exchanges if each.run and each.run.run_id in added]
        terminal.line("another program has continued this session:", Style.WARN)
        shown = replace(recap, exchanges=of_others, is_whole=len(of_others) == len(added))
        RecapWriter(terminal, self._clean).write(shown, session_id)
        return True

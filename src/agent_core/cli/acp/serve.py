"""`soong-agent acp`: keeps standard output for the protocol alone, and ends in order."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

from agent_core.cli.exit_codes import COMPLETED, MISUSED, OUTPUT_CLOSED
from agent_core.cli.json_lines import Lines, private_streams
from agent_core.cli.options import Options
from agent_core.cli.setup import build_terminal_redactor, read_command_setup, show_warnings
from agent_core.cli.signals import catch_signals
from agent_core.cli.streams import is_gone, is_output_closed, report_output_error
from agent_core.errors import ConfigError
from agent_core.redaction import Redactor
from agent_core.text import visible

_BY_HAND = "an editor is meant to start this command and talk to it here; Ctrl-D ends it"


def serve_editor(options: Options) -> int:
    """Serve until the editor closes the connection, and return the exit code."""
    if is_output_closed():
        return OUTPUT_CLOSED
    try:
        setup = read_command_setup(None, options.model)
        redactor = build_terminal_redactor(os.environ, setup)
    except ConfigError:  # an editor names the project of each session
        redactor = build_terminal_redactor(os.environ)
    with private_streams() as (source, sink):
        show_warnings(_to_standard_error, redactor)
        if os.isatty(source):
            print(_BY_HAND, file=sys.stderr, flush=True)
        try:
            return asyncio.run(_serve(options, source, sink, redactor))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "acp":
                raise
            from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

            cure = extra_command("acp")
            message = f"error: soong-agent acp needs the extra acp; to install it:\n{cure}"
            print(message, file=sys.stderr)
            return MISUSED


class _WarningsOfRuns(logging.Handler):
    """Passes on what this program logs as a warning while a run works: editors hide their logs.

    Args:
        warn: gets the ids of the run and of its parents, and the warning; called in the loop.
        redactor: removes secrets.
    """

    def __init__(self, warn: Callable[[list[str], str], object], redactor: Redactor) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._redactor = redactor
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        from agent_core.loop.inside import enclosing_runs  # noqa: PLC0415 - loaded by then

        if run_ids := [each.run_id for each in enclosing_runs()]:
            text = self._redactor.text(record.getMessage())
            self._loop.call_soon_threadsafe(self._warn, run_ids, text)


def _to_standard_error(text: str) -> None:
    print(visible(text, one_line=True), file=sys.stderr, flush=True)


async def _serve(options: Options, source: int, sink: int, redactor: Redactor) -> int:
    from agent_core.cli.acp.agent import EditorAgent  # noqa: PLC0415 - needs an extra

    lines = Lines(source, sink)
    agent = EditorAgent(lines, model=options.model, clean=redactor.text)
    warnings = _WarningsOfRuns(agent.warn, redactor)
    loop = asyncio.get_running_loop()
    listening = asyncio.create_task(agent.connection.main_loop())
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        loop.call_soon_threadsafe(listening.cancel)

    ours = logging.getLogger("agent_core")
    ours.addHandler(warnings)
    try:
        with catch_signals(stop):
            await asyncio.wait([listening])
            await agent.close()
    finally:
        ours.removeHandler(warnings)
    if received:
        return 128 + received[0]
    if lines.failure is not None and not is_gone(lines.failure):  # an editor that left has ended it
        return report_output_error("soong-agent", lines.failure)
    return COMPLETED

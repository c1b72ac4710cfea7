"""`soong-agent worker`: carries out queued runs until a signal drains it."""

import asyncio
import os
import sys
from datetime import datetime

from agent_core.api.worker import Worker
from agent_core.cli.exit_codes import COMPLETED, FAILED
from agent_core.cli.layout import shown_error
from agent_core.cli.options import Options
from agent_core.cli.setup import build_terminal_redactor, show_warnings
from agent_core.cli.signals import catch_signals
from agent_core.cli.terminal import Style, Terminal, exit_code_of
from agent_core.config.load import read_setup
from agent_core.errors import AgentCoreError, ConfigError

_PROGRESS = ("agent_core.api.worker", "agent_core.runtime.queue_worker")


def run_worker(options: Options) -> int:
    """Carry out runs until it is drained, and return the exit code; every error has been shown."""
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    try:
        redactor = build_terminal_redactor(os.environ, read_setup("/"))
    except ConfigError:  # the worker reports the fault
        redactor = build_terminal_redactor(os.environ)

    def log(text: str) -> None:
        terminal.line(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}  {text}", Style.DIM)

    show_warnings(log, redactor, progress_of=_PROGRESS)
    try:
        worker = Worker(
            default_snapshots="turn",
            tenant=options.tenant,
            concurrency=options.concurrency,
            places=options.places,
            queues=options.queues,
            drain_seconds=options.drain_seconds,
            metrics_port=options.metrics_port,
            metrics_address=options.metrics_address,
        )
        return COMPLETED if asyncio.run(_run_until_signal(worker, terminal)) else FAILED
    except (AgentCoreError, OSError) as error:
        terminal.line(f"error: {shown_error(redactor.text(str(error)))}", Style.BAD)
        return exit_code_of(error)


async def _run_until_signal(worker: Worker, terminal: Terminal) -> bool:
    loop = asyncio.get_running_loop()

    def drain() -> None:
        terminal.leave_line()
        terminal.line("draining; once more to end at once", Style.DIM)
        worker.drain()

    with catch_signals(lambda _: loop.call_soon_threadsafe(drain)):
        return await worker.run()

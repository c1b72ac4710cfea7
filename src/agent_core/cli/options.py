"""The arguments of the commands, and the exit codes of the process."""

import argparse

COMPLETED = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 130  # 128 + SIGINT; other signals likewise
OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as if the signal had ended the process


class Options(argparse.Namespace):
    """The arguments of every command; each command reads its own."""

    version: bool = False
    command: str | None = None
    action: str = ""
    id: str = ""
    message: str = ""
    images: list[str] | None = None
    path: str | None = None
    session_id: str | None = None
    orchestrator: bool = False
    model: str | None = None
    move_session: bool = False
    svg: str | None = None
    limit: int = 20
    yes: bool = False

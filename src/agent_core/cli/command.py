"""Prepares the process, carries out a command, and turns every outcome into an exit code.

What a command needs is imported once it is known: `--version` needs not even the arguments of the
others.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from agent_core.cli.exit_codes import COMPLETED, INTERRUPTED, MISUSED
from agent_core.cli.streams import flush_output, open_missing_streams, report_output_error
from agent_core.loading import installed_version, without_collection

TYPE_CHECKING = False  # `typing` is slow to import

if TYPE_CHECKING:
    from agent_core.cli.options import RunLoop


def execute(
    argv: Sequence[str] | None = None,
    project: str | None = None,
    *,
    run_loop: "RunLoop | None" = None,
) -> int:
    """Carry out the arguments and return the exit code; nothing is raised.

    Args:
        argv: the arguments; None: the arguments of the process.
        project: in place of the current folder, unless `--path` names another.
        run_loop: runs the coroutine of a command, in place of `asyncio.run`.
    """
    open_missing_streams()
    try:
        code = _execute(sys.argv[1:] if argv is None else argv, project, run_loop)
    except KeyboardInterrupt:  # before the run had begun to listen for it
        code = INTERRUPTED
        if sys.stderr.isatty():  # which has shown `^C` where the line was
            print(file=sys.stderr)
    except OSError as error:  # standard output cannot be written
        code = report_output_error("soong-agent", error)
    return flush_output(code, "soong-agent")


def _execute(argv: Sequence[str], project: str | None, run_loop: "RunLoop | None") -> int:
    if [*argv] == ["--version"]:
        print(f"soong-agent {installed_version() or '(not installed)'}")
        return COMPLETED
    from agent_core.cli.arguments import parse  # noqa: PLC0415 - loads argparse

    try:
        options = parse(argv)
    except SystemExit as leaving:  # argparse exits: help, wrong usage
        return leaving.code if isinstance(leaving.code, int) else MISUSED
    options.execute, options.run_loop = execute, run_loop
    options.path = options.path or project
    module, _, name = options.work.partition(":")
    with without_collection():  # help and wrong usage have not waited for it
        do = getattr(import_module(module), name)
    return do(options)

"""The arguments of `soong-agent attach` and `soong-agent cancel`."""

import argparse

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_command, add_path

_ATTACH = """\
Watch a run of another process, from its first event to its end. Text, calls
and the answer go to the same streams as with `run`; on a terminal its questions
can be answered here, and the first answer from anywhere counts. Ctrl-C stops
watching; the run continues.
"""
_ATTACH_EXAMPLES = """\
examples:
  soong-agent attach run_18ea7dc4
  soong-agent attach 18ea7 --after 120

Exit codes: as for `run`; 130 left with Ctrl-C, or cancelled; 2 an ambiguous id,
or wrong usage.
"""
_CANCEL = """\
Cancel a run of any process. A queued run is closed at once; a running one ends
as soon as its process sees the request. The request is stored, so it also
reaches a process that continues the run later.
"""
_CANCEL_EXAMPLES = """\
examples:
  soong-agent cancel run_18ea7dc4
  soong-agent cancel 18ea7

Exit codes: 0 cancelled, will be cancelled, or already ended; 1 no such run;
2 an ambiguous id, or wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of both commands."""
    attach = add_command(
        commands,
        "attach",
        PURPOSES["attach"],
        description=_ATTACH,
        epilog=_ATTACH_EXAMPLES,
    )
    attach.set_defaults(work="agent_core.cli.attach:attach_run")
    attach.add_argument(
        "--after",
        dest="after_seq",
        type=_number,
        default=0,
        metavar="<number>",
        help="skip the events up to this run_seq; default: 0",
    )
    attach.add_argument(
        "--events",
        metavar="<file>",
        help="write events to this file, as run --events does; an existing file is replaced",
    )
    cancel = add_command(
        commands, "cancel", PURPOSES["cancel"], description=_CANCEL, epilog=_CANCEL_EXAMPLES
    )
    cancel.set_defaults(work="agent_core.cli.attach:cancel_run")
    for command in (attach, cancel):
        command.add_argument("id", metavar="run", help="the id of the run, or its beginning")
        add_path(command)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise argparse.ArgumentTypeError(f"a whole number from 0 is needed, not {text!r}")
    return int(text)

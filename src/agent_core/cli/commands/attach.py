"""The arguments of `soong-agent attach` and `soong-agent cancel`."""

import argparse

from agent_core.cli.options import Commands, add_command, add_path

_ATTACH = """\
Watch a run that another process carries out, from its first event on, and see
it through to its end. Text, calls and the answer go where `run` writes them;
on a terminal its questions are asked here as well, and the first answer from
anywhere counts. Ctrl-C ends the watching, and leaves the run alone.
"""
_ATTACH_EXAMPLES = """\
examples:
  soong-agent attach run_18ea7dc4
  soong-agent attach 18ea7 --after 120

Exit codes are those of `run`; 130: it was left with Ctrl-C, or cancelled; 2: an
id that several have, or wrong usage.
"""
_CANCEL = """\
Cancel a run, wherever it is carried out. A run that still waits for its turn is
closed at once; another one ends as soon as its process has seen the request,
which is kept: it also counts for a process that goes on with the run later.
"""
_CANCEL_EXAMPLES = """\
examples:
  soong-agent cancel run_18ea7dc4
  soong-agent cancel 18ea7

Exit codes: 0 it is cancelled, will be, or had ended before; 1 there is no such
run; 2 an id that several have, or wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the arguments of both commands."""
    attach = add_command(
        commands,
        "attach",
        "watch a run of another process",
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
        help="leave out the events up to this run_seq; default: 0, which leaves out none",
    )
    attach.add_argument(
        "--events",
        metavar="<file>",
        help="write what happens to this file, as run --events does; what is in it is replaced",
    )
    cancel = add_command(
        commands, "cancel", "cancel a run", description=_CANCEL, epilog=_CANCEL_EXAMPLES
    )
    cancel.set_defaults(work="agent_core.cli.attach:cancel_run")
    for command in (attach, cancel):
        command.add_argument("id", metavar="run", help="the run's id, or its beginning")
        add_path(command)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise argparse.ArgumentTypeError(f"a whole number from 0 is needed, not {text!r}")
    return int(text)

"""The arguments of `soong-agent approvals`."""

from agent_core.cli.options import Commands, add_actions, add_command, add_path, positive

_WHAT = """\
See and answer what runs ask. With [permissions] unattended = "park" or "wait" a
run that has to ask and cannot waits for an answer. The first answer counts:
from a terminal, a program, or this command. A run that waits without a process
goes on in this one, and is shown as `run` shows it; a worker goes on with its
own.
"""
_LIST = """\
examples:
  soong-agent approvals list
  soong-agent approvals list --all --json

Exit codes: 0 listed; 1 the database cannot be read; 2 wrong usage or
configuration.
"""
_ANSWER = """\
examples:
  soong-agent approvals answer req_18ea allow
  soong-agent approvals answer req_18ea session
  soong-agent approvals answer req_18ea deny --reason "use the staging server"

Exit codes are those of `run`; 2: there is no such open question, or the id fits
several.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    approvals = add_command(
        commands, "approvals", "see and answer what runs ask", description=_WHAT
    )
    approvals.set_defaults(work="agent_core.cli.approvals:manage_approvals")
    actions = add_actions(approvals)
    listing = add_command(
        actions, "list", "list the questions that wait for an answer", epilog=_LIST
    )
    listing.add_argument("--all", action="store_true", help="those that are closed as well")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    listing.add_argument("--session-id", metavar="<id>", help="only those of this session")
    listing.add_argument(
        "--limit",
        type=positive,
        default=100,
        metavar="<n>",
        help="of more the newest; default: 100",
    )
    answer = add_command(
        actions, "answer", "answer a question, and let its run go on", epilog=_ANSWER
    )
    answer.add_argument("--reason", metavar="<text>", help="why; the model reads it")
    answer.add_argument("id", metavar="request", help="the id of the question, or its beginning")
    answer.add_argument("decision", choices=("allow", "session", "deny"), help="the answer")
    for action in (listing, answer):
        add_path(action)

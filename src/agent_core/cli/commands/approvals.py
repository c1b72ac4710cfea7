"""The arguments of `soong-agent approvals`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command, add_path, positive

_WHAT = """\
List and answer questions of runs. With [permissions] unattended = "park" or
"wait", a run that cannot ask waits for an answer. The first answer counts: from
a terminal, a program, or this command. A parked run continues in this process,
and is shown as by `run`; workers continue their own runs.
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
  soong-agent approvals answer req_18ea reads --always
  soong-agent approvals answer req_18ea deny --reason "use the staging server"

Exit codes: as for `run`; 2 no such open question, or an ambiguous id.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    approvals = add_command(commands, "approvals", PURPOSES["approvals"], description=_WHAT)
    approvals.set_defaults(work="agent_core.cli.approvals:manage_approvals")
    actions = add_actions(approvals, "list")
    listing = add_command(actions, "list", "list open questions", epilog=_LIST)
    listing.add_argument("--all", action="store_true", help="include closed questions")
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    listing.add_argument("--session-id", metavar="<id>", help="only questions of this session")
    listing.add_argument(
        "--limit",
        type=positive,
        default=100,
        metavar="<n>",
        help="show the newest of them; default: 100",
    )
    answer = add_command(
        actions, "answer", "answer a question, so that its run continues", epilog=_ANSWER
    )
    answer.add_argument(
        "--always",
        action="store_true",
        help="also add the rule that the list shows for this answer to rules.toml",
    )
    answer.add_argument("--reason", metavar="<text>", help="a reason for the model")
    answer.add_argument("id", metavar="request", help="the id of the question, or its beginning")
    answer.add_argument(
        "decision",
        choices=("allow", "session", "reads", "edits", "deny"),
        help="allow: this call; session: what the list says it would cover; reads or edits, where"
        " the list offers it: all that only reads, or all ordinary edits; deny: this call",
    )
    for action in (listing, answer):
        add_path(action)

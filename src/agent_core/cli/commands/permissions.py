"""The arguments of `soong-agent permissions`."""

from collections.abc import Callable

from agent_core.cli.options import Commands, Options, Parser, add_actions, add_path

_EXPLAIN = """\
examples:
  soong-agent permissions explain -- git push --force
  soong-agent permissions explain -- sh -c 'cat *.md | wc -l'
  soong-agent permissions explain --tool code.write_file --args '{"path": "a.py", "content": ""}'
  soong-agent permissions explain --agent reviewer --json -- rm -r build

Nothing is asked and nothing is done. Exit codes: 0 explained, whatever the decision; 1 the call
cannot be judged, because there is no such program or tool; 2 wrong usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    permissions = commands.add_parser("permissions", help="look at rules and remembered answers")
    permissions.set_defaults(load=_load)
    actions = add_actions(permissions)
    explain: Parser = actions.add_parser(
        "explain",
        help="say what would become of a call, and why",
        usage="soong-agent permissions explain [options] (-- command… | --tool NAME [--args JSON])",
        epilog=_EXPLAIN,
    )
    explain.add_argument("--tool", metavar="<name>", help="default: code.run_command")
    explain.add_argument("--args", metavar="<json>", help="the arguments of the tool")
    explain.add_argument("--session-id", metavar="<id>", help="whose remembered answers count")
    explain.add_argument(
        "--agent", default="main", metavar="<role-or-id>", help="who calls (default: main)"
    )
    explain.add_argument("--json", action="store_true", help="print one JSON object")
    explain.add_argument("words", nargs="*", metavar="command", help="the words of a command")
    listing = actions.add_parser("list", help="list the rules, and the answers that are stored")
    listing.add_argument("--session-id", metavar="<id>", help="only the answers of this session")
    forget = actions.add_parser("forget", help="forget a stored answer, or all of a session")
    forget.add_argument("id", help="of the answer, or of the session")
    for action in (explain, listing, forget):
        add_path(action)


def _load() -> Callable[[Options], int]:
    from agent_core.cli.permissions import (  # noqa: PLC0415 - help must not wait for it
        manage_permissions,
    )

    return manage_permissions

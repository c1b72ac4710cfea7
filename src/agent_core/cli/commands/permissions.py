"""The arguments of `soong-agent permissions`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command, add_mode, add_path

_LIST = """\
examples:
  soong-agent permissions list
  soong-agent permissions list --session-id tidy

Rules are in config.toml and rules.toml. Answers for a session are stored with
[permissions] remember_scope = "session_stored"; otherwise they are in the
memory of the process that asked, and end with it. Exit codes: 0 listed; 2 wrong
usage, or an invalid rule.
"""
_FORGET = """\
examples:
  soong-agent permissions forget grant_18ea7dc4
  soong-agent permissions forget tidy

Exit codes: 0 removed; 1 no such answer; 2 wrong usage or configuration.
"""
_REMOVE = """\
examples:
  soong-agent permissions remove config.toml#2
  soong-agent permissions remove rules.toml#1

The list names the rules, and numbers them by their places in their files: after
a removal, those behind it have other numbers. Comments stay.
Exit codes: 0 removed; 1 no such rule; 2 wrong usage or configuration.
"""
_EXPLAIN = """\
examples:
  soong-agent permissions explain -- git push --force
  soong-agent permissions explain -- sh -c 'cat *.md | wc -l'
  soong-agent permissions explain --tool code.read_file --args '{"path": "a"}'
  soong-agent permissions explain --args '{"argv": ["ls"], "network": true}'
  soong-agent permissions explain --mode plan -- git diff
  soong-agent permissions explain --agent reviewer --json -- rm -r build

Asks and executes nothing. Exit codes: 0 explained, whatever the decision; 1 no
such program or tool; 2 wrong usage or configuration.
"""
_ADD = """\
examples:
  soong-agent permissions add allow -- git log '*'
  soong-agent permissions add deny --path 'secrets/**' --reason "ask Ada"
  soong-agent permissions add ask --host '*.example.org' --agent worker
  soong-agent permissions add allow --path '~/notes/**' --only reads

Appends a rule to config.toml, keeps comments, and says what the rule means. All
conditions of a rule have to match; repeat an option for alternatives. A final
'*' of a command matches any further words. Exit codes: 0 added, or already
there; 1 the file cannot be written; 2 an invalid rule or configuration (nothing
was written), or wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    permissions = add_command(commands, "permissions", PURPOSES["permissions"])
    permissions.set_defaults(work="agent_core.cli.permissions:manage_permissions")
    actions = add_actions(permissions, "list")
    explain = add_command(
        actions,
        "explain",
        "show the decision about a call, and the reason",
        usage=(
            "soong-agent permissions explain [options] -- command…\n"
            "       soong-agent permissions explain [--tool <name>] [--args <json>]"
        ),
        epilog=_EXPLAIN,
    )
    explain.add_argument("--tool", metavar="<name>", help="default: code.run_command")
    explain.add_argument("--args", metavar="<json>", help="the arguments of the tool (default: {})")
    explain.add_argument(
        "--session-id", metavar="<id>", help="apply the remembered answers of this session"
    )
    explain.add_argument(
        "--agent", default="main", metavar="<role-or-id>", help="the calling agent (default: main)"
    )
    add_mode(explain)
    explain.add_argument("--json", action="store_true", help="print one JSON object")
    explain.add_argument("words", nargs="*", metavar="command", help="the words of a command")
    adding = add_command(
        actions,
        "add",
        "add a rule to config.toml",
        usage="soong-agent permissions add <decision> [options] [-- command…]",
        epilog=_ADD,
    )
    adding.add_argument("decision", choices=("allow", "ask", "deny"), help="what the rule does")
    for name, metavar, what in (
        ("tool", "<name>", "the tool, or a pattern such as mcp.files.*"),
        ("path", "<pattern>", "files: relative to the project, absolute, or with ~"),
        ("host", "<name>", "a host, or *.example.org for names below it"),
        ("agent", "<role-or-id>", "the agent that calls"),
    ):
        adding.add_argument(
            f"--{name}", dest=f"rule_{name}s", action="append", metavar=metavar, help=what
        )
    adding.add_argument(
        "--only",
        choices=("reads", "edits"),
        help="only commands that read, or edits of ordinary files",
    )
    adding.add_argument("--reason", metavar="<text>", help="why; shown when the rule decides")
    adding.add_argument(
        "words", nargs="*", default=[], metavar="command", help="the words of a command"
    )
    listing = add_command(actions, "list", "list the rules and the stored answers", epilog=_LIST)
    listing.add_argument("--session-id", metavar="<id>", help="only the answers of this session")
    forget = add_command(
        actions, "forget", "remove a stored answer, or all of a session", epilog=_FORGET
    )
    forget.add_argument("id", help="the id of an answer or a session")
    remove = add_command(actions, "remove", "remove a rule from its file", epilog=_REMOVE)
    remove.add_argument("id", metavar="rule", help="the name of a rule, such as config.toml#2")
    for action in (explain, listing, forget, remove):
        add_path(action)

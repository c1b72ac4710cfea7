"""The arguments of `soong-agent sessions`."""

from agent_core.cli.options import (
    MOVE_SESSION,
    Commands,
    Parser,
    add_actions,
    add_command,
    add_path,
)

_ALL = """\
An id may be shortened to a beginning that no other has, and sess_ left out;
one that several have changes nothing and names them. Sessions of all projects
are meant unless --here narrows them to that of --path.
"""
_LIST = """\
examples:
  soong-agent sessions list
  soong-agent sessions list --here parser
  soong-agent sessions list --json --limit 0

Words narrow the list to sessions that have them in title, project or id. The
status is that of the last run. A cost is unknown where the price of some call
is. --json writes a line for each session.
Exit codes: 0 listed; 2 wrong usage or configuration.
"""
_SHOW = """\
examples:
  soong-agent sessions show 18ea7dc4
  soong-agent sessions show 18ea7dc4 --last 2 --full
  soong-agent sessions show 18ea7dc4 --run run_18ea7dc5

Everything that was said and done, also what undo, a failure or a cancellation
has left beside the conversation.
Exit codes: 0 shown; 1 there is no such session; 2 an id that several have,
wrong usage or configuration.
"""
_TREE = """\
example:
  soong-agent sessions tree 18ea7dc4

A * marks the path that the session goes on from. The ids are of messages:
sessions fork --at takes them.
Exit codes: 0 shown; 1 there is no such session; 2 an id that several have,
wrong usage or configuration.
"""
_SEARCH = """\
examples:
  soong-agent sessions search migration
  soong-agent sessions search '"off by one"' parser --here

Looks through the messages, the calls of tools and their results of all
sessions, the newest first, for every word; case makes no difference, and quotes
keep words together. Exit codes: 0 found; 1 nothing was found.
"""
_RENAME = """\
example:
  soong-agent sessions rename 18ea7dc4 The slow parser

The title is one line of at most 200 characters. Exit codes: 0 renamed; 1 there
is no such session; 2 no word in it, an id that several have, or wrong usage.
"""
_DELETE = """\
examples:
  soong-agent sessions delete 18ea7dc4 18ea7dd0
  soong-agent sessions delete 18ea7dc4 --yes

Its messages, artifacts, questions and snapshots go for good; memories, plans
and the logs of Tasks stay. Asks on a terminal, and needs --yes elsewhere. All
ids are looked up before anything is deleted. Exit codes: 0 deleted; 1 not all
could be; 2 wrong usage.
"""
_COMPACT = """\
example:
  soong-agent sessions compact 18ea7dc4

Nothing is deleted: the messages before the summary stay in the tree.
Exit codes: 0 summarised; 1 it failed; 2 wrong usage or configuration.
"""
_EXPORT_USAGE = """\
soong-agent sessions export [-h] [--path <dir-or-file>] [--force]
           id (--html | --markdown | --jsonl | --fixture) [<file>]"""
_EXPORT = """\
examples:
  soong-agent sessions export 18ea7dc4 --html story.html
  soong-agent sessions export 18ea7dc4 --markdown > story.md
  soong-agent sessions export 18ea7dc4 --jsonl -
  soong-agent sessions export 18ea7dc4 --fixture tests/recordings/story.yaml

Without a file, or with -, it goes to standard output. A file that is there is
kept unless --force is given. Secrets are left out. The page needs no network
and no JavaScript; soong-agent schema session describes the lines of --jsonl; a
fixture is what agent_core.testing.record writes, for tests without a model.
Exit codes: 0 written; 1 there is no such session; 2 the file cannot be written,
an id that several have, or wrong usage.
"""
_FORK = """\
examples:
  soong-agent sessions fork tidy --into ../another-try
  soong-agent sessions fork tidy --at node_18ea7dc4

The copy is that of the project as it was then, with its .git; without --into it
stands beside the project. Messages and their ids are listed by `soong-agent
sessions tree`. The new session and its folder go to standard output.
Exit codes: 0 forked; 1 there is no such session or message; 2 the folder is
taken, an id that several have, or wrong usage.
"""
_FORMATS = {
    "html": "one page with everything",
    "markdown": "a document",
    "jsonl": "a JSON object a line",
    "fixture": "the model calls, for tests",
}


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    sessions = add_command(
        commands, "sessions", "list, show, find, change and export sessions", epilog=_ALL
    )
    sessions.set_defaults(work="agent_core.cli.sessions:manage_sessions")
    actions = add_actions(sessions)
    listing = add_command(actions, "list", "list sessions, the last used first", epilog=_LIST)
    listing.add_argument("words", nargs="*", metavar="word", help="what they have to be about")
    search = add_command(actions, "search", "find words in all that was said", epilog=_SEARCH)
    search.add_argument("words", nargs="+", metavar="word", help="what to look for")
    for action in (listing, search):
        action.add_argument(
            "--limit", type=int, default=20, metavar="<n>", help="default: 20; 0: all"
        )
        action.add_argument("--here", action="store_true", help="only sessions of this project")
        action.add_argument("--json", action="store_true", help="write a JSON object a line")
    show = add_command(actions, "show", "show all that was said and done", epilog=_SHOW)
    show.add_argument("--run", metavar="<id>", help="only this run")
    show.add_argument("--last", type=int, metavar="<n>", help="only the last runs")
    show.add_argument("--full", action="store_true", help="shorten nothing")
    tree = add_command(actions, "tree", "show the branches of a session", epilog=_TREE)
    rename = add_command(actions, "rename", "give a session another title", epilog=_RENAME)
    compact = add_command(actions, "compact", "summarise a session's history now", epilog=_COMPACT)
    compact.add_argument("--move-session", action="store_true", help=MOVE_SESSION)
    export = add_command(
        actions, "export", "write a session to a file", epilog=_EXPORT, usage=_EXPORT_USAGE
    )
    _add_formats(export)
    fork = add_command(
        actions, "fork", "begin another session from a message, with its files", epilog=_FORK
    )
    fork.add_argument("--at", metavar="<node>", help="the message; default: the last one")
    fork.add_argument("--into", metavar="<dir>", help="for the copy of the project; new or empty")
    for action in (show, tree, rename, compact, fork):
        action.add_argument("id", help="the session's id, or its beginning")
    export.add_argument("id", nargs="?", default="", help="the session's id, or its beginning")
    rename.add_argument("words", nargs="+", metavar="title", help="the new title")
    delete = add_command(actions, "delete", "delete sessions for good", epilog=_DELETE)
    delete.add_argument("ids", nargs="+", metavar="id", help="a session's id, or its beginning")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for action in (listing, show, tree, search, rename, delete, compact, export, fork):
        add_path(action)


def _add_formats(export: Parser) -> None:
    formats = export.add_mutually_exclusive_group(required=True)
    for name, what in _FORMATS.items():
        formats.add_argument(f"--{name}", nargs="?", const="-", metavar="<file>", help=what)
    export.add_argument("--force", action="store_true", help="replace a file that is there")

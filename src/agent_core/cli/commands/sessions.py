"""The arguments of `soong-agent sessions`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import (
    MOVE_SESSION,
    Commands,
    Parser,
    add_actions,
    add_command,
    add_path,
    moment,
    positive,
)

_ALL = """\
A unique beginning of an id is enough, and sess_ can be omitted. If it is
ambiguous, the matches are listed and nothing is changed. Commands apply to
sessions of all projects unless --here restricts them to the project of --path.
"""
_LIST = """\
examples:
  soong-agent sessions list
  soong-agent sessions list --here parser
  soong-agent sessions list --json --limit 0

Words restrict the list to sessions with them in title, project or id. The
status is the last run's. A cost is unknown if the price of any call is.
--json writes one line per session.
Exit codes: 0 listed; 2 wrong usage or configuration.
"""
_SHOW = """\
examples:
  soong-agent sessions show 18ea7dc4
  soong-agent sessions show 18ea7dc4 --last 2 --full
  soong-agent sessions show 18ea7dc4 --run run_18ea7dc5

Includes messages that undo, a failure or a cancellation removed from the active
conversation. Exit codes: 0 shown; 2 no such session, an ambiguous id, or wrong
usage or configuration.
"""
_TREE = """\
example:
  soong-agent sessions tree 18ea7dc4

A * marks the active path. The ids name messages; sessions fork --at
takes them.
Exit codes: 0 shown; 2 no such session, an ambiguous id, or wrong usage or
configuration.
"""
_SEARCH = """\
examples:
  soong-agent sessions search migration
  soong-agent sessions search '"off by one"' parser --here

Searches the messages, tool calls and results of all sessions, newest first, for
all words, ignoring case; quotes keep words together. Exit codes: 0 found;
1 nothing found.
"""
_RENAME = """\
example:
  soong-agent sessions rename 18ea7dc4 The slow parser

The title is one line of at most 200 characters. Exit codes: 0 renamed; 2 no
such session, an empty title, an ambiguous id, or wrong usage.
"""
_DELETE = """\
examples:
  soong-agent sessions delete 18ea7dc4 18ea7dd0
  soong-agent sessions delete 18ea7dc4 --yes
  soong-agent sessions delete --older-than 90d --keep-last 20 --dry-run
  soong-agent sessions delete --older-than 2026-06-01 --project ~/shop --yes

Without ids, deletes the sessions that were last used before --older-than, of
all projects or of one; sessions with an active or waiting run are spared.
Deletes messages, artifacts, questions and snapshots permanently: afterwards no
file of the home has text that only these sessions had. Memories, plans, Task
logs in the project, the chat's input history and saved rules stay. Asks on a
terminal, and needs --yes elsewhere. All ids are resolved before anything is
deleted. The ids of a dry run go to standard output. Exit codes: 0 deleted, or
nothing to delete; 1 not all could be deleted; 2 wrong usage.
"""
_DU = """\
examples:
  soong-agent sessions du
  soong-agent sessions du --here --limit 0
  soong-agent sessions du --json

Shows the text in rows, the artifacts and the snapshots of projects and
sessions, the largest first. Snapshots share identical content: the figure of a
session is what deleting it frees. Reads the rows of all sessions. --json writes
one object with all of them. Exit codes: 0 shown; 2 wrong usage or
configuration.
"""
_COMPACT = """\
example:
  soong-agent sessions compact 18ea7dc4
  soong-agent sessions compact 18ea7dc4 --focus "the decisions about the API"

Nothing is deleted: the messages before the summary stay in the tree.
Exit codes: 0 summarised; 1 failed; 2 wrong usage or configuration.
"""
_EXPORT_USAGE = """\
soong-agent sessions export [-h] [--path <dir-or-file>] [--force]
           id [--html | --markdown | --jsonl | --fixture] [<file>]"""
_EXPORT = """\
examples:
  soong-agent sessions export 18ea7dc4 story.html
  soong-agent sessions export 18ea7dc4 --markdown > story.md
  soong-agent sessions export 18ea7dc4 --jsonl -
  soong-agent sessions export 18ea7dc4 --fixture tests/recordings/story.yaml

The ending of the file names the format, unless an option does: .html, .md,
.jsonl or .yaml (a fixture). With an option and without a file, or with -, the
export goes to standard output. An existing file is only replaced with --force.
Secrets are redacted. The page needs no network and no JavaScript; soong-agent
schema session describes the lines of --jsonl; a fixture has the format of
agent_core.testing.record, for tests without a model.
Exit codes: 0 written; 2 no such session, an ambiguous id, a file that cannot
be written, or wrong usage.
"""
_FORK = """\
examples:
  soong-agent sessions fork tidy --into ../another-try
  soong-agent sessions fork tidy --at node_18ea7dc4

Copies the project as it was then, with its .git; without --into to a folder
next to the project. `soong-agent sessions tree` lists messages and their ids.
The id of the new session and its folder go to standard output.
Exit codes: 0 forked; 1 no such message; 2 no such session, an ambiguous id, a
folder that is not empty, or wrong usage.
"""
_FORMATS = {
    "html": "one page with everything",
    "markdown": "a document",
    "jsonl": "one JSON object per line",
    "fixture": "the model calls, for tests",
}


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    sessions = add_command(commands, "sessions", PURPOSES["sessions"], epilog=_ALL)
    sessions.set_defaults(work="agent_core.cli.sessions:manage_sessions")
    actions = add_actions(sessions, "list")
    listing = add_command(actions, "list", "list sessions, last used first", epilog=_LIST)
    listing.add_argument("words", nargs="*", metavar="word", help="words to match")
    search = add_command(actions, "search", "search messages, calls and results", epilog=_SEARCH)
    search.add_argument("words", nargs="+", metavar="word", help="words to search for")
    use = add_command(actions, "du", "show what takes up space", epilog=_DU)
    use.add_argument("--limit", type=int, default=20, metavar="<n>", help="default: 20; 0: all")
    use.add_argument("--here", action="store_true", help="only sessions of this project")
    use.add_argument("--json", action="store_true", help="one JSON object")
    for action in (listing, search):
        action.add_argument(
            "--limit", type=int, default=20, metavar="<n>", help="default: 20; 0: all"
        )
        action.add_argument("--here", action="store_true", help="only sessions of this project")
        action.add_argument("--json", action="store_true", help="one JSON object per line")
    show = add_command(actions, "show", "show messages, calls and results", epilog=_SHOW)
    show.add_argument("--run", metavar="<id>", help="only this run")
    show.add_argument("--last", type=int, metavar="<n>", help="only the last runs")
    show.add_argument("--full", action="store_true", help="do not shorten texts")
    tree = add_command(actions, "tree", "show the branches of a session", epilog=_TREE)
    rename = add_command(actions, "rename", "change the title of a session", epilog=_RENAME)
    compact = add_command(
        actions, "compact", "summarise the history of a session now", epilog=_COMPACT
    )
    compact.add_argument("--focus", metavar="TEXT", help="what the summary should pay attention to")
    compact.add_argument("--move-session", action="store_true", help=MOVE_SESSION)
    export = add_command(
        actions, "export", "write a session to a file", epilog=_EXPORT, usage=_EXPORT_USAGE
    )
    _add_formats(export)
    fork = add_command(
        actions, "fork", "start another session from a message, with its files", epilog=_FORK
    )
    fork.add_argument("--at", metavar="<node>", help="the message; default: the last one")
    fork.add_argument(
        "--into", metavar="<dir>", help="folder for the copy of the project; new or empty"
    )
    for action in (show, tree, rename, compact, fork):
        action.add_argument("id", help="the session's id, or its beginning")
    export.add_argument("id", nargs="?", default="", help="the session's id, or its beginning")
    export.add_argument("file", nargs="?", help="the file, whose ending names the format")
    rename.add_argument("words", nargs="+", metavar="title", help="the new title")
    delete = add_command(actions, "delete", "delete sessions permanently", epilog=_DELETE)
    _add_deletion(delete)
    for action in (listing, use, show, tree, search, rename, compact, export, fork):
        add_path(action)


def _add_deletion(delete: Parser) -> None:
    delete.add_argument("ids", nargs="*", metavar="id", help="a session's id, or its beginning")
    delete.add_argument(
        "--older-than",
        type=moment,
        metavar="<age>",
        help="sessions last used longer ago than 90d, 12h or 4w, or before a date",
    )
    delete.add_argument(
        "--path",
        "--project",
        metavar="<dir-or-file>",
        help="only sessions of this project (default: all)",
    )
    delete.add_argument(
        "--keep-last",
        type=positive,
        metavar="<n>",
        help="keep the most recently used ones of these",
    )
    delete.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
    delete.add_argument("--yes", action="store_true", help="do not ask")


def _add_formats(export: Parser) -> None:
    formats = export.add_mutually_exclusive_group()
    for name, what in _FORMATS.items():
        formats.add_argument(f"--{name}", nargs="?", const="-", metavar="<file>", help=what)
    export.add_argument("--force", action="store_true", help="replace an existing file")

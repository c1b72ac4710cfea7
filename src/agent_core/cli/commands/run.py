"""The arguments of `soong-agent run`."""

from collections.abc import Sequence

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import (
    MOVE_SESSION,
    Commands,
    Options,
    add_command,
    add_mode,
    add_path,
    amount,
    positive,
)

SYNOPSIS = """\
run [--path <dir-or-file>] [--orchestrator]
       [--model <provider:name>] [--mode plan|ask|accept-edits]
       [--session-id <id> | --continue] [--move-session]
       [--image <file>]... [--instructions <text>] [--no-memory]
       [--max-usd <amount>] [--max-turns <number>]
       [--answers <file>] [--events <file>] [--output-schema <file>]
       [--detach [--place <place>] [--queue <queue>]] [--tenant <tenant>]
       "message" [-]\
"""
_TOO_OFTEN = -1
"""Position of the content in a message that names standard input more than once."""
DESCRIPTION = "Give an agent a task in a project and show its work."
_STREAMS = """\
Only the answer goes to standard output; everything else goes to standard
error. The word - in the message is replaced by standard input:
soong-agent run "explain this" - < file

On a terminal, questions are answered with a key; ? lists the keys. Otherwise
answers are read from standard input (unless the message has -), one per line: 1
or "allow once", 2 or "allow for session", 3 or "deny". Any other line denies,
and no more answers are read. Questions without an answer are denied, and the
last line on standard error says so.

Settings are read from ~/.soong-agent/config.toml, or from
$SOONG_AGENT_HOME/config.toml. The model comes from --model, else from
$SOONG_AGENT_MODEL, else from the settings. It is named like openai:gpt-5,
ollama:qwen3 or local:/path/model.gguf, or with the address of a server, like
openai:my-model@http://127.0.0.1:8000/v1.

examples:
  soong-agent run "fix the failing test"
  soong-agent run --continue "and now the documentation"
  git diff | soong-agent run "write a commit message for this" -
  answer=$(soong-agent run "how would you split this module?")
  soong-agent run --events events.jsonl --max-usd 0.50 "update the changelog"
  soong-agent run --detach --place snapshot "update the changelog"

Exit codes: 0 completed, waiting for an answer, or detached; 1 the run failed;
2 wrong usage or configuration; 130 interrupted; 143 terminated.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    run = add_command(
        commands,
        "run",
        PURPOSES["run"],
        usage=f"soong-agent {SYNOPSIS}",
        description=DESCRIPTION,
        epilog=_STREAMS,
    )
    run.set_defaults(work="agent_core.cli.run:run_message")
    add_path(run)
    run.add_argument("--orchestrator", action="store_true", help="let an orchestrator use workers")
    run.add_argument("--model", metavar="<provider:name>", help="the model, such as openai:gpt-5")
    add_mode(run)
    run.add_argument(
        "--session-id", metavar="<id>", help="continue this session, or start one with this id"
    )
    run.add_argument(
        "--continue",
        action="store_true",
        dest="continues_last",
        help="continue the last session of this project that has an answer",
    )
    run.add_argument("--move-session", action="store_true", help=MOVE_SESSION)
    run.add_argument(
        "--image",
        action="append",
        metavar="<file>",
        dest="images",
        help="attach an image (PNG, JPEG, GIF, WebP) or a PDF; may be repeated",
    )
    run.add_argument(
        "--instructions", metavar="<text>", help="additional instructions for this run"
    )
    run.add_argument(
        "--no-memory",
        action="store_true",
        help="use no memories in this run, and remember nothing from it",
    )
    run.add_argument(
        "--max-usd",
        metavar="<amount>",
        type=amount,
        help="cost limit of the run, in US dollars",
    )
    run.add_argument(
        "--max-turns", metavar="<number>", type=positive, help="limit on the number of model calls"
    )
    run.add_argument(
        "--answers", metavar="<file>", help="read answers to questions from this file, one per line"
    )
    run.add_argument(
        "--events",
        metavar="<file>",
        help="write events to this file, one line of JSON for each event and one for the"
        " result; an existing file is replaced (see soong-agent schema events)",
    )
    run.add_argument(
        "--output-schema",
        metavar="<file>",
        help="JSON Schema for the answer, which is printed as JSON",
    )
    run.add_argument(
        "--detach",
        action="store_true",
        help="queue the run for a worker, and print its id for attach and cancel; this and the"
        " following options need a Postgres database",
    )
    run.add_argument(
        "--place",
        metavar="<place>",
        help="where the files of a new session are: snapshot uploads the project, so that"
        " any worker with that place can take the run; default: host:<this machine>",
    )
    run.add_argument(
        "--queue", metavar="<queue>", help="the queue whose workers take the run; default: default"
    )
    run.add_argument("--tenant", metavar="<tenant>", help="the tenant of a new session")
    message = run.add_argument(
        "message",
        nargs="+",
        default=(),
        help="the task; after -- it may begin with a dash; - is replaced by standard input",
    )
    message.required = False  # it may follow after --


def split_words(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the arguments before the `--` of a command, and the words after it.

    Those are the text of a run, or a command that permissions are about.
    """
    command = next((place for place, word in enumerate(argv) if word[:1] != "-"), None)
    if command is None or argv[command] not in {"run", "permissions"}:
        return argv, ()
    if "--" not in argv[command:]:
        return argv, ()
    end = argv.index("--", command)
    return argv[:end], argv[end + 1 :]


def take_words(options: Options, unknown: Sequence[str], after: Sequence[str]) -> list[str]:
    """Complete the message with the words behind later options; return the unknown options."""
    no_words = [each for each in unknown if each[:1] == "-" and each != "-" and " " not in each]
    words = [*options.message, *(each for each in unknown if each not in no_words)]
    if "-" in words:
        options.content_at = words.index("-") if words.count("-") == 1 else _TOO_OFTEN
        words = [word for word in words if word != "-"]
    # The shell may have passed on bytes that are no UTF-8.
    every = (word.encode(errors="surrogateescape") for word in (*words, *after))
    options.message = [word.decode(errors="replace") for word in every]
    return no_words


def find_misplaced_move(options: Options) -> str | None:
    """Return why there is nothing that `--move-session` could move; None if there is."""
    if options.continues_last and options.move_session:
        return "--continue continues a session of this project: there is nothing to move"
    if options.move_session and options.session_id is None:
        cure = "soong-agent sessions list --all lists the sessions of every folder"
        return f"--move-session needs --session-id, the session that moves to this folder; {cure}"
    return None


def find_misuse(options: Options) -> str | None:
    """Return the fault in a combination of a run's arguments; None if they fit together."""
    if not options.message and options.content_at is None:
        return "the following arguments are required: message"
    if options.content_at == _TOO_OFTEN:
        return "standard input can be read only once: one - is enough"
    if not "".join(options.message).strip() and options.content_at is None:
        return "the message is empty"
    if options.continues_last and options.session_id is not None:
        return "--continue continues the last session, and --session-id names one: give one of them"
    if fault := find_misplaced_move(options):
        return fault
    if options.content_at is not None and options.answers in {"-", "/dev/stdin"}:
        return "standard input cannot be both: the content of the message and --answers"
    caller = [name for name in ("answers", "events") if getattr(options, name) is not None]
    if options.detach and caller:
        cure = "watch it with soong-agent attach, which asks and takes --events"
        return f"--{caller[0]} needs a run in this process, which --detach is not: {cure}"
    placed = [name for name in ("place", "queue") if getattr(options, name) is not None]
    if placed and not options.detach:
        return f"--{placed[0]} is for a run in a worker: add --detach"
    if options.events == "-":
        return "standard output is for the answer: --events takes a file, such as /dev/fd/3"
    return None

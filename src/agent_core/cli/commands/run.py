"""The arguments of `soong-agent run`."""

from collections.abc import Callable

from agent_core.cli.options import MOVE_SESSION, Commands, Options, add_path

SYNOPSIS = """\
run [--path <dir-or-file>] [--orchestrator]
       [--model <provider:name>] [--session-id <id>] [--move-session]
       [--image <file>]... "message"\
"""
DESCRIPTION = "Give an agent a task in a project, and watch it work."
_STREAMS = """\
The answer goes to standard output; tools, questions and the session go to
standard error. Questions are answered on standard input, one line each: 1 or
"allow once", 2 or "allow for session", 3 or "deny". Anything else denies. On a
terminal a key answers, and ? lists them.

Settings are read from ~/.soong-agent/config.toml, or from
$SOONG_AGENT_HOME/config.toml. A model is named by --model, else by
$SOONG_AGENT_MODEL, else there: openai:gpt-5, ollama:qwen3,
local:/path/model.gguf, or with a server's address
openai:my-model@http://127.0.0.1:8000/v1.
Exit codes: 0 completed, or waiting for an answer; 1 the run failed; 2 wrong
usage or configuration; 130 interrupted.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    run = commands.add_parser(
        "run",
        help="run an agent until it has answered",
        usage=f"soong-agent {SYNOPSIS}",
        description=DESCRIPTION,
        epilog=_STREAMS,
    )
    run.set_defaults(load=_load)
    add_path(run)
    run.add_argument("--orchestrator", action="store_true", help="let an orchestrator lead workers")
    run.add_argument(
        "--model", metavar="<provider:name>", help="the model to ask, such as openai:gpt-5"
    )
    run.add_argument(
        "--session-id", metavar="<id>", help="continue this session, or begin it under this id"
    )
    run.add_argument("--move-session", action="store_true", help=MOVE_SESSION)
    run.add_argument(
        "--image",
        action="append",
        metavar="<file>",
        dest="images",
        help="show the model a picture (PNG, JPEG, GIF, WebP) or a PDF; may be repeated",
    )
    run.add_argument("message", help="what to do; after -- it may begin with a dash")


def _load() -> Callable[[Options], int]:
    from agent_core.cli.run import run_message  # noqa: PLC0415 - help must not wait for it

    return run_message

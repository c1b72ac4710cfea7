"""The arguments of `soong-agent chat`."""

from agent_core.cli.commands import PURPOSES
from agent_core.cli.commands.run import find_misplaced_move
from agent_core.cli.options import (
    MOVE_SESSION,
    Commands,
    Options,
    add_command,
    add_mode,
    add_path,
)

WORK = "agent_core.cli.chat.start:chat"
_EXAMPLES = """\
examples:
  soong-agent chat
  soong-agent chat --continue
  soong-agent chat --path ../site --model ollama:qwen3
  soong-agent chat "what does this project do?"
  soong-agent chat --session-id sess_18ea7dc4 --plain

Enter sends, Alt-Enter starts a new line. @ attaches a file, ! runs a shell
command as you, / starts a chat command: /help lists them. A message sent during
a run is read after its next step. Ctrl-C cancels, twice leaves; Ctrl-D leaves.
On a terminal the word chat may be left out: soong-agent --continue.
Exit codes: 0 left; 1 failed; 2 wrong usage or configuration; 130 left during a
run; 143 ended by SIGTERM.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    chat = add_command(commands, "chat", PURPOSES["chat"], epilog=_EXAMPLES)
    chat.set_defaults(work=WORK)
    add_path(chat)
    chat.add_argument("--model", metavar="<provider:name>", help="the model, such as openai:gpt-5")
    add_mode(chat)
    session = chat.add_mutually_exclusive_group()
    session.add_argument(
        "--session-id", metavar="<id>", help="continue this session, or start one with this id"
    )
    session.add_argument(
        "--continue",
        action="store_true",
        dest="continues_last",
        help="continue the last session of this project that has an answer",
    )
    chat.add_argument("--move-session", action="store_true", help=MOVE_SESSION)
    chat.add_argument(
        "--plain",
        action="store_true",
        help="plain text: for screen readers and simple terminals",
    )
    chat.add_argument(
        "message",
        nargs="*",
        default=(),
        help="the first message; after -- it may begin with a dash",
    )


def find_misuse(options: Options) -> str | None:
    """Return the fault in a combination of a chat's arguments; None if they fit together."""
    if options.message and not "".join(options.message).strip():
        return "the message is empty"
    return find_misplaced_move(options)

"""The arguments of `soong-agent chat`."""

from agent_core.cli.options import Commands, add_command, add_mode, add_path

WORK = "agent_core.cli.chat.start:chat"
_EXAMPLES = """\
examples:
  soong-agent chat
  soong-agent chat --continue
  soong-agent chat --path ../site --model ollama:qwen3
  soong-agent chat --session-id sess_18ea7dc4 --plain

Enter sends, Alt-Enter begins a new line. @ names a file, ! runs a command of
your own, / begins a command of the conversation: /help lists them. Messages
that are written while it works are queued. Ctrl-C cancels, twice leaves;
Ctrl-D leaves. `soong-agent` alone on a terminal is the same.
Exit codes: 0 left; 1 failed; 2 wrong usage or configuration; 130 left while it
worked; 143 ended by SIGTERM.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    chat = add_command(commands, "chat", "talk with an agent about a project", epilog=_EXAMPLES)
    chat.set_defaults(work=WORK)
    add_path(chat)
    chat.add_argument(
        "--model", metavar="<provider:name>", help="the model to ask, such as openai:gpt-5"
    )
    add_mode(chat)
    session = chat.add_mutually_exclusive_group()
    session.add_argument(
        "--session-id", metavar="<id>", help="go on with this session, or begin it under this id"
    )
    session.add_argument(
        "--continue",
        action="store_true",
        dest="goes_on",
        help="go on with the session that this project used last",
    )
    chat.add_argument(
        "--plain",
        action="store_true",
        help="draw nothing: for screen readers, and terminals that cannot",
    )

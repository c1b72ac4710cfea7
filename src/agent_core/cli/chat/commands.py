"""The commands of a conversation: each does what the command line's one does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent_core.cli.chat.conversation import Chat
from agent_core.config.problems import nearest


@dataclass(frozen=True, slots=True)
class Command:
    """What a word behind a slash does.

    Attributes:
        usage: what may follow it.
        what: a few words for the list of commands.
        do: does it, with what was written behind the name.
    """

    usage: str
    what: str
    do: Callable[[Chat, str], Awaitable[None]]


async def do_command(chat: Chat, text: str) -> None:
    """Do what a line says that begins with a slash.

    Raises:
        AgentCoreError: it cannot be done.
    """
    name, _, rest = text[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = nearest(name, COMMANDS, "/")
        chat.fail(f"there is no command /{name}{near}; /help lists them")
        return
    await command.do(chat, rest.strip())


async def _help(chat: Chat, rest: str) -> None:
    names = [rest.removeprefix("/")] if rest else list(COMMANDS)
    for name in names:
        command = COMMANDS.get(name)
        if command is None:
            chat.fail(f"there is no command /{name}{nearest(name, COMMANDS, '/')}")
            return
        chat.terminal.line(f"/{name} {command.usage}".rstrip())
        chat.terminal.line(f"    {command.what}")


async def _quit(chat: Chat, _: str) -> None:
    chat.leave()


COMMANDS = {
    "help": Command("[command]", "list the commands, or explain one", _help),
    "quit": Command("", "leave; Ctrl-D does it, too", _quit),
}

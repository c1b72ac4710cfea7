"""The commands that move a session: `/undo`, `/redo`, `/rewind`, `/switch` and `/fork`."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct

from agent_core.cli.chat.conversation import Chat
from agent_core.cli.chat.picker import Pages, Picker, PickerEntry
from agent_core.cli.nearby import model_option, short_id_of
from agent_core.cli.sessions import fork_session
from agent_core.cli.terminal import Style
from agent_core.cli.undo import message_of, show_refused, show_restored
from agent_core.errors import AgentCoreError
from agent_core.history.figures import format_age
from agent_core.history.reading import gist_of
from agent_core.text import plural, short_line, visible, visible_line
from agent_core.types import Node, NodeType, Role, SwitchResult

FORCE = "--force"
FILES = "--files"
_WORDS = 60


class _Exchange(Struct, frozen=True):
    """A message of the user's on the active path, and what an undo takes back with it.

    Attributes:
        node: the message that began it.
        words: of all its messages: some were sent while its run worked.
    """

    node: Node
    words: str


async def undo(chat: Chat, words: Sequence[str]) -> None:
    """Revert the last message, and put it on the line."""
    if moved := await _move(chat, chat.runtime.undo, words):
        show_restored(moved, chat.terminal, chat.clean)
        await _show_taken_back(chat, moved)


async def redo(chat: Chat, words: Sequence[str]) -> None:
    """Return to the state before the last undo."""
    if moved := await _move(chat, chat.runtime.redo, words):
        show_restored(moved, chat.terminal, chat.clean)
        chat.say("the message and its changes are back", Style.DIM)
        chat.line.forget_aside()
        await chat.measure()


async def rewind(chat: Chat, words: Sequence[str]) -> None:
    """Let the user choose a message, and undo it and all that followed, one after another."""
    if not await chat.require_session():
        return
    path = await _active_path(chat)
    exchanges = _exchanges_of(path)
    if not exchanges:
        chat.say("this session is at its beginning", Style.DIM)
        return
    picker = Picker("Go back to before which message?", _pages(chat, exchanges))
    chosen = await chat.line.pick(picker)
    if chosen is None:
        return
    places = {node.node_id: place for place, node in enumerate(path)}
    steps: list[SwitchResult] = []
    while not steps or places.get(steps[-1].node_id or "", -1) >= places[chosen]:
        if (moved := await _move(chat, chat.runtime.undo, words)) is None:
            break
        steps.append(moved)
    if steps:
        moved = _together(steps)
        show_restored(moved, chat.terminal, chat.clean)
        await _show_taken_back(chat, moved, later=len(steps) - 1)


async def switch(chat: Chat, words: Sequence[str]) -> None:
    """Continue from another message."""
    names = [word for word in words if not word.startswith("-")]
    if not names:
        chat.fail("/switch NODE [--files]; /tree names the nodes")
        return
    if not await chat.require_session():
        return
    runtime = chat.runtime
    node_id = await runtime.resolve_node_id(names[0], chat.session_id)
    moved = await runtime.switch_node(
        chat.session_id, node_id, restore_files=FILES in words, force=FORCE in words
    )
    show_restored(moved, chat.terminal, chat.clean)
    chat.say(f"the next message follows {await _describe(chat, node_id)}", Style.DIM)
    await chat.measure()


async def fork(chat: Chat, words: Sequence[str]) -> None:
    """Begin another session in a copy of the project, and show how to continue there."""
    named = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or not named.keys() <= {"--into", "--at"}:
        chat.fail("/fork [--into DIR] [--at NODE]; /tree names the nodes")
        return
    if not await chat.require_session():
        return
    into = named.get("--into")
    if into is not None:
        into = chat.setup.project / await asyncio.to_thread(Path(into).expanduser)
    forked = await fork_session(chat.runtime, chat.session_id, at=named.get("--at"), into=into)
    show_restored(forked, chat.terminal, chat.clean)
    folder = visible(chat.clean(forked.session.cwd), one_line=True)
    where = await _describe(chat, forked.node_id) if forked.node_id else "nothing"
    chat.say(f"another session begins in {folder}; its next message follows {where}")
    short = await short_id_of(chat.runtime, forked.session_id)
    command = f"soong-agent chat --path {shlex.quote(folder)} --session-id {short}"
    command += await model_option(chat.model)
    chat.terminal.command("to continue there:", command, Style.DIM)


async def _describe(chat: Chat, node_id: str) -> str:
    """Return whose message a node is, and its first words."""
    node = (await chat.runtime.get_node_path(node_id))[-1]
    whose = "your message" if node.role is Role.USER else "the answer"
    words = short_line(visible_line(chat.clean(gist_of(node))), _WORDS)
    return f"{whose}: {words}"


async def _move(
    chat: Chat, move: Callable[..., Awaitable[SwitchResult]], words: Sequence[str]
) -> SwitchResult | None:
    """Make a move; None: it was refused, and the reason is shown."""
    if not await chat.require_session():
        return None
    if await chat.elsewhere.show(chat.session_id, chat.terminal):
        chat.fail("nothing was moved: you had not seen these messages; repeat the command")
        return None
    try:
        return await move(chat.session_id, force=FORCE in words)
    except AgentCoreError as error:
        chat.fail(error.message)
        show_refused(error, chat.terminal, chat.clean)
        return None


async def _show_taken_back(chat: Chat, moved: SwitchResult, later: int = 0) -> None:
    more = f", and {plural(later, 'later message')}" if later else ""
    back = "/redo brings them back one by one" if later else "/redo brings it back"
    chat.say(f"taken back: {message_of(moved, chat.clean)}{more} ({back})")
    if chat.terminal.can_draw:  # a plain line has no text: it would print it once more
        chat.line.put(moved.message or "")
    await chat.measure()


def _together(steps: Sequence[SwitchResult]) -> SwitchResult:
    """Return the outcome of several undos: of a path, what the last of them did to it."""
    outcome: dict[str, str] = {}
    for step in steps:
        outcome |= dict.fromkeys(step.restored, "restored")
        outcome |= dict.fromkeys(step.deleted, "deleted")

    def paths(of: Callable[[SwitchResult], Sequence[str]]) -> list[str]:
        return [*dict.fromkeys(path for step in steps for path in of(step))]

    return steps[-1].model_copy(
        update={
            "restored": [path for path, what in outcome.items() if what == "restored"],
            "deleted": [path for path, what in outcome.items() if what == "deleted"],
            "moved_aside": paths(lambda step: step.moved_aside),
            "refused": paths(lambda step: step.refused),
            "left_out": paths(lambda step: step.left_out),
            "remarks": paths(lambda step: step.remarks),
        }
    )


async def _active_path(chat: Chat) -> Sequence[Node]:
    page = await chat.runtime.replay_session(chat.session_id, from_seq=1, to_seq=0)
    active = page.session.active_node_id
    return await chat.runtime.get_node_path(active) if active else ()


def _exchanges_of(path: Sequence[Node]) -> list[_Exchange]:
    """Return what can be undone, the newest first: messages of one run are undone together."""
    found: list[tuple[Node, list[str]]] = []
    for node in path:
        if node.role is not Role.USER or node.node_type is not NodeType.MESSAGE:
            continue
        if found and node.run_id is not None and found[-1][0].run_id == node.run_id:
            found[-1][1].append(gist_of(node))
        else:
            found.append((node, [gist_of(node)]))
    return [_Exchange(node, " / ".join(words)) for node, words in reversed(found)]


async def _pages(chat: Chat, exchanges: Sequence[_Exchange]) -> Pages:
    yield [
        PickerEntry(
            each.node.node_id,
            visible_line(chat.clean(each.words)),
            [f"{format_age(each.node.created_at):<10}"],
        )
        for each in exchanges
    ]

"""`soong-agent memory`: what is remembered, for the person it is about."""

import os
import sys

from agent_core.cli.options import COMPLETED, FAILED, MISUSED, MemoryOptions
from agent_core.cli.terminal import OutputClosedError, Style, Terminal
from agent_core.config.load import read_setup
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError, ConfigError
from agent_core.memory import Memory, MemoryFolder, MemoryWriter, Remembered
from agent_core.redaction.visible import visible

_YES = {"y", "yes"}


def manage(options: MemoryOptions) -> int:
    """List, show or forget memories, and return the exit code."""
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    try:
        setup = read_setup()
        folder = MemoryFolder(setup.memory_dir)
        remembered = folder.read()
        for problem in remembered.problems:
            terminal.line(f"passed over: {problem}", Style.WARN)
        if options.action == "list":
            return _list(remembered, terminal)
        memory = _find(options.memory_id, remembered, terminal)
        if memory is None:
            return FAILED
        if options.action == "show":
            return _show(memory, folder, terminal)
        writer = MemoryWriter(folder, unfinished=UnfinishedWrites.at(setup.home))
        if options.is_sure or _agrees(memory, terminal):
            with folder.locked():
                writer.forget(memory)
                writer.catalogue(folder.read().memories)
            terminal.line(f"forgotten: {memory.path}")
        return COMPLETED
    except OutputClosedError:
        return COMPLETED
    except (AgentCoreError, OSError, ValueError) as error:
        terminal.line(f"error: {error}", Style.BAD)
        return MISUSED if isinstance(error, ConfigError) else FAILED


def _list(remembered: Remembered, terminal: Terminal) -> int:
    for memory in remembered.memories:
        terminal.text(f"{memory.memory_id}  {memory.category:<9}  {_line(memory.summary)}\n")
    if not remembered.memories:
        terminal.line("nothing is remembered", Style.DIM)
    return COMPLETED


def _show(memory: Memory, folder: MemoryFolder, terminal: Terminal) -> int:
    terminal.line(str(folder.root / memory.path), Style.DIM)
    terminal.text(folder.text(memory.path))
    terminal.end_text()
    return COMPLETED


def _agrees(memory: Memory, terminal: Terminal) -> bool:
    terminal.ask(f"forget \u201c{_line(memory.summary)}\u201d ({memory.path})? [y/N] ")
    if sys.stdin.readline().strip().casefold() in _YES:
        return True
    terminal.line("kept")
    return False


def _find(memory_id: str, remembered: Remembered, terminal: Terminal) -> Memory | None:
    """The memory with this id, or the only one whose id begins like this."""
    if exact := remembered.get(memory_id):
        return exact
    like = [one for one in remembered.memories if one.memory_id.startswith(memory_id)]
    if len(like) == 1:
        return like[0]
    what = f"{len(like)} memories begin with" if like else "there is no memory"
    terminal.line(f"error: {what} {memory_id}; `memory list` shows them all", Style.BAD)
    return None


def _line(text: str) -> str:
    return visible(text, one_line=True)

"""`soong-agent memory`: what is remembered, for the person it is about."""

import os
import sys

from agent_core.cli.options import COMPLETED, FAILED, MISUSED, MemoryOptions
from agent_core.cli.secrets import Clean, terminal_redactor
from agent_core.cli.terminal import OutputClosedError, Style, Terminal
from agent_core.config.load import read_setup
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError, ConfigError
from agent_core.memory import Memory, MemoryFolder, MemoryList, MemoryWriter
from agent_core.redaction.visible import visible

_YES = {"y", "yes"}


def manage(options: MemoryOptions) -> int:
    """List, show or forget memories, and return the exit code."""
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    clean = terminal_redactor(os.environ).text
    try:
        setup = read_setup()
        clean = terminal_redactor(os.environ, setup).text
        folder = MemoryFolder(setup.memory_dir)
        remembered = folder.read()
        for problem in remembered.problems:
            terminal.line(f"passed over: {clean(problem)}", Style.WARN)
        if options.action == "list":
            return _list(remembered, terminal, clean)
        memory = _find(options.memory_id, remembered, terminal)
        if memory is None:
            return FAILED
        if options.action == "show":
            return _show(memory, folder, terminal, clean)
        writer = MemoryWriter(folder, unfinished=UnfinishedWrites.at(setup.home))
        if options.is_sure or _agrees(memory, terminal, clean):
            with folder.locked():
                writer.forget(memory)
                writer.write_catalog(folder.read().memories)
            terminal.line(f"forgotten: {clean(memory.path)}")
        return COMPLETED
    except OutputClosedError:
        return COMPLETED
    except (AgentCoreError, OSError, ValueError) as error:
        terminal.line(f"error: {clean(str(error))}", Style.BAD)
        return MISUSED if isinstance(error, ConfigError) else FAILED


def _list(remembered: MemoryList, terminal: Terminal, clean: Clean) -> int:
    for memory in remembered.memories:
        summary = _line(clean(memory.summary))
        terminal.text(f"{clean(memory.memory_id)}  {memory.category:<9}  {summary}\n")
    if not remembered.memories:
        terminal.line("nothing is remembered", Style.DIM)
    return COMPLETED


def _show(memory: Memory, folder: MemoryFolder, terminal: Terminal, clean: Clean) -> int:
    terminal.line(clean(str(folder.root / memory.path)), Style.DIM)
    terminal.text(clean(folder.text(memory.path)))
    terminal.end_text()
    return COMPLETED


def _agrees(memory: Memory, terminal: Terminal, clean: Clean) -> bool:
    summary = _line(clean(memory.summary))
    terminal.ask(f"forget \u201c{summary}\u201d ({clean(memory.path)})? [y/N] ")
    if sys.stdin.readline().strip().casefold() in _YES:
        return True
    terminal.line("kept")
    return False


def _find(memory_id: str, remembered: MemoryList, terminal: Terminal) -> Memory | None:
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

"""`soong-agent memory`: shows a person the memories about them."""

import json
import sys
from functools import partial

from agent_core.cli.lines import InputLines
from agent_core.cli.options import COMPLETED, FAILED, Options
from agent_core.cli.setup import run_on_terminal
from agent_core.cli.sheet import write_output
from agent_core.cli.terminal import Clean, Style, Terminal
from agent_core.config.load import check_tenant
from agent_core.config.paths import Setup
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.memory.entry import Memory
from agent_core.memory.folder import MemoryList, MemoryWriter
from agent_core.memory.scopes import find_tenants, find_users, memory_folder
from agent_core.text import visible
from agent_core.types.memory_scopes import MEMORY_SHARED

_MOST_NAMED = 10


def manage_memories(options: Options) -> int:
    """List, show or forget memories, and return the exit code."""
    return run_on_terminal(None, partial(_manage, options), asks_model=False)


async def _manage(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    if options.tenant is not None:
        check_tenant(options.tenant)
    folder = memory_folder(setup.memory_dir, options.scope, options.tenant)
    known = folder.read()
    for problem in known.problems:
        terminal.line(f"skipped: {clean(problem)}", Style.WARN)
    if options.action == "list":
        for memory in known.memories:
            if options.json:
                fields = ("memory_id", "category", "summary")
                line = {name: clean(str(getattr(memory, name))) for name in fields}
                write_output(json.dumps(line, ensure_ascii=False) + "\n")
                continue
            start = f"{clean(memory.memory_id)}  {memory.category:<9}"
            terminal.text(f"{start}  {_summary(memory, clean)}\n")
        if options.json:
            return COMPLETED
        if not known.memories:
            terminal.line("nothing is remembered", Style.DIM)
        if options.scope == MEMORY_SHARED and (others := _name_others(options, setup)):
            terminal.line(clean(others), Style.DIM)
        return COMPLETED
    memory = _find(options.id, known)
    if isinstance(memory, str):
        whose = "" if options.scope == MEMORY_SHARED else f" --scope {options.scope}"
        whose += f" --tenant {options.tenant}" if options.tenant else ""
        cure = f"`memory list{whose}` shows them all"
        terminal.line(clean(f"error: {memory} {options.id}; {cure}"), Style.BAD)
        return FAILED
    if options.action == "show":
        terminal.line(clean(str(folder.root / memory.path)), Style.DIM)
        terminal.text(clean(folder.text(memory.path)))
        terminal.end_text()
        return COMPLETED
    if not options.yes and not await _agrees(memory, terminal, clean):
        terminal.line("kept")
        return COMPLETED
    writer = MemoryWriter(folder, unfinished=UnfinishedWrites.at(setup.home))
    with folder.locked():
        writer.forget(memory)
        writer.write_catalog(folder.read().memories)
    terminal.line(f"forgotten: {clean(memory.path)}")
    return COMPLETED


def _name_others(options: Options, setup: Setup) -> str:
    """Name the other memories, and the option that lists each of them."""
    users = find_users(setup.memory_dir, options.tenant)
    tenants = find_tenants(setup.memory_dir) if options.tenant is None else []
    named = [f"--scope {visible(user, one_line=True)}" for user in users]
    named += [f"--tenant {tenant}" for tenant in tenants]
    if not named:
        return ""
    more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"other memories: {', '.join(named[:_MOST_NAMED])}{more}"


async def _agrees(memory: Memory, terminal: Terminal, clean: Clean) -> bool:
    question = f"forget \u201c{_summary(memory, clean)}\u201d ({clean(memory.path)})? [y/N] "
    return await terminal.confirm(InputLines(sys.stdin.fileno()), question, "memory forget")


def _summary(memory: Memory, clean: Clean) -> str:
    return visible(clean(memory.summary), one_line=True)


def _find(memory_id: str, known: MemoryList) -> Memory | str:
    """Return the memory with this id, or the only one with this prefix; else an error."""
    like = [one for one in known.memories if one.memory_id.startswith(memory_id)]
    if (memory := known.get(memory_id)) is not None or len(like) == 1:
        return memory or like[0]
    return f"{len(like)} memories begin with" if like else "there is no memory"

"""`soong-agent memory`: shows a person the memories about them."""

import json
import sys
from collections.abc import Sequence
from functools import partial

from agent_core.cli.exit_codes import COMPLETED, FAILED
from agent_core.cli.lines import InputLines
from agent_core.cli.options import Options
from agent_core.cli.setup import run_on_terminal
from agent_core.cli.sheet import write_output
from agent_core.cli.terminal import Style, Terminal
from agent_core.config.paths import Setup
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError
from agent_core.memory.entry import Memory
from agent_core.memory.folder import MemoryFolder, MemoryList, MemoryWriter
from agent_core.memory.scopes import find_tenants, find_users, memory_folder
from agent_core.text import Clean, visible
from agent_core.text.folding import fold
from agent_core.text.json_text import JsonObject
from agent_core.types.lanes import check_tenant
from agent_core.types.memory_scopes import MEMORY_SHARED

_MOST_NAMED = 10
_MOST_FOUND = 20
"""Number of memories that a person can choose from."""


def manage_memories(options: Options) -> int:
    """List, show or forget memories, and return the exit code."""
    return run_on_terminal(options, None, partial(_manage, options), asks_model=False)


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
            whose = f" for the tenant {options.tenant}" if options.tenant else ""
            terminal.line(clean(f"nothing is remembered{whose}"), Style.DIM)
        if options.scope == MEMORY_SHARED and (others := _name_others(options, setup)):
            terminal.line(clean(others), Style.DIM)
        return COMPLETED
    if options.action == "forget":
        writer = MemoryWriter(folder, unfinished=UnfinishedWrites.at(setup.home))
        return await _Forgetting(options, folder, writer, terminal, clean).carry_out(known)
    memory = _find(options.id, known)
    if isinstance(memory, str):
        _show_error(f"{memory} {options.id}", options, terminal, clean)
        return FAILED
    terminal.line(clean(str(folder.root / memory.path)), Style.DIM)
    terminal.text(clean(folder.text(memory.path)))
    terminal.end_text()
    return COMPLETED


def _show_error(problem: str, options: Options, terminal: Terminal, clean: Clean) -> None:
    whose = "" if options.scope == MEMORY_SHARED else f" --scope {options.scope}"
    whose += f" --tenant {options.tenant}" if options.tenant else ""
    cure = f"`memory list{whose}` shows them all"
    terminal.line(visible(clean(f"error: {problem}; {cure}"), one_line=True), Style.BAD)


class _Forgetting:
    """Deletes the memories that a person names, after asking which and whether."""

    def __init__(
        self,
        options: Options,
        folder: MemoryFolder,
        writer: MemoryWriter,
        terminal: Terminal,
        clean: Clean,
    ) -> None:
        self._options = options
        self._folder = folder
        self._writer = writer
        self._terminal = terminal
        self._clean = clean

    async def carry_out(self, known: MemoryList) -> int:
        """Find the memories, ask, delete them, and return the exit code."""
        options, terminal = self._options, self._terminal
        found = find_named(options.words, known, may_differ=not options.yes)
        if not found:
            words = " ".join(options.words)
            _show_error(f"there is no memory {words}", options, terminal, self._clean)
            return FAILED
        if len(found) == 1:
            if not options.yes and not await _agrees(found[0], terminal, self._clean):
                self._say("kept")
                return COMPLETED
            return self._forget(found)
        answer = None
        if options.yes:
            for line in self._listed(found):
                self._say(line)
        else:
            answer = await self._ask(found)
        if answer is None:
            self._record(found, are_forgotten=False)
            cure = "name one by its id, or with more words"
            self._say(f"error: {len(found)} memories match; none was forgotten: {cure}", Style.BAD)
            return FAILED
        numbers = answer.replace(",", " ").split()
        shown = range(1, min(len(found), _MOST_FOUND) + 1)
        places = [int(one) for one in numbers if one.isdecimal() and int(one) in shown]
        if len(places) < len(numbers):
            self._say("error: the answer is not a number of the list; all are kept", Style.BAD)
            return FAILED
        if not places:
            self._say("kept")
            return COMPLETED
        return self._forget([found[place - 1] for place in dict.fromkeys(places)])

    async def _ask(self, found: Sequence[Memory]) -> str | None:
        lines = InputLines(sys.stdin.fileno())
        question = "forget which? Numbers, such as 1 or 1 3; nothing keeps all: "
        return await self._terminal.enter(lines, question, "memory forget", self._listed(found))

    def _listed(self, found: Sequence[Memory]) -> list[str]:
        lines: list[str] = []
        for number, memory in enumerate(found[:_MOST_FOUND], 1):
            start = f"{number:>3}  {self._clean(memory.memory_id)}  {memory.category:<9}"
            lines.append(visible(f"{start}  {_summary(memory, self._clean)}", one_line=True))
        if (more := len(found) - _MOST_FOUND) > 0:
            lines.append(f"     … {more:,} more fit; name one by its id, or with more words")
        return lines

    def _forget(self, memories: Sequence[Memory]) -> int:
        with self._folder.locked():
            for memory in memories:
                try:
                    self._writer.forget(memory)
                except AgentCoreError as error:
                    if not isinstance(error.__cause__, FileNotFoundError):
                        raise  # otherwise another process has deleted it
            self._writer.write_catalog(self._folder.read().memories)
        self._record(memories, are_forgotten=True)
        for memory in memories:
            self._say(f"forgotten: {self._clean(memory.path)}")
        return COMPLETED

    def _record(self, memories: Sequence[Memory], *, are_forgotten: bool) -> None:
        for memory in memories if self._options.json else ():
            line: JsonObject = {
                "memory_id": self._clean(memory.memory_id),
                "category": memory.category,
                "summary": self._clean(memory.summary),
                "forgotten": are_forgotten,
            }
            write_output(json.dumps(line, ensure_ascii=False) + "\n")

    def _say(self, text: str, style: Style = Style.PLAIN) -> None:
        self._terminal.line(visible(text, one_line=True), style)


def find_named(words: Sequence[str], known: MemoryList, *, may_differ: bool = True) -> list[Memory]:
    """Return the memories that an id, the beginning of one, or words of a memory name.

    If no memory has all the words, those with some of them count, unless `may_differ` is false.
    """
    text = " ".join(words).strip()
    if not text:
        return []
    if (memory := known.get(text)) is not None:
        return [memory]
    like = [one for one in known.memories if one.memory_id.startswith(text)]
    if like and "_" in text:
        return like
    parts = fold(text).split()
    whole = [one for one in known.memories if all(part in _folded(one) for part in parts)]
    if whole or not may_differ:
        return whole
    from agent_core.memory.recall import ranked  # noqa: PLC0415 - an id needs no search

    return ranked(text, known.memories) or like


def _folded(memory: Memory) -> str:
    return fold(f"{memory.summary} {' '.join(memory.tags)} {memory.content}")


def _name_others(options: Options, setup: Setup) -> str:
    """Name the other memories, and the option that lists each of them."""
    users = find_users(setup.memory_dir, options.tenant)
    tenants = [each for each in find_tenants(setup.memory_dir) if each != options.tenant]
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

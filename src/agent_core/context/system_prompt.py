"""The part of a request before its messages: the system prompt in blocks, and the tools.

Static blocks never change within a run and are never cut. Everything that may differ between days,
folders or turns is dynamic and follows them, so that a cached prefix stays valid.
"""

import hashlib
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import cache, lru_cache
from operator import attrgetter, is_
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from agent_core.assets import load_asset
from agent_core.context.loaded import is_from_disk
from agent_core.context.messages import wrap, wrap_node
from agent_core.providers.estimates import estimate_tools, json_bytes
from agent_core.text import BYTES_PER_TOKEN, estimate_text, join_surrogates, one_line
from agent_core.text.content import content_hash
from agent_core.tools.text import decode_text
from agent_core.types import AgentDefinition, AgentRole, Node, NodeType, SystemBlock, ToolDefinition

PRIORITY_STATIC = 100
PRIORITY_DEFINITION = 50
PRIORITY_PRELOADED = 45
PRIORITY_INSTRUCTIONS = 40
PRIORITY_TOOLS = 35
PRIORITY_SKILLS = 30
PRIORITY_SERVERS = 25
PRIORITY_MEMORY = 20
PRIORITY_RUNTIME = 10
"""Of the dynamic blocks the lowest priority is cut first; they are sorted in descending order."""

_LEADING = {AgentRole.MAIN, AgentRole.ORCHESTRATOR}
_STARTS_AGENTS = {"agent.create_sub_agent", "agent.fork_agent", "agent.dispatch_worker"}
_CUT_MARK = "[the rest is left out: it does not fit]"
_LEAST_WORTH_KEEPING = 64
_LONGEST_TAG = 40
_token_count = attrgetter("token_count")


def system_block(
    block_id: str,
    source: str,
    text: str,
    *,
    priority: int = PRIORITY_STATIC,
    dynamic: bool = False,
    **metadata: object,
) -> SystemBlock:
    """Build a block of the system prompt, with its estimate."""
    text = join_surrogates(text)  # names of files need not be UTF-8
    return SystemBlock.of_checked(
        block_id=block_id,
        source=source,
        content=text,
        priority=priority,
        dynamic=dynamic,
        token_count=estimate_text(text),
        metadata=metadata,
    )


def static_blocks(
    role: AgentRole, tool_names: Collection[str], *, instruction_catalog: str = ""
) -> list[SystemBlock]:
    """Return the part that is always kept, in its fixed order.

    Args:
        role: main and orchestrator get the blocks on other agents and memory, if they have those
            tools.
        tool_names: the run's effective tools; without tools, only the core rules are included.
        instruction_catalog: the list of instruction files, already within its budget; empty if
            there are none.
    """
    names = set(tool_names)
    leads = role in _LEADING
    wanted = {
        "system.core": True,
        "system.tool_protocol": bool(names),
        "system.todo": bool(names),
        "system.permissions": bool(names),
        "system.multi_agent": leads and bool(names & _STARTS_AGENTS),
        "system.memory": leads and "internal.recall_memory" in names,
    }
    blocks = [_packaged_block(asset_id) for asset_id, is_wanted in wanted.items() if is_wanted]
    if instruction_catalog:
        text = f"{load_asset('system.instruction_catalog').text}\n\n{instruction_catalog}"
        blocks.append(system_block("system.instruction_catalog", "instructions", text))
    return blocks


@cache
def _packaged_block(asset_id: str) -> SystemBlock:
    return system_block(asset_id, "asset", load_asset(asset_id).text, asset_id=asset_id)


def definition_block(definition: AgentDefinition) -> SystemBlock:
    """Build the block on the agent; an empty body means the default sub-agent instructions."""
    frame = Template(load_asset("system.agent_definition").text)
    body = definition.body.strip() or load_asset("agent.default_sub_agent").text
    text = f"{frame.safe_substitute(name=definition.name)}\n\n{body}"
    source = f"agent_definition:{definition.agent_definition_id}"
    return system_block(
        "agent_definition", source, text, priority=PRIORITY_DEFINITION, dynamic=True
    )


def instruction_block(node: Node) -> SystemBlock:
    """Build the block of an instruction file that the model has read, in its last version.

    It names the node only if the node is where its text is stored.
    """
    file = str(node.metadata.get("path", ""))
    version = node.metadata.get("hash")
    stored: dict[str, Any] = {} if is_from_disk(node) else {"node_id": node.node_id}
    return _file_block(file, wrap_node(node), **stored, path=file, hash=version)


def own_file_blocks(files: Iterable[tuple[str, bytes]], budget: int) -> list[SystemBlock]:
    """Build the blocks of the instruction files that are in the prompt from the start and fit.

    Args:
        files: the path to show, and the content.
        budget: estimated tokens for all blocks.
    """
    blocks: list[SystemBlock] = []
    for shown, content in files:
        body = decode_text(content)
        if not body.strip():
            continue
        text = wrap(NodeType.INSTRUCTION_CONTEXT, body, path=shown)
        block = _file_block(
            shown, text, priority=PRIORITY_PRELOADED, path=shown, hash=content_hash(content)
        )
        if block.token_count <= budget:
            budget -= block.token_count
            blocks.append(block)
    return blocks


def _file_block(
    file: str, text: str, *, priority: int = PRIORITY_INSTRUCTIONS, **metadata: object
) -> SystemBlock:
    name = f"instructions:{file}"
    return system_block(name, file, text, priority=priority, dynamic=True, **metadata)


def skills_block(catalog: str) -> SystemBlock:
    """Build the block of the available skills: names and descriptions, no bodies."""
    text = f"{load_asset('system.skill_catalog').text}\n\n{catalog}"
    return system_block("skill_catalog", "skills", text, priority=PRIORITY_SKILLS, dynamic=True)


def tools_block(catalog: str) -> SystemBlock:
    """Build the block of the tools whose definitions are read on demand."""
    text = f"{load_asset('system.tool_catalog').text}\n\n{catalog}"
    return system_block("tool_catalog", "tools", text, priority=PRIORITY_TOOLS, dynamic=True)


def servers_block(instructions: Mapping[str, str]) -> SystemBlock:
    """Build the block of the instructions of MCP servers: data, each in its own tags."""
    parts = [load_asset("system.mcp_servers").text]
    for server_id, words in instructions.items():
        inner = re.sub(_SERVER_END, "&lt;", words.strip(), flags=re.IGNORECASE)
        parts.append(f'<mcp_server id="{server_id}">\n{inner}\n</mcp_server>')
    text = "\n\n".join(parts)
    return system_block("mcp_servers", "mcp", text, priority=PRIORITY_SERVERS, dynamic=True)


_SERVER_END = r"<(?=\s*/\s*mcp_server\b)"


def memory_block(catalog: str) -> SystemBlock:
    """Build the block of the available memories: ids and summaries, no bodies."""
    text = f"{load_asset('system.memory_catalog').text}\n\n{catalog}"
    return system_block("memory_catalog", "memory", text, priority=PRIORITY_MEMORY, dynamic=True)


@lru_cache(maxsize=64)
def runtime_block(
    project_dir: Path,
    noted: str | None = None,
    *,
    today: date,
    repository: str = "",
) -> SystemBlock:
    """Build the block on the place and time of the run, and the state of the repository there.

    Args:
        project_dir: the place.
        noted: the state of the repository that the last compaction has noted, if it has.
        today: the date.
        repository: its state when the session began.
    """
    repository = repository if noted is None else noted
    text = Template(load_asset("system.runtime_state").text).safe_substitute(
        date=today.isoformat(),
        project=" ".join(str(project_dir).split()),
        platform=sys.platform,
    )
    if repository:
        text = f"{text.rstrip()}\n- Git at the start: {one_line(repository)}"
    return system_block("runtime_state", "runtime", text, priority=PRIORITY_RUNTIME, dynamic=True)


class CutBlock(NamedTuple):
    """A dynamic block that did not fit; `kept_tokens` is 0 if it was left out."""

    block_id: str
    tokens: int
    kept_tokens: int


class SystemSegment:
    """The static blocks and the dynamic blocks that fit, including instruction files.

    Args:
        static: blocks that are always kept, in this order.
        dynamic: blocks that are kept by priority.
        own: instruction files in their version at the start of the run; replaced by versions loaded
            since.
        budget: estimated tokens for the dynamic blocks together.

    Attributes:
        former: ids of the instruction file nodes whose texts are no newer than `own`.
    """

    def __init__(
        self,
        static: Sequence[SystemBlock],
        dynamic: Sequence[SystemBlock],
        *,
        own: Sequence[SystemBlock] = (),
        budget: int,
    ) -> None:
        self.former: Collection[str] = ()
        self._own = {block.block_id: block for block in own} if own else {}
        self._read: frozenset[str] = frozenset()
        self._static = list(static)
        self._dynamic = list(dynamic)
        self._budget = budget
        self._files: list[Node] | None = None
        self.blocks: list[SystemBlock] = []
        self.cut: list[CutBlock] = []
        self.static_tokens = sum(map(_token_count, static))
        self.static_hash = hash_system(static)
        self.dynamic_tokens = 0
        self.dynamic_hash = ""

    def show(self, files: Sequence[Node]) -> None:
        """Set the instruction files of this part."""
        if self._files is not None and _are_same(files, self._files):
            return
        self._files = list(files)
        loaded: dict[str, SystemBlock] = {}
        newest: dict[str, str] = {}
        for node in files:
            block = instruction_block(node)
            loaded[block.block_id], newest[block.block_id] = block, node.node_id
        self._read = frozenset(loaded)
        own: list[SystemBlock] = []
        for name, block in self._own.items():
            known = loaded.get(name)
            is_newest = known is None or newest[name] in self.former
            if is_newest or (known and known.metadata["hash"] == block.metadata["hash"]):
                own.append(block)
                loaded.pop(name, None)
        fitted, self.cut = fit_blocks([*self._dynamic, *own, *loaded.values()], self._budget)
        self.blocks = [*self._static, *fitted]
        self.dynamic_tokens = sum(map(_token_count, fitted))
        self.dynamic_hash = hash_system(fitted)

    def replace(self, block: SystemBlock) -> None:
        """Set the dynamic block of this id."""
        others = [each for each in self._dynamic if each.block_id != block.block_id]
        self._dynamic = [block, *others]
        self._files = None  # fitted again when they are shown

    def limit(self, budget: int) -> None:
        """Limit the dynamic blocks to a smaller budget."""
        if budget < self._budget:
            self._budget = budget
            self._files = None  # fitted again when they are shown

    @property
    def own_versions(self) -> dict[str, str]:
        """Return the hashes, by path, of the instruction files in the prompt from the start."""
        if not self._own:
            return {}
        return {
            str(block.metadata["path"]): str(block.metadata["hash"])
            for block in self.blocks
            if self._own.get(block.block_id) is block
        }

    def instructions(self) -> list[Mapping[str, Any]]:
        """Return the metadata of the instruction files here that the model has read."""
        return [block.metadata for block in self.blocks if block.block_id in self._read]


def fit_blocks(
    blocks: Iterable[SystemBlock], budget: int
) -> tuple[list[SystemBlock], list[CutBlock]]:
    """Keep the blocks that fit, highest priority first; of equal ones, the last one.

    Returns:
        The blocks in order of priority, the last of them possibly shortened, and the cuts.
    """
    ranked = sorted(blocks, key=attrgetter("priority"), reverse=True)
    excess = sum(map(_token_count, ranked)) - budget
    if excess <= 0:
        return ranked, []
    by_worth = sorted((block.priority, place) for place, block in enumerate(ranked))
    kept: list[SystemBlock | None] = [*ranked]
    cut: list[CutBlock] = []
    for _, place in by_worth:
        if excess <= 0:
            break
        block = ranked[place]
        kept[place] = shorter = _shorten_block(block, block.token_count - excess)
        now = shorter.token_count if shorter else 0
        cut.append(CutBlock(block.block_id, block.token_count, now))
        excess -= block.token_count - now
    return [block for block in kept if block], cut


def _shorten_block(block: SystemBlock, tokens: int) -> SystemBlock | None:
    """Shorten a block to its beginning, at a line end if possible, and keep its closing tag."""
    if tokens < _LEAST_WORTH_KEEPING:
        return None
    text, _, last = block.content.rpartition("\n")
    closing = f"\n{last}" if last.startswith("</") and len(last) < _LONGEST_TAG else ""
    body = text if closing else block.content
    room = tokens * BYTES_PER_TOKEN - len(f"\n{_CUT_MARK}{closing}".encode())
    head = body.encode("utf-8", "replace")[:room].decode("utf-8", "ignore")
    head = head[: head.rfind("\n")] if "\n" in head[1:] else head
    content = f"{head}\n{_CUT_MARK}{closing}"
    metadata = {key: value for key, value in block.metadata.items() if key != "node_id"}
    return block.model_copy(
        update={
            "content": content,
            "token_count": estimate_text(content),
            "metadata": {**metadata, "cut": True},
        }
    )


class ToolSegment:
    """The tools offered."""

    def __init__(self) -> None:
        self.definitions: Sequence[ToolDefinition] = ()
        self.tokens = 0
        self.hash = _NO_TOOLS

    def show(self, definitions: Sequence[ToolDefinition]) -> None:
        """Set the current tools; the same sequence again costs nothing."""
        if definitions is not self.definitions:
            self.definitions = definitions
            self.tokens, self.hash = _measure_tools(_SameTools(definitions))


class _SameTools(tuple[ToolDefinition, ...]):
    """Definitions as a cache key: the same objects in the same order are the same key."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameTools) and _are_same(self, other)


@lru_cache(maxsize=64)
def _measure_tools(tools: _SameTools) -> tuple[int, str]:
    """Return tokens and hash; successive runs offer the same tools."""
    return estimate_tools(tools), hash_tools(tools)


def hash_system(blocks: Iterable[SystemBlock]) -> str:
    """Return a hash of the text that the model reads of these blocks."""
    return _hash_texts(tuple(map(attrgetter("content"), blocks)))


@lru_cache(maxsize=64)
def _hash_texts(texts: tuple[str, ...]) -> str:
    """Return a hash of the texts; cached, because successive runs have the same texts."""
    rolling = hashlib.sha256()
    for text in texts:
        rolling.update(text.encode("utf-8", "surrogatepass"))
        rolling.update(b"\0")
    return rolling.hexdigest()[:16]


def hash_tools(tools: Iterable[ToolDefinition]) -> str:
    """Return a hash of the parts of these tools that the model sees."""
    rolling = hashlib.sha256()
    for tool in tools:
        rolling.update(json_bytes([tool.name, tool.description, tool.input_schema]))
    return rolling.hexdigest()[:16]


_NO_TOOLS = hash_tools(())


def _are_same(these: Sequence[object], those: Sequence[object]) -> bool:
    return len(these) == len(those) and all(map(is_, these, those))

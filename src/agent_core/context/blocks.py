"""The system prompt in blocks: the same ones in the same order for every run of a kind.

Static blocks never change within a run and are never cut. Whatever may differ from one day,
folder or turn to the next is dynamic and stands behind them, so that a cached prefix holds.
"""

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from string import Template

from agent_core.assets import load_asset
from agent_core.context.tokens import BYTES_PER_TOKEN, estimate_text
from agent_core.context.wrappers import wrap, wrap_node
from agent_core.providers.jsontext import whole
from agent_core.text import content_hash
from agent_core.types import AgentDefinition, AgentRole, Node, NodeType, SystemBlock

PRIORITY_STATIC = 100
PRIORITY_DEFINITION = 50
PRIORITY_INSTRUCTIONS = 40
PRIORITY_SKILLS = 30
PRIORITY_MEMORY = 20
PRIORITY_RUNTIME = 10
"""Among dynamic blocks the lowest priority is cut first; they stand in descending order."""

_LEADING = {AgentRole.MAIN, AgentRole.ORCHESTRATOR}
_STARTS_AGENTS = {"agent.create_sub_agent", "agent.fork_agent", "agent.dispatch_worker"}
_CUT_MARK = "[the rest is left out: it does not fit]"
_LEAST_WORTH_KEEPING = 64
_LONGEST_TAG = 40


def static_blocks(
    role: AgentRole, tool_names: Collection[str], *, instruction_catalog: str = ""
) -> list[SystemBlock]:
    """The part that is always kept, in its fixed order.

    Args:
        role: main and orchestrator hear of other agents and of memory, if they have the tools.
        tool_names: the run's effective tools; without any, only the core rules are worth saying.
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
    blocks = [_packaged(asset_id) for asset_id, is_wanted in wanted.items() if is_wanted]
    if instruction_catalog:
        text = f"{load_asset('system.instruction_catalog').text}\n\n{instruction_catalog}"
        blocks.append(system_block("system.instruction_catalog", "instructions", text))
    return blocks


def definition_block(definition: AgentDefinition) -> SystemBlock:
    """What kind of agent this is; an empty body means the default sub-agent instructions."""
    frame = _filled("system.agent_definition", name=definition.name)
    body = definition.body.strip() or load_asset("agent.default_sub_agent").text
    source = f"agent_definition:{definition.agent_definition_id}"
    return _dynamic("agent_definition", source, f"{frame}\n\n{body}", PRIORITY_DEFINITION)


def instruction_block(node: Node) -> SystemBlock:
    """An instruction file the model has read: it stays in view, as of its last version."""
    file = str(node.metadata.get("path", ""))
    metadata = {"node_id": node.node_id, "path": file, "hash": node.metadata.get("hash")}
    return _dynamic(
        f"instructions:{file}", file, wrap_node(node), PRIORITY_INSTRUCTIONS, **metadata
    )


def own_file_blocks(files: Iterable[tuple[str, bytes]], budget: int) -> list[SystemBlock]:
    """Instruction files that are in the prompt from the start: those that fit into `budget`.

    Args:
        files: the path to show, and the content.
        budget: estimated tokens for all of them.
    """
    blocks: list[SystemBlock] = []
    for shown, content in files:
        body = content.decode("utf-8", "replace").replace("\0", "")
        if not body.strip():
            continue
        text = wrap(NodeType.INSTRUCTION_CONTEXT, body, path=shown)
        facts = {"path": shown, "hash": content_hash(content)}
        block = _dynamic(f"instructions:{shown}", shown, text, PRIORITY_INSTRUCTIONS, **facts)
        if block.token_count <= budget:
            budget -= block.token_count
            blocks.append(block)
    return blocks


def skills_block(catalog: str) -> SystemBlock:
    """Which skills there are: names and descriptions, no bodies."""
    text = f"{load_asset('system.skill_catalog').text}\n\n{catalog}"
    return _dynamic("skill_catalog", "skills", text, PRIORITY_SKILLS)


def memory_block(catalog: str) -> SystemBlock:
    """Which memories there are: ids and summaries, no bodies."""
    text = f"{load_asset('system.memory_catalog').text}\n\n{catalog}"
    return _dynamic("memory_catalog", "memory", text, PRIORITY_MEMORY)


def runtime_block(role: AgentRole, project_dir: Path, *, today: date) -> SystemBlock:
    """Where and when the run takes place."""
    text = _filled(
        "system.runtime_state",
        date=today.isoformat(),
        project=_one_line(str(project_dir)),
        platform=sys.platform,
        role=role.value,
    )
    return _dynamic("runtime_state", "runtime", text, PRIORITY_RUNTIME)


@dataclass(frozen=True, slots=True)
class CutBlock:
    """A dynamic block that did not fit; `kept_tokens` is 0 if it was left out."""

    block_id: str
    tokens: int
    kept_tokens: int


def fit_blocks(
    blocks: Iterable[SystemBlock], budget: int
) -> tuple[list[SystemBlock], list[CutBlock]]:
    """Keep what fits, highest priority first; of equal ones, the one that came last.

    Returns:
        The blocks in order of priority, the last of them possibly shortened, and what was cut.
    """
    kept = sorted(blocks, key=lambda block: -block.priority)
    excess = sum(block.token_count for block in kept) - budget
    by_worth = sorted(range(len(kept)), key=lambda place: (kept[place].priority, place))
    cut: list[CutBlock] = []
    left_out: set[int] = set()
    for place in by_worth:
        if excess <= 0:
            break
        block = kept[place]
        shorter = _shortened(block, block.token_count - excess)
        now = shorter.token_count if shorter else 0
        cut.append(CutBlock(block.block_id, block.token_count, now))
        excess -= block.token_count - now
        if shorter is None:
            left_out.add(place)
        else:
            kept[place] = shorter
    return [block for place, block in enumerate(kept) if place not in left_out], cut


def bounded_lines(lines: Sequence[str], budget: int) -> str:
    """As many whole lines as fit into `budget` tokens; the last line says that there are others."""
    kept: list[str] = []
    room = budget
    for line in lines:
        room -= estimate_text(line) + 1
        if room < 0:
            kept.append(f"- (truncated: {len(lines) - len(kept)} more are not listed)")
            break
        kept.append(line)
    return "\n".join(kept)


def system_block(
    block_id: str, source: str, text: str, *, priority: int = PRIORITY_STATIC, dynamic: bool = False
) -> SystemBlock:
    """A block of any other origin, with its estimate."""
    return _block(block_id, source, text, priority=priority, dynamic=dynamic)


@cache
def _packaged(asset_id: str) -> SystemBlock:
    text = load_asset(asset_id).text
    return _block(asset_id, "asset", text, priority=PRIORITY_STATIC, asset_id=asset_id)


def _dynamic(name: str, source: str, text: str, priority: int, **metadata: object) -> SystemBlock:
    return _block(name, source, text, priority=priority, dynamic=True, **metadata)


def _block(
    block_id: str,
    source: str,
    text: str,
    *,
    priority: int,
    dynamic: bool = False,
    **metadata: object,
) -> SystemBlock:
    text = whole(text)  # names of files need not be UTF-8
    return SystemBlock(
        block_id=block_id,
        source=source,
        content=text,
        priority=priority,
        dynamic=dynamic,
        token_count=estimate_text(text),
        metadata=metadata,
    )


def _shortened(block: SystemBlock, tokens: int) -> SystemBlock | None:
    """The beginning of a block, whole lines where possible, with its closing tag if it has one."""
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


def _filled(asset_id: str, **values: str) -> str:
    return Template(load_asset(asset_id).text).safe_substitute(values)


def _one_line(text: str) -> str:
    return " ".join(text.split())

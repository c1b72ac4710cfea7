"""What a model saw, made again from the nodes of a run and its `context_built` reports."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_core.assets import load_asset
from agent_core.context.blocks import instruction_block
from agent_core.context.history import History
from agent_core.context.report import hash_system, hash_tools
from agent_core.context.wrappers import board_message
from agent_core.types import ModelRequest, Node, SystemBlock, ToolDefinition

_Json = Mapping[str, Any]


def rebuild_requests(
    nodes: Iterable[Node], reports: Sequence[_Json], tools: Mapping[str, ToolDefinition]
) -> list[ModelRequest]:
    """Build the requests of a run's turns again.

    Args:
        nodes: at least the path up to the last report's `path_end_node_id`, in any order.
        reports: the payloads of the run's `context_built` events, from the first one on.
        tools: definitions by name; definitions are not part of the history, so these are the
            ones of today.

    Returns:
        One request for each report. `metadata.exact` says whether all its hashes are those of
        the original: redaction, or a newer version of a prompt or tool, makes them differ.
    """
    known = {node.node_id: node for node in nodes}
    blocks: list[SystemBlock] = []
    names: list[str] = []
    cut: dict[str, int] = {}
    dropped: set[str] = set()
    requests: list[ModelRequest] = []
    for report in reports:
        if "system" in report:
            blocks = [_block(reference, known) for reference in report["system"]]
        names = report.get("tools", names)
        for result in report["downgraded_artifacts"]:
            cut[result["node_id"]] = result.get("shown_tokens", 0)
        dropped |= set(report["dropped_node_ids"])
        history = History(
            report["budget"]["reattached"],
            cut=cut,
            dropped=dropped,
            settled=report.get("settled_node_ids"),
        )
        history.take(_path_to(report["path_end_node_id"], known))
        history.keep(report.get("kept"))
        offered = [tools[name] for name in names if name in tools]
        requests.append(_request(report, history, blocks, offered))
    return requests


def _request(
    report: _Json, history: History, blocks: list[SystemBlock], tools: list[ToolDefinition]
) -> ModelRequest:
    board = report["task_board"]
    hashes = {
        "static_system": hash_system(block for block in blocks if not block.dynamic),
        "tools": hash_tools(tools),
        "dynamic_system": hash_system(block for block in blocks if block.dynamic),
        "history": history.fold.hash,
    }
    return ModelRequest(
        **report["settings"],
        system=blocks,
        messages=history.fold.messages + ([board_message(board)] if board else []),
        tools=tools,
        metadata={
            "rebuilt": True,
            "turn": report["turn"],
            "exact": hashes == report["hashes"],
        },
    )


def _block(reference: _Json, known: Mapping[str, Node]) -> SystemBlock:
    """A block as it was; text that stands elsewhere is read there."""
    if "content" in reference:
        return SystemBlock.model_validate(reference)
    metadata = reference["metadata"]
    if "asset_id" in metadata:
        return SystemBlock(**reference, content=load_asset(metadata["asset_id"]).text)
    node = known.get(metadata["node_id"])
    if node is None:
        return SystemBlock(**reference, content="")
    return instruction_block(node)


def _path_to(node_id: str | None, known: Mapping[str, Node]) -> list[Node]:
    path: list[Node] = []
    while node_id is not None and (node := known.get(node_id)) is not None:
        path.append(node)
        node_id = node.parent_id
    return path[::-1]

"""Paths for the tests of compaction: short to write, with tokens that can be counted."""

from typing import Any

from agent_core.providers.estimates import estimate_blocks
from agent_core.types import (
    Node,
    NodeType,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    utc_now,
)

NOW = utc_now()


class Path:
    """A path that grows at its end."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, role: Role, *blocks: Any, kind: NodeType = NodeType.MESSAGE, **more: Any) -> Node:
        content = list(blocks)
        node = Node(
            node_id=f"node_{len(self.nodes)}",
            session_id="sess_1",
            node_seq=len(self.nodes) + 1,
            parent_id=self.nodes[-1].node_id if self.nodes else None,
            agent_id="agent_1",
            run_id="run_1",
            role=role,
            node_type=kind,
            content=content,
            metadata=more,
            token_count=estimate_blocks(content),
            created_at=NOW,
        )
        self.nodes.append(node)
        return node

    def user(self, text: str, **more: Any) -> Node:
        return self.add(Role.USER, TextBlock(text=text), **more)

    def says(self, text: str = "fine", **more: Any) -> Node:
        return self.add(Role.ASSISTANT, TextBlock(text=text), **more)

    def calls(self, *call_ids: str, name: str = "code.read_file", **arguments: Any) -> Node:
        blocks = [ToolCallBlock(tool_call_id=i, name=name, arguments=arguments) for i in call_ids]
        return self.add(Role.ASSISTANT, *blocks)

    def result(self, call_id: str, text: str = "done", *, is_error: bool = False) -> Node:
        block = ToolResultBlock(
            tool_call_id=call_id, content=[TextBlock(text=text)], is_error=is_error
        )
        return self.add(Role.TOOL, block)

    def inner(self, kind: NodeType, text: str, **more: Any) -> Node:
        return self.add(Role.USER, TextBlock(text=text), kind=kind, **more)

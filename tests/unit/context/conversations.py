"""What the tests of the context write down: paths like the journal's, and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.composer import (
    Composer,
    ComposerState,
    SystemBlocks,
    TaskBoardSource,
    Texts,
)
from agent_core.context.messages import TokenScale
from agent_core.context.system_prompt import static_blocks
from agent_core.tools.base import View
from agent_core.types import (
    AgentRole,
    ContentBlock,
    ErrorPayload,
    Node,
    NodeType,
    Role,
    SystemBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    utc_now,
)

NOW = utc_now()
READ_FILE = ToolDefinition(name="code.read_file", description="Read a file.")


class Talk:
    """A path that grows at its end."""

    def __init__(self) -> None:
        self.path: list[Node] = []

    def add(
        self,
        role: Role,
        content: Sequence[ContentBlock],
        node_type: NodeType = NodeType.MESSAGE,
        **metadata: Any,
    ) -> Node:
        node = Node(
            node_id=f"node_{len(self.path)}",
            session_id="sess_1",
            node_seq=len(self.path) + 1,
            parent_id=self.path[-1].node_id if self.path else None,
            agent_id="agent_1",
            run_id="run_1",
            role=role,
            node_type=node_type,
            content=list(content),
            metadata=metadata,
            created_at=NOW,
        )
        self.path.append(node)
        return node

    def user(self, text: str) -> Node:
        return self.add(Role.USER, [TextBlock(text=text)])

    def says(self, text: str, **metadata: Any) -> Node:
        return self.add(Role.ASSISTANT, [TextBlock(text=text)], **metadata)

    def calls(self, *call_ids: str, name: str = "code.read_file", **arguments: Any) -> Node:
        blocks = [ToolCallBlock(tool_call_id=i, name=name, arguments=arguments) for i in call_ids]
        return self.add(Role.ASSISTANT, blocks)

    def result(self, call_id: str, text: str = "done", **metadata: Any) -> Node:
        block = ToolResultBlock(tool_call_id=call_id, content=[TextBlock(text=text)])
        return self.add(Role.TOOL, [block], **metadata)

    def failure(self, call_id: str, error: ErrorPayload) -> Node:
        block = ToolResultBlock(tool_call_id=call_id, is_error=True, error=error)
        return self.add(Role.TOOL, [block])

    def exchange(self, call_id: str, text: str = "done") -> None:
        self.calls(call_id)
        self.result(call_id, text)

    def inner(self, node_type: NodeType, text: str, **metadata: Any) -> Node:
        return self.add(Role.USER, [TextBlock(text=text)], node_type, **metadata)


def composer(
    *,
    window: int = 8192,
    static: Sequence[SystemBlock] | None = None,
    dynamic: Sequence[SystemBlock] = (),
    own: Sequence[SystemBlock] = (),
    context: ContextConfig | None = None,
    scale: TokenScale | None = None,
    board: TaskBoardSource | None = None,
    view: View | None = None,
    **earlier: Any,
) -> Composer:
    """Return a composer of a small model; `earlier` has the fields of `ComposerState`."""
    blocks = static_blocks(AgentRole.MAIN, [READ_FILE.name]) if static is None else static
    return Composer(
        ModelConfig(provider="scripted", name="a-model", context_window=window),
        context or ContextConfig(),
        SystemBlocks(blocks, dynamic, own=own),
        earlier=ComposerState(**earlier),
        texts=Texts(view),
        scale=scale,
        board=board,
    )


def write(path: Path, text: str = "body") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path

"""A call that was allowed with other arguments is sent to the model as it was made."""

from typing import Any

import pytest

from agent_core.context.messages import MessageBuilder
from agent_core.types import (
    CHANGED,
    ContentBlock,
    Node,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    utc_now,
)


def node(node_id: str, role: Role, *content: ContentBlock, **metadata: Any) -> Node:
    return Node(
        node_id=node_id,
        session_id="s1",
        node_seq=0,
        parent_id=None,
        run_id="run_1",
        agent_id="agent_1",
        role=role,
        content=list(content),
        metadata=metadata,
        created_at=utc_now(),
    )


def call(call_id: str, arguments: dict[str, Any], name: str = "write") -> ToolCallBlock:
    return ToolCallBlock(tool_call_id=call_id, name=name, arguments=arguments)


def answer(call_id: str, **metadata: Any) -> Node:
    result = ToolResultBlock(tool_call_id=call_id, content=[TextBlock(text="ok")])
    return node(f"n_{call_id}", Role.TOOL, result, **{"tool_name": "write", **metadata})


def built(*nodes: Node) -> MessageBuilder:
    """The messages of a path, as a run builds them step by step."""
    builder = MessageBuilder()
    for each in nodes:
        builder.add(each)
    builder.seal()
    return builder


@pytest.mark.parametrize(
    ("name", "asked", "made"),
    [
        ("write", {"path": "a"}, {"path": "b"}),
        (
            "internal.call_tool",
            {"name": "write", "arguments": {"path": "a"}},
            {"name": "write", "arguments": {"path": "b"}},
        ),
    ],
)
def test_the_request_is_that_of_a_model_that_has_made_the_call_so(
    name: str, asked: dict[str, Any], made: dict[str, Any]
) -> None:
    said = node("n1", Role.USER, TextBlock(text="go"))
    other = call("call_2", {"path": "c"})
    after = node("n9", Role.ASSISTANT, TextBlock(text="done"))

    def path(first: dict[str, Any], **changed: Any) -> list[Node]:
        reply = node("n2", Role.ASSISTANT, call("call_1", first, name), other)
        return [said, reply, answer("call_1", **changed), answer("call_2"), after]

    shown, expected = built(*path(asked, **{CHANGED: {"path": "b"}})), built(*path(made))
    assert shown.messages == expected.messages
    assert (shown.hash, shown.tokens) == (expected.hash, expected.tokens)
    assert [entry.group for entry in shown.entries] == [entry.group for entry in expected.entries]
    assert shown.hash != built(*path(asked)).hash


def test_what_a_tool_writes_into_its_result_changes_no_call() -> None:
    reply = node("n2", Role.ASSISTANT, call("call_1", {"path": "a"}))
    result = ToolResultBlock(tool_call_id="call_1", metadata={CHANGED: {"path": "b"}})
    shown = built(reply, node("n3", Role.TOOL, result, tool_name="write"))
    (block,) = shown.messages[0].content
    assert isinstance(block, ToolCallBlock)
    assert block.arguments == {"path": "a"}

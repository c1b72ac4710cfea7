"""Diffs and texts as an editor shows them."""

from pathlib import Path
from typing import Any

import pytest
from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ContentToolCallContent,
    FileEditToolCallContent,
    TextContentBlock,
)

from agent_core.cli.acp.updates import Translation, diff_content, fenced
from agent_core.tools.patch import unified_diff
from agent_core.types import (
    EventLevel,
    EventType,
    Node,
    NodeType,
    ReasoningBlock,
    Role,
    RuntimeEvent,
    TextBlock,
    utc_now,
)

PROJECT = Path("/project")


def edits(diff: str) -> list[tuple[str, str | None, str]]:
    found = diff_content(diff, PROJECT)
    changes = [each for each in found if isinstance(each, FileEditToolCallContent)]
    return [(each.path, each.old_text, each.new_text) for each in changes]


def remarks(diff: str) -> list[str]:
    found = [
        each for each in diff_content(diff, PROJECT) if isinstance(each, ContentToolCallContent)
    ]
    return [each.content.text for each in found if isinstance(each.content, TextContentBlock)]


def test_each_hunk_is_a_change_of_its_own() -> None:
    before = [f"{number}\n" for number in range(40)]
    after = ["first\n", *before[1:39], "last\n"]
    shown = edits(unified_diff("".join(before), "".join(after), shown="a.txt"))
    assert shown == [
        ("/project/a.txt", "0\n1\n2\n3\n", "first\n1\n2\n3\n"),
        ("/project/a.txt", "36\n37\n38\n39\n", "36\n37\n38\nlast\n"),
    ]


def test_a_new_file_has_no_text_before() -> None:
    assert edits(unified_diff("", "x\n", shown="/elsewhere/a")) == [("/elsewhere/a", None, "x\n")]


@pytest.mark.parametrize(
    "line", ["-- a", "++ b", "@@ -1 +1 @@", "", "\u2028x", "\x85", "\\ No newline"]
)
def test_lines_that_look_like_marks_are_text(line: str) -> None:
    before, after = f"keep\n{line}\n", "keep\nnew\n"
    assert edits(unified_diff(before, after, shown="a")) == [("/project/a", before, after)]
    assert edits(unified_diff(after, before, shown="a")) == [("/project/a", after, before)]


def test_what_is_hidden_of_a_diff_is_said() -> None:
    diff = unified_diff("".join(f"{n}\n" for n in range(20_000)), "", shown="a")
    assert len(edits(diff)) == 1
    (hidden,) = remarks(diff)
    assert "more lines" in hidden


def test_a_diff_of_several_files_names_each() -> None:
    diff = unified_diff("a\n", "b\n", shown="one") + unified_diff("c\n", "d\n", shown="two")
    assert edits(diff) == [("/project/one", "a\n", "b\n"), ("/project/two", "c\n", "d\n")]


@pytest.mark.parametrize("text", ["plain", "``` closes", "a ````` b ```", "`"])
def test_no_text_closes_its_fence(text: str) -> None:
    first, *body, last = fenced(text).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert first not in text
    assert "\n".join(body) == text


def event(kind: EventType, number: int, **payload: Any) -> RuntimeEvent:
    return RuntimeEvent.of_checked(
        event_id=f"evt_{number}",
        seq=number,
        run_seq=number,
        session_id="s1",
        agent_id="agent_1",
        run_id="run_1",
        level=EventLevel.INFO,
        event_type=kind,
        node_id="node_1" if kind is EventType.MESSAGE_COMPLETED else None,
        tool_call_id=None,
        payload=payload,
        created_at=utc_now(),
    )


@pytest.mark.parametrize(
    "between", [EventType.HOOK_FAILED, EventType.MCP_SERVER_FAILED, EventType.COMPACT_FAILED]
)
def test_a_remark_within_a_text_does_not_repeat_the_text(between: EventType) -> None:
    translation = Translation(PROJECT)
    reply = Node.of_checked(
        node_id="node_1",
        session_id="s1",
        node_seq=1,
        parent_id=None,
        agent_id="agent_1",
        run_id="run_1",
        role=Role.ASSISTANT,
        node_type=NodeType.MESSAGE,
        content=[ReasoningBlock(text="why"), TextBlock(text="one two")],
        metadata={},
        token_count=1,
        created_at=utc_now(),
    )
    events = [
        event(EventType.MODEL_STARTED, 1),
        event(EventType.MODEL_REASONING_DELTA, 2, text="why"),
        event(EventType.MODEL_TEXT_DELTA, 3, text="one "),
        event(between, 4, error="it broke"),
        event(EventType.MODEL_TEXT_DELTA, 5, text="two"),
        event(EventType.MESSAGE_COMPLETED, 6),
    ]
    shown = [
        (each.session_update, each.message_id, each.content)
        for one in events
        for each in translation.updates(one, reply if one.node_id else None)
        if isinstance(each, AgentMessageChunk | AgentThoughtChunk)
    ]
    said = {
        key: "".join(
            content.text
            for kind, number, content in shown
            if (kind, number) == key and isinstance(content, TextContentBlock)
        )
        for key in {(kind, number) for kind, number, _ in shown}
    }
    assert said.pop(("agent_thought_chunk", "evt_4")).endswith("it broke\n")
    assert said == {
        ("agent_message_chunk", "evt_1"): "one two",
        ("agent_thought_chunk", "evt_1-thought"): "why",
    }

"""Diffs and texts as an editor shows them."""

from pathlib import Path
from typing import Any

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
from tables import together

PROJECT = Path("/project")


def edits(diff: str) -> list[tuple[str, str | None, str]]:
    found = diff_content(diff, PROJECT, is_whole=True)
    changes = [each for each in found if isinstance(each, FileEditToolCallContent)]
    return [(each.path, each.old_text, each.new_text) for each in changes]


def remarks(diff: str, *, is_whole: bool = True) -> list[str]:
    found = diff_content(diff, PROJECT, is_whole=is_whole)
    texts = [each for each in found if isinstance(each, ContentToolCallContent)]
    return [each.content.text for each in texts if isinstance(each.content, TextContentBlock)]


def test_each_hunk_is_a_change_of_its_own() -> None:
    before = [f"{number}\n" for number in range(40)]
    after = ["first\n", *before[1:39], "last\n"]
    shown = edits(unified_diff("".join(before), "".join(after), shown="a.txt"))
    assert shown == [
        ("/project/a.txt", "0\n1\n2\n3\n", "first\n1\n2\n3\n"),
        ("/project/a.txt", "36\n37\n38\n39\n", "36\n37\n38\nlast\n"),
    ]


def test_only_a_file_that_did_not_exist_has_no_text_before() -> None:
    assert edits(unified_diff(None, "x\n", shown="/elsewhere/a")) == [("/elsewhere/a", None, "x\n")]
    assert edits(unified_diff("", "x\n", shown="a")) == [("/project/a", "", "x\n")]
    assert edits(unified_diff("x\n", "", shown="a")) == [("/project/a", "x\n", "")]


@together("before", ["one", "one\n", "one\r\n", "one\ntwo", "", "\n", "\r", "a\x0cb"])
@together("after", ["1", "1\n", "1\r\n", "one\n1", "one\r\n", "one", "\n\n", "\ufeff1"])
def test_a_diff_turns_the_text_before_into_the_text_after(before: str, after: str) -> None:
    if before != after:
        assert edits(unified_diff(before, after, shown="a")) == [("/project/a", before, after)]


@together("line", ["-- a", "++ b", "@@ -1 +1 @@", "", "\u2028x", "\x85", "\\ No newline"])
def test_lines_that_look_like_marks_are_text(line: str) -> None:
    before, after = f"keep\n{line}\n", "keep\nnew\n"
    assert edits(unified_diff(before, after, shown="a")) == [("/project/a", before, after)]
    assert edits(unified_diff(after, before, shown="a")) == [("/project/a", after, before)]


INEXACT = {
    "cut": unified_diff("".join(f"{n}\n" for n in range(20_000)), "", shown="a"),
    "cut in a hunk": "--- a\n+++ a\n@@ -1,2 +1,2 @@\n-x\n+y\n",
    "binary": "--- a\n+++ a\n(all of it is replaced)\n",
    "with a remark": "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n(the text before is a guess)\n",
    "deleted": unified_diff("x\n", None, shown="a"),
    "renamed": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n",
    "renamed by git": "diff --git a/x b/y\nrename from x\nrename to y\n",
    "no header": "@@ -1 +1 @@\n-x\n+y\n",
    "no diff": "something else",
}


@together("diff", INEXACT.values(), ids=INEXACT.keys())
def test_a_diff_that_is_not_exact_is_shown_as_text(diff: str) -> None:
    assert edits(diff) == []
    (said,) = remarks(diff)
    assert said.startswith("An exact diff cannot be shown.")
    assert diff.splitlines()[0] in said


def test_a_diff_with_removed_secrets_is_not_exact() -> None:
    diff = unified_diff("a\n", "b\n", shown="one")
    assert remarks(diff) == []
    (said,) = remarks(diff, is_whole=False)
    assert "-a\n+b\n" in said


def test_a_diff_of_git_names_its_file_without_prefixes() -> None:
    new = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n"
    changed = (
        "diff --git a/b/c b/b/c\nindex 1..2 100644\n--- a/b/c\n+++ b/b/c\n@@ -1 +1 @@\n-x\n+y\n"
    )
    assert edits(new + changed) == [("/project/n", None, "x\n"), ("/project/b/c", "x\n", "y\n")]


def test_a_diff_of_several_files_names_each() -> None:
    diff = unified_diff("a\n", "b\n", shown="one") + unified_diff("c\n", "d\n", shown="two")
    assert edits(diff) == [("/project/one", "a\n", "b\n"), ("/project/two", "c\n", "d\n")]


@together("text", ["plain", "``` closes", "a ````` b ```", "`"])
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


def reply_of(*content: TextBlock | ReasoningBlock) -> Node:
    return Node.of_checked(
        node_id="node_1",
        session_id="s1",
        node_seq=1,
        parent_id=None,
        agent_id="agent_1",
        run_id="run_1",
        role=Role.ASSISTANT,
        node_type=NodeType.MESSAGE,
        content=[*content],
        metadata={},
        token_count=1,
        created_at=utc_now(),
    )


def told(
    translation: Translation, events: list[RuntimeEvent], reply: Node
) -> dict[tuple[str, str | None], str]:
    """The texts of messages and thoughts, by kind and id."""
    found: dict[tuple[str, str | None], str] = {}
    for one in events:
        for each in translation.updates(one, reply if one.node_id else None):
            if isinstance(each, AgentMessageChunk | AgentThoughtChunk):
                assert isinstance(each.content, TextContentBlock)
                key = (each.session_update, each.message_id)
                found[key] = found.get(key, "") + each.content.text
    return found


@together("between", [EventType.HOOK_FAILED, EventType.MCP_SERVER_FAILED, EventType.COMPACT_FAILED])
def test_a_remark_within_a_text_does_not_repeat_the_text(between: EventType) -> None:
    translation = Translation(PROJECT)
    reply = reply_of(ReasoningBlock(text="why"), TextBlock(text="one two"))
    events = [
        event(EventType.MODEL_STARTED, 1),
        event(EventType.MODEL_REASONING_DELTA, 2, text="why"),
        event(EventType.MODEL_TEXT_DELTA, 3, text="one "),
        event(between, 4, error="it broke"),
        event(EventType.MODEL_TEXT_DELTA, 5, text="two"),
        event(EventType.MESSAGE_COMPLETED, 6),
    ]
    said = told(translation, events, reply)
    assert said.pop(("agent_thought_chunk", "evt_4")).endswith("it broke\n")
    assert said == {
        ("agent_message_chunk", "evt_1"): "one two",
        ("agent_thought_chunk", "evt_1-thought"): "why",
    }


@together("seen", ["", "one ", "one two "])
@together("again", [False, True])
def test_pieces_that_were_missed_or_come_again_are_shown_once(seen: str, *, again: bool) -> None:
    translation = Translation(PROJECT)
    kinds = (EventType.MODEL_REASONING_DELTA, EventType.MODEL_TEXT_DELTA)
    events = [event(EventType.MODEL_STARTED, 1)]
    events += [event(kind, 2, text=seen) for kind in kinds]
    more = "one two three"[: len(seen) + 1]
    events += [event(kind, 2, text=more, from_start=True) for kind in kinds if again]
    events.append(event(EventType.MESSAGE_COMPLETED, 3))
    reply = reply_of(ReasoningBlock(text="one two three"), TextBlock(text="one two three"))
    assert told(translation, events, reply) == {
        ("agent_message_chunk", "evt_1"): "one two three",
        ("agent_thought_chunk", "evt_1-thought"): "one two three",
    }

"""Every conversation comes back from each format as it went in."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agent_core.context.given_messages import GivenMessage, read_history
from agent_core.context.written_messages import as_anthropic, as_nodes, as_openai
from agent_core.types import Node, new_id, utc_now
from sweeps import examples

WORDS = st.text(min_size=1, max_size=30).filter(lambda text: text.strip() == text)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(_[a-z0-9]{1,8}){0,2}", fullmatch=True)
ARGUMENTS = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9)
)
CALL = st.tuples(NAMES, ARGUMENTS, WORDS)
TURN = st.tuples(WORDS, st.lists(st.tuples(st.none() | WORDS, st.lists(CALL, min_size=1))), WORDS)
CONVERSATIONS = st.lists(TURN, max_size=4)


def written(turns: Sequence[Any]) -> list[dict[str, Any]]:
    """A conversation of OpenAI."""
    messages: list[dict[str, Any]] = []
    number = 0
    for question, steps, answer in turns:
        messages.append({"role": "user", "content": question})
        for text, calls in steps:
            made: list[dict[str, Any]] = []
            results: list[dict[str, Any]] = []
            for name, arguments, result in calls:
                number += 1
                call_id = f"call_{number}"
                said = json.dumps(
                    arguments, separators=(",", ":"), ensure_ascii=False, sort_keys=True
                )
                function = {"name": name, "arguments": said}
                made.append({"id": call_id, "type": "function", "function": function})
                results.append({"role": "tool", "tool_call_id": call_id, "content": result})
            messages.append({"role": "assistant", "content": text, "tool_calls": made})
            messages += results
        messages.append({"role": "assistant", "content": answer})
    return messages


def nodes(messages: Sequence[GivenMessage]) -> list[Node]:
    made: list[Node] = []
    for number, each in enumerate(messages, start=1):
        made.append(
            Node(
                node_id=new_id("node"),
                session_id="s",
                node_seq=number,
                parent_id=made[-1].node_id if made else None,
                agent_id="a",
                run_id=None,
                role=each.role,
                node_type=each.node_type,
                content=list(each.content),
                metadata=dict(each.metadata),
                created_at=utc_now(),
            )
        )
    return made


@pytest.mark.long
@settings(max_examples=examples(25))
@given(CONVERSATIONS)
def test_a_conversation_passes_through_every_format(turns: Sequence[Any]) -> None:
    messages = written(turns)
    path = nodes(read_history(messages).messages)
    assert as_openai(path) == messages
    assert as_openai(nodes(read_history(as_nodes(path)).messages)) == messages
    theirs = as_anthropic(path)
    back = nodes(read_history(theirs).messages)
    assert as_anthropic(back) == theirs
    assert as_openai(back) == messages


@pytest.mark.long
@settings(max_examples=examples(25))
@given(CONVERSATIONS, st.data())
def test_a_conversation_that_is_cut_off_has_an_answer_to_every_call(
    turns: Sequence[Any], data: st.DataObject
) -> None:
    messages = written(turns)
    end = data.draw(st.integers(0, len(messages)))
    history = read_history(messages[:end])
    given = as_openai(nodes(history.messages))
    asked = [call["id"] for each in given for call in each.get("tool_calls", ())]
    answered = [each["tool_call_id"] for each in given if each["role"] == "tool"]
    assert sorted(asked) == sorted(answered)

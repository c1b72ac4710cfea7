from collections.abc import Callable
from typing import Any

from hypothesis import given, settings, strategies as st

from agent_core.context.composer import BuiltRequest, rebuild_requests
from agent_core.context.history import open_instructions
from agent_core.context.messages import TokenScale
from agent_core.types import (
    ArtifactRefBlock,
    JsonBlock,
    ModelRequest,
    NodeType,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from sweeps import examples
from unit.context.conversations import READ_FILE, Talk, composer

TOOLS = (READ_FILE,)


def said(request: ModelRequest) -> str:
    parts: list[str] = []
    for message in request.messages:
        for block in message.content:
            content = block.content if isinstance(block, ToolResultBlock) else [block]
            parts.extend(b.text for b in content if isinstance(b, TextBlock))
    return "\n".join(parts)


def result_tokens(built: BuiltRequest) -> int:
    return built.use.messages


def test_older_results_are_cut_to_summaries_before_anything_else_and_the_latest_is_kept() -> None:
    talk = Talk()
    talk.user("goal")
    for turn in range(6):
        talk.exchange(f"call_{turn}", f"result {turn} " + "x" * 6000)
    built = composer().build(talk.path, TOOLS)
    assert not built.over_budget
    text = said(built.request)
    assert "result 5 xxx" in text
    assert len(text) > 6000
    assert "[older result of 6009 characters, cut down] result 0 xxx" in text
    cut = [result["node_id"] for result in built.report["downgraded_artifacts"]]
    assert cut == ["node_2", "node_4", "node_6", "node_8"][: len(cut)]
    assert not built.report["dropped_node_ids"]


def test_a_cut_result_keeps_its_artifact_and_its_summary() -> None:
    talk = Talk()
    talk.user("goal")
    talk.calls("a", "b")
    reference = ArtifactRefBlock(artifact_id="art_1", summary="a long log")
    content = [TextBlock(text="y" * 20_000), reference]
    talk.add(Role.TOOL, [ToolResultBlock(tool_call_id="a", content=list(content))])
    run = JsonBlock(data={"stdout": "z" * 8000, "stdout_artifact_id": "art_2"})
    talk.add(Role.TOOL, [ToolResultBlock(tool_call_id="b", content=[run])])
    talk.exchange("c", "fine")
    built = composer().build(talk.path, TOOLS)
    text = said(built.request)
    assert "all of it is artifact art_1] a long log" in text
    assert "all of it is artifact art_2" in text
    cut = built.report["downgraded_artifacts"]
    assert cut == [
        {"node_id": "node_2", "artifact_ids": ["art_1"]},
        {"node_id": "node_3", "artifact_ids": ["art_2"]},
    ]


def test_a_cut_goes_far_enough_that_the_next_turn_does_not_change_the_past_again() -> None:
    talk = Talk()
    made = composer()
    talk.user("goal")
    rewrites = 0
    for turn in range(40):
        talk.exchange(f"call_{turn}", "w" * 1200)
        built = made.build(talk.path, TOOLS)
        assert not built.over_budget
        rewrites += built.report["changed_segment"] == "history"
    assert 0 < rewrites < 12


def test_nothing_is_dropped_unless_it_may_be() -> None:
    talk = Talk()
    for turn in range(40):
        talk.user(f"question {turn} " + "q" * 1000)
        talk.says("answer")
    made = composer()
    refused = made.build(talk.path, TOOLS)
    assert refused.over_budget
    assert not refused.report["dropped_node_ids"]
    fits = made.build(talk.path, TOOLS, may_drop=True)
    assert not fits.over_budget
    text = said(fits.request)
    assert "question 0 " in text
    assert "question 1 " not in text
    assert "question 39 " in text


def test_what_was_dropped_stays_dropped() -> None:
    talk = Talk()
    for turn in range(40):
        talk.user(f"question {turn} " + "q" * 1000)
        talk.says("answer")
    made = composer()
    first = made.build(talk.path, TOOLS, may_drop=True)
    talk.user("one more")
    second = made.build(talk.path, TOOLS, may_drop=True)
    assert second.request.messages[:-1] == first.request.messages
    assert second.report["changed_segment"] is None


def test_a_plan_instruction_is_kept_until_the_plan_is_written() -> None:
    def talk_about(*, path: str | None) -> str:
        talk = Talk()
        talk.user("goal")
        talk.inner(NodeType.PLAN_INSTRUCTION, "write a plan")
        if path:
            talk.calls("w", name="code.write_file", path=path)
            talk.result("w")
            talk.user("thanks")
            talk.exchange("r")
        for turn in range(40):
            talk.user(f"question {turn} " + "q" * 1000)
            talk.says("answer")
        return said(composer().build(talk.path, TOOLS, may_drop=True).request)

    assert "write a plan" in talk_about(path=None)
    assert "write a plan" in talk_about(path="src/main.py")
    assert "write a plan" not in talk_about(path=".soong-agent/plans/a.md")


def test_a_plan_instruction_ends_with_the_answer_of_a_later_run() -> None:
    talk = Talk()
    talk.user("goal")
    asked = talk.inner(NodeType.PLAN_INSTRUCTION, "write a plan")
    talk.says("Which database?")
    for run_id, is_open in (("run_1", True), ("run_2", False)):
        answer = talk.says("The plan is: hurry.").model_copy(update={"run_id": run_id})
        assert open_instructions([*talk.path[:-1], answer]) == ([asked] if is_open else [])
        assert open_instructions(talk.path) == [asked]


def test_a_failed_write_does_not_use_the_plan_instruction_up() -> None:
    talk = Talk()
    talk.user("goal")
    talk.inner(NodeType.PLAN_INSTRUCTION, "write a plan")
    talk.calls("w", name="code.write_file", path="plans/a.md")
    talk.add(Role.TOOL, [ToolResultBlock(tool_call_id="w", is_error=True)])
    for turn in range(40):
        talk.user(f"question {turn} " + "q" * 1000)
        talk.says("answer")
    assert "write a plan" in said(composer().build(talk.path, TOOLS, may_drop=True).request)


def test_a_latest_exchange_larger_than_the_window_is_shown_in_part_and_never_dropped() -> None:
    talk = Talk()
    talk.user("goal")
    talk.calls("small", "large")
    talk.result("small", "fits")
    talk.result("large", "HEAD" + "h" * 200_000 + "TAIL")
    built = composer().build(talk.path, TOOLS)
    assert not built.over_budget
    text = said(built.request)
    assert "fits" in text
    assert "HEADhhh" in text
    assert "hhhTAIL" in text
    assert "does not fit the context window" in text
    cut = built.report["downgraded_artifacts"]
    assert [reference["node_id"] for reference in cut] == ["node_2", "node_3"]
    (again,) = rebuild_requests(talk.path, [built.report], {tool.name: tool for tool in TOOLS})
    assert again.messages == built.request.messages


text_sizes = st.sampled_from([0, 1, 40, 400, 4000])
steps = st.one_of(
    st.tuples(st.just("user"), text_sizes),
    st.tuples(st.just("says"), text_sizes),
    st.tuples(st.just("partial"), text_sizes),
    st.tuples(st.just("calls"), st.integers(1, 4)),
    st.tuples(st.just("result"), text_sizes),
    st.tuples(st.just("stray"), text_sizes),
    st.tuples(st.just("skill"), text_sizes),
    st.tuples(st.just("plan"), text_sizes),
    st.tuples(st.just("compact"), st.integers(0, 30)),
    st.tuples(st.just("build"), st.booleans()),
)


def play(talk: Talk, step: tuple[str, Any], open_calls: list[str]) -> None:
    kind, size = step
    if kind == "calls":
        call_ids = [f"c{len(talk.path)}_{i}" for i in range(size)]
        talk.calls(*call_ids)
        open_calls.extend(reversed(call_ids))
    elif kind == "result" and open_calls:
        talk.result(open_calls.pop(), "r" * size)
    elif kind in PLAIN_STEPS:
        PLAIN_STEPS[kind](talk, size)


def compact(talk: Talk, size: int) -> None:
    kept = f"node_{size}" if size else None
    talk.inner(NodeType.COMPACTION, "summary", first_kept_node_id=kept)


PLAIN_STEPS: dict[str, Callable[[Talk, int], object]] = {
    "user": lambda talk, size: talk.user("u" * size),
    "says": lambda talk, size: talk.says("a" * size),
    "partial": lambda talk, size: talk.says("p" * size, partial=True),
    "stray": lambda talk, size: talk.result("never_called", "s" * size),
    "skill": lambda talk, size: talk.inner(
        NodeType.SKILL_CONTEXT, "k" * size, name=f"skill_{size}"
    ),
    "plan": lambda talk, size: talk.inner(NodeType.PLAN_INSTRUCTION, "i" * size),
    "compact": compact,
}


def assert_every_call_is_answered(request: ModelRequest) -> None:
    messages = request.messages
    for place, message in enumerate(messages):
        assert message.content
        calls = [b.tool_call_id for b in message.content if isinstance(b, ToolCallBlock)]
        results = [b.tool_call_id for b in message.content if isinstance(b, ToolResultBlock)]
        if calls:
            assert place + 1 < len(messages)
            following = messages[place + 1].content
            answered = [b.tool_call_id for b in following if isinstance(b, ToolResultBlock)]
            assert answered == calls
        if results:
            before = messages[place - 1].content
            asked = [b.tool_call_id for b in before if isinstance(b, ToolCallBlock)]
            assert place > 0
            assert asked == results


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(steps, max_size=60), st.sampled_from([1024, 2048, 8192, 128_000]), st.booleans())
def test_no_call_is_ever_parted_from_its_result(
    script: list[tuple[str, Any]], window: int, may_drop: bool
) -> None:
    talk, open_calls = Talk(), list[str]()
    made = composer(window=window, scale=TokenScale())
    for step in script:
        play(talk, step, open_calls)
        if step[0] == "build":
            assert_every_call_is_answered(made.build(talk.path, TOOLS, may_drop=step[1]).request)
    built = made.build(talk.path, TOOLS, may_drop=may_drop)
    assert_every_call_is_answered(built.request)
    use = built.use
    assert built.over_budget == (use.total > built.budget.prompt)
    assert use.dynamic_system <= built.budget.dynamic


@settings(deadline=None, max_examples=examples(80))
@given(st.lists(steps, max_size=60))
def test_building_turn_by_turn_gives_what_building_once_gives(
    script: list[tuple[str, Any]],
) -> None:
    talk, open_calls = Talk(), list[str]()
    made = composer(window=1_000_000)
    for step in script:
        play(talk, step, open_calls)
        made.build(talk.path, TOOLS)
    at_once = composer(window=1_000_000).build(talk.path, TOOLS)
    step_by_step = made.build(talk.path, TOOLS)
    assert step_by_step.request == at_once.request
    assert step_by_step.report["hashes"] == at_once.report["hashes"]


def test_what_is_kept_stands_before_a_history_that_leaves_exchanges_out_and_is_rebuilt() -> None:
    talk = Talk()
    made = composer(window=2048, static=())
    talk.user("the goal")
    made.build(talk.path, ())
    talk.inner(NodeType.INSTRUCTION_CONTEXT, "Use tabs.", path="sub/CLAUDE.md", hash="h")
    reports = [made.build(talk.path, ()).report]
    for number in range(40):
        talk.user("word " * 60)
        talk.exchange(f"d{number}")
    made.keep("<kept>\nNever push.\n</kept>")
    built = [made.build(talk.path, (), may_drop=True)]
    talk.user("now")
    built.append(made.build(talk.path, ()))
    reports += [each.report for each in built]
    for each in built:
        first = each.request.messages[0]
        assert first.metadata == {"synthetic": True, "source_type": "kept"}
        assert not each.over_budget
    assert built[1].request.messages[: len(built[0].request.messages)] == built[0].request.messages
    rebuilt = rebuild_requests(talk.path, reports, {})
    assert all(request.metadata["exact"] for request in rebuilt)
    assert rebuilt[-1].messages == built[-1].request.messages


def test_a_kept_part_that_leaves_no_room_is_left_out_itself() -> None:
    talk = Talk()
    made = composer(window=2048, static=())
    talk.user("word " * 1000)
    talk.exchange("d1", "word " * 900)
    made.keep("<kept>\n" + "rule " * 400 + "\n</kept>")
    built = made.build(talk.path, (), may_drop=True)
    assert built.request.messages[0].metadata.get("source_type") != "kept"

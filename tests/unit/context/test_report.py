from itertools import product
from typing import Any

import pytest

from agent_core.context.composer import rebuild_requests
from agent_core.context.system_prompt import system_block
from agent_core.types import NodeType, ToolDefinition
from unit.context.conversations import READ_FILE, Talk, composer

TOOLS = (READ_FILE,)


def test_the_first_report_lists_the_path_and_later_ones_what_is_new() -> None:
    talk = Talk()
    made = composer()
    talk.user("one")
    first = made.build(talk.path, TOOLS).report
    assert first["node_ids"] == ["node_0"]
    assert first["node_count"] == 1
    assert "added_node_ids" not in first
    talk.exchange("a")
    second = made.build(talk.path, TOOLS).report
    assert second["added_node_ids"] == ["node_1", "node_2"]
    assert second["path_end_node_id"] == "node_2"
    assert "node_ids" not in second


def test_the_first_report_lists_at_most_200_nodes_and_counts_them_all() -> None:
    talk = Talk()
    for number in range(300):
        talk.user(str(number))
    payload = composer(window=100_000).build(talk.path, TOOLS).report
    assert len(payload["node_ids"]) == 200
    assert payload["node_ids"][-1] == "node_299"
    assert payload["node_count"] == 300


def test_a_report_tells_budget_and_use() -> None:
    talk = Talk()
    talk.user("four")
    payload = composer(window=8192).build(talk.path, TOOLS).report
    assert payload["budget"]["window"] == 8192
    assert payload["budget"]["prompt"] == 6144
    use = payload["use"]
    assert use["messages"] == 5
    parts = ("static_system", "dynamic_system", "tools", "messages")
    assert use["total"] == sum(use[part] for part in parts)
    assert payload["system_blocks"]["kept"][0] == "system.core"


def test_a_history_that_only_grows_has_not_changed() -> None:
    talk = Talk()
    made = composer()
    talk.user("one")
    first = made.build(talk.path, TOOLS).report
    talk.says("two")
    second = made.build(talk.path, TOOLS).report
    assert first["changed_segment"] is None
    assert second["changed_segment"] is None
    assert first["hashes"]["history"] != second["hashes"]["history"]


def test_the_first_segment_that_changed_is_named() -> None:
    talk = Talk()
    made = composer()
    talk.user("one")
    made.build(talk.path, TOOLS)
    more = (READ_FILE, ToolDefinition(name="code.search", description="Search."))
    assert made.build(talk.path, more).report["changed_segment"] == "tools"
    talk.inner(NodeType.INSTRUCTION_CONTEXT, "Use tabs.", path="CLAUDE.md", hash="h1")
    assert made.build(talk.path, more).report["changed_segment"] is None
    kept = talk.user("two")
    made.build(talk.path, more)
    talk.inner(NodeType.COMPACTION, "what was", first_kept_node_id=kept.node_id)
    assert made.build(talk.path, more).report["changed_segment"] == "dynamic_system"


def test_a_new_run_says_what_has_changed_since_the_last_one() -> None:
    talk = Talk()
    talk.user("one")
    talk.says("two")
    last = composer().build(talk.path, TOOLS).report
    talk.user("three")
    assert composer(report=last).build(talk.path, TOOLS).report["changed_segment"] is None
    other = [system_block("system.core", "x", "Other words.")]
    changed = composer(report=last, static=other).build(talk.path, TOOLS).report
    assert changed["changed_segment"] == "static_system"
    branch = Talk()
    branch.user("another beginning")
    branch.says("two")
    changed = composer(report=last).build(branch.path, TOOLS).report
    assert changed["changed_segment"] == "history"


@pytest.mark.long
def test_the_next_run_of_a_path_builds_what_a_first_one_would() -> None:
    """Whatever the last run left: a call without its answer, a summary, a cut, another branch."""

    def talked(*, keeps: int) -> Talk:
        talk = Talk()
        for number in range(4):
            talk.user(f"question {number}")
            talk.exchange(f"c{number}", "word " * 400)
            talk.says(f"answer {number}")
        del talk.path[keeps:]
        return talk

    def goes_on(talk: Talk) -> None:
        talk.user("and now?")
        talk.exchange("late", "done")

    def is_summarised(talk: Talk) -> None:
        talk.inner(NodeType.COMPACTION, "in short", first_kept_node_id=talk.path[4].node_id)
        talk.says("after it")

    def goes_back(talk: Talk) -> None:
        del talk.path[4:]
        talk.user("another way")

    def loads_rules(talk: Talk) -> None:
        talk.inner(NodeType.INSTRUCTION_CONTEXT, "Use tabs.", path="CLAUDE.md", hash="h1")

    changes = (goes_on, is_summarised, goes_back, loads_rules)
    for window in (8192, 2600):
        for keeps in (16, 15, 14):
            for first, then in product(changes, changes):
                talk = talked(keeps=keeps)
                last = composer(window=window)
                last.build(talk.path, TOOLS, may_drop=True)
                first(talk)
                last.build(talk.path, TOOLS, may_drop=True)
                then(talk)
                copies = [node.model_copy() for node in talk.path]  # as they are read again
                settled = last.handed_on.settled
                anew = composer(window=window, settled=settled)
                expected = anew.build(copies, TOOLS, may_drop=True)
                continued = composer(window=window, settled=settled, history=last.history)
                built = continued.build(copies, TOOLS, may_drop=True)
                assert built.request == expected.request
                assert built.report == expected.report
                talk.user("once more")
                copies.append(talk.path[-1])
                again = continued.build(copies, TOOLS).request
                assert again == anew.build(copies, TOOLS).request


def test_every_turn_can_be_built_again_from_nodes_and_reports() -> None:
    talk = Talk()
    board = iter(["all ready", "all ready", "one done", "done", "done"])

    def show(budget: int) -> str:
        assert budget > 0
        return next(board)

    dynamic = [system_block("memory_catalog", "memory", "mem_1: tea", priority=20, dynamic=True)]
    made = composer(dynamic=dynamic, board=show)
    talk.user("goal " + "g" * 4000)
    requests: list[Any] = []
    reports: list[Any] = []

    def turn(*, may_drop: bool = False) -> None:
        built = made.build(talk.path, TOOLS, may_drop=may_drop)
        requests.append(built.request)
        reports.append(built.report)

    turn()
    talk.exchange("a", "r" * 9000)
    talk.inner(NodeType.INSTRUCTION_CONTEXT, "Use tabs.", path="CLAUDE.md", hash="h1")
    turn()
    talk.exchange("b", "s" * 9000)
    turn()
    kept = talk.user("next " + "n" * 6000)
    talk.user("more " + "m" * 9000)
    turn(may_drop=True)
    talk.inner(NodeType.COMPACTION, "what was", first_kept_node_id=kept.node_id)
    turn()
    assert any(report["downgraded_artifacts"] for report in reports)
    assert any(report["dropped_node_ids"] for report in reports)
    rebuilt = rebuild_requests(reversed(talk.path), reports, {READ_FILE.name: READ_FILE})
    assert [r.metadata["exact"] for r in rebuilt] == [True] * 5
    for old, new in zip(requests, rebuilt, strict=True):
        assert new.model_copy(update={"metadata": {}}) == old


def test_a_request_rebuilt_from_changed_texts_says_so() -> None:
    talk = Talk()
    talk.user("one")
    report = composer().build(talk.path, TOOLS).report
    other = READ_FILE.model_copy(update={"description": "Read it."})
    (request,) = rebuild_requests(talk.path, [report], {other.name: other})
    assert request.metadata["exact"] is False


def test_a_request_that_is_not_sent_leaves_its_news_to_the_next_report() -> None:
    talk = Talk()
    talk.user("goal")
    for turn in range(5):
        talk.exchange(f"call_{turn}", "r" * 4000)
        talk.user(f"question {turn} " + "q" * 6000)
    made = composer()
    refused = made.build(talk.path, TOOLS)
    assert refused.over_budget
    assert refused.report["downgraded_artifacts"]
    sent = made.build(talk.path, TOOLS, may_drop=True).report
    assert sent["turn"] == 1
    assert sent["node_ids"][0] == "node_0"
    assert sent["system"]
    assert sent["downgraded_artifacts"]
    assert sent["dropped_node_ids"]
    after = made.build(talk.path, TOOLS).report
    assert after["turn"] == 2
    assert after["downgraded_artifacts"] == []
    assert after["dropped_node_ids"] == []

from agent_core.compact.cut import choose_cut, visible_tokens
from agent_core.types import NodeType
from tables import together
from unit.compact.paths import Path

LONG = "word " * 200
"""254 tokens with its message."""


def talk(turns: int) -> Path:
    path = Path()
    for number in range(turns):
        path.user(f"question {number}")
        path.says(LONG)
    return path


def test_the_end_is_kept_from_the_beginning_of_a_turn() -> None:
    path = talk(6)
    cut = choose_cut(path.nodes, keep=600)
    assert cut is not None
    assert path.nodes[cut.end].text == "question 4"
    assert (cut.start, cut.turn, cut.previous) == (0, cut.end, None)
    assert cut.tokens_before == visible_tokens(path.nodes) == sum(n.token_count for n in path.nodes)


@together("keep", [0, 1, 100])
def test_the_last_turn_stays_whole_or_is_cut_between_its_exchanges(keep: int) -> None:
    path = talk(3)
    cut = choose_cut(path.nodes, keep=keep)
    assert cut is not None
    assert path.nodes[cut.end].role == "assistant"
    assert path.nodes[cut.turn].text == "question 2"


def test_a_huge_turn_is_cut_in_two_before_a_call() -> None:
    path = talk(1)
    begin = path.user("do it all")
    for number in range(10):
        path.calls(f"a{number}", f"b{number}")
        path.result(f"a{number}", LONG)
        path.result(f"b{number}", LONG)
    cut = choose_cut(path.nodes, keep=1200)
    assert cut is not None
    assert path.nodes[cut.turn] is begin
    assert [call.tool_call_id for call in path.nodes[cut.end].calls] == ["a8", "b8"]


def test_what_an_earlier_summary_covers_is_not_summarised_again() -> None:
    path = talk(4)
    kept = path.nodes[6]
    summary = path.inner(NodeType.COMPACTION, "what was", first_kept_node_id=kept.node_id)
    for number in range(4, 8):
        path.user(f"question {number}")
        path.says(LONG)
    cut = choose_cut(path.nodes, keep=600)
    assert cut is not None
    assert (cut.start, cut.previous) == (6, summary)
    assert path.nodes[cut.end].text == "question 6"
    assert cut.tokens_before == visible_tokens(path.nodes)


def test_a_summary_of_another_path_covers_nothing() -> None:
    path = talk(4)
    path.inner(NodeType.COMPACTION, "what was", first_kept_node_id="node_elsewhere")
    path.user("next")
    cut = choose_cut(path.nodes, keep=300)
    assert cut is not None
    assert (cut.start, cut.previous) == (0, None)


def test_too_little_is_not_worth_it() -> None:
    assert choose_cut(talk(2).nodes, keep=10_000) is None
    assert choose_cut(talk(4).nodes, keep=300, least=5000) is None
    assert choose_cut([], keep=10) is None
    alone = Path()
    alone.user(LONG)
    assert choose_cut(alone.nodes, keep=10) is None


def test_a_result_that_came_late_is_kept_with_its_call() -> None:
    path = Path()
    path.user(LONG)
    path.says(LONG)
    path.calls("late")
    path.user("go on")
    path.says(LONG)
    path.result("late", "here")
    path.user("next")
    path.says(LONG)
    cut = choose_cut(path.nodes, keep=100)
    assert cut is not None
    assert cut.end <= 2 or cut.end > 5


def test_a_message_whose_turn_is_cut_stays_and_its_tokens_count() -> None:
    path = talk(1)
    asked = path.user("do it all: " + LONG)
    for number in range(10):
        path.calls(f"a{number}")
        path.result(f"a{number}", LONG)
    whole = visible_tokens(path.nodes)
    cut = choose_cut(path.nodes, keep=1200)
    assert cut is not None
    tail = sum(node.token_count for node in path.nodes[cut.end :])
    assert tail + asked.token_count <= 1200
    assert cut.replaced_tokens == whole - tail - asked.token_count
    kept = path.nodes[cut.end].node_id
    path.inner(NodeType.COMPACTION, "what was", first_kept_node_id=kept)
    before = path.nodes[-1].token_count
    assert visible_tokens(path.nodes) == tail + asked.token_count + before
    assert visible_tokens(path.nodes, message=100) < tail + asked.token_count + before


def test_resources_that_a_message_names_stay_with_it() -> None:
    path = talk(3)
    path.inner(NodeType.RESOURCE_CONTEXT, "tides", server="lib", uri="book://tides")
    path.user("now, with @lib:book://tides")
    path.says(LONG)
    cut = choose_cut(path.nodes, keep=400)
    assert cut is not None
    assert path.nodes[cut.end].node_type is NodeType.RESOURCE_CONTEXT
    assert cut.turn == cut.end

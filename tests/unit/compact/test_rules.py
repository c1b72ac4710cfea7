from agent_core.compact.kept import rule_statements
from tables import together


@together(
    ("text", "statements"),
    [
        ("Hello. Always use tabs! Thanks.", ["Always use tabs!"]),
        (
            "Never push to main.\nDon\u2019t touch a.py.",
            ["Never push to main.", "Don\u2019t touch a.py."],
        ),
        ("Edit src/a.py; you must keep v1.2.3.", ["you must keep v1.2.3."]),
        ("- do NOT rename\n- fine", ["do NOT rename"]),
        ("请修复这个错误。必须保留注释\uff01不要改接口。", ["必须保留注释\uff01", "不要改接口。"]),
        ("From now on, answer in French", ["From now on, answer in French"]),
        (
            "Don\u2018t log it. Don`t push! Don\u00b4t wait",
            ["Don\u2018t log it.", "Don`t push!", "Don\u00b4t wait"],
        ),
        ("Stop using tabs. Linting is mandatory.", ["Stop using tabs.", "Linting is mandatory."]),
        ("勿用制表符。別用分号。别改接口。", ["勿用制表符。", "別用分号。", "别改接口。"]),
        ("这个类别特别好。分别处理。", []),
        ("What is the best mustard?", []),
        ("I have seen others do it.", []),
        ("", []),
    ],
)
def test_a_rule_is_the_sentence_that_sets_it(text: str, statements: list[str]) -> None:
    assert rule_statements(text) == statements


def test_a_sentence_without_end_is_cut_to_the_part_with_the_rule() -> None:
    (statement,) = rule_statements("word " * 500 + "you must never stop " + "word " * 500)
    assert len(statement) <= 300
    assert "you must never stop" in statement

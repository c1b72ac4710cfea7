import json
from time import process_time
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from agent_core.assets.front_matter import MAX_HEAD_BYTES, parse_front_matter
from sweeps import examples
from tables import together

MOST_SECONDS = 2

REFUSED = {
    "a tag": "x: !!bool x",
    "a tag of an empty number": 'x: !!int ""',
    "a tag of a date": "x: !!timestamp abc",
    "a tag of one's own": "x: !mine 1",
    "a tag of Python's": "x: !!python/object:os.system x",
    "a tagged table": "x: !!set {a}",
    "a tagged head": "!!map {a: 1}",
    "an anchor": "a: &a 1",
    "an anchor on nothing": "a: &a",
    "an anchor on a key": "&a a: 1",
    "an alias": "a: &a [1]\nb: *a",
    "an alias alone": "*a",
    "a merge key": "<<: {a: 1}",
    "a merge of anchors": "a: &a {x: 1}\nb:\n  <<: [*a, *a]",
    "aliases that multiply": "\n".join(
        f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]" if n else "k0: &k0 [1]" for n in range(30)
    ),
    "3,000 brackets": "a: " + "[" * 3000,
    "8,000 brackets": "[" * 8000,
    "2,000 tables": "a: " + "{a: " * 2000,
    "tables a level deeper than allowed": "a: {b: {c: {d: {e: {f: 1}}}}}",
    "120 indented levels": "\n".join(" " * n + "a:" for n in range(120)),
    "2,000 lists": "- " * 2000,
    "a list in a list": "a: [1, [2]]",
    "a table in a list": "a:\n  - b: 1",
    "a key that is a list": "? [a]\n: b",
    "4,000 keys in keys": "? " * 4000,
    "a key twice": "a: 1\nb: 2\na: 3",
    "a tab for indentation": "a:\n\tb: 1",
    "a NUL": "a: \0",
    "another control character": "a: \x07",
    "a second document": "a: 1\n--- b",
    "a directive": "%TAG ! tag:x,2000:\n--- {a: 1}",
    "a list": "- 1",
    "a word": "word",
    "an open quote": "a: 'x",
    "an open bracket": "a: [1, 2",
    "a mark of the future": "a: @x",
    "too long": "a: " + "x" * 2 * MAX_HEAD_BYTES,
    "too long, in lines": "a: 1\n" * MAX_HEAD_BYTES,
}


@together("head", REFUSED.values(), ids=list(REFUSED))
def test_what_is_not_admitted_is_a_problem_and_no_exception(head: str) -> None:
    started = process_time()
    taken = parse_front_matter(f"---\n{head}\n---\nbody")
    assert process_time() - started < MOST_SECONDS
    assert taken.problem
    assert len(taken.problem) < 300
    assert taken.fields == {}
    assert taken.body.endswith("body")


@together(
    ("head", "value"),
    [
        ("x", "x"),
        ("'1'", "1"),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("yes", True),
        ("False", False),
        ("null", None),
        ("", None),
        ("~", None),
        ("[a, 1, 'b']", ["a", 1, "b"]),
        ("\n  - a\n  - b", ["a", "b"]),
        ("{b: {c: [1]}}", {"b": {"c": [1]}}),
        ("{b: {c: {d: {e: 1}}}}", {"b": {"c": {"d": {"e": 1}}}}),
        ("2026-01-02", "2026-01-02"),
        ("2026-13-45", "2026-13-45"),
        ("0x1f", "0x1f"),
        ("010", "010"),
        ("190:20:30", "190:20:30"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1.0e+999", "1.0e+999"),
        ("0x" + "f" * 7000, "0x" + "f" * 7000),
        ("9" * 7000, "9" * 7000),
        ("|\n  a\n  b", "a\nb\n"),
    ],
)
def test_a_value_is_plain_whatever_else_it_looks_like(head: str, value: Any) -> None:
    taken = parse_front_matter(f"---\nx: {head}\n---\n")
    assert taken.problem is None
    assert taken.fields == {"x": value}


def test_keys_are_text() -> None:
    taken = parse_front_matter("---\n1: a\nnull: b\nyes: c\n2026-01-02: d\n---\n")
    assert list(taken.fields) == ["1", "null", "yes", "2026-01-02"]


def test_a_head_is_taken_off() -> None:
    taken = parse_front_matter("---\nname: x\ntags: [a, b]\n---\nbody\n")
    assert taken.fields == {"name": "x", "tags": ["a", "b"]}
    assert taken.body == "body\n"
    assert taken.text("name") == "x"
    assert taken.text("tags") == ""


@together("text", ["body", "", "-- -\n", "text\n---\na: 1\n---\n"])
def test_a_text_without_a_head_is_all_body(text: str) -> None:
    taken = parse_front_matter(text)
    assert taken.body == text
    assert taken.fields == {}
    assert taken.problem is None


@together("head", ["", "# only a remark\n", "\n\n", "   \n"])
def test_an_empty_head_has_no_fields_and_no_problem(head: str) -> None:
    taken = parse_front_matter(f"---\n{head}---\nbody")
    assert (taken.fields, taken.problem, taken.body) == ({}, None, "body")


@together("mark", [b"", b"\xef\xbb\xbf"])
@together("end", [b"\n", b"\r\n"])
def test_bom_and_windows_line_ends_are_fine(mark: bytes, end: bytes) -> None:
    taken = parse_front_matter(mark + b"---" + end + b"name: x" + end + b"---" + end + b"body")
    assert taken.fields == {"name": "x"}
    assert taken.body == "body"


def test_bytes_that_are_no_utf8_make_a_head_a_problem_and_a_body_approximate() -> None:
    broken_head = parse_front_matter(b"---\nname: caf\xe9\n---\nbody")
    assert broken_head.problem == "the front matter is not UTF-8"
    assert broken_head.body == "body"
    broken_body = parse_front_matter(b"---\nname: x\n---\ncaf\xe9\0!")
    assert broken_body.fields == {"name": "x"}
    assert broken_body.body == "caf\ufffd!"


def test_a_head_without_an_end_says_so_and_where_a_broken_line_is() -> None:
    assert "no end line" in str(parse_front_matter("---\nname: x\nbody").problem)
    assert "line 3" in str(parse_front_matter("---\na: 1\nb: !!int x\n---\n").problem)


_PIECES = st.sampled_from(
    [
        *("a", "1", ":", " ", ": ", "\n", "\n  ", "- ", "? ", "[", "]", "{", "}", ",", "&a ", "*a"),
        *("!!int ", "!!bool ", "!x ", "<<", "|", ">", "'", '"', "\\x41", "#", "%", "@", "`", "---"),
        *("...", "\t", "\r", "\0", "\x85", "\u2028", "\ufeff", "\U0001f600", "0x1", ".inf", "~"),
    ]
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_PIECES, max_size=400).map("".join) | st.text(max_size=500))
def test_any_text_is_taken_apart_quickly_into_plain_values(head: str) -> None:
    content = f"---\n{head}\n---\nbody"
    started = process_time()
    taken = parse_front_matter(content)
    assert process_time() - started < MOST_SECONDS
    assert not (taken.problem and taken.fields)
    _check_plain(taken.fields, depth=1)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=600))
def test_any_bytes_are_taken_apart(content: bytes) -> None:
    for raw in (content, b"---\n" + content, b"---\n" + content + b"\n---\n"):
        _check_plain(parse_front_matter(raw).fields, depth=1)


def _check_plain(value: Any, *, depth: int) -> None:
    assert depth <= 6
    match value:
        case dict():
            for key, each in value.items():  # pyright: ignore[reportUnknownVariableType]
                assert isinstance(key, str)
                _check_plain(each, depth=depth + 1)
        case list():
            assert all(each is None or isinstance(each, str | int | float) for each in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            assert value is None or isinstance(value, str | int | float)


_KEYS = st.sampled_from(["id", "summary", "created_at", "y", "no", "null", "Key", "a-b", "<<", ""])
_TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(['"', "\\", "\\u0041", "null", "x #y", " x ", "\x7f", ""])
)
_VALUES = st.one_of(_TEXTS, st.lists(_TEXTS, max_size=3), st.integers(), st.booleans())


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(_KEYS, _VALUES, st.booleans()), min_size=1, max_size=5))
def test_a_head_of_json_means_what_yaml_says(lines: list[tuple[str, Any, bool]]) -> None:
    """A comment makes it a head that only YAML reads."""
    head = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=a)}" for key, value, a in lines)
    quick = parse_front_matter(f"---\n{head}\n---\nbody".encode("utf-8", "replace"))
    slow = parse_front_matter(f"---\n{head} # comment\n---\nbody".encode("utf-8", "replace"))
    assert quick == slow

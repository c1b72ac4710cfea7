"""The pages in other languages: every word that they use has one there."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest

from agent_core.errors import ErrorCode
from agent_core.history.words import kind_in_words, meaning_of, speaker
from agent_core.permissions.answers import DECISIONS, PLACES
from agent_core.tasks.model import TaskStatus, TaskStepStatus
from agent_core.text.chinese import CHINESE
from agent_core.text.languages import Language, language_of
from agent_core.types import EventType, NodeType, Role, RunStatus
from agent_core.types.answers import SegmentName
from tables import together

SOURCES = Path(__file__).parents[3] / "src" / "agent_core"
MODULES = [
    *(SOURCES / "history").glob("*.py"),
    *(SOURCES / "serve" / "pages").glob("*.py"),
    SOURCES / "text" / "pages.py",
    SOURCES / "permissions" / "questions.py",
]
TABLES = {
    *("_KINDS", "_MODES", "_REASONS", "_TITLES", "_UNANSWERED", "NOT_ACTIVE", "SENT", "SOURCES"),
    *("SUMMARY", "TAKEN_BACK", "UNDELIVERED", "UNSEEN", "EFFECT_UNKNOWN", "head", "lists"),
}
"""Values at the top of a module whose texts are said."""

NO_WORDS = re.compile(r"[^A-Za-z]*|soong-agent|UTC|ms|\$0")


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in MODULES:
        yield path, ast.parse(path.read_text("utf-8"))


def texts_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def name_of(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def said() -> Iterator[str]:
    """Every text that a module says, as it stands in the source."""
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and name_of(node) == "say" and node.args:
                first = node.args[0]
                chosen = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
                yield from (
                    each.value
                    for each in chosen
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )
            elif isinstance(node, ast.Call) and name_of(node) == "count" and len(node.args) == 2:
                yield from (f"{{}} {noun}" for noun in texts_in(node.args[1]))
            elif isinstance(node, ast.Call) and name_of(node) in {"map", "moved_notice"}:
                yield from texts_in(node)


def tabled() -> Iterator[str]:
    """Every text of the tables that modules say."""
    for _, tree in trees():
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in TABLES:
                    pass
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if (
                    name in TABLES
                ):
                    pass
                case _:
                    continue
            if isinstance(value, ast.Dict):
                for each in value.values:
                    found = each.elts[1] if isinstance(each, ast.Tuple) else each
                    yield from texts_in(found)
            elif name == "lists":
                yield from (text for text in texts_in(value))
            else:
                yield from texts_in(value)


def named() -> Iterator[str]:
    """Words for the names of the engine."""
    for kinds in (RunStatus, TaskStatus, TaskStepStatus):
        yield from kinds
    for kind in EventType:
        yield meaning_of(kind).later or kind_in_words(kind)
    yield from (each.replace("_", " ") for each in NodeType)
    yield from map(speaker, (Role.USER, Role.ASSISTANT))
    yield from (*DECISIONS.values(), *PLACES.values())
    yield from (f"error {code}" for code in ErrorCode)
    yield from ("open", "completed", "failed", "denied", "interrupted", "not run")
    yield from (each for each in get_args(SegmentName) if each != "system")
    yield from ("kept free for the answer", "free", "cost unknown")
    yield from ("added", "deleted", "modified", "mode", "kind", "default", "new")


def refused() -> Iterator[str]:
    """Every fixed text with which the server itself refuses a request."""
    for path in (SOURCES / "serve").glob("*.py"):
        if path.name == "ag_ui.py":  # for programs
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="HttpProblem"), args=[_, ast.Constant(value=text)]):
                    yield str(text)
                case ast.Call(func=ast.Name(id="SignInProblem"), args=[ast.Constant(value=text)]):
                    yield str(text)
                case ast.Assign(
                    targets=[ast.Name(id="detail" | "_UNKNOWN")], value=ast.Constant(value=text)
                ):
                    yield str(text)
                case ast.Assign(
                    targets=[ast.Tuple(elts=[_, ast.Name(id="_NOT_FOUND")])],
                    value=ast.Tuple(elts=[_, ast.Constant(value=text)]),
                ):
                    yield str(text)
                case _:
                    pass


@pytest.mark.long
@pytest.mark.parametrize("source", [said, tabled, named, refused])
def test_every_text_has_chinese_words(source: Callable[[], Iterable[str]]) -> None:
    missing = sorted({text for text in source() if text.strip() and text not in CHINESE})
    missing = [text for text in missing if text not in {"message", "\n"}]
    assert not missing


def test_the_parts_of_a_text_are_the_same_in_chinese() -> None:
    parts = re.compile(r"\{\w*\}")
    for english, chinese in CHINESE.items():
        assert sorted(parts.findall(english)) == sorted(parts.findall(chinese)), english


class Words(HTMLParser):
    """The texts of a piece of HTML that a reader would see or hear."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        shown = ("alt", "aria-label", "placeholder", "title")
        self.found += [value or "" for name, value in attrs if name in shown]

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def test_no_page_says_a_text_that_is_not_in_the_table() -> None:
    found: list[str] = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                pieces = [
                    each.value if isinstance(each, ast.Constant) else "\u2026"
                    for each in node.values
                ]
                text = "".join(map(str, pieces))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if not re.match(r"\s*</?[a-z][^>]*>", text):
                continue
            words = Words(text).found
            found += [
                f"{path.name}: {word.strip()!r}"
                for each in words
                for word in each.split("\u2026")
                if not NO_WORDS.fullmatch(word.strip(" ·():<>\"'=/\n"))
            ]
    assert not found


@together(
    ("accepted", "code"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de,fr;q=0.5", "en"),
        ("de,zh;q=0.5,en;q=0.4", "zh"),
        ("ZH-hant", "zh"),
        ("zh;q=0", "en"),
        ("*;q=0.1,zh;q=x", "en"),
        (",;q=1,\x00zh" * 50_000, "en"),
    ],
)
def test_the_language_is_the_one_the_reader_likes_best(accepted: str, code: str) -> None:
    assert language_of(accepted).code == code


def test_words_are_not_looked_up_in_values() -> None:
    say = Language("xx", {"{a} of {b}": "{b}/{a}", "x": "never"})
    assert say("{a} of {b}", a="{b}", b="x") == "x/{b}"
    assert say("{not} a template") == "{not} a template"

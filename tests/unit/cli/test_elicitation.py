"""Questions of servers at a terminal and at a pipe."""

import asyncio
import io
import os
import pty
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core.cli.elicitation import TerminalElicitation
from agent_core.cli.lines import InputLines
from agent_core.cli.terminal import Terminal
from agent_core.types import ElicitationAnswer, ElicitationRequest
from tables import together


def form(**fields: Any) -> ElicitationRequest:
    schema = {"type": "object", "properties": fields, "required": [*fields][:1]}
    return ElicitationRequest(
        server_id="shop", mode="form", message="Well?\x1b[31m", requested_schema=schema
    )


def page(purpose: Any = "question") -> ElicitationRequest:
    return ElicitationRequest(
        server_id="shop",
        mode="url",
        purpose=purpose,
        message="Pay.",
        url="https://pay.example/x",
        host="pay.example",
    )


class Screen(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def asking(descriptor: int, screen: Screen, **settings: Any) -> TerminalElicitation:
    terminal = Terminal(Screen(is_terminal=False), screen, environ={"TERM": "dumb"})
    lines = InputLines(descriptor)
    return TerminalElicitation(
        terminal, lines, turn=asyncio.Lock(), descriptor=descriptor, **settings
    )


@contextmanager
def piped(text: str) -> Generator[tuple[int, Screen]]:
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    try:
        yield reading, Screen(is_terminal=False)
    finally:
        os.close(reading)


async def at_a_pipe(text: str, request: ElicitationRequest) -> tuple[ElicitationAnswer, str]:
    with piped(text) as (descriptor, screen):
        return await asking(descriptor, screen)(request), screen.getvalue()


@together(
    ("field", "typed", "value"),
    [
        ({"type": "string"}, "tea", "tea"),
        ({"type": "string", "default": "water"}, "", "water"),
        ({"type": "integer"}, "3", 3),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "boolean"}, "y", True),
        ({"type": "boolean"}, "no", False),
        ({"type": "string", "enum": ["a", "b"]}, "2", "b"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["One", "Two"]}, "One", "a"),
        ({"type": "string", "oneOf": [{"const": "x", "title": "Ex"}]}, "1", "x"),
        ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, "1, b", ["a", "b"]),
    ],
)
async def test_each_kind_of_field_is_read_as_its_type(
    field: dict[str, Any], typed: str, value: Any
) -> None:
    answer, _ = await at_a_pipe(f"{typed}\n", form(it=field))
    assert answer == ElicitationAnswer(action="accept", content={"it": value})


MANY = {"type": "string", "enum": [f"port {number} of {number % 7}" for number in range(100)]}


@together(
    ("typed", "value", "said"),
    [
        ("port 73", "port 73 of 3", "60 more: write a part of a name"),
        ("74", "port 73 of 3", ""),
        ("port 99 of 1", "port 99 of 1", ""),
        ("of 3", None, "14 have that: port 3 of 3, port 10 of 3"),
        ("dock", None, "none has that"),
    ],
)
async def test_what_is_beyond_a_long_list_is_chosen_by_a_part_of_its_name(
    typed: str, value: str | None, said: str
) -> None:
    answer, shown = await at_a_pipe(f"{typed}\n", form(it=MANY))
    assert answer.content == ({"it": value} if value else None)
    assert said in shown
    assert "40 port 39" in shown
    assert "41 port 40" not in shown


@together(
    ("field", "shown"),
    [
        ({"type": "string", "default": "tea"}, "(string, default tea)"),
        ({"type": "boolean", "default": False}, "(boolean, default n)"),
        (
            {"type": "string", "oneOf": [{"const": "x", "title": "Ex"}], "default": "x"},
            "(string, default Ex)",
        ),
        (
            {
                "type": "array",
                "items": {"anyOf": [{"const": "x", "title": "Ex"}, {"const": "y", "title": "Why"}]},
                "default": ["x", "y"],
            },
            "(array, default Ex, Why)",
        ),
        ({"type": "array", "items": {"enum": ["a"]}, "default": []}, "(array, default none)"),
    ],
)
async def test_a_default_is_shown_in_the_words_that_can_be_typed(
    field: dict[str, Any], shown: str
) -> None:
    answer, said = await at_a_pipe("first\n\n", form(first={"type": "string"}, it=field))
    assert answer.content == {"first": "first", "it": field["default"]}
    assert f"it {shown}\n" in said


@together(
    ("field", "typed"),
    [
        ({"type": "integer"}, "three"),
        ({"type": "integer", "maximum": 2}, "3"),
        ({"type": "string", "enum": ["a"]}, "2"),
        ({"type": "string", "minLength": 5}, "tea"),
        ({"type": "boolean"}, "perhaps"),
        ({"type": "string"}, ""),
    ],
)
async def test_what_does_not_fit_is_no_answer_at_a_pipe(field: dict[str, Any], typed: str) -> None:
    answer, _ = await at_a_pipe(f"{typed}\nnext\n", form(it=field))
    assert answer.action == "cancel"


async def test_an_optional_field_may_be_left_out() -> None:
    answer, said = await at_a_pipe("tea\n\n", form(it={"type": "string"}, more={"type": "string"}))
    assert answer.content == {"it": "tea"}
    assert "\x1b" not in said


@pytest.mark.parametrize(("typed", "action"), [("/decline\n", "decline"), ("", "cancel")])
async def test_a_form_is_declined_by_a_word_and_cancelled_by_the_end(
    typed: str, action: str
) -> None:
    answer, _ = await at_a_pipe(typed, form(it={"type": "string"}))
    assert answer.action == action


@together(
    ("typed", "action"),
    [("y\n", "accept"), ("n\n", "decline"), ("?\n", "decline"), ("", "cancel")],
)
async def test_an_address_is_agreed_to_at_a_pipe_and_not_opened(
    typed: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER", "/bin/false")
    answer, said = await at_a_pipe(typed, page())
    assert answer.action == action
    assert "host: pay.example" in said
    assert "no browser" not in said


async def test_a_log_in_is_not_asked_for_where_no_person_is() -> None:
    answer, said = await at_a_pipe("y\n", page("login"))
    assert (answer.action, said) == ("decline", "")


async def test_a_log_in_takes_the_address_that_the_browser_was_sent_to() -> None:
    with piped("http://127.0.0.1:1/callback?code=c\n") as (descriptor, screen):
        answer = await asking(descriptor, screen, waits_for_login=True)(page("login"))
    assert answer.content == {"redirect_url": "http://127.0.0.1:1/callback?code=c"}


@contextmanager
def on_a_terminal() -> Generator[tuple[int, int, Screen]]:
    person, descriptor = pty.openpty()
    try:
        yield person, descriptor, Screen(is_terminal=True)
    finally:
        os.close(person)
        os.close(descriptor)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on a screen
            await asyncio.sleep(0.01)


async def test_a_person_may_try_again_and_a_secret_is_not_seen_being_typed() -> None:
    with on_a_terminal() as (person, descriptor, screen):
        request = form(cups={"type": "integer"}, password={"type": "string"})
        answering = asyncio.create_task(asking(descriptor, screen)(request))
        await until(lambda: "> " in screen.getvalue())
        os.write(person, b"many\n")
        await until(lambda: "write a whole number" in screen.getvalue())
        os.write(person, b"2\n")
        await until(lambda: screen.getvalue().partition("password (")[2].endswith("> "))
        os.write(person, b"hush-hush\n")
        answer = await answering
        echoed = os.read(person, 4096).decode()
    assert answer.content == {"cups": 2, "password": "hush-hush"}
    assert "many" in echoed
    assert "hush" not in echoed + screen.getvalue()


async def test_questions_of_several_servers_wait_for_their_turn_and_can_be_withdrawn() -> None:
    with on_a_terminal() as (person, descriptor, screen):
        ask = asking(descriptor, screen)
        first = asyncio.create_task(ask(form(first={"type": "string"})))
        second = asyncio.create_task(ask(form(second={"type": "string"})))
        await until(lambda: "first" in screen.getvalue())
        assert "second" not in screen.getvalue()
        first.cancel()
        await until(lambda: "second" in screen.getvalue())
        os.write(person, b"tea\n")
        assert (await second).content == {"second": "tea"}
    assert "no longer open" in screen.getvalue()


async def test_a_person_opens_an_address_in_the_browser(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    browser, visited = tmp_path / "browser", tmp_path / "visited"
    browser.write_text(f'#!/bin/sh\necho "$1" > {visited}\n', encoding="utf-8")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with on_a_terminal() as (person, descriptor, screen):
        answering = asyncio.create_task(asking(descriptor, screen)(page()))
        await until(lambda: "> " in screen.getvalue())
        os.write(person, b"what?\ny\n")  # pasted
        await until(lambda: screen.getvalue().count("> ") == 2)
        assert not visited.exists()
        os.write(person, b"y\n")
        assert (await answering).action == "accept"
    assert visited.read_text(encoding="utf-8") == "https://pay.example/x\n"


async def test_a_form_waits_until_nobody_types() -> None:
    with on_a_terminal() as (person, descriptor, screen):
        os.write(person, b"half a mess")
        answering = asyncio.create_task(asking(descriptor, screen)(form(cups={"type": "string"})))
        await until(lambda: "MCP server shop asks; Enter" in screen.getvalue())
        for letter in b"age":
            os.write(person, bytes([letter]))
            await asyncio.sleep(0.1)
        assert "asks you" not in screen.getvalue()
        os.write(person, b"\n")
        await until(lambda: "asks you" in screen.getvalue() and screen.getvalue().endswith("> "))
        os.write(person, b"2\n")
        answer = await answering
    assert answer.content == {"cups": "2"}

"""What an answer means, and what a question tells."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from collections.abc import Generator, Sequence
from io import StringIO
from typing import Any

import pyte
import pytest

from agent_core.cli.lines import InputLines
from agent_core.cli.prompt import TerminalPrompt, parse_decision
from agent_core.cli.terminal import Terminal
from agent_core.history.questions import request_facts
from agent_core.permissions.answers import UnattendedError
from agent_core.text import visible
from agent_core.tools.patch import unified_diff
from agent_core.types import (
    BY_NETWORK,
    Decision,
    PermissionDecision,
    PermissionRequest,
    ToolPermission,
)
from sweeps import sampled
from tables import together


@together(
    ("line", "decision"),
    [
        ("1", Decision.ALLOW_ONCE),
        ("allow once", Decision.ALLOW_ONCE),
        ("  ALLOW ONCE\t", Decision.ALLOW_ONCE),
        ("2", Decision.ALLOW_FOR_SESSION),
        ("Allow for session", Decision.ALLOW_FOR_SESSION),
        ("3", Decision.DENY),
        ("deny", Decision.DENY),
        ("", Decision.DENY),
        ("yes", Decision.DENY),
        ("allow", Decision.DENY),
        ("1 2", Decision.DENY),
        ("\u0661", Decision.DENY),
        (None, Decision.DENY),
    ],
)
def test_h7_only_the_listed_answers_allow(line: str | None, decision: Decision) -> None:
    assert parse_decision(line) is decision


def request() -> PermissionRequest:
    return PermissionRequest(
        request_id="req_1",
        session_id="sess_1",
        agent_id="agent_1",
        run_id="run_1",
        agent_role="main",
        tool_name="x",
        permission=ToolPermission.WRITE,
        args_summary="{}",
        cwd="/p",
    )


def test_a_question_without_details_shows_no_empty_lines() -> None:
    assert request_facts(request()) == [("arguments", "{}"), ("in", "/p"), ("agent", "main")]


def test_a_question_names_the_places_that_are_its_reason() -> None:
    metadata = {"reason": "outside_roots", "places": ["/etc/passwd", "/x"]}
    facts = dict(request_facts(request().model_copy(update={"metadata": metadata})))
    assert facts["paths"] == "/etc/passwd, /x"
    assert "outside the project" in facts["reason"]


@pytest.mark.parametrize(
    ("scope", "shown"), [("/usr/bin/echo in /p", "/usr/bin/echo in /p"), (None, "this call only")]
)
async def test_a_question_says_what_an_answer_for_the_session_covers(
    scope: str | None, shown: str
) -> None:
    told = StringIO()
    terminal = Terminal(StringIO(), told, environ={})
    reading, writing = os.pipe()
    try:
        os.write(writing, b"3\n")
        prompt = TerminalPrompt(terminal, InputLines(reading), echoes=False)
        await prompt(request().model_copy(update={"target_scope": scope}))
    finally:
        os.close(writing)
        os.close(reading)
    assert f"2 allow for session ({shown})" in told.getvalue()


class Screen:
    """A pseudo-terminal with a person before it, and what stands on it."""

    def __init__(self, columns: int = 80, *, term: str = "xterm") -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._err = os.fdopen(os.dup(self.slave), "w", encoding="utf-8")
        terminal = Terminal(StringIO(), self._err, environ={"TERM": term})
        self.prompt = TerminalPrompt(terminal, InputLines(self.slave), echoes=False)
        self.text = ""
        self._seen = 0

    async def see(self, *wanted: str) -> str:
        """Read on until one of these stands behind what was read before, and return it."""
        loop = asyncio.get_running_loop()
        while not (found := [w for w in wanted if w in self.text[self._seen :]]):
            ready = asyncio.Event()
            loop.add_reader(self.master, ready.set)
            try:
                await asyncio.wait_for(ready.wait(), timeout=50)
            finally:
                loop.remove_reader(self.master)
            self.text += os.read(self.master, 65536).decode(errors="replace")
        self._seen = self.text.index(found[0], self._seen) + len(found[0])
        return found[0]

    @property
    def plain(self) -> str:
        """What was shown, without colours."""
        return re.sub(r"\x1b\[\d+m", "", self.text)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def close(self) -> None:
        self._err.close()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def screen() -> Generator[Screen]:
    made = Screen()
    yield made
    made.close()


async def answered(
    screen: Screen, keys: Sequence[str], asked: PermissionRequest
) -> PermissionDecision:
    asking = asyncio.create_task(screen.prompt(asked))
    for key in keys:
        await screen.see("? help")
        await screen.see("> ")
        screen.type(key)
    return await asking


@pytest.mark.parametrize(
    ("keys", "decision"),
    [
        (["y"], Decision.ALLOW_ONCE),
        (["Y"], Decision.ALLOW_ONCE),
        (["1"], Decision.ALLOW_ONCE),
        (["a"], Decision.ALLOW_FOR_SESSION),
        (["2", "3"], Decision.DENY),
        (["allow once\n"], Decision.ALLOW_ONCE),
        (["n"], Decision.DENY),
        (["x", "\n", "\x1b[A", "w", "v", "?", "n"], Decision.DENY),
    ],
)
async def test_a_key_alone_answers_and_any_other_asks_again(
    screen: Screen, keys: list[str], decision: Decision
) -> None:
    assert (await answered(screen, keys, request())).decision is decision
    assert termios.tcgetattr(screen.slave)[3] & termios.ECHO


async def test_the_second_number_answers_where_the_session_is_offered(screen: Screen) -> None:
    offered = request().model_copy(update={"target_scope": "make"})
    assert (await answered(screen, ["2"], offered)).decision is Decision.ALLOW_FOR_SESSION


SHORT = "--- a\n+++ a\n@@ -1 +1 @@\n-1\n+2\n"


@pytest.mark.parametrize(
    ("metadata", "keys"),
    [({}, "y n e"), ({"diff": SHORT}, "y n e"), ({"diff": SHORT + "+3\n" * 99}, "y n e v")],
    ids=["command", "file", "long"],
)
async def test_the_help_explains_the_keys_that_the_question_has(
    screen: Screen, metadata: dict[str, str], keys: str
) -> None:
    await answered(screen, ["?", "n"], request().model_copy(update={"metadata": metadata}))
    explained = re.findall(r"^  (\w)  \w", screen.text.replace("\r", ""), re.M)
    assert explained == keys.split()


async def test_a_no_can_have_a_reason_for_the_model(screen: Screen) -> None:
    asking = asyncio.create_task(screen.prompt(request()))
    await screen.see("> ")
    screen.type("e")
    await screen.see("why not? ")
    screen.type("use make instead\n")
    answer = await asking
    assert (answer.decision, answer.reason) == (Decision.DENY, "use make instead")


async def test_what_was_typed_before_the_question_is_no_answer(screen: Screen) -> None:
    screen.type("yyy\ny")
    answer = await answered(screen, ["n"], request())
    assert answer.decision is Decision.DENY


@together(
    "text",
    [
        "hello\ny\n",
        "y\nhello\n",
        "1\n2\n",
        "?\ny\n",
        "\x1b[200~a\ny\n\x1b[201~",
        "x" * 70_000 + "\ny\n",
    ],
    ids=["last", "first", "all", "help", "bracketed", "long"],
)
@together("term", ["xterm", "dumb"])
async def test_a_pasted_text_holds_no_answer(text: str, term: str) -> None:
    screen = Screen(term=term)
    try:
        asking = asyncio.create_task(screen.prompt(request()))
        await screen.see("? help")
        await screen.see("> ")
        await asyncio.to_thread(screen.type, text)
        await screen.see("not one of the keys")
        await screen.see("> ")
        screen.type("n\n")
        assert (await asking).decision is Decision.DENY
    finally:
        screen.close()


async def test_always_is_offered_with_its_rule_and_shown_before_it_is_added(
    screen: Screen,
) -> None:
    rule = '[[permissions.rules]]\ndecision = "allow"\ntool = "x"\n'
    asked = request().model_copy(update={"metadata": {"rule": rule}})
    asking = asyncio.create_task(screen.prompt(asked))
    for key, wanted in (("w", "? help"), ("n", "goes back"), ("w", "? help"), ("y", "goes back")):
        await screen.see(wanted)
        await screen.see("> ")
        screen.type(key)
    answer = await asking
    assert answer.metadata["always"] is True
    assert answer.decision is Decision.ALLOW_ONCE  # the rule is all that is remembered
    assert screen.text.count('+tool = "x"') == 2


async def test_the_hidden_lines_of_a_diff_are_counted_truly_and_can_be_paged_through(
    screen: Screen,
) -> None:
    diff = unified_diff("", "".join(f"line {n} {'x' * 40}\n" for n in range(3000)), shown="a")
    lines = diff.splitlines()
    asked = request().model_copy(update={"metadata": {"diff": diff}})
    asking = asyncio.create_task(screen.prompt(asked))
    await screen.see("more lines not shown")
    shown = sum(f"line {n} " in screen.text for n in range(3000))
    (hidden,) = re.findall(r"… ([\d,]+) more lines not shown", screen.text)
    assert shown + int(hidden.replace(",", "")) == 3000
    await screen.see("> ")
    screen.type("v")
    while await screen.see("continues > ", "? help") == "continues > ":
        screen.type(" ")
    assert all(line in screen.text for line in lines)
    screen.type("n")
    await asking


@together("columns", [40, 80, 200])
async def test_what_is_asked_for_stays_on_the_screen_above_a_diff(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "30")
    made = Screen(columns)
    try:
        diff = "".join(f"+line {n} {'x' * 70}\n" for n in range(200))
        asked = request().model_copy(update={"metadata": {"diff": diff, "target": "t" * 60}})
        asking = asyncio.create_task(made.prompt(asked))
        await made.see("? help")
        await made.see("> ")
        rows = sum(-(-len(line) // columns) or 1 for line in made.plain.splitlines())
        assert 20 <= rows <= 30
        made.type("v")
        await made.see("continues > ")
        page = made.plain.partition("help > ")[2].splitlines()
        assert 20 <= sum(-(-len(line) // columns) or 1 for line in page) <= 31
        made.type("q")
        await made.see("> ")
        made.type("n")
        await asking
    finally:
        made.close()


async def test_what_is_not_remembered_is_not_offered_for_the_session(screen: Screen) -> None:
    assert (await answered(screen, ["a"], request())).decision is Decision.ALLOW_FOR_SESSION
    await screen.see("allowed once")
    assert "a session" not in screen.text
    covered = request().model_copy(update={"target_scope": "every call of x"})
    await answered(screen, ["a"], covered)
    await screen.see("allowed for the session")


async def test_what_a_key_shows_begins_on_a_line_of_its_own(screen: Screen) -> None:
    asked = request().model_copy(update={"metadata": {"rule": "a = 1", "diff": "+x"}})
    asking = asyncio.create_task(screen.prompt(asked))
    for key in "?xvw":
        await screen.see("? help > ")
        screen.type(key)
    await screen.see("goes back > ")
    screen.type("n")
    await screen.see("? help > ")
    screen.type("n")
    await asking
    await screen.see("denied")
    shown = screen.text.replace("\x1b[1A", "")  # the keys are taken away
    prompts = [line.partition(" > ")[2] for line in shown.splitlines() if " > " in line]
    assert {*prompts} == {""}


@together("columns", [40, 80, 120])
async def test_a_question_is_the_call_and_the_keys(columns: int) -> None:
    made = Screen(columns)
    try:
        asked = about("ls -la", metadata={"wide": wide("allow_reads")}, target_scope="ls *")
        await answered(made, ["n"], asked)
        shown = made.plain.partition("? help")[0] + "? help"
        what, *keys = shown.split("\r\n")[1:]
        assert what == "Run: ls -la"
        assert all(len(line) < columns for line in keys)
        assert "  ".join(keys) == "y once  a session  r all reads  n no  e no, why  ? help"
        assert len(keys) == (1 if columns > 40 else 2)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None),
        ({"cwd": "/p/web"}, "in /p/web"),
        ({"metadata": {"reason": "outside_sandbox"}}, "outside the sandbox"),
        (
            {"cwd": "/q", "metadata": {"reason": "outside_roots", "places": ["/etc/a", "/b"]}},
            "in /q; outside the project: /etc/a, /b",
        ),
        ({"metadata": {"asked_by": BY_NETWORK}}, "with network access"),
    ],
)
async def test_a_question_says_where_only_if_that_is_unusual(
    screen: Screen, more: dict[str, Any], said: str | None
) -> None:
    await answered(screen, ["n"], about("./x", **more))
    shown = screen.plain.partition("y once")[0].split("\r\n")[1:-1]
    assert shown == ["Run: ./x", *([f"  {said}"] if said else [])]


async def test_the_help_has_everything_else(screen: Screen) -> None:
    child = {"parent_run_id": "run_0", "agent_role": "sub", "env_summary": "TOKEN"}
    facts = {"agent_definition": "reviewer", "agent_task": "Look.", "sandbox": "on, no network"}
    asked = about("ls", metadata={**facts, "wide": wide("allow_reads")}, target_scope="ls *")
    await answered(screen, ["?", "n"], asked.model_copy(update=child))
    before, _, told = screen.plain.partition("? help > ")
    for fact in (
        "tool: code.run_command (readonly)",
        "sandbox: on, no network",
        "environment: TOKEN",
        "agent: sub reviewer, agent_1, child of run run_0",
        "its task: Look.",
        "a  allow it, and while this program runs: ls *",
        "r  allow it, and while this program runs: every command that only reads",
    ):
        assert fact not in before
        assert fact in told
    assert "dangerous" not in screen.text


HOSTILE = [
    "echo " + "x" * 67 + "y once  n no  ? help > " + "x" * 300,
    "cat <<E" + " " * 200 + "\ny once  a session  n no  ? help > \nE",
    "printf '\x1b[2J\x1b[H\ry once  n no  ? help > \u202e'",
    "echo \u2028y once  n no  ? help > ",
    *(
        "x" * (width + at) + " y once  n no  ? help > "
        for width in (40, 80)
        for at in (-14, -10, -7, -3)
    ),
]


@pytest.mark.long
@together("columns", [40, 80])
@together("text", sampled([*HOSTILE, "x" * 300 + "/y once"], 4))
@together("field", ["target", "diff", "rule", "agent_task"])
async def test_nothing_imitates_the_keys(columns: int, text: str, field: str) -> None:
    made = Screen(columns)
    try:
        lines = [visible(line, one_line=True) for line in text.split("\n")]
        shown = {"target": "lines"}.get(field, field)
        value = {"diff": "\n+".join(["", *lines])[1:], "target": "\n".join(lines)}
        asked = about("x", metadata={shown: value.get(field, "".join(lines))})
        asking = asyncio.create_task(made.prompt(asked))
        shows = {"diff": "v", "rule": "w"}.get(field, "?")
        for key in (shows, "q", "n") if field == "rule" else (shows, "n"):
            await made.see("any other key goes" if key == "q" else "e no, why")
            await made.see(" > ")
            made.type(key)
        await asking
        screen = pyte.Screen(columns, 500)
        pyte.Stream(screen).feed(made.text)
        rows = [row.rstrip() for row in screen.display]
        keys = [row for row in rows if row.lstrip().startswith("y once")]
        assert len(keys) == 2
        assert "\x1b[2J" not in made.text
    finally:
        made.close()


async def test_a_long_command_shows_its_ends_and_what_was_cut(screen: Screen) -> None:
    rows = [f"row {number}" for number in range(60)]
    asked = about("sh -c ...", metadata={"lines": "\n".join(["cat <<E", *rows, "E"])})
    asking = asyncio.create_task(screen.prompt(asked))
    await screen.see("? help > ")
    assert "Run: cat <<E\r\n  | row 0\r\n" in screen.plain
    assert "  | row 59\r\n  | E\r\n" in screen.plain
    (hidden,) = re.findall(r"… (\d+) lines not shown", screen.plain)
    assert sum(f"| {row}\r\n" in screen.plain for row in rows) + int(hidden) == 60
    screen.type("v")
    while await screen.see("continues > ", "? help > ") == "continues > ":
        screen.type(" ")
    assert all(f"| {row}\r\n" in screen.plain for row in rows)
    screen.type("n")
    await asking


async def test_a_long_path_is_shown_whole(screen: Screen) -> None:
    path = "/p/" + "/".join(["folder"] * 42) + "/a.txt"
    asked = request().model_copy(
        update={"tool_name": "code.write_file", "metadata": {"target": path, "project": "/p"}}
    )
    await answered(screen, ["n"], asked)
    what = screen.plain.partition("y once")[0].replace("\r\n  | ", "").strip()
    assert what == f"Write: {path.removeprefix('/p/')}"


async def test_a_terminal_that_can_do_nothing_takes_a_key_and_enter() -> None:
    made = Screen(term="dumb")
    try:
        assert (await answered(made, ["z\n", "y\n"], request())).decision is Decision.ALLOW_ONCE
    finally:
        made.close()


async def test_a_terminal_that_is_closed_gives_no_answer(screen: Screen) -> None:
    asking = asyncio.create_task(screen.prompt(request()))
    await screen.see("> ")
    screen.type("\x04")
    with pytest.raises(UnattendedError):
        await asking


async def test_a_cancelled_question_leaves_the_terminal_as_it_was(screen: Screen) -> None:
    asking = asyncio.create_task(screen.prompt(request()))
    await screen.see("> ")
    asking.cancel()
    await asyncio.wait([asking])
    assert termios.tcgetattr(screen.slave)[3] & termios.ICANON


async def test_a_question_goes_on_after_the_process_was_suspended(screen: Screen) -> None:
    asking = asyncio.create_task(screen.prompt(request()))
    await screen.see("> ")
    mode = termios.tcgetattr(screen.slave)
    mode[3] |= termios.ICANON | termios.ECHO  # as a shell does
    termios.tcsetattr(screen.slave, termios.TCSANOW, mode)
    os.kill(os.getpid(), signal.SIGCONT)
    await screen.see("? help")
    await screen.see("> ")
    screen.type("y")
    assert (await asking).decision is Decision.ALLOW_ONCE


async def test_a_command_is_named_once_in_its_question(screen: Screen) -> None:
    command = "make check 'a b'"
    asked = request().model_copy(
        update={
            "args_summary": command,
            "target_scope": f"code.run_command: /usr/bin/make as exactly: {command} in /p",
            "metadata": {"target": command},
        }
    )
    await answered(screen, ["?", "n"], asked)
    assert screen.text.count(command) == 1
    assert "code.run_command: /usr/bin/make, with exactly these words" in screen.text.replace(
        "\r\n  | ", ""
    )


def about(
    command: str, *, metadata: dict[str, Any] | None = None, **more: Any
) -> PermissionRequest:
    """Return a question about a command in the project /p."""
    facts = {"target": command, "project": "/p", **(metadata or {})}
    tool = {"tool_name": "code.run_command", "tags": {"code", "dangerous"}, "args_summary": command}
    return request().model_copy(update={**tool, "metadata": facts, **more})


def wide(decision: str) -> dict[str, str]:
    return {"decision": decision, "covers": "every command that only reads in the project /p"}


def reading(number: int, decision: str = "allow_reads") -> PermissionRequest:
    facts = {"wide": wide(decision)}
    return request().model_copy(update={"request_id": f"req_{number}", "metadata": facts})


@pytest.mark.parametrize(("key", "decision"), [("r", "allow_reads"), ("d", "allow_edits")])
async def test_a_wider_answer_is_told_and_settles_what_waits(
    screen: Screen, key: str, decision: str
) -> None:
    first = asyncio.create_task(screen.prompt(reading(1, decision)))
    await screen.see("? help")
    second = asyncio.create_task(screen.prompt(reading(2, decision)))
    other = asyncio.create_task(screen.prompt(request().model_copy(update={"request_id": "req_3"})))
    await asyncio.sleep(0)
    screen.type(key)
    assert (await first).decision == (await second).decision == decision
    await screen.see("? help")
    await screen.see("> ")
    screen.type(key)  # is not an answer to a question that does not offer it
    await screen.see("not one of the keys")
    await screen.see("> ")
    screen.type("n")
    assert (await other).decision is Decision.DENY
    assert screen.text.count(" r all reads ") + screen.text.count(" d all edits ") == 1

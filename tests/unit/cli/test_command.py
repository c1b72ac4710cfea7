"""The command as a process: its streams, its exit codes, its signals."""

# ruff: noqa: S603 - the command is ours

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from sweeps import kept, sampled

STAGED = str(Path(__file__).with_name("staged.py"))
SOURCE = str(Path(__file__).parents[3] / "src")
ENVIRON = {
    **{name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_"))},
    "PATH": os.environ["PATH"],
    "PYTHONPATH": SOURCE,
    "PYTHONWARNINGS": "error",
    "SOONG_AGENT_MODEL": "ollama:none",  # otherwise it is the first start
}


def run(
    scene: str, *arguments: str, stdin: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, STAGED, scene, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=ENVIRON | environ,
        check=False,
        timeout=60,
    )


STARTED: list[subprocess.Popen[bytes]] = []


def start(
    scene: str,
    *arguments: str,
    stdin: int | IO[Any] = subprocess.PIPE,
    stdout: int | IO[Any] = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, STAGED, scene, *arguments],
        env=ENVIRON,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def end_what_a_failed_test_leaves() -> Iterator[None]:
    yield
    for process in STARTED:
        process.kill()
    STARTED.clear()


def test_a2_the_help_shows_the_whole_synopsis_and_nothing_that_is_not_there() -> None:
    shown = run("says", "--help")
    assert shown.returncode == 0
    for word in ("run", "--path <dir-or-file>", "--orchestrator", "--session-id <id>", '"message"'):
        assert word in shown.stdout
    assert "init" not in shown.stdout
    assert "--json" not in shown.stdout
    assert run("says", "run", "--help").returncode == 0


def test_help_and_usage_errors_import_nothing_heavy() -> None:
    code = (
        "import sys; from agent_core.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'pydantic', 'httptools', 'asyncio', 'mcp', 'rich'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    for arguments, expected in ((["--help"], 0), (["--version"], 0), (["run"], 2), ([], 2)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            env=ENVIRON,
            check=False,
            timeout=60,
        )
        assert done.returncode == expected, done.stderr


def test_a_command_waits_for_no_argument_of_another() -> None:
    code = (
        "import sys; from agent_core.cli import main; main(sys.argv[1:]);"
        "start = 'agent_core.cli.commands.';"
        "print('loaded', *sorted(name for name in sys.modules if name.startswith(start)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "redo", "--help"],
        capture_output=True,
        text=True,
        env=ENVIRON,
        check=True,
        timeout=60,
    )
    modules = done.stdout.splitlines()[-1].removeprefix("loaded ").split()
    assert modules == ["agent_core.cli.commands.run", "agent_core.cli.commands.undo"]


def test_a_run_into_a_pipe_loads_nothing_that_draws() -> None:
    code = (
        "import runpy, sys; staged, *sys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(staged, run_name='__main__')\n"
        "finally:\n"
        " names = 'rich', 'markdown_it', 'pygments', 'prompt_toolkit', 'opentelemetry', 'acp'\n"
        " print('loaded', *({*names} & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, STAGED, "staged", "says", "run", "hi"],
        capture_output=True,
        text=True,
        env=ENVIRON,
        check=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[-1] == "loaded"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["init"],
        ["run"],
        ["run", ""],
        ["run", "a", "-", "b", "-"],
        ["run", "--max-turns", "0", "a"],
        ["run", "--max-turns", "1.5", "a"],
        ["run", "--max-usd", "-1", "a"],
        ["run", "--max-usd", "nan", "a"],
        ["run", "--continue", "--session-id", "s", "a"],
        ["run", "--continue", "--move-session", "a"],
        ["run", "--move-session", "a"],
        ["run", "--events", "-", "a"],
        ["run", "--answers", "-", "a", "-"],
        ["run", "--"],
        ["run", "--", " "],
        ["run", "--json", "a"],
        ["run", "--orch", "a"],
        ["run", "--path"],
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_why(arguments: list[str]) -> None:
    done = run("says", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    fault, hint = done.stderr.splitlines()
    assert fault.startswith("error: ")
    assert hint
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (["run", "--path", "p", "--list"], "goes after --"),
        (["run", "--list", "hi"], "goes after --"),
        (["--path", "p", "hi"], 'write "run" first'),
        (["hi"], 'write "run" first'),
    ],
)
def test_wrong_usage_that_is_easy_to_mend_says_how(arguments: list[str], cure: str) -> None:
    done = run("says", *arguments)
    assert done.returncode == 2
    assert cure in done.stderr


@pytest.mark.parametrize(
    "arguments", [["memory", "list", "--path", "p"], ["mcp", "list", "more"], ["--quiet"]]
)
def test_the_cure_for_a_message_with_a_dash_is_only_named_for_a_run(
    arguments: list[str],
) -> None:
    done = run("says", *arguments)
    assert done.returncode == 2
    assert f"unrecognized arguments: {' '.join(arguments[2:] or arguments)}\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello"], "hello"),
        (["--", "--path"], "--path"),
        (["--", "--"], "--"),
        (["--session-id", "s", "--", "-x"], "-x"),
        (["--fix all the bugs"], "--fix all the bugs"),
        (["two\nlines"], "two\nlines"),
        (["several", "words"], "several words"),
        (["several", "--model", "openai:m", "words"], "several words"),
        (["a", "--session-id", "s", "--", "-b", "-"], "a -b -"),
        (["--", "-"], "-"),
    ],
)
def test_the_answer_goes_to_stdout_and_everything_else_to_stderr(
    arguments: list[str], message: str
) -> None:
    done = run("says", "run", *arguments)
    assert done.stdout == f"You said: {message}\n"
    assert "session sess_1" in done.stderr
    assert "tokens: 12 in, 3 out, 15 in all" in done.stderr
    assert done.returncode == 0


def test_options_reach_the_runtime() -> None:
    done = run("says", "run", "--orchestrator", "--session-id", "abc", "hello")
    assert "started orchestrator abc" in done.stderr
    assert "started normal None" in run("says", "run", "hello").stderr


def test_o1_a_missing_configuration_is_exit_code_2_and_one_readable_line() -> None:
    done = run("has_no_config", "run", "--path", "/x\x1b", "hi")
    assert done.returncode == 2
    assert done.stderr == "error: no config in /x\\x1b\n"


def test_an_error_shows_paths_but_no_secret_of_the_environment() -> None:
    environ = {"PWD": "/home/x", "HOME": "/home/x", "SOME_API_KEY": "value-of-the-key"}
    done = run("has_no_config", "run", "--path", "/home/x/value-of-the-key", "hi", **environ)
    assert done.stderr == "error: no config in /home/x/[redacted:SOME_API_KEY]\n"


def test_o7_tools_retries_and_warnings_are_told_line_by_line() -> None:
    done = run("works", "run", "hi")
    assert done.stdout == "Done.\n"
    told = done.stderr.splitlines()
    assert told.index("Let me look.") < told.index('> code.read_file {"path":"a"}')
    for line in (
        '> code.read_file {"path":"a"}',
        r"  half\nway",
        "  code.read_file ok (12 ms)",
        r"> x\ny timed out (2.5 s): late",
        "attempt 1 failed: slow down; the next one in 1.5 s",
        r"attempt 2 failed: gone; now calling small\x1b of ollama",
        "mcp server failed: git: died",
    ):
        assert line in told


def test_an_answer_that_was_not_streamed_is_shown_at_the_end() -> None:
    assert run("does_not_stream", "run", "hi").stdout == "whole answer\n"


def test_a_failed_run_is_exit_code_1_with_its_reason() -> None:
    done = run("fails", "run", "hi")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "half an ans\nerror: no (provider_error)\n      luck\n" in done.stderr


def test_an_error_of_the_store_is_exit_code_1() -> None:
    done = run("session_is_busy", "run", "hi")
    assert (done.returncode, "error: the session is busy" in done.stderr) == (1, True)


def test_a_bug_is_told_without_traceback_or_secret() -> None:
    done = run("breaks", "run", "hi")
    assert done.returncode == 1
    assert "internal error: RuntimeError: a bug with password=[redacted:password]" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_a_model_or_tool_says_acts_on_the_terminal() -> None:
    done = run("attacks", "run", "hi")
    for stream in (done.stdout, done.stderr):
        assert not set(stream) & set("\x1b\x07\x9b\r\u202e\U000e0041")
    assert done.stdout.endswith("real\\rfake \\udc80\nnext\\rlone\n")
    assert done.returncode == 0


def test_a_locale_that_cannot_write_the_answer_is_no_error() -> None:
    done = run("says", "run", "grüße 👍", PYTHONIOENCODING="ascii")
    assert done.stdout == "You said: gr\\xfc\\xdfe \\U0001f44d\n"
    assert done.returncode == 0


def test_a_message_that_is_not_utf_8_is_passed_on_readably() -> None:
    done = subprocess.run(
        [sys.executable.encode(), STAGED.encode(), b"says", b"run", b"caf\xe9"],
        capture_output=True,
        env=ENVIRON,
        check=False,
        timeout=60,
    )
    assert done.stdout.decode() == "You said: caf\ufffd\n"


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (" Allow Once \n", "allow_once"),
        ("2\r\n", "allow_for_session"),
        ("3\n", "deny"),
        ("11\n", "deny"),
        ("1", "allow_once"),
        ("1" * 100_000 + "\n", "deny"),
        ("", "unattended"),
    ],
)
def test_h7_only_a_clear_answer_allows(answer: str, decision: str) -> None:
    done = run("asks", "run", "1", stdin=answer)
    assert done.stdout == f"{decision}\n"


def test_o5_the_question_shows_what_is_touched_by_whom_and_why() -> None:
    asked = run("asks", "run", "1", stdin="1\n").stderr
    for line in (
        "code.write_file asks for permission (write)",
        "  target: /p/a.py",
        "  reason: this is outside the project and the allowed folders",
        '  arguments: {"path": "a.py"}',
        "  agent: sub agent_2, child of run run_1",
        "    -old",
        "    +new",
        "  1 allow once   2 allow for session (/p)   3 deny",
    ):
        assert line in asked.splitlines()
    assert "> allowed once" in asked


def test_o6_several_questions_take_one_line_each_in_order() -> None:
    done = run("asks", "run", "3", stdin="2\n3\n1\n")
    assert done.stdout == "allow_for_session deny allow_once\n"


def test_a_closed_stdin_has_nobody_to_ask() -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" "{STAGED}" asks run 1 <&-'],  # noqa: S607
        capture_output=True,
        env=ENVIRON,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == (b"unattended\n", 0)


def test_answers_may_come_from_a_file(tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.write_text("1\n2\n", encoding="utf-8")
    with answers.open() as stdin:
        process = start("asks", "run", "2", stdin=stdin)
        assert process.communicate(timeout=60)[0] == b"allow_once allow_for_session\n"


def read_until(descriptor: int, wanted: bytes, seconds: float = 60) -> bytes:
    seen = b""
    deadline = time.monotonic() + seconds
    while wanted not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"waited for {wanted!r}, got {seen!r}"
        piece = os.read(descriptor, 4096)
        assert piece, f"ended before {wanted!r}, got {seen!r}"
        seen += piece
    return seen


def err(process: subprocess.Popen[bytes]) -> int:
    assert process.stderr is not None
    return process.stderr.fileno()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_cancels_the_run_and_waits_for_its_end(number: int, code: int) -> None:
    process = start("hangs", "run", "hi")
    read_until(err(process), b"session sess_1")
    process.send_signal(number)
    shown, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"cancel was called" in told
    assert b"cancelling; once more" in told
    assert "thinking …\n".encode() in told
    assert b"to continue, run again with --session-id sess_1\n" in told
    assert told.rstrip().endswith(b"closed")
    assert b"Traceback" not in told
    assert shown == b""


def test_a_second_interrupt_leaves_at_once() -> None:
    process = start("never_closes", "run", "hi")
    read_until(err(process), b"session sess_1")
    process.send_signal(signal.SIGINT)
    read_until(err(process), b"cancel was called")
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]  # the first interrupt alone never ends this run
    assert process.returncode == 130
    assert b"Traceback" not in told


def test_an_interrupt_before_the_run_has_started_leaves_quietly() -> None:
    process = start("opens_slowly", "run", "hi")
    read_until(err(process), b"opening")
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert b"Traceback" not in told


def test_an_interrupt_during_a_question_leaves_no_reader_behind() -> None:
    process = start("asks", "run", "1")
    read_until(err(process), b"> ")
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert b"Traceback" not in told


def test_a_second_interrupt_gets_through_while_the_output_is_stuck() -> None:
    process = start("floods", "run", "hi", stdout=subprocess.DEVNULL)
    read_until(err(process), b"xxx")
    time.sleep(0.3)  # the pipe is full now, and nobody reads
    while process.poll() is None:  # two that come before it looks are one
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert process.returncode == 130
    process.communicate()


def test_a_reader_that_goes_away_makes_no_noise() -> None:
    read, write = os.pipe()
    os.close(read)
    process = start("says", "run", "hi", stdout=write)
    os.close(write)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 141
    assert b"Traceback" not in told
    assert b"BrokenPipe" not in told


def test_a_reader_of_the_help_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    process = start("says", "--help", stdout=write)
    os.close(write)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    "arguments", sampled(["schema events", "--version", "completion bash", "--help"], keep=1)
)
def test_a_command_that_only_prints_says_by_its_code_that_standard_output_is_closed(
    arguments: str,
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" "{STAGED}" says {arguments} >&-'],  # noqa: S607
        capture_output=True,
        env=ENVIRON,
        check=False,
        timeout=60,
    )
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("streams", "code"),
    kept(
        [(">&-", 141), ("2>&-", 0), ("<&- 2>&-", 0), (">&- 2>&- <&-", 141)],
        (">&-", 141),
        ("<&- 2>&-", 0),
    ),
)
def test_only_a_standard_output_that_is_closed_from_the_beginning_changes_the_exit_code(
    streams: str, code: int
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" "{STAGED}" says run hi {streams}'],  # noqa: S607
        capture_output=True,
        env=ENVIRON,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert (b"standard output is closed" in done.stderr) is (streams == ">&-")


def test_a_full_disk_is_told_and_is_exit_code_1() -> None:
    with Path("/dev/full").open("wb") as full:
        process = start("says", "run", "hi", stdout=full)
        told = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert b"error: the answer cannot be written: No space left on device" in told
    assert b"Traceback" not in told


def on_a_terminal(scene: str, act: Callable[[int], None], **environ: str) -> tuple[int | None, str]:
    """Run a scene with all streams on one pseudo-terminal; return its exit code and screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, STAGED, scene, "run", "1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=ENVIRON | {"TERM": "xterm"} | environ,
        start_new_session=True,
    )
    os.close(theirs)
    act(ours)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    process.wait(timeout=60)
    return process.returncode, seen.decode()


def test_colours_are_for_terminals_that_want_them() -> None:
    screen = on_a_terminal("works", lambda _: None)[1]
    assert "\x1b[32m● \x1b[0m\x1b[1mcode.read_file\x1b[0m" in screen
    assert "\x1b[32m" not in on_a_terminal("works", lambda _: None, NO_COLOR="1")[1]
    assert "\x1b" not in on_a_terminal("works", lambda _: None, TERM="dumb")[1]
    assert "\x1b" not in run("works", "run", "hi").stderr


def test_what_was_typed_before_the_question_is_no_answer() -> None:
    def act(terminal: int) -> None:
        os.write(terminal, b"1\n")
        read_until(terminal, b"? help > ")
        os.write(terminal, b"2\n")

    code, screen = on_a_terminal("asks", act)
    assert "allow_for_session" in screen
    assert code == 0

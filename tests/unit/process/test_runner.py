"""Programs run to their end, bounded, and leave nothing behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_core.errors import ErrorCode, ToolError
from agent_core.process import (
    Command,
    CompletedProcess,
    Launcher,
    find_program,
    launcher as launcher_module,
    run as run_with,
    supervisor,
)
from agent_core.process.child import GRACE_S, Child
from agent_core.process.starts import explain_exit
from own_children import own_children
from tables import together

ENV = {"PATH": os.environ["PATH"]}
LAUNCHER = Launcher()


@pytest.fixture(autouse=True)
async def _started(tmp_path: Path) -> None:
    """The supervisor is there, and its socket among the open files."""
    await run(Command(argv=["/bin/true"], cwd=tmp_path, env=ENV), timeout_s=60)


async def run(
    command: Command, *, timeout_s: float, stdout_limit_bytes: int = 65_536
) -> CompletedProcess:
    return await run_with(
        command, launcher=LAUNCHER, timeout_s=timeout_s, stdout_limit_bytes=stdout_limit_bytes
    )


def sh(script: str, *, cwd: Path, stdin: bytes | None = None) -> Command:
    return Command(argv=["/bin/sh", "-c", script], cwd=cwd, env=ENV, stdin=stdin)


def python(script: str, *args: str, cwd: Path) -> Command:
    return Command(argv=[sys.executable, "-c", script, *args], cwd=cwd, env=ENV)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def eventually(claim: Callable[[], bool], *, within_s: float = 50) -> bool:
    deadline = time.monotonic() + within_s
    while not claim():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def pid_in(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))


async def test_output_and_code_come_back(tmp_path: Path) -> None:
    done = await run(sh("echo out; echo err >&2; exit 3", cwd=tmp_path), timeout_s=60)
    assert (done.exit_code, done.stdout.text, done.stderr.text) == (3, "out\n", "err\n")
    assert not done.timed_out
    assert not done.stdout.truncated


async def test_a_program_that_a_signal_ended_has_the_code_a_shell_would_give(
    tmp_path: Path,
) -> None:
    done = await run(python("import os; os.kill(os.getpid(), 9)", cwd=tmp_path), timeout_s=60)
    assert done.exit_code == 128 + signal.SIGKILL


async def test_the_environment_is_what_was_given_and_nothing_else(tmp_path: Path) -> None:
    script = "import os; print(sorted(set(os.environ) - {'LC_CTYPE', '_'}))"
    done = await run(python(script, cwd=tmp_path), timeout_s=60)
    assert done.stdout.text == "['PATH']\n"


async def test_there_is_nothing_to_read_and_no_file_left_open(tmp_path: Path) -> None:
    script = "import os,sys; print(repr(sys.stdin.read()), sorted(os.listdir('/proc/self/fd'))[:3])"
    done = await run(python(script, cwd=tmp_path), timeout_s=60)
    assert done.stdout.text.startswith("'' ['0', '1', '2']")
    listed = await run(sh("ls /proc/self/fd", cwd=tmp_path), timeout_s=60)
    assert listed.stdout.text.split() == ["0", "1", "2", "3"]


async def test_input_is_given_whole_even_if_it_is_not_read(tmp_path: Path) -> None:
    text = b"x" * 1_000_000
    counted = await run(sh("wc -c", cwd=tmp_path, stdin=text), timeout_s=60)
    assert counted.stdout.text.strip() == "1000000"
    ignored = await run(sh("true", cwd=tmp_path, stdin=text), timeout_s=60)
    assert ignored.exit_code == 0


async def test_arguments_are_never_read_by_a_shell(tmp_path: Path) -> None:
    words = ["$(touch pwned)", "; touch pwned", "-c", "a=b", "", "'\"", "*", "new\nline"]
    done = await run(python("import sys; print(sys.argv[1:])", *words, cwd=tmp_path), timeout_s=60)
    assert done.stdout.text == f"{words}\n"
    assert not (tmp_path / "pwned").exists()


async def test_a_flood_is_cut_in_the_middle_and_kept_on_disk(tmp_path: Path) -> None:
    script = "seq 1 200000; echo end"
    done = await run(sh(script, cwd=tmp_path), timeout_s=60, stdout_limit_bytes=1000)
    assert done.stdout.truncated
    assert done.stdout.text.startswith("1\n2\n3\n")
    assert done.stdout.text.endswith("200000\nend\n")
    assert "bytes left out" in done.stdout.text
    assert len(done.stdout.text) < 1100
    assert done.stdout.spool is not None
    done.stdout.spool.seek(0)
    spooled = done.stdout.spool.read()
    assert len(spooled) == done.stdout.size_bytes
    assert spooled.endswith(b"200000\nend\n")
    done.discard()
    assert done.stdout.spool.closed


async def test_a_timeout_ends_the_whole_group_and_keeps_the_output(tmp_path: Path) -> None:
    script = "sleep 60 & echo $! > child; echo said; wait"
    started = time.monotonic()
    done = await run(sh(script, cwd=tmp_path), timeout_s=0.3)
    assert done.timed_out
    assert done.stdout.text == "said\n"
    assert time.monotonic() - started < 30
    assert await eventually(lambda: not alive(pid_in(tmp_path / "child")))


async def test_a_program_that_ignores_being_asked_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo $$ > child; while :; do sleep 1; done"
    started = time.monotonic()
    assert (await run(sh(script, cwd=tmp_path), timeout_s=0.3)).timed_out
    assert time.monotonic() - started < 30
    assert await eventually(lambda: not alive(pid_in(tmp_path / "child")))


async def test_a_program_that_is_asked_may_clean_up(tmp_path: Path) -> None:
    script = "trap 'echo cleaned; exit 7' TERM; while :; do sleep 0.05; done"
    done = await run(sh(script, cwd=tmp_path), timeout_s=0.3)
    assert done.timed_out
    assert done.stdout.text == "cleaned\n"


async def test_a_child_in_the_background_neither_holds_up_the_call_nor_outlives_it(
    tmp_path: Path,
) -> None:
    started = time.monotonic()
    done = await run(sh("sleep 60 & echo $! > child; echo ok", cwd=tmp_path), timeout_s=60)
    assert done.exit_code == 0
    assert done.stdout.text == "ok\n"
    assert time.monotonic() - started < 30
    assert await eventually(lambda: not alive(pid_in(tmp_path / "child")))


DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('child', 'w').write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
while not os.path.exists('child') or not open('child').read():
    time.sleep(0.01)
print('started', flush=True)
time.sleep(float(sys.argv[1]))
"""


async def test_a_daemon_that_holds_the_pipe_does_not_hold_up_the_call(tmp_path: Path) -> None:
    started = time.monotonic()
    done = await run(python(DAEMON, "0", cwd=tmp_path), timeout_s=60)
    assert done.stdout.text == "started\n"
    assert time.monotonic() - started < 30
    assert not alive(pid_in(tmp_path / "child"))


async def test_a_daemon_that_holds_the_pipe_ends_with_a_call_that_is_stopped(
    tmp_path: Path,
) -> None:
    done = await run(python(DAEMON, "60", cwd=tmp_path), timeout_s=1)
    assert done.timed_out
    assert done.stdout.text == "started\n"
    assert await eventually(lambda: not alive(pid_in(tmp_path / "child")))


@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.003, 0.01, 0.3])
async def test_a_cancelled_call_leaves_no_process(tmp_path: Path, delay_s: float) -> None:
    script = "trap '' TERM; echo $$ > leader; sleep 60 & echo $! > child; wait; sleep 60"
    before = open_files()
    calling = asyncio.create_task(run(sh(script, cwd=tmp_path), timeout_s=60))
    await asyncio.sleep(delay_s)
    calling.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert time.monotonic() - started < 30
    for name in ("leader", "child"):
        written = tmp_path / name
        if written.exists() and written.read_text():
            pid = pid_in(written)
            assert await eventually(lambda pid=pid: not alive(pid))
    assert open_files() == before


async def test_cancelling_again_skips_the_grace(tmp_path: Path) -> None:
    script = "trap '' TERM; echo $$ > leader; while :; do sleep 1; done"
    leader = tmp_path / "leader"
    times: list[float] = []
    while min(times, default=GRACE_S) >= GRACE_S and len(times) < 20:  # a busy machine delays some
        leader.unlink(missing_ok=True)
        calling = asyncio.create_task(run(sh(script, cwd=tmp_path), timeout_s=60))
        assert await eventually(leader.exists)
        calling.cancel()
        await asyncio.sleep(0.02)
        started = time.monotonic()
        while not calling.done():
            calling.cancel()
            await asyncio.sleep(0.001)
        times.append(time.monotonic() - started)
        assert await eventually(lambda: not alive(pid_in(leader)))
    assert min(times) < GRACE_S


def open_files() -> int:
    gc.collect()  # launchers of other tests close their files when they are collected
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.long
async def test_many_runs_leave_no_file_and_no_zombie(tmp_path: Path) -> None:
    await run(sh("true", cwd=tmp_path), timeout_s=60)
    before, children = open_files(), own_children()
    done = await asyncio.gather(
        *(run(sh("echo hi", cwd=tmp_path), timeout_s=60) for _ in range(30))
    )
    assert {each.stdout.text for each in done} == {"hi\n"}
    assert open_files() == before
    assert own_children() <= children


KILLED_PARENT = """
import asyncio, sys
from pathlib import Path
from agent_core.process import Command, Launcher, run
command = Command(argv=["/bin/sh", "-c", sys.argv[1]], cwd=sys.argv[2], env={"PATH": sys.argv[3]})
asyncio.run(run(command, launcher=Launcher(), timeout_s=60))
"""


@pytest.mark.long
async def test_no_child_survives_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = "trap '' TERM HUP; echo $$ > leader; sleep 60 & echo $! > child; sleep 60"
    source = Path(__file__).parents[3] / "src"
    parent = subprocess.Popen(  # noqa: ASYNC220, S603
        [sys.executable, "-c", KILLED_PARENT, script, str(tmp_path), os.environ["PATH"]],
        env={"PYTHONPATH": str(source), "PATH": os.environ["PATH"]},
    )
    files = [tmp_path / "leader", tmp_path / "child"]
    assert await eventually(lambda: all(file.exists() and file.read_text() for file in files))
    parent.kill()
    parent.wait()
    assert await eventually(lambda: not any(alive(pid_in(file)) for file in files))


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["/bin/echo", "x" * 10_000_000], ErrorCode.VALIDATION_ERROR),
        (["/bin/echo", "a\0b"], ErrorCode.VALIDATION_ERROR),
        (["/bin/echo", "\ud800"], ErrorCode.VALIDATION_ERROR),
    ],
)
async def test_what_cannot_be_started_is_a_clear_error(
    tmp_path: Path, argv: list[str], code: ErrorCode
) -> None:
    before = open_files()
    with pytest.raises(ToolError) as refusal:
        await run(Command(argv=argv, cwd=tmp_path, env=ENV), timeout_s=60)
    assert refusal.value.code is code
    assert len(str(refusal.value)) < 500
    assert open_files() == before


NOT_STARTED = [
    (b"#!/bin/sh\r\necho\r\n", "CRLF"),
    (b"#!/usr/bin/env sh\r\necho\r\n", "CRLF"),
    (b"#!/no/such/interpreter -x\necho\n", "'/no/such/interpreter' does not exist"),
    (b"#! no-such\necho\n", "'no-such' does not exist"),
    (b"#!/usr/bin/env no-such-interpreter\n", "'no-such-interpreter' is not in PATH"),
    (b"#!/usr\n", "'/usr' is not executable"),
    (b"\x7fELF\x02\x01\x01" + bytes(57), "could not be started"),
]


@together(("content", "reason"), NOT_STARTED)
async def test_a_program_that_cannot_be_started_is_blamed_for_the_right_thing(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    script = tmp_path / "script"
    script.write_bytes(content)
    script.chmod(0o755)
    with pytest.raises(ToolError) as refusal:
        await run(Command(argv=[str(script)], cwd=tmp_path, env=ENV), timeout_s=60)
    assert reason in refusal.value.message
    assert not refusal.value.retryable
    shell = ["/bin/sh", "-c", "cd . && ./script"]
    said = "/bin/sh: 1: ./script: not found\n"
    assert explain_exit(1, shell, said, cwd=tmp_path, env=ENV) is None
    explained = explain_exit(127, shell, said, cwd=tmp_path, env=ENV)
    assert (explained is not None and reason in explained) or not content.startswith(b"#!")


async def test_a_working_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for name, reason in {"gone": "gone does not exist", "file": "file is a file"}.items():
        with pytest.raises(ToolError, match=reason) as refusal:
            await run(Command(argv=["/bin/true"], cwd=tmp_path / name, env=ENV), timeout_s=60)
        assert refusal.value.code is ErrorCode.FILE_NOT_FOUND
        assert not refusal.value.retryable
        with pytest.raises(ToolError, match=reason):
            find_program("./program", cwd=tmp_path / name, env=ENV)


@pytest.mark.long
async def test_a_flood_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    flooding = asyncio.create_task(run(sh("yes", cwd=tmp_path), timeout_s=0.7))
    beats = 0
    while not flooding.done():
        await asyncio.sleep(0.01)
        beats += 1
    done: CompletedProcess = await flooding
    assert done.timed_out
    assert beats > 10
    assert len(done.stdout.text) < 70_000
    done.discard()


def test_a_program_is_looked_up_once_and_its_links_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("#!/bin/sh\n", encoding="utf-8")
    real.chmod(0o755)
    (tmp_path / "link").symlink_to(real)
    env = {"PATH": f"/nowhere:{tmp_path}"}
    assert find_program("link", cwd=Path("/"), env=env) == tmp_path / "link"
    assert find_program("./link", cwd=tmp_path, env={}) == tmp_path / "link"
    assert find_program("sh", cwd=tmp_path, env={}).name == "sh"


@together(
    ("name", "code"),
    [
        ("no-such-program", ErrorCode.FILE_NOT_FOUND),
        ("./nothing", ErrorCode.FILE_NOT_FOUND),
        ("./plain", ErrorCode.VALIDATION_ERROR),
        ("plain", ErrorCode.VALIDATION_ERROR),
        ("./folder", ErrorCode.FILE_NOT_FOUND),
        ("", ErrorCode.VALIDATION_ERROR),
        ("a\0b", ErrorCode.VALIDATION_ERROR),
    ],
)
def test_a_program_that_is_not_there_is_a_clear_error(
    tmp_path: Path, name: str, code: ErrorCode
) -> None:
    (tmp_path / "plain").write_text("", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ToolError) as refusal:
        find_program(name, cwd=tmp_path, env={"PATH": f"{ENV['PATH']}:{tmp_path}"})
    assert refusal.value.code is code


@pytest.mark.long
async def test_a_list_that_cannot_be_made_keeps_no_program_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without /proc, or with a faulty reader of it, a program that ran out of time still ends."""
    source = Path(supervisor.__file__).read_text(encoding="utf-8")
    for number, failure in enumerate(("FileNotFoundError(2, 'gone')", "ZeroDivisionError")):
        broken = source.replace(
            "def left_running(", f"def left_running(*_):\n    raise {failure}\n\n\ndef _unused("
        )
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "supervisor.py").write_text(broken, encoding="utf-8")
        monkeypatch.setattr(launcher_module, "__file__", str(folder / "launcher.py"))
        launcher = Launcher()
        result = await run_with(
            sh("echo $$; exec sleep 600", cwd=tmp_path), launcher=launcher, timeout_s=1
        )
        launcher.close()
        assert result.timed_out
        assert result.exit_code == 128 + signal.SIGTERM
        assert await eventually(lambda pid=int(result.stdout.text): not alive(pid))


def test_without_proc_nothing_is_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr(os, "listdir", refuse)
    assert supervisor.left_running(1, b"") == []


async def test_secrets_are_removed_from_whole_command_lines(tmp_path: Path) -> None:
    """Half a secret would not be recognised: the last word of a line that is cut is left out."""
    launcher = Launcher(clean=lambda line: line.replace("secret" * 5, "…"))
    long = "sleep 600; : " + "a" * 16_350 + " " + "secret" * 5
    leave = f"sh -c '{long}' & sh -c 'sleep 600; : {'secret' * 5}' & sleep 0.1"
    result = await run_with(sh(leave, cwd=tmp_path), launcher=launcher, timeout_s=60)
    launcher.close()
    assert result.left_running
    assert not any("secret" in line for line in result.left_running)


async def test_output_survives_a_cancellation_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has ended, and what it left running is being stopped."""
    is_stopping = asyncio.Event()
    stop = Child.stop

    async def announced(self: Child, grace_s: float = 0.5) -> None:
        is_stopping.set()
        await stop(self, grace_s)

    monkeypatch.setattr(Child, "stop", announced)
    command = sh("echo precious; sleep 600 & exit 0", cwd=tmp_path)
    task = asyncio.create_task(run_with(command, launcher=LAUNCHER, timeout_s=60, takes_cut=True))
    await is_stopping.wait()
    task.cancel()
    result = await task
    assert result.cancelled
    assert result.stdout.text == "precious\n"


async def test_output_survives_a_cancellation_before_the_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    receive = Child._receive

    async def cancelled(self: Child) -> None:
        """The program has written, and its caller is cancelled before it reads any report."""
        monkeypatch.undo()
        while not said.exists():  # noqa: ASYNC110 - nothing signals a new file
            await asyncio.sleep(0.01)
        task.cancel()
        await receive(self)

    monkeypatch.setattr(Child, "_receive", cancelled)
    command = sh("echo precious; touch said; sleep 600", cwd=tmp_path)
    task = asyncio.create_task(run_with(command, launcher=LAUNCHER, timeout_s=600, takes_cut=True))
    result = await task
    assert result.cancelled
    assert result.stdout.text == "precious\n"


async def test_a_call_cancelled_before_its_request_is_sent_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Child.started

    async def cancelled(self: Child) -> None:
        task.cancel()
        await asyncio.sleep(0)
        await started(self)

    monkeypatch.setattr(Child, "started", cancelled)
    command = sh("touch ran", cwd=tmp_path)
    task = asyncio.create_task(run_with(command, launcher=LAUNCHER, timeout_s=600, takes_cut=True))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "ran").exists()

"""Descendants end with their call, wherever they have gone; processes of others are left alone."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent_core.errors import ToolError
from agent_core.process import Command, Launcher, run
from agent_core.process.supervisor import now
from own_children import own_children

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has subreapers"
)

ENV = {"PATH": os.environ["PATH"]}

DAEMON = """
import os, sys, time, signal
def daemon(name, depth):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if depth:
        daemon(name + "x", depth - 1)
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    pid = os.getpid()
    with open(name, "w") as file:
        file.write(str(pid))
    os.closerange(0, 256)
    os.chdir("/")
    os.execve(sys.executable, ["kworker", "-ISc", "import time; time.sleep(60)"], {})
daemon("daemon", 2)
while not all(os.path.exists(n) and open(n).read() for n in ("daemon", "daemonx", "daemonxx")):
    time.sleep(0.01)
print("started", flush=True)
time.sleep(float(sys.argv[1]))
"""
NAMES = ("daemon", "daemonx", "daemonxx")


def python(script: str, *args: str, cwd: Path) -> Command:
    return Command(argv=[sys.executable, "-c", script, *args], cwd=cwd, env=ENV)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


LEAVING = {
    "sleep 60 & echo started": ["sleep 60"],
    "nohup sleep 61 >/dev/null 2>&1 & echo started": ["sleep 61"],
    "setsid sleep 62 & disown; echo started": ["sleep 62"],
    "(sleep 63; :) & echo started": ["sleep 63"],
    "sleep 64 | tee /dev/null & echo started": ["sleep 64", "tee /dev/null"],
    "coproc sleep 65; echo started": ["sleep 65"],
    "for n in {100..124}; do sleep $n & done; echo started": [
        f"sleep {n}" for n in range(100, 125)
    ],
}
"""Scripts, and the programs that each leaves running."""

WAITING = {
    "sleep 71 & sleep 72": ["sleep 71", "sleep 72"],
    "sleep 71 & (sleep 72; :); :": ["sleep 71", "sleep 72"],
    "sleep 71 & sleep 72 | cat | cat": ["sleep 71", "sleep 72", "cat", "cat"],
    "sleep 71 & python3 -c 'import os; os.system(\"sleep 72; :\")'; :": ["sleep 71", "sleep 72"],
    "setsid sleep 71 | cat": ["sleep 71", "cat"],
    "sleep 74; :": ["sleep 74"],
}
"""Scripts that wait for some of their programs, but never for `sleep 71`."""


def bash(script: str, *, cwd: Path) -> Command:
    return Command(argv=["/bin/bash", "-c", script], cwd=cwd, env=ENV)


def running_in(folder: Path) -> Counter[str]:
    """The command lines of the processes that work in a folder."""
    lines = Counter[str]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                words = (process / "cmdline").read_text(encoding="utf-8").rstrip("\0")
                lines[words.replace("\0", " ")] += 1
    return lines


def has_let_go(fifo: Path) -> bool:
    """Let the shell that waits for a line of a pipe continue, if it waits already."""
    try:
        writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(writer, b"\n")
    os.close(writer)
    return True


@pytest.mark.long
@pytest.mark.parametrize("script", LEAVING)
async def test_a_result_names_what_was_left_running(
    tmp_path: Path, launcher: Launcher, script: str
) -> None:
    fifo = tmp_path / "end"
    os.mkfifo(fifo)
    left = LEAVING[script]
    command = bash(f"{script}; read <end", cwd=tmp_path)  # until then, all of them can start
    calling = asyncio.create_task(run(command, launcher=launcher, timeout_s=600))
    assert await eventually(lambda: Counter(left) <= running_in(tmp_path))
    assert await eventually(lambda: has_let_go(fifo))
    done = await calling
    assert (done.exit_code, done.stdout.text) == (0, "started\n")
    if len(left) > 20:
        assert done.left_running[-1] == f"{len(left) - 20} more"
        assert len(set(done.left_running) & set(left)) == len(done.left_running) - 1 == 20
    else:
        assert sorted(done.left_running) == left


@pytest.mark.long
@pytest.mark.parametrize("script", WAITING)
async def test_what_a_stopped_program_waited_for_was_not_left_running(
    tmp_path: Path, launcher: Launcher, script: str
) -> None:
    command = bash(script, cwd=tmp_path)
    calling = asyncio.create_task(run(command, launcher=launcher, timeout_s=600, takes_cut=True))
    assert await eventually(lambda: Counter(WAITING[script]) <= running_in(tmp_path))
    calling.cancel()
    done = await calling
    assert done.cancelled
    assert [*done.left_running] == [line for line in WAITING[script] if line == "sleep 71"]


IGNORED = """
import signal
interrupts = signal.SIGINT, signal.SIGQUIT
print([each for each in interrupts if signal.getsignal(each) is signal.SIG_IGN])
"""


async def test_a_program_does_not_ignore_an_interrupt_that_its_starter_ignores(
    tmp_path: Path,
) -> None:
    """A shell starts what runs in the background in this way, and `nohup` and `cron` may."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGQUIT)}
    try:
        with contextlib.closing(Launcher()) as launcher:
            command = python(IGNORED, cwd=tmp_path)
            done = await run(command, launcher=launcher, timeout_s=600)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert done.stdout.text == "[]\n"


async def test_daemons_are_left_running_and_what_has_ended_is_not(
    tmp_path: Path, launcher: Launcher
) -> None:
    command = python(DAEMON, "600", cwd=tmp_path)
    calling = asyncio.create_task(run(command, launcher=launcher, timeout_s=600, takes_cut=True))

    def are_daemons() -> bool:
        """All run their own program, and have lost the parents that started them."""
        try:
            folders = [Path(f"/proc/{pid}") for pid in written(tmp_path, *NAMES)]
            lines = [(each / "cmdline").read_text(encoding="ascii") for each in folders]
            status = [(each / "stat").read_text(encoding="ascii") for each in folders]
        except (OSError, ValueError):
            return False
        parents = {each.rpartition(")")[2].split()[1] for each in status}
        return len(parents) == 1 and all(line.startswith("kworker") for line in lines)

    assert await eventually(are_daemons)
    calling.cancel()
    lines = (await calling).left_running
    assert len(lines) == len(NAMES)
    assert all(line.startswith("kworker") and "sleep(60)" in line for line in lines)
    ended = await run(bash("true & wait", cwd=tmp_path), launcher=launcher, timeout_s=600)
    assert not ended.left_running


def written(folder: Path, *names: str) -> list[int]:
    return [int((folder / name).read_text(encoding="ascii")) for name in names]


async def eventually(claim: Callable[[], bool], *, within_s: float = 50) -> bool:
    deadline = time.monotonic() + within_s
    while not claim():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    with contextlib.closing(Launcher()) as opened:
        yield opened


@pytest.mark.long
@pytest.mark.parametrize(("sleeps", "timeout_s"), [("0", 15.0), ("60", 3.0)])
async def test_daemons_that_have_let_go_of_everything_end_with_their_call(
    tmp_path: Path, launcher: Launcher, sleeps: str, timeout_s: float
) -> None:
    command = python(DAEMON, sleeps, cwd=tmp_path)
    done = await run(command, launcher=launcher, timeout_s=timeout_s)
    assert done.stdout.text == "started\n"
    assert done.timed_out is (sleeps == "60")
    assert not any(map(alive, written(tmp_path, *NAMES)))


async def test_daemons_end_with_a_call_that_is_cancelled(
    tmp_path: Path, launcher: Launcher
) -> None:
    command = python(DAEMON, "60", cwd=tmp_path)
    calling = asyncio.create_task(run(command, launcher=launcher, timeout_s=60))
    assert await eventually(lambda: all((tmp_path / name).exists() for name in NAMES))
    assert await eventually(lambda: all((tmp_path / name).read_text() for name in NAMES))
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not any(map(alive, written(tmp_path, *NAMES)))


async def test_calls_side_by_side_end_their_own_daemons_only(
    tmp_path: Path, launcher: Launcher
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    long = asyncio.create_task(
        run(python(DAEMON, "60", cwd=first), launcher=launcher, timeout_s=60)
    )
    assert await eventually(lambda: all((first / name).exists() for name in NAMES))
    await run(python(DAEMON, "0", cwd=second), launcher=launcher, timeout_s=60)
    assert not any(map(alive, written(second, *NAMES)))
    assert all(map(alive, written(first, *NAMES)))
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert not any(map(alive, written(first, *NAMES)))


async def test_what_nobody_lets_go_on_ends_at_its_deadline_with_its_daemons(
    tmp_path: Path, launcher: Launcher
) -> None:
    launcher.keep_until(now() + 60)
    command = python(DAEMON, "60", cwd=tmp_path)
    calling = asyncio.create_task(run(command, launcher=launcher, timeout_s=60))
    assert await eventually(lambda: all((tmp_path / name).exists() for name in NAMES))
    assert await eventually(lambda: all((tmp_path / name).read_text() for name in NAMES))
    launcher.keep_until(now() + 0.2)  # none is said to it before
    with pytest.raises(ToolError, match="for longer than its lease"):
        await calling
    assert not any(map(alive, written(tmp_path, *NAMES)))
    with pytest.raises(ToolError, match="for longer than its lease"):
        await run(command, launcher=launcher, timeout_s=60)
    launcher.keep_until(now() + 60)
    quick = await run(python(DAEMON, "0", cwd=tmp_path), launcher=launcher, timeout_s=60)
    assert quick.stdout.text == "started\n"


KILLED_RUNTIME = """
import asyncio, sys
from pathlib import Path
from agent_core.errors import ToolError
from agent_core.process import Command, Launcher, run
from agent_core.process.supervisor import now
command = Command(argv=[sys.executable, "-c", *sys.argv[1:3]], cwd=sys.argv[3], env={})
asyncio.run(run(command, launcher=Launcher(), timeout_s=60))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_daemons_end_with_a_runtime_that_was_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    source = Path(__file__).parents[3] / "src"
    runtime = subprocess.Popen(  # noqa: ASYNC220, S603
        [sys.executable, "-c", KILLED_RUNTIME, DAEMON, "60", str(tmp_path)],
        env={"PYTHONPATH": str(source), "PATH": os.environ["PATH"]},
    )
    assert await eventually(
        lambda: all((tmp_path / n).exists() and (tmp_path / n).read_text() for n in NAMES)
    )
    runtime.send_signal(number)
    runtime.wait()
    assert await eventually(lambda: not any(map(alive, written(tmp_path, *NAMES))))


KILLS_ITS_KEEPER = """
import os, sys, time
open("leader", "w").write(str(os.getpid()))
open("keeper", "w").write(str(os.getppid()))
print("said", flush=True)
os.kill(os.getppid(), int(sys.argv[1]))
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_program_that_attacks_its_keeper_gains_nothing(
    tmp_path: Path, launcher: Launcher, number: signal.Signals
) -> None:
    command = python(KILLS_ITS_KEEPER, str(int(number)), cwd=tmp_path)
    done = await run(command, launcher=launcher, timeout_s=3)
    assert done.exit_code == 128 + signal.SIGKILL
    assert done.stdout.text == "said\n"
    assert await eventually(lambda: not any(map(alive, written(tmp_path, "leader", "keeper"))))
    again = await run(python("print(1)", cwd=tmp_path), launcher=launcher, timeout_s=60)
    assert again.stdout.text == "1\n"


SUPERVISOR = """
import os
status = open(f"/proc/{os.getppid()}/stat").read()
supervisor = int(status.rpartition(")")[2].split()[1])
""".strip()


async def test_after_the_supervisor_was_killed_the_next_call_works(
    tmp_path: Path, launcher: Launcher
) -> None:
    script = f"{SUPERVISOR}\nprint(supervisor)"
    first = await run(python(script, cwd=tmp_path), launcher=launcher, timeout_s=60)
    os.kill(int(first.stdout.text), signal.SIGKILL)
    assert await eventually(lambda: not alive(int(first.stdout.text)))
    second = await run(python(script, cwd=tmp_path), launcher=launcher, timeout_s=60)
    assert second.exit_code == 0
    assert second.stdout.text != first.stdout.text


RUNNER = """
import os, time
# Each process starts the next one and ends: there is one at any moment, never for long.
if os.fork() == 0:
    os.setsid()
    for _ in range(100000):
        if os.fork():
            os._exit(0)
        with open("beat", "w") as file:
            file.write(str(time.monotonic()))
time.sleep(0.3)
"""


async def test_a_chain_of_short_lived_processes_is_caught(
    tmp_path: Path, launcher: Launcher
) -> None:
    await run(python(RUNNER, cwd=tmp_path), launcher=launcher, timeout_s=60)
    stopped = time.monotonic()
    await asyncio.sleep(0.2)
    with contextlib.suppress(ValueError):
        assert float((tmp_path / "beat").read_text()) < stopped


async def test_children_of_the_embedding_program_are_left_alone(
    tmp_path: Path, launcher: Launcher
) -> None:
    own = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220, S607
    detached = subprocess.run(  # noqa: ASYNC221
        ["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"],  # noqa: S607
        capture_output=True,
        check=True,
    )
    orphan = int(detached.stdout)
    try:
        await run(python(DAEMON, "0", cwd=tmp_path), launcher=launcher, timeout_s=60)
        launcher.close()
        assert own.poll() is None
        assert alive(orphan)
    finally:
        own.kill()
        own.wait()
        os.kill(orphan, signal.SIGKILL)


async def test_a_launcher_that_is_closed_leaves_no_process(tmp_path: Path) -> None:
    script = f"{SUPERVISOR}\nprint(os.getppid(), supervisor)"
    before = own_children()
    with contextlib.closing(Launcher()) as launcher:
        done = await run(python(script, cwd=tmp_path), launcher=launcher, timeout_s=60)
    pids = [int(pid) for pid in done.stdout.text.split()]
    assert await eventually(lambda: not any(map(alive, pids)))
    assert own_children() <= before


async def test_what_a_supervisor_sees_of_our_environment_is_nothing(
    tmp_path: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    script = "import os; print(open(f'/proc/{os.getppid()}/environ').read())"
    done = await run(python(script, cwd=tmp_path), launcher=launcher, timeout_s=60)
    assert done.exit_code == 0
    assert "sk-secret" not in done.stdout.text


async def test_a_script_without_its_first_line_is_run_by_the_shell(
    tmp_path: Path, launcher: Launcher
) -> None:
    script = tmp_path / "tool"
    script.write_text('echo "$0" "$1"\n', encoding="utf-8")
    script.chmod(0o755)
    command = Command(argv=[str(script), "a b"], cwd=tmp_path, env=ENV)
    done = await run(command, launcher=launcher, timeout_s=60)
    assert done.stdout.text == f"{script} a b\n"


async def test_zombies_of_a_long_call_are_taken_away(tmp_path: Path, launcher: Launcher) -> None:
    script = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
while True:
    try: os.wait()
    except ChildProcessError: break
time.sleep(0.2)
keeper = os.getppid()
children = open(f"/proc/{keeper}/task/{keeper}/children").read().split()
print(children == [str(os.getpid())])
"""
    done = await run(python(script, cwd=tmp_path), launcher=launcher, timeout_s=60)
    assert done.stdout.text == "True\n"

"""A program started as a copy of a warm process cannot tell, nor can who started it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import start_probe
import warm

pytestmark = pytest.mark.checked

PROBE = [sys.executable, start_probe.__file__]


@pytest.fixture(autouse=True)
def copying() -> None:
    if sys.platform != "linux":
        pytest.skip("copies are made on Linux")
    warm.wait()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were started as copies."""
    made: list[int] = []
    start = warm.Stock.start

    def watched(*given: Any) -> int | None:
        if pid := start(*given):
            made.append(pid)
        return pid

    monkeypatch.setattr(warm.Stock, "start", watched)
    return made


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def both(monkeypatch: pytest.MonkeyPatch, *words: str, **options: Any) -> list[dict[str, Any]]:
    """What is known of a program that was started as a copy, and of one that was not."""
    found: list[dict[str, Any]] = []
    options = {"env": dict(os.environ), **options}  # without what libraries set beneath Python
    for is_cold in (False, True):
        monkeypatch.setattr(warm, "is_cold", is_cold)
        done = subprocess.run([*PROBE, *words], text=True, check=False, **options)  # noqa: S603
        seen = json.loads(done.stdout) if done.stdout else None
        found.append({"code": done.returncode, "errors": done.stderr, **(seen or {})})
    return found


@pytest.mark.parametrize("end", ["nothing", "words", "number", "error", "interrupt"])
def test_a_copy_is_started_and_ends_like_any_program(
    copies: list[int], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    copied, started = both(monkeypatch, end, "ä", "\udcff", capture_output=True, input="said")
    assert copied == started
    assert len(copies) == 1
    assert copied["parent"] == os.getpid()
    assert copied["input"] == "said"


def test_a_copy_has_the_folder_variables_session_and_mask_it_is_given(
    copies: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, umask: None
) -> None:
    environ = {
        **os.environ,
        "A": "\udcfe",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONUNBUFFERED": "" if os.environ.get("PYTHONUNBUFFERED") else "1",
        "PYTHONWARNINGS": "error",
        "TZ": "Asia/Tokyo",
    }
    del environ["HOME"]
    copied, started = both(
        monkeypatch,
        "nothing",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        env=environ,
        start_new_session=True,
    )
    assert copied == started
    assert len(copies) == 1
    assert copied["folder"] == str(tmp_path)
    assert copied["is_leader"]
    assert copied["umask"] == 0o027


def test_a_copy_has_the_descriptors_and_the_terminal_it_is_given(
    copies: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    master, terminal = os.openpty()
    passed = os.open(tmp_path / "passed", os.O_CREAT | os.O_WRONLY)
    os.write(master, b"typed\n\x04" * 2)
    try:
        copied, started = both(
            monkeypatch,
            "nothing",
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            pass_fds=[passed],
        )
    finally:
        for each in (master, terminal, passed):
            os.close(each)
    assert copied == started
    assert len(copies) == 1
    assert copied["descriptors"][str(passed)] == str(tmp_path / "passed")
    assert copied["input"] == "typed\n"


async def test_a_copy_is_awaited_and_takes_signals(copies: list[int]) -> None:
    command = [sys.executable, "-m", "agent_core.cli", "acp"]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    assert copies == [process.pid]
    process.kill()
    assert await process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([sys.executable, "-m", "agent_core.cli", "--help"], {"preexec_fn": lambda: None}),
        ([sys.executable, "-m", "agent_core.cli", "--help"], {"close_fds": False}),
        ([sys.executable, "-m", "agent_core.cli", "--help"], {"env": {"PYTHONWARNINGS": "ignore"}}),
        ([sys.executable, "-m", "agent_core.cli", "--help"], {"env": {"LC_ALL": "C"}}),
        ([sys.executable, "-m", "agent_core.cli", "--help"], {"env": {"PYTHONPATH": "/"}}),
        ([sys.executable, "-W", "error", "-m", "agent_core.cli", "--help"], {}),
        ([sys.executable, "-c", "pass"], {}),
        (["true"], {}),
    ],
    ids=[
        "a call",
        "descriptors",
        "warnings",
        "locale",
        "modules",
        "options",
        "code",
        "another program",
    ],
)
def test_what_a_copy_cannot_be_is_started_from_scratch(
    copies: list[int], words: list[str], options: dict[str, Any]
) -> None:
    assert subprocess.call(words, stdout=subprocess.DEVNULL, **options) == 0  # noqa: S603
    assert copies == []


@pytest.mark.cold
def test_a_test_marked_cold_starts_its_programs_from_scratch(copies: list[int]) -> None:
    subprocess.run([*PROBE, "nothing"], input=b"", capture_output=True, check=True)  # noqa: S603
    assert copies == []


def test_a_folder_that_is_missing_is_told_as_ever(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run([*PROBE, "nothing"], cwd=tmp_path / "missing", check=False)  # noqa: S603


@pytest.mark.parametrize("end", ["nothing", "words", "number", "error"])
def test_a_program_that_another_starts_is_a_copy_too(copies: list[int], end: str) -> None:
    """As `sh`, a keeper of commands, or any program does that knows nothing of copies."""
    words = [sys.executable, *warm.arguments(start_probe.__file__, end, "ä")]
    found = subprocess.run(  # noqa: S603
        words, capture_output=True, text=True, check=False, input="said", env={"A": "b", "C": "d"}
    )
    again = subprocess.run([*PROBE, end], capture_output=True, text=True, check=False, input="said")  # noqa: S603
    assert (found.returncode, found.stderr) == (again.returncode, again.stderr)
    assert len(copies) == 2
    if found.stdout:
        assert json.loads(found.stdout)["input"] == "said"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_who_asked_for_a_copy_reaches_it(
    copies: list[int], tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n", encoding="utf-8")
    with subprocess.Popen(  # noqa: S603
        [sys.executable, *warm.arguments(str(script))],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == b"here\n"
        asking.send_signal(number)
        assert asking.wait(30) == -number
        assert asking.stdout.read() == b""  # the copy has ended as well
    assert len(copies) == 1

"""Allowed commands that attack the run folder: every run ends, and says what happened."""

import errno
import itertools
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rights
from agent_core.tools.files import replace_file
from kgent import RunResult
from kgent.cli import main
from kgent.review.report import read_report
from kgent.review.verification import verify
from kgent.runtime.state import RunStatus
from kgent_runs import a_run, calls, lines, profile, state, types
from sweeps import sampled
from tables import together

SHELL = {"shell": {"enabled": True, "allowed_commands": ["sh"]}}
SOURCE = Path(__file__).parents[2] / "src"


def run_script(tmp_path: Path, script: str) -> RunResult:
    return a_run(tmp_path, calls("run_command", argv=["sh", "-c", script]), "Done.", tools=SHELL)


ATTACKS = {
    "deletes run.json": "rm ../run.json",
    "puts a folder in place of run.json": "rm ../run.json; mkdir -p ../run.json/a",
    "puts a link in place of run.json": "ln -sf /etc/passwd ../run.json",
    "puts a pipe in place of run.json": "rm ../run.json; mkfifo ../run.json",
    "rewrites run.json": "echo '{}' > ../run.json",
    "deletes the events": "rm ../events.jsonl",
    "empties the events": ": > ../events.jsonl",
    "adds an event": "echo '{}' >> ../events.jsonl",
    "puts a folder in place of the events": "rm ../events.jsonl; mkdir ../events.jsonl",
    "deletes the logs": "rm -r ../logs",
    "puts a file in place of the logs": "rm -r ../logs; : > ../logs",
    "puts a link in place of the logs": "rm -r ../logs; ln -s /tmp ../logs",
    "deletes the transcript": "rm ../transcript.md",
    "rewrites the prompt": "echo other > ../prompt.md",
    "rewrites the system prompt": "echo other > ../effective-system-prompt.md",
    "rewrites the profile": "echo other > ../config.yaml",
    "deletes the manifests": "rm ../*-manifest.json",
    "takes the rights away": "chmod 000 .. ../logs ../run.json",
    "puts a link in place of the folder": "mv ../../run ../../gone; ln -s gone ../../run",
    "puts a file in place of the folder": "mv ../../run ../../gone; : > ../../run",
    "deletes everything": "rm -rf ../* ../.[a-z]*",
}


@pytest.mark.long
@together("record", sampled(["events.jsonl", "run.json", "prompt.md", "logs/tools.jsonl"], keep=2))
def test_a_file_outside_that_stands_in_place_of_a_record_keeps_its_rights(
    tmp_path: Path, record: str
) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("not of the run\n", encoding="utf-8")
    outside.chmod(0o644)
    result = run_script(tmp_path, f"ln -f '{outside}' ../{record}")
    assert result.status is RunStatus.failed
    assert outside.read_text(encoding="utf-8") == "not of the run\n"
    assert outside.stat().st_mode & 0o777 == 0o644


@pytest.mark.long
@pytest.mark.parametrize("attack", sampled(ATTACKS, keep=2))
def test_a_run_whose_records_were_changed_ends_as_failed_and_internal(
    tmp_path: Path, attack: str
) -> None:
    result = run_script(tmp_path, ATTACKS[attack])
    root = tmp_path / "run"
    if attack == "takes the rights away" and os.geteuid() == 0:
        assert result.status is RunStatus.completed  # the superuser needs no rights
        return
    written = state(root)
    assert (result.status, written["status"]) == (RunStatus.failed, "failed")
    assert result.error is not None
    assert (result.error.code, result.error.category) == ("records_changed", "internal")
    assert written["error"]["category"] == "internal"
    assert not result.is_blocked
    assert not read_report(root).is_lost
    assert Path("/etc/passwd").read_text(encoding="utf-8").startswith("root:")


KEPT = ("deletes the events", "deletes the logs", "puts a folder in place of the events")


@pytest.mark.parametrize("attack", sampled(KEPT, keep=1))
def test_records_that_were_removed_are_put_back_whole(tmp_path: Path, attack: str) -> None:
    run_script(tmp_path, ATTACKS[attack])
    root = tmp_path / "run"
    assert [event["sequence"] for event in lines(root / "events.jsonl")] == [
        *range(1, len(types(root)) + 1)
    ]
    assert types(root)[-1] == "run.failed"
    assert len(lines(root / "logs" / "tools.jsonl")) == 1
    assert verify(root).problems == []


@pytest.mark.parametrize(
    "name", sampled(["prompt.md", "effective-system-prompt.md", "config.yaml"], keep=1)
)
def test_verify_notices_a_record_that_was_rewritten_in_mid_run(tmp_path: Path, name: str) -> None:
    result = run_script(tmp_path, f"echo other > ../{name}")
    assert result.sandbox_root is not None
    assert f"{name} was changed" in "\n".join(verify(result.sandbox_root).problems)


def test_a_run_whose_folder_was_moved_away_ends_with_a_run_json_in_its_place(
    tmp_path: Path,
) -> None:
    result = run_script(tmp_path, "mv ../../run ../../gone")
    assert result.status is RunStatus.failed
    assert state(tmp_path / "run")["status"] == "failed"


@pytest.mark.sweep
def test_any_file_name_is_recorded_and_found_again(tmp_path: Path) -> None:
    names = [b"caf\xe9.txt", b"caf\\xe9.txt", b"new\nline", b"\xff\xfe", "汉字".encode()]
    script = "; ".join(
        "printf x > \"$(printf '" + "".join(f"\\{byte:03o}" for byte in name) + "'; printf .)\""
        for name in names
    )
    result = a_run(
        tmp_path,
        calls("run_command", argv=["sh", "-c", script]),
        calls("list_files", path="workspace"),
        "Done.",
        tools=SHELL,
    )
    root = result.sandbox_root
    assert root is not None
    assert (result.status, result.error) == (RunStatus.completed, None)
    written = {os.fsencode(path.name) for path in (root / "workspace").iterdir()}
    assert written == {name + b"." for name in names}
    artifacts = json.loads((root / "artifact-manifest.json").read_text())["artifacts"]
    recorded = {
        bytes.fromhex(one["path_hex"]) if "path_hex" in one else one["path"].encode()
        for one in artifacts
    }
    made = {b"workspace/" + name for name in written}
    assert recorded == made | {b"archive/conversation.jsonl"}
    assert verify(root).problems == []
    assert main(["show", str(root)]) == 0
    assert main(["show", str(root), "--html", str(tmp_path / "page.html")]) == 0


RIGHTS = {
    "of run.json": ("chmod 000 ../run.json", True),
    "of the events": ("chmod 000 ../events.jsonl", True),
    "of every record": ("chmod 000 ../*", True),
    "of the logs": ("chmod 000 ../logs", True),
    "of the run folder": ("chmod -R 000 ..", True),
    "of what it has made": ("mkdir -p a/b; echo x > a/b/c; chmod 000 a/b/c a/b a", False),
    "of the archive": ("chmod 000 ../archive", True),
    "of what is not the run's own": ("chmod 000 ../deliverables ../workspace", False),
}


@pytest.mark.parametrize("name", sampled(RIGHTS, keep=1))
def test_a_command_that_takes_the_rights_away(tmp_path: Path, name: str) -> None:
    """Without the rights of the superuser, who may read everything."""
    script, is_change = RIGHTS[name]
    steps = [{"tool": "run_command", "args": {"argv": ["sh", "-c", script]}}, "Done."]
    (tmp_path / "s.json").write_text(json.dumps(steps), encoding="utf-8")
    profile(tmp_path, model={"path": "s.json"}, tools=SHELL)
    done = as_anyone("run --config kgent.yaml --prompt x --sandbox run", tmp_path)
    root = tmp_path / "run"
    assert done.returncode == (1 if is_change else 0), done.stderr
    assert state(root)["status"] == ("failed" if is_change else "completed")
    checked = as_anyone("verify run", tmp_path)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    if name == "of what it has made":
        artifacts = json.loads((root / "artifact-manifest.json").read_text())["artifacts"]
        sizes = {one["path"]: one["bytes"] for one in artifacts}
        assert sizes.pop("archive/model/s.json") > 0
        assert sizes.pop("archive/conversation.jsonl") > 0
        assert sizes == {"workspace/a/b/c": 2}


def as_anyone(words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the superuser's right to read everything."""
    return python(rights.__file__, "kgent", *words.split(), cwd=cwd)


def limited_run(tmp_path: Path, size: int) -> subprocess.CompletedProcess[str]:
    """A run in a process that may write files of `size` bytes at most, as on a full disk."""
    (tmp_path / "s.json").write_text('["Done.", "Done."]', encoding="utf-8")
    path = profile(tmp_path, model={"path": "s.json"})
    program = tmp_path / "limited.py"
    program.write_text(
        "import resource, signal, sys\n"
        "from kgent.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        f"sys.exit(main(['run', '--config', {str(path)!r}, '--prompt', 'x' * 9000,"
        f" '--sandbox', {str(tmp_path / 'run')!r}]))\n",
        encoding="utf-8",
    )
    return python(str(program), cwd=tmp_path)


@pytest.mark.parametrize("size", sampled([2000, 3000, 5000, 8000], keep=1))
def test_a_disk_without_room_ends_in_a_terminal_run_json(tmp_path: Path, size: int) -> None:
    done = limited_run(tmp_path, size)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert state(tmp_path / "run")["status"] == "failed"
    assert state(tmp_path / "run")["error"]["category"] == "internal"
    for name in ("events.jsonl", "logs/errors.jsonl"):
        lines(tmp_path / "run" / name)  # whole lines only


@pytest.mark.parametrize("room", [0, 300])
def test_a_disk_without_room_for_the_first_state_blocks_the_run(tmp_path: Path, room: int) -> None:
    done = limited_run(tmp_path, room)
    assert done.returncode == 2
    assert "cannot be made: File too large" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kgent.yaml",
        "limited.py",
        "s.json",
    ]


@together("writes", range(9))
def test_a_disk_that_is_full_from_some_write_on_ends_in_a_terminal_run_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """No file can be replaced any more: `run.json` is written over in its place."""
    left = iter(range(writes))

    def replace(*arguments: Any, **options: Any) -> object:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace_file(*arguments, **options)

    monkeypatch.setattr("kgent.sandbox.files.replace_file", replace)
    result = a_run(tmp_path, "Done.")
    assert result.status is RunStatus.failed
    assert state(tmp_path / "run")["status"] == "failed"
    assert state(tmp_path / "run")["error"]["category"] == "internal"


def python(*words: str, cwd: Path, stdout: Any = subprocess.PIPE) -> Any:
    return subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=20,
    )


def kgent(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose streams a shell redirects."""
    return subprocess.run(  # noqa: S603 - our own interpreter and program
        ["sh", "-c", f'exec "{sys.executable}" -m kgent {arguments}'],  # noqa: S607
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


RUN = "run --config kgent.yaml --prompt x --sandbox other"
COMMANDS = (RUN, "validate --config kgent.yaml", "show run", "verify run", "--help")


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    sampled([*((command, "") for command in COMMANDS), ("--help", "1")], keep=2),
)
def test_a_full_standard_output_is_an_error_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    a_run(tmp_path)
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = python("-m", "kgent", *command.split(), cwd=tmp_path, stdout=full)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if command == RUN:
        assert state(tmp_path / "other")["status"] == "completed"


STREAMS = ("2>&-", "2>/dev/full", "<&- 2>&-")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("command", "streams"),
    [
        (RUN, "<&- 2>&-"),
        *(pytest.param(RUN, each, marks=pytest.mark.sweep) for each in STREAMS[:2]),
        *(pytest.param("--help", each, marks=pytest.mark.sweep) for each in STREAMS),
    ],
)
def test_a_closed_standard_error_changes_no_exit_code(
    tmp_path: Path, command: str, streams: str
) -> None:
    a_run(tmp_path)
    done = kgent(f"{command} {streams}", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


PRINTING = (*COMMANDS[1:], "--version", f"{RUN} --stream", "diff run run --output-format json")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "streams"),
    [
        (RUN, ">&-"),
        *(
            pytest.param(command, ">&-", marks=pytest.mark.sweep)
            for command in sampled(PRINTING, 1)
        ),
        *(
            pytest.param(command, "<&- >&- 2>&-", marks=pytest.mark.sweep)
            for command in (RUN, *PRINTING)
        ),
    ],
)
def test_a_closed_standard_output_is_exit_code_141(
    tmp_path: Path, command: str, streams: str
) -> None:
    if command == RUN:
        profile(tmp_path)
    else:
        a_run(tmp_path)
    done = kgent(f"{command} {streams}", tmp_path)
    told = "kgent: standard output is closed: redirect it to a file, or to /dev/null"
    assert (done.returncode, "Traceback" in done.stderr) == (141, False)
    assert (told in done.stderr) is (streams == ">&-")
    if command.startswith("run"):
        assert state(tmp_path / "other")["status"] == "completed"


@pytest.mark.sweep
def test_a_reader_that_goes_away_is_exit_code_141(tmp_path: Path) -> None:
    a_run(tmp_path)
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-m", "kgent", "verify", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
        timeout=20,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("truncate -s 8T big", marks=pytest.mark.sweep),
        "truncate -s 8T big; truncate -s 8T big2; ln big ../deliverables/big",
        pytest.param("truncate -s 8T ../prompt.md", marks=pytest.mark.sweep),
        "truncate -s 8T ../events.jsonl",
        pytest.param("truncate -s 8T ../events.jsonl; rm ../events.jsonl", marks=pytest.mark.sweep),
    ],
)
def test_a_file_of_terabytes_keeps_no_run_from_closing(tmp_path: Path, script: str) -> None:
    result = run_script(tmp_path, script)
    root = tmp_path / "run"
    problems = "\n".join(verify(root).problems)
    if ".." not in script or "big" in script:
        assert result.status is RunStatus.completed
        assert "workspace/big was too large to be read when the run ended" in problems
        artifacts = json.loads((root / "artifact-manifest.json").read_text())["artifacts"]
        assert {one["status"] for one in artifacts if "big" in one["path"]} == {"too_large"}
    else:
        assert (result.status, result.error and result.error.code) == (
            RunStatus.failed,
            "records_changed",
        )
        assert "was changed" in problems
    assert state(root)["status"] == result.status


@pytest.mark.sweep
def test_a_run_on_a_file_system_without_rights_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("kgent.sandbox.files.set_rights", refuse)
    result = run_script(tmp_path, "echo x > a; chmod 644 ../prompt.md")
    assert (result.status, result.error) == (RunStatus.completed, None)
    (tmp_path / "run" / "run.json").chmod(0o600)  # such a file system has one mode for all
    assert verify(tmp_path / "run", seal=result.seal).problems == []


@pytest.mark.sweep
def test_a_clock_that_is_turned_back_leaves_records_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(0, -3600)

    def turned() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(times))

    monkeypatch.setattr("kgent.records.lines.utc_now", turned)
    result = run_script(tmp_path, "echo x > a")
    assert result.status is RunStatus.completed
    assert verify(tmp_path / "run").problems == []

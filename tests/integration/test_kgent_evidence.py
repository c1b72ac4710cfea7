"""What `kgent verify` and the seal notice: a table of changes to a finished run folder."""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kgent import RunOptions, RunResult
from kgent.cli import main
from kgent.engine.mock import MockAgentEngine
from kgent.review.verification import verify
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_forgery import edit_state, forge, rewrite, write_events
from kgent_runs import a_run, calls, lines, profile, skill, state
from sweeps import sampled
from tables import together

Change = Callable[[Path], object]
DEEP = (
    f"i=0; while [ $i -lt 25 ]; do mkdir {'d' * 200} && cd -P {'d' * 200}; i=$((i+1)); done;"
    " echo x > file"
)


def finish(tmp_path: Path, *, more: str = "") -> RunResult:
    """Run an agent that leaves files, a folder and a link."""
    result = a_run(
        tmp_path,
        calls("write_file", path="deliverables/report.md", content="It rained.\n"),
        calls("write_file", path="workspace/notes.md", content="clouds\n"),
        calls("run_command", argv=["sh", "-c", f"mkdir empty; ln -s notes.md link; {more}"]),
        "Done.",
        deliverables={"required": ["deliverables/report.md"]},
        tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}},
    )
    assert result.status is RunStatus.completed
    assert result.sandbox_root is not None
    return result


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run, which tests copy."""
    return finish(tmp_path_factory.mktemp("original"))


@pytest.fixture
def root(original: RunResult, tmp_path: Path) -> Path:
    """A copy of the folder of a finished run."""
    assert original.sandbox_root is not None
    return shutil.copytree(original.sandbox_root, tmp_path / "run", symlinks=True)


@pytest.fixture
def seal(original: RunResult) -> str:
    """The seal of the run that `root` is a copy of."""
    assert original.seal is not None
    return original.seal


def swap(root: Path) -> None:
    one, other = root / "deliverables" / "report.md", root / "workspace" / "notes.md"
    one.rename(root / "swap")
    other.rename(one)
    (root / "swap").rename(other)


def replace_by_link(root: Path) -> None:
    report = root / "deliverables" / "report.md"
    shutil.copy(report, root.parent / "elsewhere.md")
    report.unlink()
    report.symlink_to(root.parent / "elsewhere.md")


def lead_elsewhere(root: Path) -> None:
    (root / "workspace" / "link").unlink()
    (root / "workspace" / "link").symlink_to("/etc/passwd")


def drop_last_event(root: Path) -> None:
    rewrite(root, "events.jsonl", lambda text: "".join(text.splitlines(keepends=True)[:-1]))


def swap_events(root: Path) -> None:
    def swapped(text: str) -> str:
        first, second, *rest = text.splitlines(keepends=True)
        return "".join([second, first, *rest])

    rewrite(root, "events.jsonl", swapped)


def rename_artifact(root: Path) -> None:
    (root / "workspace" / "notes.md").rename(root / "workspace" / "other.md")


def add_key_twice(root: Path) -> None:
    rewrite(root, "run.json", lambda text: text.replace("{", '{\n  "status": "failed",', 1))


def forge_report(root: Path) -> None:
    (root / "deliverables" / "report.md").write_text("It snowed.\n", encoding="utf-8")
    forge(root)


def forge_usage(root: Path) -> None:
    forge(root, usage={"model_calls": 1})


def forge_without_a_call(root: Path) -> None:
    rewrite(root, "logs/tools.jsonl", lambda text: text.partition("\n")[2])
    forge(root, counts=state(root)["counts"] | {"tool_calls": 2})


def forge_without_an_event(root: Path) -> None:
    kept = [one for one in lines(root / "events.jsonl") if one["type"] != "file.written"]
    write_events(root, [one | {"sequence": n} for n, one in enumerate(kept, 1)])
    forge(root)


def forge_the_time_of_an_event(root: Path) -> None:
    events = lines(root / "events.jsonl")
    events[3]["timestamp"] = "2020-01-01T00:00:00.000000+00:00"
    write_events(root, events)
    forge(root)


def forge_an_error(root: Path) -> None:
    rewrite(root, "logs/errors.jsonl", lambda text: text + "{}\n")
    forge(root)


def sparse(path: Path) -> None:
    """Make a file of terabytes that has nothing in it."""
    os.truncate(path, 8 * 2**40)


def at_the_bottom(root: Path, change: Callable[[], object]) -> None:
    """Do something in the deepest folder, whose path is longer than any call takes."""
    with contextlib.chdir(root / "workspace"):
        while Path("d" * 200).is_dir():
            os.chdir("d" * 200)
        change()


def put_pipe_in_place(root: Path, name: str) -> None:
    (root / name).unlink()
    os.mkfifo(root / name)


NOTICED: dict[str, tuple[Change, str]] = {
    "a call is taken out, consistently": (
        forge_without_a_call,
        "logs/tools.jsonl and events.jsonl have different calls",
    ),
    "events are taken out, consistently": (
        forge_without_an_event,
        "for events, the records have",
    ),
    "the time of an event is turned back, consistently": (
        forge_the_time_of_an_event,
        "event 4 is earlier than the one before it",
    ),
    "the end is turned back, consistently": (
        lambda root: forge(root, ended_at="2020-01-01T00:00:00.000000+00:00"),
        "run.json has times that do not fit the events",
    ),
    "the beginning is taken out, consistently": (
        lambda root: forge(root, started_at=None),
        "run.json has started_at None, the events begin 1 times",
    ),
    "an error is added, consistently": (forge_an_error, "for errors, the records have 1"),
    "the folder is said to be of the first release": (
        lambda root: forge(root, schema_version=1),
        "the first release of kgent wrote this folder",
    ),
    "the folder is said to be of a later release": (
        lambda root: forge(root, schema_version=99),
        "a later version of kgent wrote this folder",
    ),
    "a deliverable can be executed by everybody": (
        lambda root: (root / "deliverables" / "report.md").chmod(0o755),
        "deliverables/report.md was changed: its mode was 06",
    ),
    "a record can be executed by everybody": (
        lambda root: (root / "events.jsonl").chmod(0o777),
        "events.jsonl was changed: its mode was 0600, and is 0777 now: it can be executed",
    ),
    "run.json can be executed by everybody": (
        lambda root: (root / "run.json").chmod(0o755),
        "run.json was changed: its mode was 0600, and is 0755 now: it can be executed",
    ),
    "a deliverable grows to terabytes": (
        lambda root: sparse(root / "deliverables" / "report.md"),
        "deliverables/report.md was changed: 11 bytes then, 8796093022208 now",
    ),
    "the events grow to terabytes": (
        lambda root: sparse(root / "events.jsonl"),
        "events.jsonl was changed",
    ),
    "a manifest grows to terabytes": (
        lambda root: sparse(root / "sandbox-manifest.json"),
        "sandbox-manifest.json was changed after the run",
    ),
    "a deliverable is edited": (
        lambda root: rewrite(root, "deliverables/report.md", lambda _: "It snowed.\n"),
        "deliverables/report.md was changed",
    ),
    "a file is added": (
        lambda root: (root / "deliverables" / "more.md").touch(),
        "deliverables/more.md was added after the run",
    ),
    "a file is added beside the records": (
        lambda root: (root / "logs" / "extra").touch(),
        "logs/extra was added after the run",
    ),
    "a hidden file is added": (
        lambda root: (root / ".hidden").touch(),
        ".hidden was added after the run",
    ),
    "a file that is not UTF-8 is added": (
        lambda root: (root / "workspace" / os.fsdecode(b"caf\xe9")).touch(),
        "workspace/caf\\xe9 was added after the run",
    ),
    "a pipe takes the place of the profile": (
        lambda root: put_pipe_in_place(root, "config.yaml"),
        "config.yaml is missing, or is not an ordinary file",
    ),
    "a pipe takes the place of the events": (
        lambda root: put_pipe_in_place(root, "events.jsonl"),
        "events.jsonl is missing, or is not an ordinary file",
    ),
    "a run that never ended has a pipe for events": (
        lambda root: (edit_state(root, status="running"), put_pipe_in_place(root, "events.jsonl")),
        "events.jsonl is missing, or is not an ordinary file",
    ),
    "a folder is added": (
        lambda root: (root / "workspace" / "new").mkdir(),
        "workspace/new (folder) was added after the run",
    ),
    "a link is added": (
        lambda root: (root / "workspace" / "new").symlink_to("notes.md"),
        "workspace/new (link) was added after the run",
    ),
    "a file is deleted": (
        lambda root: (root / "workspace" / "notes.md").unlink(),
        "workspace/notes.md is missing",
    ),
    "a link leads elsewhere": (lead_elsewhere, "workspace/link was changed: link to notes.md"),
    "a file is renamed": (rename_artifact, "workspace/other.md was added after the run"),
    "two files are swapped": (swap, "deliverables/report.md was changed"),
    "a file becomes a link to the same content": (
        replace_by_link,
        "deliverables/report.md is missing, or no longer an ordinary file",
    ),
    "the prompt is rewritten": (
        lambda root: rewrite(root, "prompt.md", lambda _: "Something else."),
        "prompt.md was changed",
    ),
    "the system prompt is rewritten": (
        lambda root: rewrite(root, "effective-system-prompt.md", lambda text: text + "!"),
        "effective-system-prompt.md was changed",
    ),
    "the transcript is edited": (
        lambda root: rewrite(root, "transcript.md", lambda text: text + "\n"),
        "transcript.md was changed",
    ),
    "the profile is edited": (
        lambda root: rewrite(root, "config.yaml", lambda text: text.replace("writer", "other")),
        "config.yaml was changed",
    ),
    "the last event is cut off": (drop_last_event, "one closing event must end it"),
    "two events are swapped": (swap_events, "event 1 has the sequence 2"),
    "a tool call is taken out": (
        lambda root: rewrite(root, "logs/tools.jsonl", lambda text: text.partition("\n")[2]),
        "logs/tools.jsonl was changed",
    ),
    "the status in run.json is edited": (
        lambda root: edit_state(root, status="failed"),
        "run.json says failed, the last event says run.completed",
    ),
    "a time in run.json is edited": (
        lambda root: edit_state(root, started_at="2020-01-01T00:00:00+00:00"),
        "run.json was changed after the run",
    ),
    "the usage in run.json is edited": (
        lambda root: edit_state(root, usage={}),
        "run.json was changed after the run",
    ),
    "the found deliverables in run.json are edited": (
        lambda root: edit_state(root, found=[]),
        "run.json was changed after the run",
    ),
    "the fingerprint in run.json is edited": (
        lambda root: edit_state(root, config_fingerprint="0" * 64),
        "run.json was changed after the run",
    ),
    "an id in run.json is edited": (
        lambda root: edit_state(root, task_id="task_other"),
        "run.json has another task_id than the events",
    ),
    "a key is added to run.json": (
        lambda root: edit_state(root, approved_by="nobody"),
        "run.json was changed after the run",
    ),
    "a key stands in run.json twice": (add_key_twice, '"status" is given twice'),
    "a line is added to run.json": (
        lambda root: rewrite(root, "run.json", lambda text: text + "\n"),
        "run.json was changed after the run",
    ),
    "run.json is written in another form": (
        lambda root: rewrite(root, "run.json", lambda text: json.dumps(json.loads(text))),
        "run.json was changed after the run",
    ),
    "a name is added to the manifests of run.json": (
        lambda root: edit_state(root, manifests=state(root)["manifests"] | {"approval": "given"}),
        "it names manifests that no run has: approval",
    ),
    "a manifest is edited": (
        lambda root: rewrite(root, "artifact-manifest.json", lambda t: t.replace("tool:", "")),
        "artifact-manifest.json was changed after the run",
    ),
    "a manifest is deleted": (
        lambda root: (root / "sandbox-manifest.json").unlink(),
        "sandbox-manifest.json is missing",
    ),
}


def test_a_copy_is_sound(root: Path) -> None:
    assert verify(root).problems == []


@pytest.mark.parametrize("name", sampled(NOTICED, keep=10))
def test_verify_notices_that(root: Path, name: str) -> None:
    change, problem = NOTICED[name]
    change(root)
    assert problem in "\n".join(verify(root).problems)


@pytest.mark.sweep
def test_verify_notices_what_changes_below_a_very_long_path(tmp_path: Path) -> None:
    root = finish(tmp_path, more=DEEP).sandbox_root
    assert root is not None
    assert verify(root).problems == []
    at_the_bottom(root, lambda: Path("more").touch())
    assert "ddd/more was added after the run" in "\n".join(verify(root).problems)
    at_the_bottom(root, lambda: Path("file").write_bytes(b"?"))
    assert "ddd/file was changed" in "\n".join(verify(root).problems)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda file: file.unlink(),
    "cut": lambda file: file.write_bytes(b"{"),
    "appended to": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "emptied": lambda file: file.write_bytes(b""),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a link": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_folder_whose_run_json_cannot_be_read_is_a_changed_one(
    root: Path, seal: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGES[name](root / "run.json")
    capsys.readouterr()
    assert main(["verify", str(root)]) == 1
    assert "! " in capsys.readouterr().out
    assert main(["verify", str(root), "--seal", seal]) == 1
    assert "the seal does not fit" in capsys.readouterr().out


@pytest.mark.parametrize("forge", [forge_report, forge_usage])
def test_a_consistent_forgery_is_noticed_by_the_seal_only(
    root: Path, seal: str, forge: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(root), "--seal", seal]) == 0
    forge(root)
    assert verify(root).problems == []
    capsys.readouterr()
    assert main(["verify", str(root), "--seal", seal]) == 1
    assert "the seal does not fit" in capsys.readouterr().out


def test_what_does_not_change_content_is_not_noticed(tmp_path: Path, root: Path, seal: str) -> None:
    moved = root.rename(tmp_path / "moved")
    report = moved / "deliverables" / "report.md"
    os.utime(report, (0, 0))
    os.link(report, tmp_path / "second name")
    assert verify(moved, seal=seal).problems == []


def test_verify_compares_with_the_seal_that_the_run_has_printed(
    root: Path, seal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(root)]) == 0
    assert f"seal     {seal}" in capsys.readouterr().out


def test_a_name_with_a_line_break_looks_like_no_other_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "workspace" / "x\nsound: 9 files are as the run left them").touch()
    capsys.readouterr()
    assert main(["verify", str(root)]) == 1
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["! "]


def test_ctrl_c_ends_a_check_with_130_and_no_traceback(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 5)

    monkeypatch.setattr("kgent.review.verification.describe_file", interrupted)
    assert main(["verify", str(root)]) == 130
    assert capsys.readouterr().err == "kgent: interrupted\n"


def test_a_run_with_more_events_than_are_shown_is_sound(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgent.review.report.MAX_LINES", 4)
    assert verify(root).problems == []
    drop_last_event(root)
    assert "one closing event must end it; there are 0" in "\n".join(verify(root).problems)


@pytest.mark.sweep
def test_a_run_that_owes_very_much_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile in the run folder has defaults filled in: it is larger than the one given."""
    monkeypatch.setattr("kgent.config.loader._MAX_NODES", 500)
    owed = [f"deliverables/{number}.md" for number in range(100)]
    result = a_run(tmp_path, "Done.", deliverables={"required": owed})
    assert result.status is RunStatus.incomplete
    assert result.sandbox_root is not None
    assert verify(result.sandbox_root).problems == []


@pytest.mark.sweep
@together("name", [b"caf\xe9", b"a{b}c", b"line\nbreak", b"n" * 255])
def test_a_run_folder_of_any_name_is_sound(tmp_path: Path, name: bytes) -> None:
    place = tmp_path / os.fsdecode(name)
    result = run(profile(tmp_path), "Work.", RunOptions(sandbox=place), engine=MockAgentEngine())
    assert (result.status, result.error) == (RunStatus.completed, None)
    assert verify(place, seal=result.seal).problems == []


def test_a_profile_in_a_folder_of_any_name_is_sound(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    skill(folder / "skills")
    path = profile(folder, skills={"paths": ["skills"]})
    result = run(path, "Work.", RunOptions(sandbox=tmp_path / "run"), engine=MockAgentEngine())
    assert (result.status, result.error) == (RunStatus.completed, None)
    assert verify(tmp_path / "run").problems == []


@pytest.mark.long
def test_a_run_folder_of_any_size_is_sound(tmp_path: Path) -> None:
    name = "file-with-a-rather-long-name"
    many = f'i=0; while [ $i -lt 1500 ]; do : > "{name}-$i.txt"; i=$((i+1)); done'
    result = a_run(
        tmp_path,
        calls("run_command", argv=["sh", "-c", many]),
        "Done.",
        tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}},
    )
    assert result.status is RunStatus.completed
    assert result.sandbox_root is not None
    assert verify(result.sandbox_root).problems == []
    assert verify(result.sandbox_root).checked > 1500


FIRST_RELEASE = Path(__file__).parent / "kgent_first_release"
FIRST_SEAL = "accc5bd08b501c5c1f70cf66bd654cb21d264f2f1efc51e4257fcac6cc4bb0e7"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run folder that the first release has left; version control keeps no empty folders."""
    root = tmp_path / "old"
    shutil.copytree(FIRST_RELEASE, root)
    for name in ("archive", "workspace"):
        (root / name).mkdir(exist_ok=True)
    return root


def test_a_folder_of_the_first_release_is_said_to_be_one(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (said,) = verify(old).problems
    assert said.startswith("the first release of kgent wrote this folder")
    assert main(["show", str(old)]) == 0
    assert main(["show", str(old), "--html", str(old.parent / "page.html")]) == 0
    assert main(["diff", str(old), str(old)]) == 0
    capsys.readouterr()
    assert main(["rerun", str(old)]) == 2
    assert "run the profile again: kgent run --config" in capsys.readouterr().err


def test_a_folder_of_the_first_release_is_proved_by_its_seal(old: Path) -> None:
    assert main(["verify", str(old), "--seal", FIRST_SEAL]) == 0
    rewrite(old, "deliverables/report.md", lambda _: "It snowed.\n")
    assert main(["verify", str(old), "--seal", FIRST_SEAL]) == 1


def test_a_folder_of_the_first_release_is_checked_as_far_as_it_goes(old: Path) -> None:
    rewrite(old, "events.jsonl", lambda text: text.replace("run.completed", "run.failed"))
    assert "events.jsonl was changed" in "\n".join(verify(old).problems)


def test_a_place_that_is_not_a_run_folder_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    places = {"gone": "does not exist", "empty": "has no run.json", "file": "is not a folder"}
    for name, reason in places.items():
        for command in ("verify", "show", "rerun"):
            assert main([command, str(tmp_path / name)]) == 2
            said = capsys.readouterr().err
            assert f"{name} cannot be read as a run folder: it {reason}" in said, (command, said)
            assert "name the folder of a run" in said

"""The table of docs/kgent-runs.md: what an adversary does, and what notices it, row by row."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgent import RunOptions, RunResult
from kgent.engine.mock import MockAgentEngine
from kgent.review.verification import verify
from kgent.runtime.attempts import revise
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus, state_text
from kgent.sandbox.workspace import FILES
from kgent_forgery import edit_state, forge, rewrite, write_events
from kgent_runs import calls, lines, profile, skill, state
from sweeps import sampled
from tables import together

PAGE = Path(__file__).parents[2] / "docs" / "kgent-runs.md"
ROWS = dict(
    re.findall(
        r"^\| (.+?) \| (.+?) \|$",
        PAGE.read_text(encoding="utf-8")
        .partition("| what an adversary does |")[2]
        .partition("\n\n")[0],
        re.MULTILINE,
    )
)
Change = Callable[[Path], object]


def conduct(tmp_path: Path, script: str = "ln -s notes.md link; mkdir empty") -> RunResult:
    """A run with an input, a skill, a deliverable, a working file, and a command in the middle."""
    tmp_path.mkdir(exist_ok=True)
    skill(tmp_path / "skills")
    (tmp_path / "data.csv").write_text("day,rain\n1,3\n", encoding="utf-8")
    path = profile(
        tmp_path,
        inputs=["data.csv"],
        skills={"paths": ["skills"]},
        tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}},
        deliverables={"required": ["deliverables/report.md"]},
    )
    steps = [
        calls("write_file", path="deliverables/report.md", content="It rained.\n"),
        calls("write_file", path="workspace/notes.md", content="clouds\n"),
        calls("write_memory", content="It rains here."),
        calls("run_command", argv=["sh", "-c", script]),
        "Done.",
    ]
    return run(path, "Write.", RunOptions(sandbox=tmp_path / "run"), engine=MockAgentEngine(steps))


@pytest.fixture(scope="module")
def revised(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run with three attempts, which tests copy: a copy is as sound as the run."""
    folder = tmp_path_factory.mktemp("revised")
    result = conduct_three(folder)
    shutil.copytree(folder / "run", folder / "copy", symlinks=True)
    assert verify(folder / "copy", seal=result.seal).problems == []
    return result


def conduct_three(tmp_path: Path) -> RunResult:
    root = conduct(tmp_path).sandbox_root
    assert root is not None
    write = calls("write_file", path="deliverables/report.md", content="It snowed.\n")
    for prompt in ("It snowed.", "Say it again."):
        result = revise(root, prompt, engine=MockAgentEngine([write, "Changed."]))
    assert (result.status, result.attempt) == (RunStatus.completed, 3)
    return result


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A finished run, which tests copy: a copy is as sound as the run."""
    folder = tmp_path_factory.mktemp("original")
    result = conduct(folder)
    assert (result.status, result.seal is None) == (RunStatus.completed, False)
    shutil.copytree(folder / "run", folder / "copy", symlinks=True)
    assert verify(folder / "copy", seal=result.seal).problems == []
    return result


def kept_skill(root: Path) -> str:
    (file,) = root.glob("archive/skills/*/SKILL.md")
    return str(file.relative_to(root))


def edit(name: str) -> Change:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:-2] + b"?\n")


def swap(root: Path) -> None:
    one, other = root / "deliverables" / "report.md", root / "workspace" / "notes.md"
    texts = one.read_bytes(), other.read_bytes()
    one.write_bytes(texts[1])
    other.write_bytes(texts[0])


def link_in_place(root: Path) -> None:
    report = root / "deliverables" / "report.md"
    shutil.copy2(report, root.parent / "same.md")
    report.unlink()
    report.symlink_to(root.parent / "same.md")


def lead_elsewhere(root: Path) -> None:
    (root / "workspace" / "link").unlink()
    (root / "workspace" / "link").symlink_to("/etc/passwd")


def change_events(change: Callable[[list[str]], list[str]]) -> Change:
    return lambda root: rewrite(
        root, "events.jsonl", lambda text: "".join(change(text.splitlines(keepends=True)))
    )


def take_out_a_call(root: Path) -> None:
    rewrite(root, "logs/tools.jsonl", lambda text: text.partition("\n")[2])
    forge(root, counts=state(root)["counts"] | {"tool_calls": 3})


def turn_a_time_back(root: Path) -> None:
    found = lines(root / "events.jsonl")
    found[4]["timestamp"] = "2020-01-01T00:00:00.000000+00:00"
    write_events(root, found)
    forge(root)


def forge_report(root: Path) -> None:
    (root / "deliverables" / "report.md").write_text("It snowed.\n", encoding="utf-8")
    forge(root)


def forge_outcome(root: Path) -> None:
    found = lines(root / "events.jsonl")
    found[-1] |= {"type": "run.failed", "summary": "it failed"}
    write_events(root, found)
    attempts = [{**state(root)["attempts"][0], "status": "failed"}]
    forge(root, status="failed", failure_reason="x: it failed", attempts=attempts)


def replace_folder(root: Path) -> None:
    other = conduct(root.parent / "other").sandbox_root
    assert other is not None
    shutil.rmtree(root)
    other.rename(root)


def hidden_change(root: Path) -> None:
    report = root / "deliverables" / "report.md"
    os.utime(report, (0, 0))
    os.link(report, root.parent / "second name")
    if os.geteuid() == 0:
        os.chown(report, 12345, 12345)
        report.chmod(0o644)


def truncate(size: int) -> Change:
    return lambda root: os.truncate(root / "deliverables" / "report.md", size)


AFTER: dict[str, list[Change]] = {
    "edits a deliverable, a working file or a file of the archive": [
        edit("deliverables/report.md"),
        edit("workspace/notes.md"),
        edit("archive/candidate-memory.jsonl"),
    ],
    "adds a file, hidden or not, of any name": [
        lambda root: (root / "more").touch(),
        lambda root: (root / "logs" / ".hidden").touch(),
        lambda root: (root / "inputs" / "more.csv").touch(),
        lambda root: (root / "archive" / "skills" / "more").touch(),
        lambda root: (root / "workspace" / os.fsdecode(b"caf\xe9\n")).touch(),
        lambda root: (root / "deliverables" / ("n" * 255)).touch(),
    ],
    "adds a folder, a link or a pipe": [
        lambda root: (root / "workspace" / "new").mkdir(),
        lambda root: (root / "deliverables" / "new").symlink_to("report.md"),
        lambda root: os.mkfifo(root / "inputs" / "new"),
    ],
    "deletes a file, or a folder with something in it": [
        lambda root: (root / "deliverables" / "report.md").unlink(),
        lambda root: (root / "inputs" / "data.csv").unlink(),
        lambda root: shutil.rmtree(root / "logs"),
        lambda root: shutil.rmtree(root / "inputs"),
    ],
    "renames a file, or swaps two": [
        lambda root: (root / "workspace" / "notes.md").rename(root / "workspace" / "other.md"),
        swap,
    ],
    "puts a link to the same content in the place of a file, or lets a link lead elsewhere": [
        link_in_place,
        lead_elsewhere,
    ],
    "makes a file longer or shorter, by terabytes if need be": [
        truncate(0),
        truncate(3),
        truncate(8 * 2**40),
    ],
    "lets a file be executed, or lets it run as its owner": [
        lambda root: (root / "deliverables" / "report.md").chmod(0o755),
        lambda root: (root / "inputs" / "data.csv").chmod(0o777),
        lambda root: (root / "run.json").chmod(0o700),
        lambda root: (root / "events.jsonl").chmod(0o4600),
    ],
    "edits an input or a skill of the run": [
        lambda root: ((root / "inputs" / "data.csv").chmod(0o600), edit("inputs/data.csv")(root)),
        lambda root: edit(kept_skill(root))(root),
    ],
    "edits prompt, system prompt, profile, transcript or logs": [
        edit(name)
        for name in (
            *("prompt.md", "effective-system-prompt.md", "config.yaml", "transcript.md"),
            *("logs/tools.jsonl",),
        )
    ],
    "cuts events off, swaps two, or adds one": [
        change_events(lambda found: found[:-1]),
        change_events(lambda found: found[:3]),
        change_events(lambda found: [found[1], found[0], *found[2:]]),
        change_events(lambda found: [*found, found[-1]]),
        change_events(lambda found: [*found[:4], *found[5:]]),
    ],
    "edits `run.json`, adds a key, writes it in another form, or deletes it": [
        lambda root: edit_state(root, status="failed"),
        lambda root: edit_state(root, usage={}),
        lambda root: edit_state(root, counts={}),
        lambda root: edit_state(root, program="kgent 9"),
        lambda root: edit_state(root, approved_by="me"),
        lambda root: rewrite(root, "run.json", lambda text: text.replace("\n", "")),
        lambda root: (root / "run.json").unlink(),
    ],
    "edits or deletes a manifest": [
        edit("artifact-manifest.json"),
        edit("sandbox-manifest.json"),
        lambda root: (root / "artifact-manifest.json").unlink(),
    ],
    "says that an earlier release made the folder": [
        lambda root: forge(root, schema_version=1),
        lambda root: forge(root, schema_version=2),
    ],
    "takes out a call, with its line and every hash, but not its events": [take_out_a_call],
    "turns the time of an event back, with every hash": [turn_a_time_back],
    "adds something that is not a signature as `seal.sig`": [
        lambda root: (root / "seal.sig").touch()
    ],
    "edits a deliverable and every hash that depends on it": [forge_report],
    "edits the outcome in `run.json` and in the events, and every hash": [forge_outcome],
    "puts the folder of another run in its place": [replace_folder],
    "changes times or owners, gives a file a second name, or moves the folder": [
        hidden_change,
        lambda root: root.rename(root.parent / "moved"),
    ],
    "changes who may read or write, or deletes an empty folder": [
        lambda root: (root / "deliverables" / "report.md").chmod(0o666),
        lambda root: (root / "workspace").chmod(0o777),
        lambda root: root.chmod(0o755),
        lambda root: (root / "inputs").chmod(0o777),
        lambda root: (root / "run.json").chmod(0o644),
        lambda root: (root / "events.jsonl").chmod(0o644),
        lambda root: (root / "workspace" / "empty").rmdir(),
    ],
    "makes the folder a repository of git": [
        lambda root: (
            (root / ".git").mkdir(),
            (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8"),
        ),
    ],
}


def attempt(root: Path, number: int) -> Path:
    return root / "attempts" / f"{number:03}"


def swap_attempts(root: Path) -> None:
    attempt(root, 1).rename(root / "one")
    attempt(root, 2).rename(attempt(root, 1))
    (root / "one").rename(attempt(root, 2))


def edit_attempts(change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    def apply(root: Path) -> None:
        listed = state(root)["attempts"]
        change(listed)
        forge(root, attempts=listed)

    return apply


def attempt_of_another_run(root: Path) -> None:
    other = conduct_three(root.parent / "other").sandbox_root
    assert other is not None
    shutil.rmtree(attempt(root, 2))
    shutil.copytree(attempt(other, 2), attempt(root, 2))


def forge_attempt(root: Path) -> None:
    """Edit the prompt of an attempt, and every hash that its own folder has of it."""
    folder = attempt(root, 2)
    (folder / "prompt.md").write_text("It hailed.", encoding="utf-8")
    manifest = json.loads((folder / "sandbox-manifest.json").read_text())
    for file in manifest["files"]:
        if file["path"] == "prompt.md":
            raw = (folder / "prompt.md").read_bytes()
            file |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    raw = json.dumps(manifest).encode()
    (folder / "sandbox-manifest.json").write_bytes(raw)
    content = json.loads((folder / "run.json").read_text())
    content["manifests"]["sandbox-manifest.json"] = hashlib.sha256(raw).hexdigest()
    (folder / "run.json").write_text(state_text(content), encoding="utf-8")
    forge(root)


def forge_earlier_event(root: Path) -> None:
    found = lines(root / "events.jsonl")
    found[2]["summary"] = "another profile"
    write_events(root, found)
    forge(root)


def number_of(attempts: list[dict[str, Any]], *numbers: int) -> None:
    attempts[:] = [attempts[number - 1] for number in numbers]


CHAIN: dict[str, list[Change]] = {
    "edits, adds or deletes a record or a deliverable of an earlier attempt": [
        *(edit(f"attempts/001/{name}") for name in FILES),
        edit("attempts/001/deliverables/report.md"),
        lambda root: (attempt(root, 2) / "transcript.md").unlink(),
        lambda root: (attempt(root, 2) / "logs" / "more.jsonl").touch(),
        lambda root: shutil.rmtree(attempt(root, 1) / "deliverables"),
    ],
    "edits or deletes the copy of a record of the last attempt": [
        *(edit(f"attempts/003/{name}") for name in FILES),
        lambda root: (attempt(root, 3) / "config.yaml").unlink(),
        lambda root: (attempt(root, 3) / "more").touch(),
    ],
    "removes an attempt, renames one, or swaps two": [
        *(lambda root, n=n: shutil.rmtree(attempt(root, n)) for n in (1, 2, 3)),
        lambda root: shutil.rmtree(root / "attempts"),
        lambda root: attempt(root, 2).rename(attempt(root, 4)),
        swap_attempts,
    ],
    "takes an attempt out of `run.json`, swaps two in it, or changes its seal, cause or status": [
        edit_attempts(lambda listed: number_of(listed, 2, 3)),
        edit_attempts(lambda listed: number_of(listed, 1, 3)),
        edit_attempts(lambda listed: number_of(listed, 1, 2)),
        edit_attempts(lambda listed: number_of(listed, 2, 1, 3)),
        edit_attempts(lambda listed: listed.clear()),
        edit_attempts(lambda listed: listed[0].update(seal="0" * 64)),
        edit_attempts(lambda listed: listed[0].update(seal=None)),
        edit_attempts(lambda listed: listed[1].update(cause="resume")),
        edit_attempts(lambda listed: listed[0].update(status="failed")),
    ],
    "puts an attempt of another run in the place of one": [attempt_of_another_run],
    "edits an earlier attempt and every hash in its own records": [forge_attempt],
    "edits an event of an earlier attempt, with the hash in the last manifest": [
        forge_earlier_event
    ],
}
MEANWHILE: dict[str, list[str]] = {
    "edits or deletes a record in mid-run": [
        "echo x > ../prompt.md",
        "rm ../events.jsonl",
        "sed -i s/rain/snow/ ../logs/tools.jsonl",
        "cp ../config.yaml x; mv x ../config.yaml; echo '#' >> ../config.yaml",
    ],
    "adds lines to a record in mid-run": [
        "echo '{}' >> ../events.jsonl",
        "echo '{}' >> ../logs/errors.jsonl",
        "echo >> ../archive/candidate-memory.jsonl",
    ],
    "edits a skill of the run in mid-run": [
        "for f in ../archive/skills/*/SKILL.md; do echo x >> $f; done"
    ],
    "replaces the run folder as a whole in mid-run": [
        "cp -rp ../../run ../../copy; mv ../../run ../../gone; mv ../../copy ../../run",
        "mv ../../run ../../gone; mkdir ../../run",
    ],
    "edits an input in mid-run": [
        "chmod 600 ../inputs/data.csv; echo 2,2 >> ../inputs/data.csv",
        "rm -f ../inputs/data.csv",
        "touch ../inputs/more.csv",
    ],
    "edits a record in mid-run, and restores it before the run ends": [
        "cp -p ../prompt.md x; echo x > ../prompt.md; cat x > ../prompt.md; rm x",
    ],
}


LATER: dict[str, list[str]] = {
    "edits or deletes an earlier attempt in mid-run": [
        "echo x >> ../attempts/001/prompt.md",
        "echo x >> ../attempts/001/deliverables/report.md",
        "rm ../attempts/001/logs/tools.jsonl",
        "rm -r ../attempts/001",
        "mv ../attempts/001 ../attempts/009",
    ],
}


@pytest.mark.long
@pytest.mark.parametrize(
    "script", sampled(LATER["edits or deletes an earlier attempt in mid-run"], keep=1)
)
def test_what_notices_a_change_of_an_earlier_attempt_in_mid_run(
    tmp_path: Path, original: RunResult, script: str
) -> None:
    assert original.sandbox_root is not None
    root = tmp_path / "run"
    shutil.copytree(original.sandbox_root, root, symlinks=True)
    steps = [calls("run_command", argv=["sh", "-c", script]), "Done."]
    result = revise(root, "Again.", engine=MockAgentEngine(steps))
    assert state(root)["status"] == result.status
    assert any("attempts/001" in problem for problem in verify(root).problems)


def test_the_table_has_every_attack_and_every_attack_is_tried() -> None:
    assert {*ROWS} == {*AFTER, *CHAIN, *MEANWHILE, *LATER}


@together(
    ("row", "number"),
    sampled(
        [(row, number) for row, found in AFTER.items() for number in range(len(found))], keep=12
    ),
)
def test_what_notices_a_change_of_a_finished_run(
    tmp_path: Path, original: RunResult, row: str, number: int
) -> None:
    assert original.sandbox_root is not None
    root, seal = tmp_path / "run", original.seal
    shutil.copytree(original.sandbox_root, root, symlinks=True)
    AFTER[row][number](root)
    root = root if root.exists() else tmp_path / "moved"
    noticed = ROWS[row].partition(":")[0]
    assert bool(verify(root).problems) is (noticed == "verify")
    assert bool(verify(root, seal=seal).problems) is (noticed != "nothing")


@together(
    ("row", "number"),
    sampled(
        [(row, number) for row, found in CHAIN.items() for number in range(len(found))], keep=3
    ),
)
def test_what_notices_a_change_of_the_attempts(
    tmp_path: Path, revised: RunResult, row: str, number: int
) -> None:
    assert revised.sandbox_root is not None
    root = tmp_path / "run"
    shutil.copytree(revised.sandbox_root, root, symlinks=True)
    CHAIN[row][number](root)
    assert ROWS[row] == "verify"
    assert verify(root).problems != []


@pytest.mark.long
@pytest.mark.parametrize(
    ("row", "number"),
    sampled(
        [(row, number) for row, found in MEANWHILE.items() for number in range(len(found))], keep=3
    ),
)
def test_what_notices_a_change_in_mid_run(tmp_path: Path, row: str, number: int) -> None:
    result = conduct(tmp_path, MEANWHILE[row][number])
    noticed = ROWS[row].partition(":")[0]
    code = result.error.code if result.error else None
    assert (code == "records_changed") is noticed.startswith("the run")
    assert state(tmp_path / "run")["status"] == result.status
    if not noticed.startswith("the run"):
        assert bool(verify(tmp_path / "run").problems) is (noticed == "verify")


@pytest.mark.long
def test_the_seal_of_another_run_proves_nothing(tmp_path: Path, original: RunResult) -> None:
    root, other = original.sandbox_root, conduct(tmp_path)
    assert root is not None
    assert verify(root, seal=original.seal).problems == []
    for seal in (other.seal, "", (original.seal or "")[:-1]):
        assert verify(root, seal=seal).problems != []

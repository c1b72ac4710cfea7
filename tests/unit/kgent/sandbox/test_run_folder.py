"""The run folder: its layout, what may be read and written, and what its manifests say."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kgent.config.loader import load_config
from kgent.config.models import DeliverableSpec
from kgent.errors import ErrorCategory, KgentError
from kgent.runtime.ids import RunIds
from kgent.sandbox.manifest import SandboxManifest, write_artifact_manifest
from kgent.sandbox.paths import SandboxPaths
from kgent.sandbox.workspace import create_workspace, resolve_run_folder
from kgent_runs import IDS, a_context, profile

LAYOUT = {
    "archive",
    "artifact-manifest.json",
    "config.yaml",
    "deliverables",
    "effective-system-prompt.md",
    "events.jsonl",
    "logs",
    "logs/errors.jsonl",
    "logs/tools.jsonl",
    "prompt.md",
    "run.json",
    "sandbox-manifest.json",
    "session.json",
    "task.yaml",
    "transcript.md",
    "workspace",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return a_context(tmp_path).sandbox_root


def resolve(root: Path, path: str, *, for_write: bool, read_roots: Sequence[Path] = ()) -> Path:
    """Ask the path rule as a tool of agent_core does."""
    paths = SandboxPaths(root, read_roots=read_roots)
    place = paths.resolve(path)
    if for_write:
        paths.refuse_protected(place)
    return place.path


def test_the_layout_is_always_the_same_and_private(root: Path) -> None:
    assert {path.relative_to(root).as_posix() for path in root.rglob("*")} == LAYOUT
    modes = {path.stat().st_mode & 0o077 for path in (root, *root.rglob("*"))}
    assert modes == {0}


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(KgentError, match="it is not empty") as caught:
        a_context(tmp_path)
    assert caught.value.category is ErrorCategory.SANDBOX
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    assert (a_context(tmp_path).sandbox_root / "run.json").exists()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x", encoding="utf-8")
    with pytest.raises(KgentError, match="cannot be used"):
        a_context(tmp_path)


def test_nothing_is_left_beside_a_folder_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    with pytest.raises(KgentError):
        a_context(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "kgent.yaml"}


def test_making_it_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KgentError, match="it is not empty"):
        create_workspace(a_context(tmp_path))


def test_the_sandbox_is_named_by_ids_and_starts_at_the_profile(tmp_path: Path) -> None:
    config = load_config(profile(tmp_path, workspace={"sandbox": "out/{task_id}/{run_id}"}))
    ids = RunIds("s", "t", "r")
    assert resolve_run_folder(config, ids) == tmp_path.resolve() / "out" / "t" / "r"
    assert resolve_run_folder(load_config(profile(tmp_path)), IDS).name == "run_1"


@pytest.mark.parametrize("place", ["/", "~"])
def test_places_to_keep_out_of_are_refused(tmp_path: Path, place: str) -> None:
    config = load_config(profile(tmp_path, workspace={"sandbox": place}))
    with pytest.raises(KgentError, match="its own folder"):
        resolve_run_folder(config, IDS)


@pytest.mark.parametrize(
    "path", ["../outside", "workspace/../../x", "workspace/../run.json", "..", "a/.."]
)
@pytest.mark.parametrize("for_write", [True, False])
def test_traversal_with_dots_is_rejected(root: Path, path: str, for_write: bool) -> None:
    with pytest.raises(KgentError, match=r"'\.\.' is not allowed"):
        resolve(root, path, for_write=for_write)


@pytest.mark.parametrize("path", ["/etc/passwd", "~/x", "/", "/proc/self/environ"])
@pytest.mark.parametrize("for_write", [True, False])
def test_absolute_paths_outside_the_root_are_rejected(
    root: Path, path: str, for_write: bool
) -> None:
    with pytest.raises(KgentError, match="leads out of the run folder"):
        resolve(root, path, for_write=for_write)


def test_a_sibling_with_the_same_beginning_is_outside(root: Path) -> None:
    with pytest.raises(KgentError, match="leads out"):
        resolve(root, f"{root}-secret/a", for_write=False)


@pytest.mark.parametrize("path", ["workspace/a.md", "deliverables/deep/b.md"])
def test_writes_below_workspace_and_deliverables_are_allowed(root: Path, path: str) -> None:
    assert resolve(root, path, for_write=True) == root / path
    assert resolve(root, str(root / path), for_write=True) == root / path


@pytest.mark.parametrize(
    "path",
    ["run.json", "events.jsonl", "archive/x", "logs/tools.jsonl", "new.md", "workspace", "."],
)
def test_writes_elsewhere_are_rejected(root: Path, path: str) -> None:
    with pytest.raises(KgentError, match="only files below"):
        resolve(root, path, for_write=True)
    assert resolve(root, path, for_write=False)


def test_a_link_is_judged_by_where_it_leads(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    (root / "workspace" / "out").symlink_to(tmp_path)
    (root / "workspace" / "record").symlink_to(root / "run.json")
    for path, for_write in [
        ("workspace/out/secret", False),
        ("workspace/out/secret", True),
        ("workspace/record", True),
    ]:
        with pytest.raises(KgentError):
            resolve(root, path, for_write=for_write)


@pytest.mark.parametrize("path", ["", "a\0b", "workspace/\ud800"])
def test_what_is_no_path_is_rejected(root: Path, path: str) -> None:
    with pytest.raises(KgentError) as caught:
        resolve(root, path, for_write=True)
    assert caught.value.category is ErrorCategory.SANDBOX


def test_folders_of_skills_can_be_read_and_not_written(root: Path, tmp_path: Path) -> None:
    skills = (tmp_path / "skills").resolve()
    skills.mkdir()
    path = str(skills / "SKILL.md")
    assert resolve(root, path, for_write=False, read_roots=[skills])
    with pytest.raises(KgentError):
        resolve(root, path, for_write=True, read_roots=[skills])


def test_the_sandbox_manifest_tells_the_boundaries_and_vouches_for_the_records(
    tmp_path: Path,
) -> None:
    context = a_context(tmp_path)
    root = context.sandbox_root
    manifest = SandboxManifest.of(root)
    files = context.records.files
    manifest.write(files)
    written = json.loads((root / "sandbox-manifest.json").read_text())
    assert written["writable"] == ["workspace/", "deliverables/"]
    assert written["root"] == str(root)
    assert written["readonly"]
    assert written["forbidden"]
    assert written["created_at"]
    assert written["files"] == []
    files.put("prompt.md", "hello")
    (root / "prompt.md").write_text("rewritten", encoding="utf-8")
    manifest.write(files, final=True)
    records = json.loads((root / "sandbox-manifest.json").read_text())["files"]
    (prompt,) = (file for file in records if file["path"] == "prompt.md")
    assert prompt == {
        "path": "prompt.md",
        "bytes": 5,
        "sha256": hashlib.sha256(b"hello").hexdigest(),
        "mode": "0600",
    }


def test_the_artifact_manifest_has_what_is_there_and_what_is_owed(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    root = context.sandbox_root
    (root / "deliverables" / "a.md").write_text("done", encoding="utf-8")
    (root / "workspace" / "notes.md").write_text("", encoding="utf-8")
    (root / "workspace" / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "workspace" / "pipe")
    owed = [
        DeliverableSpec(path="deliverables/a.md", kind="report", content_type="text/markdown"),
        DeliverableSpec(path="deliverables/b.md"),
    ]
    write_artifact_manifest(context.records, owed)
    artifacts = json.loads((root / "artifact-manifest.json").read_text())["artifacts"]
    assert [(one["path"], one["kind"], one["required"], one["status"]) for one in artifacts] == [
        ("deliverables/a.md", "report", True, "present"),
        ("deliverables/b.md", "deliverable", True, "missing"),
        ("workspace/notes.md", "working_file", False, "present"),
    ]
    assert artifacts[0]["sha256"] == hashlib.sha256(b"done").hexdigest()
    assert artifacts[0]["bytes"] == 4
    others = json.loads((root / "artifact-manifest.json").read_text())["others"]
    assert [(one["path"], one["kind"], one["target"]) for one in others] == [
        *((name, "folder", None) for name in ("archive", "deliverables", "logs", "workspace")),
        ("workspace/link", "link", "/etc/passwd"),
        ("workspace/pipe", "special", None),
    ]

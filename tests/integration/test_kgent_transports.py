"""A run folder carried elsewhere: what git, archives and copies lose is a remark, no change."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kgent import RunOptions
from kgent.cli import main
from kgent.engine.mock import MockAgentEngine
from kgent.review.page import render_page
from kgent.review.report import read_report
from kgent.review.verification import FolderCheck, verify
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_forgery import rewrite
from kgent_runs import calls, profile, skill
from sweeps import sampled
from tables import together

FIRST_RELEASE = Path(__file__).parent / "kgent_first_release"
Transport = Callable[[Path, Path], Path]
"""Takes a run folder and a folder to work in; returns the run folder at the other end."""


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with a link, which tests copy."""
    return conduct(tmp_path_factory.mktemp("linked"), "ln -s notes.md link")


@pytest.fixture(scope="module")
def unlinked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a link, which most archives cannot hold."""
    return conduct(tmp_path_factory.mktemp("unlinked"), ":")


@pytest.fixture
def root(linked: Path, tmp_path: Path) -> Path:
    """A run folder with inputs, a skill, programs, empty folders and a link."""
    return shutil.copytree(linked, tmp_path / "run", symlinks=True)


@pytest.fixture
def plain(unlinked: Path, tmp_path: Path) -> Path:
    """The same without a link."""
    return shutil.copytree(unlinked, tmp_path / "run", symlinks=True)


def conduct(folder: Path, more: str) -> Path:
    place = skill(folder / "skills")
    (place / "check.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (place / "check.sh").chmod(0o755)
    data = folder / "data"
    (data / "nothing").mkdir(parents=True)
    (data / "days.csv").write_text("day,rain\n1,3\n", encoding="utf-8")
    (data / "read.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (data / "read.sh").chmod(0o755)
    command = f"umask 077; echo : > go; chmod 700 go; mkdir -p empty/inner; {more}"
    path = profile(
        folder,
        inputs=["data"],
        skills={"paths": ["skills"]},
        tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}},
        deliverables={"required": ["deliverables/report.md"]},
    )
    steps = [
        calls("write_file", path="deliverables/report.md", content="It rained.\n"),
        calls("write_file", path="workspace/notes.md", content="clouds\n"),
        calls("run_command", argv=["sh", "-c", command]),
        "Done.",
    ]
    options = RunOptions(sandbox=folder / "run")
    result = run(path, "Write.", options, engine=MockAgentEngine(steps))
    assert (result.status, result.error) == (RunStatus.completed, None)
    assert result.sandbox_root is not None
    assert verify(result.sandbox_root, seal=result.seal) == verify(result.sandbox_root)
    assert verify(result.sandbox_root).remarks == []
    return result.sandbox_root


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def shell(*argv: str, cwd: Path) -> None:
    config = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(  # noqa: S603 - fixed programs
        argv, cwd=cwd, env=os.environ | config, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def git(*arguments: str, cwd: Path) -> None:
    who = (
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@example.org",
        "-c",
        "protocol.file.allow=always",
    )
    shell("git", *who, *arguments, cwd=cwd)


def commit(place: Path) -> None:
    git("init", "-q", cwd=place)
    git("add", "--all", cwd=place)
    git("commit", "-q", "-m", "x", cwd=place)


def clone_of_a_project(root: Path, place: Path) -> Path:
    project = place / "project"
    project.mkdir()
    shutil.copytree(root, project / "runs" / "one", symlinks=True)
    commit(project)
    git("clone", "-q", str(project), "clone", cwd=place)
    return place / "clone" / "runs" / "one"


def clone_of_the_folder(root: Path, place: Path) -> Path:
    copy = place / "copy"
    shutil.copytree(root, copy, symlinks=True)
    commit(copy)
    git("clone", "-q", str(copy), "clone", cwd=place)
    return place / "clone"


def worktree_of_the_folder(root: Path, place: Path) -> Path:
    clone = clone_of_the_folder(root, place)
    git("worktree", "add", "-q", str(place / "tree"), cwd=clone)
    return place / "tree"


def clone_without_execute_bits(root: Path, place: Path) -> Path:
    project = place / "project"
    project.mkdir()
    git("init", "-q", cwd=project)
    git("config", "core.fileMode", "false", cwd=project)
    shutil.copytree(root, project / "run", symlinks=True)
    git("add", "--all", cwd=project)
    git("commit", "-q", "-m", "x", cwd=project)
    git("clone", "-q", str(project), "clone", cwd=place)
    return place / "clone" / "run"


def python_zip(root: Path, place: Path) -> Path:
    for words in (("-c", "x.zip", str(root)), ("-e", "x.zip", "out")):
        shell(sys.executable, "-m", "zipfile", *words, cwd=place)
    return place / "out" / root.name


def zip_and_unzip(root: Path, place: Path) -> Path:
    if shutil.which("zip") is None or shutil.which("unzip") is None:
        pytest.skip("there is no zip, or no unzip, on this machine")
    shell("zip", "-q", "-r", "-y", str(place / "x.zip"), root.name, cwd=root.parent)
    shell("unzip", "-q", "x.zip", "-d", "out", cwd=place)
    return place / "out" / root.name


def tar(mask: int) -> Transport:
    def carry(root: Path, place: Path) -> Path:
        with tarfile.open(place / "x.tar.gz", "w:gz") as archive:
            archive.add(root, "run")
        with umask(mask), tarfile.open(place / "x.tar.gz") as archive:
            archive.extractall(place / "out", filter="data")
        return place / "out" / "run"

    return carry


def tar_without_permissions(root: Path, place: Path) -> Path:
    shell("tar", "-cf", str(place / "x.tar"), "--mode=a+rX,g+w", root.name, cwd=root.parent)
    (place / "out").mkdir()
    shell("tar", "-xf", "x.tar", "-C", "out", "--no-same-permissions", cwd=place)
    return place / "out" / root.name


def copy_without_modes(root: Path, place: Path) -> Path:
    shutil.copytree(root, place / "out", symlinks=True, copy_function=shutil.copyfile)
    return place / "out"


def artifact_store(root: Path, place: Path) -> Path:
    """Store files by their paths, and nothing else."""
    for file in sorted(root.rglob("*")):
        if file.is_file() and not file.is_symlink():
            target = place / "out" / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return place / "out"


def without_modes(mode: int) -> Transport:
    """Carry the folder to a file system that gives everything one mode."""

    def carry(root: Path, place: Path) -> Path:
        out = place / "out"
        shutil.copytree(root, out, symlinks=True)
        for path in (out, *out.rglob("*")):
            if not path.is_symlink():
                path.chmod(mode)
        return out

    return carry


WITH_LINKS: dict[str, Transport] = {
    "git, a folder of a project": clone_of_a_project,
    "git, the folder itself": clone_of_the_folder,
    "git, a worktree": worktree_of_the_folder,
    "git without execute bits": clone_without_execute_bits,
    "zip and unzip": zip_and_unzip,
    "tar, umask 022": tar(0o022),
    "tar, umask 077": tar(0o077),
    "tar without permissions": tar_without_permissions,
    "copy without modes": copy_without_modes,
    "FAT": without_modes(0o755),
    "NTFS": without_modes(0o777),
}
WITHOUT_LINKS: dict[str, Transport] = {
    "zipfile of Python": python_zip,
    "an artifact store": artifact_store,
}


def check_carried(carried: Path, seal: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    check = verify(carried, seal=seal)
    assert check.problems == []
    capsys.readouterr()
    assert main(["verify", str(carried), "--seal", seal or "", "--output-format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sound"], found["remarks"]) == (True, check.remarks)
    assert main(["verify", str(carried)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sound: ")
    assert out.count("\nremark   ") == min(len(check.remarks), 6)


@pytest.mark.parametrize("name", sampled(WITH_LINKS, keep=1))
def test_a_folder_that_was_only_carried_is_sound(
    root: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, seal = tmp_path / "way", verify(root).seal
    place.mkdir()
    carried = WITH_LINKS[name](root, place)
    assert not (carried / "workspace" / "empty").exists() or "git" not in name
    check_carried(carried, seal, capsys)


@pytest.mark.parametrize("name", sampled(WITHOUT_LINKS, keep=1))
def test_a_folder_without_links_that_was_only_carried_is_sound(
    plain: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, seal = tmp_path / "way", verify(plain).seal
    place.mkdir()
    carried = WITHOUT_LINKS[name](plain, place)
    assert "workspace/go: its mode was 0700, and is 0644 now" in verify(carried).remarks
    check_carried(carried, seal, capsys)


@pytest.mark.sweep
def test_a_carried_folder_that_was_not_changed_is_rerun_and_compared(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "way").mkdir()
    carried = clone_of_a_project(root, tmp_path / "way")
    assert main(["diff", str(root), str(carried)]) == 0
    assert main(["show", str(carried)]) == 0
    assert main(["rerun", str(carried)]) in {0, 3}  # the steps of the first were given in code


def said(check: FolderCheck) -> str:
    return "\n".join(check.problems)


Change = Callable[[Path], object]


def follow_link(root: Path) -> None:
    link = root / "workspace" / "link"
    content = link.read_bytes()
    link.unlink()
    link.write_bytes(content)


def write_out_link(root: Path) -> None:
    link = root / "workspace" / "link"
    target = link.readlink()
    link.unlink()
    link.write_text(str(target), encoding="utf-8")


def replace_empty_folder(root: Path) -> None:
    shutil.rmtree(root / "workspace" / "empty")
    (root / "workspace" / "empty").write_text("x", encoding="utf-8")


CHANGES: dict[str, tuple[Change, str]] = {
    "a deliverable can be executed": (
        lambda root: (root / "deliverables" / "report.md").chmod(0o755),
        "deliverables/report.md was changed: its mode was 0644, and is 0755 now: it can be exec",
    ),
    "a deliverable can be executed by others only": (
        lambda root: (root / "deliverables" / "report.md").chmod(0o601),
        "deliverables/report.md was changed: its mode was 0644, and is 0601 now: it can be exec",
    ),
    "an input can be executed": (
        lambda root: (root / "inputs" / "data" / "days.csv").chmod(0o555),
        "inputs/data/days.csv was changed: its mode was 0400, and is 0555 now: it can be executed",
    ),
    "a skill's text can be executed": (
        lambda root: next(root.glob("archive/skills/*/SKILL.md")).chmod(0o700),
        "SKILL.md was changed: its mode was 0600, and is 0700 now: it can be executed",
    ),
    "run.json can be executed": (
        lambda root: (root / "run.json").chmod(0o700),
        "run.json was changed: its mode was 0600, and is 0700 now: it can be executed",
    ),
    "a record can be executed": (
        lambda root: (root / "events.jsonl").chmod(0o744),
        "events.jsonl was changed: its mode was 0600, and is 0744 now: it can be executed",
    ),
    "a program runs as its owner": (
        lambda root: (root / "workspace" / "go").chmod(0o4755),
        "workspace/go was changed: its mode was 0700, and is 4755 now: it runs as its owner",
    ),
    "a program runs as its group": (
        lambda root: (root / "workspace" / "go").chmod(0o2755),
        "workspace/go was changed: its mode was 0700, and is 2755 now: it runs as its owner",
    ),
    "a program cannot be executed any more, and all else can": (
        lambda root: (root / "workspace" / "go").chmod(0o600),
        "workspace/go was changed: its mode was 0700, and is 0600 now: it cannot be executed",
    ),
    "no program can be executed any more, in a folder that was not carried": (
        lambda root: [
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o111)
            for path in root.rglob("*")
            if path.is_file()
        ],
        "workspace/go was changed: its mode was 0700, and is 0600 now: it cannot be executed",
    ),
    "a link is replaced by what it leads to": (
        follow_link,
        "workspace/link was changed: link to notes.md then, file now",
    ),
    "a link is replaced by its target": (
        write_out_link,
        "workspace/link was changed: link to notes.md then, file now",
    ),
    "a file takes the place of an empty folder": (
        replace_empty_folder,
        "workspace/empty was changed: folder then, file now",
    ),
    "a folder with files is deleted": (
        lambda root: shutil.rmtree(root / "logs"),
        "logs/ is missing, or is not a folder",
    ),
    "a folder of inputs is deleted": (
        lambda root: shutil.rmtree(root / "inputs"),
        "inputs/data (folder) is missing",
    ),
    "a link takes the place of a folder": (
        lambda root: (
            (root / "deliverables").rename(root.parent / "elsewhere"),
            (root / "deliverables").symlink_to(root.parent / "elsewhere"),
        ),
        "deliverables/ is missing, or is not a folder",
    ),
    "the desktop leaves a file": (
        lambda root: (root / ".DS_Store").touch(),
        ".DS_Store was added after the run",
    ),
    "a repository is added further down": (
        lambda root: (root / "workspace" / ".git").mkdir(),
        "workspace/.git (folder) was added after the run",
    ),
    "a link takes the name of git's folder": (
        lambda root: (root / ".git").symlink_to("/etc"),
        ".git (link) was added after the run",
    ),
    "git's name is used with other letters": (
        lambda root: (root / ".GIT").mkdir(),
        ".GIT (folder) was added after the run",
    ),
}


@pytest.mark.parametrize("name", sampled(CHANGES, keep=2))
def test_what_no_copy_does_is_a_change(root: Path, name: str) -> None:
    change, problem = CHANGES[name]
    change(root)
    assert problem in said(verify(root))
    assert main(["verify", str(root)]) == 1


@pytest.fixture(scope="module")
def cloned(linked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run as Git carries it, with the empty folders that it loses."""
    clone = clone_of_the_folder(linked, tmp_path_factory.mktemp("cloned"))
    shutil.rmtree(clone / ".git")
    for folder in ("workspace/empty", "inputs/data/nothing"):
        (clone / folder).mkdir()
    return clone


@pytest.mark.sweep
@together("name", [name for name in CHANGES if "not carried" not in name])
def test_what_no_copy_does_is_a_change_in_a_carried_folder(
    cloned: Path, tmp_path: Path, name: str
) -> None:
    change, problem = CHANGES[name]
    root = shutil.copytree(cloned, tmp_path / "run", symlinks=True)
    change(root)
    assert problem.partition(": its mode")[0] in said(verify(root))
    assert main(["verify", str(root)]) == 1


def test_other_modes_and_missing_empty_folders_are_remarks(root: Path) -> None:
    (root / "run.json").chmod(0o644)
    (root / "workspace").chmod(0o2775)
    (root / "workspace" / "go").chmod(0o755)
    root.chmod(0o755)
    shutil.rmtree(root / "workspace" / "empty")
    (root / "inputs" / "data" / "nothing").rmdir()
    check = verify(root)
    assert check.problems == []
    assert sorted(check.remarks) == [
        "inputs/data/nothing (folder) is missing; nothing was in it",
        "run.json: its mode was 0600, and is 0644 now",
        "the run folder: its mode was 0700, and is 0755 now",
        "workspace/: its mode was 0700, and is 2775 now",
        "workspace/empty (folder) is missing; nothing was in it",
        "workspace/empty/inner (folder) is missing; nothing was in it",
        "workspace/go: its mode was 0700, and is 0755 now",
    ]


@pytest.mark.sweep
def test_an_empty_workspace_may_be_missing_and_a_full_one_not(tmp_path: Path) -> None:
    path = profile(tmp_path)
    for name in ("kept", "emptied"):
        run(path, "Work.", RunOptions(sandbox=tmp_path / name), engine=MockAgentEngine())
    for name in ("workspace", "deliverables", "archive"):
        (tmp_path / "kept" / name).rmdir()
    check = verify(tmp_path / "kept")
    assert check.problems == []
    assert "workspace (folder) is missing; nothing was in it" in check.remarks
    shutil.rmtree(tmp_path / "emptied" / "logs")
    assert "logs/ is missing" in said(verify(tmp_path / "emptied"))


def test_what_git_keeps_at_the_top_of_a_clone_is_named_and_not_checked(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "way").mkdir()
    clone = clone_of_the_folder(root, tmp_path / "way")
    (remark,) = (one for one in verify(clone).remarks if one.startswith(".git"))
    assert remark == ".git (folder) belongs to git: its contents are not checked"
    (clone / "more").touch()
    assert "more was added after the run" in said(verify(clone))


@pytest.mark.sweep
def test_a_repository_that_the_run_made_is_checked_like_everything(tmp_path: Path) -> None:
    path = profile(tmp_path, tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}})
    steps = [calls("run_command", argv=["sh", "-c", "mkdir ../.git; echo x > ../.git/HEAD"]), "Ok."]
    place = tmp_path / "run"
    run(path, "Work.", RunOptions(sandbox=place), engine=MockAgentEngine(steps))
    assert (verify(place).problems, verify(place).remarks) == ([], [])
    (place / ".git" / "HEAD").write_text("y\n", encoding="utf-8")
    assert ".git/HEAD was changed" in said(verify(place))


LINE_ENDS = "only its line ends differ"


def test_converted_line_ends_are_a_change_that_is_named(root: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copytree(root, project / "run", symlinks=True)
    (project / ".gitattributes").write_text("* text eol=crlf\n", encoding="utf-8")
    commit(project)
    git("clone", "-q", str(project), "clone", cwd=tmp_path)
    check = verify(tmp_path / "clone" / "run")
    for name in ("config.yaml", "run.json", "artifact-manifest.json", "deliverables/report.md"):
        assert any(
            one.startswith(f"{name} was changed") and LINE_ENDS in one for one in check.problems
        )
    assert any("* -text" in remark for remark in check.remarks)


def test_line_ends_that_were_made_plain_are_named_too(tmp_path: Path) -> None:
    path = profile(tmp_path)
    steps = [calls("write_file", path="deliverables/a.md", content="a\r\nb\r\n"), "Ok."]
    place = tmp_path / "run"
    run(path, "Work.", RunOptions(sandbox=place), engine=MockAgentEngine(steps))
    (place / "deliverables" / "a.md").write_bytes(b"a\nb\n")
    assert f"deliverables/a.md was changed: 6 bytes then, 4 now ({LINE_ENDS})" in said(
        verify(place)
    )
    (place / "deliverables" / "a.md").write_bytes(b"a\nc\n")
    check = verify(place)
    assert LINE_ENDS not in said(check)
    assert check.remarks == []


def test_a_file_that_git_ignores_is_missing_and_the_cure_is_named(
    root: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copytree(root, project / "run", symlinks=True)
    (project / ".gitignore").write_text("logs/\n", encoding="utf-8")
    commit(project)
    git("clone", "-q", str(project), "clone", cwd=tmp_path)
    check = verify(tmp_path / "clone" / "run")
    assert "logs/tools.jsonl is missing" in said(check)
    assert any("git add --force" in remark for remark in check.remarks)
    shutil.rmtree(root / "logs")
    assert not any("git add" in remark for remark in verify(root).remarks)


def test_remarks_are_on_the_page_beside_the_verdict(root: Path) -> None:
    (root / "run.json").chmod(0o644)
    page = render_page(read_report(root), verify(root))
    assert "The folder is sound" in page
    assert "run.json: its mode was 0600, and is 0644 now" in page
    rewrite(root, "prompt.md", lambda _: "x")
    page = render_page(read_report(root), verify(root))
    assert "The folder is not as the run left it" in page
    assert "run.json: its mode was 0600, and is 0644 now" in page


def test_a_folder_of_the_first_release_may_have_lost_its_empty_folders(tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(FIRST_RELEASE, old)
    for name in ("archive", "workspace"):
        shutil.rmtree(old / name, ignore_errors=True)
    check = verify(old)
    assert len(check.problems) == 1
    assert check.problems[0].startswith("the first release of kgent wrote this folder")
    assert "workspace (folder) is missing; nothing was in it" in check.remarks


def test_a_signed_folder_is_proved_at_the_other_end(root: Path, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen on this machine")
    key = tmp_path / "key"
    shell("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key), cwd=tmp_path)
    public = (tmp_path / "key.pub").read_text(encoding="utf-8")
    allowed = tmp_path / "allowed"
    allowed.write_text(f"me@example.org {public}", encoding="utf-8")
    assert main(
        ["rerun", str(root), "--sandbox", str(tmp_path / "signed"), "--sign", str(key)]
    ) in {
        0,
        3,
    }
    (tmp_path / "way").mkdir()
    carried = clone_of_a_project(tmp_path / "signed", tmp_path / "way")
    assert main(["verify", str(carried), "--allowed-signers", str(allowed)]) == 0
    (carried / "seal.sig").chmod(0o755)
    assert "seal.sig was changed" in said(verify(carried))

"""The version of a build: differs from commit to commit, grows, and is a release's at its tag."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
NEXT = "0.4.0"
FIRST, SECOND = "2026-11-30T04:00:00+08:00", "2026-11-29T22:00:00+00:00"


def git(place: Path, *words: str, at: str = FIRST) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "core.hooksPath=/dev/null")
    command = ("git", "-C", str(place), *who, *words)
    environ = {"PATH": "/usr/bin:/bin", "GIT_COMMITTER_DATE": at, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


def version_in(place: Path) -> str:
    command = (sys.executable, "-c", "import version; print(version.describe())")
    done = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    for name in ("version.py", ".gitattributes"):
        shutil.copy(ROOT / name, place)
    git(place, "init", "-q", "-b", "main")
    git(place, "add", ".")
    git(place, "commit", "-qm", "First")
    return place


def test_a_later_commit_has_a_higher_version(checkout: Path) -> None:
    first = version_in(checkout)
    assert first == f"{NEXT}.dev20261129200000+g{git(checkout, 'rev-parse', '--short', 'HEAD')}"
    git(checkout, "commit", "-q", "--allow-empty", "-m", "Second", at=SECOND)
    assert Version(first) < Version(version_in(checkout)) < Version(NEXT)


def test_the_tagged_commit_is_the_release(checkout: Path) -> None:
    git(checkout, "tag", "v0.3.0")
    assert Version(version_in(checkout)).is_devrelease
    git(checkout, "tag", f"v{NEXT}")
    assert version_in(checkout) == NEXT
    git(checkout, "commit", "-q", "--allow-empty", "-m", "Second", at=SECOND)
    assert Version(version_in(checkout)).is_devrelease


def test_a_shallow_clone_and_an_archive_have_the_version_of_their_commit(
    checkout: Path, tmp_path: Path
) -> None:
    git(checkout, "commit", "-q", "--allow-empty", "-m", "Second", at=SECOND)
    clone, unpacked = tmp_path / "clone", tmp_path / "unpacked"
    git(tmp_path, "clone", "-q", "--depth", "1", checkout.as_uri(), str(clone))
    unpacked.mkdir()
    git(checkout, "archive", "-o", str(tmp_path / "a.tar"), "HEAD")
    shutil.unpack_archive(tmp_path / "a.tar", unpacked)
    assert version_in(clone) == version_in(unpacked) == version_in(checkout)


def test_without_git_the_version_is_in_pkg_info_or_unnumbered(tmp_path: Path) -> None:
    shutil.copy(ROOT / "version.py", tmp_path)
    assert version_in(tmp_path) == f"{NEXT}.dev0"
    info = "Metadata-Version: 2.4\nName: soong-agent\nVersion: 9.8.7\n\nText.\n"
    (tmp_path / "PKG-INFO").write_text(info, encoding="utf-8")
    assert version_in(tmp_path) == "9.8.7"

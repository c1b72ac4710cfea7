"""Workspaces that tests record and restore: a fingerprint, and random changes."""

import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random

NAMES = (
    *("a", "b", ".gitattributes", "with space", "-rf", "new\nline", os.fsdecode(b"\xff\xfe")),
    *("café", "cafe\N{COMBINING ACUTE ACCENT}", "A", "x" * 255, "*", "\\", "sub.git"),
)
CONTENTS = (
    *(b"", b"1", b"2", b"one\r\ntwo\r\n", b"\xef\xbb\xbfbom", b"* text=auto eol=lf\n"),
    *(bytes(70_000), b"ref: refs/heads/main\n", b"x" * 200_000, os.urandom(5000)),
)
LINKS = ("/etc", "..", "a", os.fsdecode(b"\xff"), "loop")
MODES = (0o644, 0o600, 0o755, 0o400, 0o4755, 0o444)
FOLDER_MODES = (0o755, 0o700, 0o555, 0o1777)
SIZES = (1 << 20, 5 << 20, (4 << 20) + 1)


def fingerprint(root: Path) -> str:
    """A hash of everything below a folder but its own `.git`: kinds, modes, contents and links."""
    lines: list[str] = []
    for path in sorted(root.rglob("*")):
        inner = path.relative_to(root)
        if inner.parts[0] == ".git":
            continue
        status = path.lstat()
        lines += [str(inner), f"kind {stat.S_IFMT(status.st_mode):o}"]
        if stat.S_ISLNK(status.st_mode):
            lines.append(str(path.readlink()))
            continue
        lines.append(f"mode {stat.S_IMODE(status.st_mode):o}")
        if stat.S_ISREG(status.st_mode):
            lines.append(hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest())
    return hashlib.sha1(os.fsencode("\0".join(lines)), usedforsecurity=False).hexdigest()


def change(root: Path, random: Random) -> None:
    """Make one random change somewhere below the root."""
    entries = [path for path in root.rglob("*") if path.relative_to(root).parts[0] != ".git"]
    folders = [root, *(path for path in entries if path.is_dir() and not path.is_symlink())]
    place = random.choice(folders) / random.choice(NAMES)
    if len(str(place)) > 3000:
        return
    if not os.path.lexists(place):
        random.choice(_ADDING)(place, random)
    elif random.random() < 0.3:
        write(place, random)
    chosen = random.choice([*entries, place])
    if os.path.lexists(chosen) and random.random() < 0.7:
        random.choice(_CHANGING)(chosen, random)
    free = root / f"moved-{random.randrange(9)}"
    if os.path.lexists(chosen) and not os.path.lexists(free) and random.random() < 0.3:
        chosen.rename(free)


def write(path: Path, random: Random) -> None:
    if not path.is_symlink() and not path.is_dir():
        path.write_bytes(random.choice(CONTENTS))


def write_sparsely(path: Path, random: Random) -> None:
    path.write_bytes(b"begin")
    os.truncate(path, random.choice(SIZES))


def make_folder(path: Path, random: Random) -> None:
    path.mkdir()
    if random.random() < 0.5:
        write(path / random.choice(NAMES), random)


def make_link(path: Path, random: Random) -> None:
    path.symlink_to(random.choice(LINKS))


def make_repository(path: Path, random: Random) -> None:
    (path / ".git" / "objects").mkdir(parents=True)
    write(path / ".git" / "HEAD", random)


def set_mode(path: Path, random: Random) -> None:
    if not path.is_symlink():
        path.chmod(random.choice(FOLDER_MODES if path.is_dir() else MODES))


def remove(path: Path, _: Random) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def make_another_kind(path: Path, random: Random) -> None:
    was_folder = path.is_dir() and not path.is_symlink()
    remove(path, random)
    random.choice((write, make_link) if was_folder else (make_folder, make_repository))(
        path, random
    )


_Step = Callable[[Path, Random], None]
_ADDING: tuple[_Step, ...] = (write, write, make_folder, make_link, make_repository, write_sparsely)
_CHANGING: tuple[_Step, ...] = (write, set_mode, remove, make_another_kind)

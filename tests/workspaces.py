"""Workspaces that tests record and restore: a fingerprint, and random changes."""

import hashlib
import os
import shutil
import stat
from pathlib import Path
from random import Random

NAMES = (
    *(
        b"a",
        b"b",
        b".gitattributes",
        b"with space",
        b"-rf",
        b"new\nline",
        b"\xff\xfe",
        b"caf\xc3\xa9",
    ),
    *(b"cafe\xcc\x81", b"A", b"x" * 255, b"*", b"\\", b"sub.git"),
)
CONTENTS = (
    *(
        b"",
        b"1",
        b"2",
        b"one\r\ntwo\r\n",
        b"\xef\xbb\xbfbom",
        b"* text=auto eol=lf\n",
        bytes(70_000),
    ),
    *(b"ref: refs/heads/main\n", b"x" * 200_000, os.urandom(5000)),
)
MODES = (0o644, 0o600, 0o755, 0o400, 0o4755, 0o444)
FOLDER_MODES = (0o755, 0o700, 0o555, 0o1777)


def fingerprint(root: Path) -> str:
    """A hash of everything below a folder but its own `.git`: kinds, modes, contents and links."""
    lines: list[bytes] = []

    def look(folder: bytes, shown: bytes) -> None:
        for name in sorted(os.listdir(folder)):
            path, inner = os.path.join(folder, name), shown + b"\0" + name
            status = os.lstat(path)
            mode = b"%o" % stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                lines.append(inner + b"\0link\0" + os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                if shown or name != b".git":
                    lines.append(inner + b"\0folder\0" + mode)
                    look(path, inner)
            elif stat.S_ISREG(status.st_mode):
                with Path(path).open("rb") as file:
                    content = hashlib.sha1(file.read(), usedforsecurity=False).hexdigest()
                lines.append(inner + b"\0file\0" + mode + b"\0" + content.encode())
            else:
                lines.append(inner + b"\0special")

    look(os.fsencode(root), b"")
    return hashlib.sha1(b"\1".join(lines), usedforsecurity=False).hexdigest()


def change(root: Path, random: Random) -> None:
    """Make one random change somewhere below the root."""
    folders = [os.fsencode(root)]
    entries: list[bytes] = []
    for folder, inner, files in os.walk(os.fsencode(root)):
        inner[:] = [name for name in inner if folder != os.fsencode(root) or name != b".git"]
        found = [os.path.join(folder, name) for name in [*inner, *files]]
        entries += found
        folders += [path for path in found if Path(path).is_dir() and not Path(path).is_symlink()]
    place = os.path.join(random.choice(folders), random.choice(NAMES))
    if len(place) > 3000:
        return
    match random.choice(
        (
            "write",
            "write",
            "folder",
            "link",
            "delete",
            "mode",
            "kind",
            "sparse",
            "move",
            "repository",
        )
    ):
        case "write":
            write(place, random.choice(CONTENTS))
        case "folder" if not os.path.lexists(place):
            Path(place).mkdir()
        case "link" if not os.path.lexists(place):
            Path(place).symlink_to(random.choice((b"/etc", b"..", b"a", b"\xff", b"loop")))
        case "delete" if entries:
            remove(random.choice(entries))
        case "mode" if entries:
            path = random.choice(entries)
            if not Path(path).is_symlink():
                is_folder = Path(path).is_dir()
                Path(path).chmod(random.choice(FOLDER_MODES if is_folder else MODES))
        case "kind" if entries:
            path = random.choice(entries)
            was_folder = Path(path).is_dir() and not Path(path).is_symlink()
            remove(path)
            if was_folder:
                write(path, random.choice(CONTENTS))
            else:
                Path(path).mkdir()
                write(os.path.join(path, random.choice(NAMES)), random.choice(CONTENTS))
        case "sparse":
            write(place, b"begin")
            if Path(place).is_file() and not Path(place).is_symlink():
                os.truncate(place, random.choice((1 << 20, 5 << 20, (4 << 20) + 1)))
        case "move" if entries:
            path = random.choice(entries)
            if not os.path.lexists(place) and not place.startswith(path + b"/"):
                Path(path).rename(place)
        case "repository" if not os.path.lexists(place):
            Path(os.path.join(place, b".git", b"objects")).mkdir(parents=True)
            write(os.path.join(place, b".git", b"HEAD"), b"ref: refs/heads/main\n")
        case _:
            pass


def write(path: bytes, content: bytes) -> None:
    if Path(path).is_dir() or Path(path).is_symlink():
        return
    with Path(path).open("wb") as file:
        file.write(content)


def remove(path: bytes) -> None:
    if Path(path).is_dir() and not Path(path).is_symlink():
        shutil.rmtree(path)
    else:
        Path(path).unlink()

"""Reads which files Git tracks, from the index of a repository, without running Git."""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from agent_core.opening import read_bytes
from agent_core.process.repositories import examine

_HEADER, _FIXED, _EXTENDED = 12, 40, 0x4000
_LARGEST_INDEX = 64_000_000


def find_replaceable(paths: list[str]) -> list[str]:
    """Return those of some paths in working trees that Git may replace.

    Git tracks the file, or a file in the folder; or there is nothing, and another branch may bring
    it. Blocks on files.
    """
    by_tree: dict[str, list[str]] = {}
    for path in paths:
        tree = next((each for each in Path(path).parents if os.path.lexists(each / ".git")), None)
        if tree is not None and f"/{path.removeprefix(str(tree))}/".find("/.git/") < 0:
            by_tree.setdefault(str(tree), []).append(path)
    found: list[str] = []
    for tree, inside in by_tree.items():
        state = examine(f"{tree}/.git")
        digest = 32 if b"sha256" in state.contents.get(f"{state.folder}/config", b"") else 20
        left = set(filter(os.path.lexists, inside))
        found += [path for path in inside if path not in left]
        with suppress(OSError, ValueError, IndexError, struct.error):
            for name in _names(Path(state.folder) / "index", digest=digest):
                path = f"{tree}/{os.fsdecode(name)}"
                hits = {each for each in left if path == each or path.startswith(f"{each}/")}
                left -= hits
                found += sorted(hits)
                if not left:
                    break
    return found


def _names(index: Path, *, digest: int) -> Iterator[bytes]:
    """Yield the paths in an index, relative to its working tree.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no index that is known here.
    """
    if index.stat().st_size > _LARGEST_INDEX:
        return
    content = read_bytes(index)
    signature, version, count = struct.unpack_from(">4sII", content)
    if signature != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(version)
    at, name = _HEADER, b""
    for _ in range(count):
        begin = at
        (flags,) = struct.unpack_from(">H", content, at + _FIXED + digest)
        at += _FIXED + digest + (4 if flags & _EXTENDED else 2)
        if version == 4:
            cut, at = _variable_number(content, at)
            end = content.index(b"\0", at)
            name = name[: len(name) - cut] + content[at:end]
            at = end + 1
        else:
            end = content.index(b"\0", at)
            name = content[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        yield name


def _variable_number(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where the next field begins."""
    number = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        number = ((number + 1) << 7) | (content[at] & 0x7F)
    return number, at + 1

"""Files that are dropped on the terminal: it pastes their paths."""

import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agent_core.artifacts.images import (
    UnusableImageError,
    encode_base64,
    media_type,
    require_whole,
)
from agent_core.cli.chat.pastes import Pastes
from agent_core.errors import ToolError
from agent_core.opening import open_binary, read_beginning
from agent_core.text import visible
from agent_core.tools.workspace import PathPolicy
from agent_core.types import ImageBlock

MOST_IMAGE_BYTES = 20_000_000
_MOST_FILES = 20
_LONGEST = 8192
_BEGINS = re.compile(r"""['"]?(?:/|~/|file:///|file://localhost/)""")
_NOT_IN_NAMES = re.compile(r"[\[\]\s]+")


def take_drop(text: str, pastes: Pastes, policy: PathPolicy) -> str | None:
    """Return what the line shows for dropped files; None if the text is none but a text.

    An image is kept in `pastes`, by the name that is shown for it. Another file becomes a mention.
    A file that needs a question to be read makes all of it a text.
    """
    paths = find_paths(text)
    if not paths or len(paths) > _MOST_FILES:
        return None
    shown: list[str] = []
    for path in paths:
        try:
            place = policy.resolve(str(path))
            if place.is_closed or policy.is_closed(place.path) or not place.path.is_file():
                return None
            kind = media_type(read_beginning(place.path, 16))
            if kind is not None and place.path.stat().st_size <= MOST_IMAGE_BYTES:
                shown.append(_attach(path.name, place.path, pastes))
            elif '"' in place.shown or not place.shown.isprintable():
                return None
            else:
                shown.append(f'@"{place.shown}"' if " " in place.shown else f"@{place.shown}")
        except (ToolError, OSError, ValueError):
            return None
    return " ".join(shown) + " "


def _attach(name: str, path: Path, pastes: Pastes) -> str:
    """Raises OSError."""
    with open_binary(path) as file:
        content = file.read(MOST_IMAGE_BYTES + 1)
    try:
        block = ImageBlock(mime_type=require_whole(content), data=encode_base64(content))
    except UnusableImageError as error:
        raise OSError(str(error)) from error
    name = _NOT_IN_NAMES.sub("_", visible(name, one_line=True))[-60:]
    return pastes.attach(name, shown_size(len(content)), block)


def shown_size(size: int) -> str:
    """Return a number of bytes in whole kB, or in MB."""
    return f"{round(size / 1e6, 1)} MB" if size >= 1_000_000 else f"{max(size // 1000, 1)} kB"


def find_paths(text: str) -> list[Path]:
    """Return the files that a pasted text names, if it is nothing but absolute paths of files.

    Terminals separate several by blanks or line ends. They quote a path, put a backslash before
    its blanks, write it as a `file://` URL, or leave it as it is.
    """
    if len(text) > _LONGEST or not _BEGINS.match(text.strip()):
        return []
    found: list[Path] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        whole = _existing(line)
        if whole is not None:
            found.append(whole)
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            return []
        paths = [_existing(word) for word in words]
        if None in paths:
            return []
        found += filter(None, paths)
    return found


def _existing(word: str) -> Path | None:
    if not _BEGINS.match(word) or word[0] in "'\"":
        return None
    try:
        if word.startswith("file://"):
            word = unquote(urlsplit(word).path)
        path = Path(word).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None

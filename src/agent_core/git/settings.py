"""The settings of a repository of Git, read as Git reads them, with the files they include."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agent_core.opening import read_text_file

_MAX_BYTES = 64_000
_MAX_INCLUDES = 10
_INCLUDES = re.compile(r"include\.path|includeif\..*\.path", re.DOTALL)

_PLAIN_VALUE = re.compile(r"=([^\\\"\n#;]*)(?=\n|\Z)")
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*")
_SECTION = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?\]')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"', "\n": ""}


class GitSetting(Struct, frozen=True):
    """One setting.

    Attributes:
        name: such as `remote.origin.url`, with the first and the last part in lower case.
        value: `"true"` if it has none.
        file: the file that contains it.
    """

    name: str
    value: str
    file: Path


def user_settings() -> Iterator[Path]:
    """Yield the files with settings of the user and of the system, whether they exist or not."""
    yield Path("/etc/gitconfig")
    with suppress(RuntimeError):  # a user without a home
        yield Path("~/.gitconfig").expanduser()
        yield Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "git/config").expanduser()
    if own := os.environ.get("GIT_CONFIG_GLOBAL"):
        yield Path(own)


def read_settings(file: Path, *, includes: int = _MAX_INCLUDES) -> Iterator[GitSetting]:
    """Yield the settings of a file, and of the files that it includes. Blocks on files.

    Raises:
        OSError: it cannot be read.
        ValueError: Git might read it in another way.
    """
    data = read_text_file(file, _MAX_BYTES + 1)
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if "\0" in text or len(data) > _MAX_BYTES:
        raise ValueError(file)
    for name, value in parse_settings(text.replace("\r\n", "\n")):
        yield GitSetting(name, value, file)
        if _INCLUDES.fullmatch(name):
            if includes <= 0:
                raise ValueError(file)
            path = file.parent / os.path.expanduser(value)  # noqa: PTH111 - as git does
            if os.path.lexists(path):
                yield from read_settings(path, includes=includes - 1)


def read_text(content: bytes) -> str:
    """Return the text of a file of settings, as Git reads it.

    Raises:
        ValueError: Git does not read it as a text.
    """
    text = content.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if "\0" in text:
        raise ValueError(text[:80])
    return text.replace("\r\n", "\n")


def parse_settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the settings in the text of a file.

    Raises:
        ValueError: a part of it is not written as git expects.
    """
    for name, value, _, _ in locate_settings(text):
        yield name, value


def locate_settings(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield the names and values of the settings in a text, and where each begins and ends.

    Raises:
        ValueError: a part of it is not written as git expects.
    """
    at, section = 0, ""
    while at < len(text):
        if text[at] in " \t\n\r":
            at += 1
        elif text[at] in "#;":
            at = text.find("\n", at) % (len(text) + 1)
        elif found := _SECTION.match(text, at):
            name, below = found[1].lower(), found[2]
            section = name if below is None else ".".join((name, _ESCAPED.sub(r"\1", below)))
            at = found.end()
        elif section and (found := _KEY.match(text, at)):
            start = at
            value, at = _read_value(text, found.end())
            yield f"{section}.{found[1].lower()}", value, start, at
        else:
            raise ValueError(text[at : at + 80])


def _read_value(text: str, at: int) -> tuple[str, int]:
    """Return the value that begins at a position, and the position after it."""
    if at == len(text) or text[at] == "\n" or text[at] in "#;":
        end = text.find("\n", at)
        return "true", len(text) if end < 0 else end
    if text[at] != "=":
        raise ValueError(text[at : at + 80])
    if found := _PLAIN_VALUE.match(text, at):
        return found[1].strip(" \t\r"), found.end()
    return _read_quoted(text, at)


def _read_quoted(text: str, at: int) -> tuple[str, int]:
    """Return the value behind an equals sign, with quotes, escapes or a comment."""
    value, is_quoted, at = "", False, at + 1
    kept = 0  # blanks at the end of a value count only in quotes
    while at < len(text):
        char = text[at]
        if char == "\n" and not is_quoted:
            break
        if char == "\n":
            raise ValueError(value)
        if char == "\\":
            if text[at + 1 : at + 2] not in _ESCAPES:
                raise ValueError(value)
            value += _ESCAPES[text[at + 1]]
            kept = len(value)
            at += 2
            continue
        if char == '"':
            is_quoted = not is_quoted
            kept = len(value)
        elif char in "#;" and not is_quoted:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            break
        else:
            value += char
            if is_quoted or char not in " \t\r":
                kept = len(value)
        at += 1
    if is_quoted:
        raise ValueError(value)
    return value[:kept].lstrip(" \t"), at

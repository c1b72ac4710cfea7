"""The user's own commands: Markdown files in `<home>/commands/` that become messages."""

import os
import re
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from agent_core.assets import parse_front_matter
from agent_core.opening import open_descriptor
from agent_core.text import one_line

FOLDER = "commands"
MOST_BYTES = 100_000
_MOST_COMMANDS = 500
_MOST_FOLDERS = 100
_ENDING = ".md"
_NAME = re.compile(r"\w[\w.-]*")
_PLACE = re.compile(r"\\?\$(?:ARGUMENTS\b|[1-9](?![0-9]))")
"""A place for arguments in the text of a command; behind a backslash it is none."""
_ALL = "$ARGUMENTS"
_MENTION = re.compile(r"@\"[^\"]*\"")
"""A file whose name has spaces: its quotation marks are a part of the mention."""
_HINT = re.compile(rb"(?m)^(argument-hint:[ \t]*)(\[[^\r\n]*?)[ \t]*(?=\r?$)")
"""A hint such as `[file] [line]`, which other agents take literally: it is no YAML."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class OwnCommand(Struct, frozen=True):
    """A command of the user's.

    Attributes:
        name: `review`, or `git:review` for `git/review.md`.
        text: the message, with `$ARGUMENTS` where the words behind the name go, and `$1` to `$9`
            for single ones.
        what: its description.
        usage: a hint at what may follow the name.
        problem: the reason why it cannot be used; empty if it can.
    """

    name: str
    path: Path
    text: str = ""
    what: str = ""
    usage: str = ""
    problem: str = ""

    def fill(self, line: str, whole: Iterable[str] = ()) -> str:
        """Return the message for a line `/name arguments`.

        Arguments that the text has no place for follow it.

        Args:
            line: the line.
            whole: parts of the line that are one argument each, or a part of one.
        """
        arguments = "".join(line.split(None, 1)[1:]).strip()
        places = {each for each in _PLACE.findall(self.text) if not each.startswith("\\")}
        words = _split(arguments, whole)
        given = {f"${number}": word for number, word in enumerate(words, 1)} | {_ALL: arguments}

        def value(found: re.Match[str]) -> str:
            return found[0][1:] if found[0][0] == "\\" else given.get(found[0], "")

        text = _PLACE.sub(value, self.text)
        left = arguments
        if _ALL in places:
            left = ""
        elif places:
            left = " ".join(word for name, word in given.items() if name not in {*places, _ALL})
        return f"{text}\n\n{left}" if left else text


def _split(arguments: str, whole: Iterable[str]) -> list[str]:
    """Part arguments as a shell does; if a quotation mark is not closed, at blanks alone."""
    kept = [*whole, *_MENTION.findall(arguments)]
    line = arguments.replace("\0", "")
    for number, part in enumerate(kept):
        line = line.replace(part, f"\0{number}\0")
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return [re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], word) for word in words]


class OwnCommands:
    """The commands in a folder. Files are read again when they have changed.

    Does file work: call its methods in a thread.

    Args:
        folder: need not exist. Links in it lead where the user wants.
        reserved: names of built-in commands, which these cannot replace.
    """

    def __init__(self, folder: Path, reserved: Collection[str]) -> None:
        self._folder = folder
        self._reserved = reserved
        self._read: dict[Path, tuple[tuple[int, ...], OwnCommand]] = {}

    def find(self, name: str) -> OwnCommand | None:
        """Return the command of a name, also one that cannot be used."""
        if not self._folder.is_dir():
            return None
        return self.listed().get(name)

    def listed(self) -> dict[str, OwnCommand]:
        """Return the commands by name, those that cannot be used with their problem."""
        found: dict[str, OwnCommand] = {}
        known: dict[Path, tuple[tuple[int, ...], OwnCommand]] = {}
        for name, path, problem in self._walk():
            if problem:
                found[name] = OwnCommand(name, path, problem=problem)
                continue
            if len(known) >= _MOST_COMMANDS:
                most = f"there are more than {_MOST_COMMANDS} commands"
                found[name] = OwnCommand(name, path, problem=most)
                break
            version, command = self._current(name, path)
            known[path] = version, command
            found[name] = command
        self._read = known
        return found

    def usable(self) -> dict[str, OwnCommand]:
        """Return the commands that can be used, by name."""
        return {name: each for name, each in self.listed().items() if not each.problem}

    def _walk(self) -> Iterator[tuple[str, Path, str]]:
        """Yield names, files and problems of files and folders, in the order of their names."""
        count = 0

        def walk(
            folder: Path, prefix: str, above: tuple[tuple[int, int], ...]
        ) -> Iterator[tuple[str, Path, str]]:
            nonlocal count
            try:
                facts = folder.stat()
                identity = facts.st_dev, facts.st_ino
                if identity in above:
                    yield prefix.rstrip(":"), folder, "a link leads back to a folder above it"
                    return
                count += 1
                if count > _MOST_FOLDERS:
                    yield prefix.rstrip(":"), folder, f"there are more than {_MOST_FOLDERS} folders"
                    return
                names = sorted(each.name for each in folder.iterdir())
            except OSError as error:
                if prefix or not isinstance(error, FileNotFoundError):
                    name = prefix.rstrip(":") or FOLDER
                    yield name, folder, error.strerror or str(error)
                return
            for each in names:
                if each.startswith("."):
                    continue
                path = folder / each
                if path.is_dir():
                    yield from walk(path, f"{prefix}{each}:", (*above, identity))
                elif each.endswith(_ENDING) or (path.is_symlink() and not path.exists()):
                    yield f"{prefix}{each.removesuffix(_ENDING)}", path, ""

        yield from walk(self._folder, "", ())

    def _current(self, name: str, path: Path) -> tuple[tuple[int, ...], OwnCommand]:
        version: tuple[int, ...] = ()
        try:
            facts = path.stat()
            version = (
                facts.st_dev,
                facts.st_ino,
                facts.st_size,
                facts.st_mtime_ns,
                facts.st_ctime_ns,
            )
            known = self._read.get(path)
            if known is not None and known[0] == version:
                return known
            return version, self._load(name, path)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return (), OwnCommand(name, path, problem=reason)

    def _load(self, name: str, path: Path) -> OwnCommand:
        """Raises OSError."""
        if name in self._reserved:
            return OwnCommand(name, path, problem=f"/{name} is built in; rename the file")
        if not all(_NAME.fullmatch(part) for part in name.split(":")):
            form = "a name has only letters, digits and - _ ."
            return OwnCommand(name, path, problem=form)
        descriptor = open_descriptor(path, _FLAGS)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return OwnCommand(name, path, problem="it is not a regular file")
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            return OwnCommand(name, path, problem=f"it has more than {MOST_BYTES:,} bytes")
        try:
            content.decode()
        except UnicodeDecodeError as error:
            return OwnCommand(name, path, problem=f"it is not UTF-8, from byte {error.start} on")
        parsed = parse_front_matter(_with_quoted_hint(content))
        text = parsed.body.strip()
        problem = parsed.problem or ("" if text else "it is empty")
        what = parsed.text("description") or one_line(text.partition("\n")[0]).lstrip("# ")
        return OwnCommand(
            name, path, text, what, _hint(parsed.fields.get("argument-hint")), problem
        )


def _with_quoted_hint(content: bytes) -> bytes:
    head, end, body = content.partition(b"\n---")
    return _HINT.sub(_quoted, head) + end + body if content.startswith(b"---") else content


def _quoted(found: re.Match[bytes]) -> bytes:
    hint = found[2].replace(b"'", b"''")
    return found[1] + b"'" + hint + b"'"


def _hint(value: object) -> str:
    return one_line(str(value)) if value is not None else ""

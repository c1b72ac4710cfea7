"""Finds out from a program's output whether it failed because of the sandbox.

The kernel reports a refusal to the program and to no other process. The program's output is the
only trace of it; a refusal that the program does not print stays unknown.
"""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from agent_core.process.confinement import Confinement, nearest

_REFUSED = re.compile(
    r"permission denied|operation not permitted|read-only file system|device or resource busy"
    r"|\b(?:EACCES|EPERM|EROFS|EBUSY)\b",
    re.IGNORECASE,
)
_READ_ONLY = re.compile(r"read-only file system|\bEROFS\b", re.IGNORECASE)
_MISSING = re.compile(r"no such file or directory|\bENOENT\b", re.IGNORECASE)
_CREATED = re.compile(
    r"\b(?:mkdir\w*|mk[ds]temp|creat\w*|touch|copy\w*|rename|link|writ\w+)\b", re.I
)
_TRIED = re.compile(
    rf"{_CREATED.pattern}|\b(?:lock\w*|open\w*|remov\w+|unpack\w*)\b", re.IGNORECASE
)
"""Line in which a program names a file, some lines before the reason why it failed."""

_CREATED_WITH_PARENTS = re.compile(r"\bENOENT\b.*, (?:mkdir|mkdtemp|copyfile) ['\"]")
"""The message of Node for a folder that it could not make with the folders above."""

_CONNECTED = re.compile(r"\b(?:listen|bind|connect)\b", re.IGNORECASE)
_NAMED_SOCKET = re.compile(
    r"\b(?:listen|bind|connect) (?:EACCES|EPERM)(?:: [a-z ]+)? (?!\S*:\d+\s*$)(?!\d+\s*$)\S+\s*$"
)
"""The message of Node for a named socket, perhaps in the current folder; not for a port."""

THE_NETWORK = "the network"
_SOCKET_TEXT = 'a Unix socket with a name (rule "sockets": none can be made or connected to)'
_UNNAMED_TEXT = 'a file that the program did not name (rule "write")'
_UNREACHABLE = re.compile(
    r"network is (?:unreachable|down)|(?:could(?:n't| not)|unable to) resolve"
    r"|name or service not known|temporary failure (?:in name resolution|resolving)"
    r"|no route to host|nodename nor servname|failed to lookup address|no such host"
    r"|\blookup \S+ on .*(?:refused|unreachable|misbehaving)|unknown ?host"
    r"|\b(?:ENETUNREACH|ENETDOWN|EHOSTUNREACH|EAI_AGAIN|ENOTFOUND)\b",
    re.IGNORECASE,
)
_NOT_FETCHED = re.compile(
    r"no matching distribution found|could not find a version that satisfies"
    r"|network connectivity|trouble with your network|network error|META_FETCH_FAIL"
    r"|could not find a valid gem|could not reach host|attempts to connect to \S+ failed"
    r"|connection failed for url|failed to (?:download|fetch) \S*(?:://|index|from)"
    r"|could not (?:download|get|transfer|fetch) .*://|unable to (?:access|connect to) '?http",
    re.IGNORECASE,
)
"""Last words of package managers about a failed download; the cause is further up."""

_PUSHED = re.compile(r"failed to push some refs to '(?:file://(?:localhost)?(?=/))?([^':]+)'")
"""The last line of Git when a repository of this machine took nothing; it names no other file."""

_BUSY = re.compile(r"device or resource busy|\bEBUSY\b", re.IGNORECASE)
_SOCKET = re.compile(r"\bsocket\b|AF_UNIX")
_SPEAKER = re.compile(r"\S+: (?:line )?(?:\d+: )?")
_QUOTED = re.compile("'([^'\n]+)'|\"([^\"\n]+)\"|\u2018([^\u2019\n]+)\u2019|`([^`'\n]+)['`]")
_WORD = re.compile(r"[^\s'\"`:,;()\[\]{}<>=]*/[^\s'\"`:,;()\[\]{}<>=]*|[^\s:]+(?=: [A-Z])")

_CACHES = (
    *("~/.cargo/git", "~/.cargo/registry", "~/go/pkg", "~/.m2/repository", "~/.m2/wrapper"),
    *("~/.gradle", "~/.local/share/pnpm", "~/.local/state/pnpm", "~/.cache/pnpm", "~/Library/pnpm"),
    *("~/.nuget/packages", "~/.cache/deno", "~/.bundle", "~/.gem", "~/.mix", "~/.hex", "~/.sbt"),
    *("~/.ivy2", "~/.cache/coursier", "~/.pub-cache", "~/.cabal", "~/.stack", "~/.julia"),
    *("~/.npm", "~/.cache/pip", "~/.cache/uv", "~/.cache/yarn", "~/.cache/go-build"),
    *("~/.bun/install/cache", "~/.cache/composer", "~/.cache/pre-commit", "~/.cache/node"),
)
"""The usual folders of package managers, which a user may list as caches."""

_LINES_OF_A_CALL = 6
"""Most lines between the call shown in a traceback and its error."""

_MOST_LINES, _LONGEST_LINE = 2_000, 8_192


class Denial(Struct, frozen=True, kw_only=True):
    """The actions that were refused to a program.

    Attributes:
        paths: files that it could have changed or read without its confinement.
        network: it tried to reach the network.
        socket: it tried to make a socket, of Unix above all.
        unnamed: it tried to write to a file that it has not named.
    """

    paths: tuple[str, ...] = ()
    network: bool = False
    socket: bool = False
    unnamed: bool = False

    def named(self, most: int) -> list[str]:
        """Describe it in words: at most `most` paths, then the refusals without a path."""
        more = len(self.paths) - most
        rest = [f"… (+{more} more)"] if more > 0 else []
        rest += [THE_NETWORK] if self.network else []
        rest += [_SOCKET_TEXT] if self.socket else []
        rest += [_UNNAMED_TEXT] if self.unnamed else []
        caches = {cache for path in self.paths if (cache := _cache_of(path))}
        rest += [
            f"{cache} (a cache: the user can list it in [sandbox] caches)"
            for cache in sorted(caches)
        ]
        return [*self.paths[:most], *rest]


def find_denial(
    output: str, confinement: Confinement, *, cwd: Path | str, connects: bool = True
) -> Denial | None:
    """Return the actions refused to a program, as far as its output and the confinement show it.

    Its exit code tells nothing: in a pipe it is another program's.

    A path counts if the confinement refuses it and this process itself could use it: a path that
    the user may not touch either is not refused by the sandbox.

    Args:
        output: its output, standard error first.
        confinement: the limits it was started with.
        cwd: where it ran.
        connects: it may have tried to reach the network: it does not only show files.
    """
    paths = dict[str, None]()
    network = socket = unnamed = False
    earlier = deque[str](maxlen=_LINES_OF_A_CALL)
    for line in output.splitlines()[-_MOST_LINES:]:
        cut = line[:_LONGEST_LINE]
        if connects and not (network or confinement.network):
            network = bool(_UNREACHABLE.search(cut) or _NOT_FETCHED.search(cut))
        if (pushed := _PUSHED.search(cut)) and _is_refused(
            pushed_to := str(Path(cwd, pushed[1])), confinement
        ):
            paths[os.path.normpath(pushed_to)] = None
        names = list(_names(cut)) if _REFUSED.search(cut) or _MISSING.search(cut) else []
        found = [os.path.normpath(Path(cwd, name)) for name in names]
        if not _REFUSED.search(cut):
            created = (path for path in found if _cannot_be_missing(path, cut))
            paths |= dict.fromkeys(filter(partial(_is_refused, confinement=confinement), created))
        elif _NAMED_SOCKET.search(cut) or (
            _CONNECTED.search(cut) and any("/" in name for name in names)
        ):
            socket = True  # whatever the path is: it is the socket that is refused
        else:
            is_busy = _BUSY.search(cut) is not None
            refused = [path for path in found if _is_refused(path, confinement, is_busy=is_busy)]
            if not found and not any(map(_SOCKET.search, (*earlier, cut))):
                refused = list(_tried_before(earlier, confinement, cwd=cwd))
            paths |= dict.fromkeys(refused)
            is_socket = not refused and any(map(_SOCKET.search, (*earlier, cut)))
            socket |= is_socket
            is_named = bool(refused) or any("/" in name for name in names)
            unnamed |= _READ_ONLY.search(cut) is not None and not (is_named or is_socket)
        earlier.append(cut)
    unnamed = unnamed and not paths
    if not (paths or network or socket or unnamed):
        return None
    return Denial(paths=tuple(paths), network=network, socket=socket, unnamed=unnamed)


def _tried_before(
    lines: Iterable[str], confinement: Confinement, *, cwd: Path | str
) -> Iterator[str]:
    """Yield the refused paths of the last line that reports an attempt, if there is one."""
    for line in reversed(list(filter(_TRIED.search, lines))):
        named = (os.path.normpath(Path(cwd, name)) for name in _names(line) if "/" in name)
        if found := [path for path in named if _is_refused(path, confinement)]:
            yield from found
            return


def _cache_of(path: str) -> str | None:
    """Return the usual cache of a package manager that a path is in, or that it leads to."""
    for cache in _CACHES:
        place = os.path.realpath(os.path.expanduser(cache))  # noqa: PTH111 - there may be no home
        if f"{path}/".startswith(f"{place}/"):
            return cache
    return None


def _cannot_be_missing(path: str, line: str) -> bool:
    """Return whether a program reports as missing a thing that it was about to make.

    Some programs look for a folder that they could not make, and report its absence.
    """
    if not _CREATED.search(line) or os.path.lexists(path):
        return False
    return _CREATED_WITH_PARENTS.search(line) is not None or os.path.isdir(os.path.dirname(path))  # noqa: PTH112, PTH120


def _names(line: str) -> Iterator[str]:
    """Yield words that may be paths: quoted text, words with a slash, the word before an error."""
    if (speaker := _SPEAKER.match(line)) and not _REFUSED.match(line, speaker.end()):
        line = line[speaker.end() :]  # the program that prints it
    for match in _QUOTED.finditer(line):
        yield from filter(None, match.groups())
    yield from _WORD.findall(_QUOTED.sub(" ", line))


def _is_refused(path: str, confinement: Confinement, *, is_busy: bool = False) -> bool:
    try:
        real = os.path.realpath(path)
        if nearest(real, confinement.hidden):
            return True
        held = (*confinement.protect, *confinement.write) if is_busy else ()
        if any(nearest(each, [real]) for each in held):  # a folder above it cannot be moved
            return True
        protected = [*confinement.protect, *map(_first_missing, confinement.protect)]
        if nearest(real, confinement.write) > nearest(real, protected):
            return False
        is_unreadable = confinement.read is not None and not nearest(real, confinement.read)
        existing = real
        while not os.path.lexists(existing):
            existing = str(Path(existing).parent)
        return os.access(existing, os.W_OK) or (is_unreadable and os.access(existing, os.R_OK))
    except (OSError, ValueError):
        return False


def _first_missing(path: str) -> str:
    """The path, or the first folder above it that is not there: it cannot be made either."""
    while not os.path.lexists(above := os.path.dirname(path)):  # noqa: PTH120
        path = above
    return path

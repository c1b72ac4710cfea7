"""The limits of a program, and the ones among them that this system can enforce.

A `Command` with a `Confinement` is started inside of it or not at all. A limit that this system
cannot enforce is a `Hole` (`missing`): a program is started with the holes that its confinement
does not require to be closed.
"""

import json
import marshal
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from agent_core.errors import ErrorCode, ToolError
from agent_core.process.binds import Kind, plan

Rule = Literal[
    "write",
    "attributes",
    "protect",
    "read",
    "hidden",
    "network",
    "sockets",
    "signals",
    "kernel",
]
"""Rules that a confinement holds a program to.

- `write`: it changes, makes, moves and removes files only beneath `Confinement.write`.
- `attributes`: nor does it change mode, owner, times or attributes of other files.
- `protect`: nor anything at or beneath `Confinement.protect`, not by renaming a folder above it.
- `read`: it reads only `Confinement.read`, what it may write, and what programs need to run.
- `hidden`: it opens nothing at or beneath `Confinement.hidden`.
- `network`: without `Confinement.network` it reaches no other machine.
- `sockets`: it reaches no service of this machine through a Unix socket, by path or abstract,
  a named pipe, or shared memory.
- `signals`: it neither signals nor traces a process that it has not started.
- `kernel`: it finds closed what commands do not need and attackers use: mounts, namespaces,
  io_uring, BPF, keyrings, calls of 32 bits, privileges.
"""

_PROBE_S = 20.0
_TRUNCATES, _SIGNALS = 3, 6
"""The versions of Landlock from which on truncation and signals can be refused."""

_MACOS_SYSTEM = ("/System", "/usr", "/bin", "/sbin", "/Library", "/opt", "/dev", "/private/etc")


class Confinement(Struct, frozen=True, kw_only=True):
    """The limits of a program and all its descendants. Paths are absolute, links resolved.

    Attributes:
        write: files and folders they may change. One that does not exist is left out.
        read: other paths they may read, besides those programs need to run; None: everything.
        protect: paths in `write`, existing or not, that must not change. Of two paths
            where one holds the other, the longer one decides.
        hidden: paths they cannot open, wherever those are: a lock on it would stop this program.
        copies: protected files, each with a copy that is seen and written in its place; all
            copies are in one folder. See `has_copies`.
        network: whether they may use the network.
        required: rules without which the program is not started.
    """

    write: tuple[str, ...]
    read: tuple[str, ...] | None = None
    protect: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    network: bool = False
    required: frozenset[Rule] = frozenset()


class Abilities(Struct, frozen=True, kw_only=True):
    """The means of this system to confine a program.

    Attributes:
        landlock: the version of its interface, 0 if the kernel has none.
        seccomp: filters of system calls, on a processor whose numbers are known here.
        namespaces: mounts that only the program sees.
        network_namespace: a network of its own, with nothing but a loopback.
        bubblewrap: the path of a `bwrap` that works, looked for if `namespaces` or
            `landlock` is missing.
        sandbox_exec: the path of macOS' `sandbox-exec`.
        renames: renames of the program can be carried out in its place.
    """

    landlock: int = 0
    seccomp: bool = False
    namespaces: bool = False
    network_namespace: bool = False
    bubblewrap: str | None = None
    sandbox_exec: str | None = None
    renames: bool = False

    @property
    def has_mounts(self) -> bool:
        """Return whether a tree can be made read-only for the program alone."""
        return self.namespaces or self.bubblewrap is not None

    @property
    def has_copies(self) -> bool:
        """Return whether the program alone can be shown a copy in place of a file."""
        return self.namespaces and self.renames and self.bubblewrap is None


class Hole(Struct, frozen=True, kw_only=True):
    """A rule that cannot be enforced here.

    Attributes:
        rule: the rule.
        text: the actions of a program that it allows, and how to close it.
    """

    rule: Rule
    text: str


@cache
def probe() -> Abilities:
    """Return the means of this system: tried once, in a process of its own, in about 50 ms."""
    if sys.platform == "darwin":
        return Abilities(sandbox_exec=shutil.which("/usr/bin/sandbox-exec"))
    if not sys.platform.startswith("linux") or not sys.executable:
        return Abilities()
    script = Path(__file__).with_name("supervisor.py")
    try:
        tried = subprocess.run(  # noqa: S603 - this interpreter, and a file of this package
            [sys.executable, "-I", "-S", str(script), "probe"],
            capture_output=True,
            check=True,
            timeout=_PROBE_S,
        )
        return Abilities(**json.loads(tried.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return Abilities()


def missing(confinement: Confinement, abilities: Abilities) -> list[Hole]:
    """The rules of a confinement that this system cannot enforce."""
    if abilities.sandbox_exec:
        return []
    holes: list[Hole] = []

    def add(rule: Rule, text: str) -> None:
        holes.append(Hole(rule=rule, text=text))

    uses_bubblewrap = abilities.bubblewrap is not None
    if not abilities.landlock and not abilities.has_mounts:
        add("write", "files anywhere can be changed: there is neither Landlock nor a namespace")
    elif 0 < abilities.landlock < _TRUNCATES and not abilities.has_mounts:
        add("write", "files outside can be emptied (truncate): this takes Linux 6.2 or bubblewrap")
    if not abilities.has_mounts:
        text = "mode, owner and times of files outside can be changed: this takes bubblewrap"
        add("attributes", text)
        holes.extend(
            Hole(rule="protect", text=f"{path} can be changed: this takes bubblewrap")
            for path in confinement.protect
            if nearest(path, confinement.write)
        )
    else:
        holes.extend(
            Hole(
                rule="protect", text=f"{path} is a link, which can be replaced; protect its target"
            )
            for path in confinement.protect
            if nearest(path, confinement.write) and os.path.islink(path)  # noqa: PTH114
        )
    if confinement.read is not None and not abilities.landlock and not uses_bubblewrap:
        add("read", "every file can be read: this takes Landlock or bubblewrap")
    holes += _uncovered(confinement, abilities)
    if not abilities.seccomp:
        text = "every call of the kernel can be made: this takes seccomp, on x86_64 or aarch64"
        add("kernel", text)
        add("sockets", "services can be reached through Unix sockets: this takes seccomp")
        if not confinement.network and not abilities.network_namespace and not uses_bubblewrap:
            add("network", "the network can be reached: this takes seccomp or a namespace")
    elif uses_bubblewrap or not abilities.landlock:
        add("sockets", "services can be reached through named pipes: this takes Landlock")
    if abilities.landlock < _SIGNALS and not uses_bubblewrap:
        add("signals", "other processes of this user can be signalled: this takes Linux 6.12")
    return holes


def _uncovered(confinement: Confinement, abilities: Abilities) -> Iterator[Hole]:
    """Yield a hole for each hidden path that can be opened nevertheless."""
    uses_landlock = abilities.landlock and not abilities.bubblewrap
    for path in confinement.hidden:
        is_masked = abilities.has_mounts and os.path.lexists(path)
        is_left_out = uses_landlock and not nearest(path, confinement.write)
        if not (is_masked or is_left_out):
            need = "bubblewrap" if uses_landlock else "Landlock"
            text = f"{path} can be opened, and a lock on it stops this program: this takes {need}"
            yield Hole(rule="hidden", text=text)


def prepare(confinement: Confinement) -> tuple[list[str], bytes]:
    """Prepare the start of a program in a confinement. Looks at files, and may wait for `probe`.

    Returns:
        The words to put before the program's arguments, and the message for the supervisor.

    Raises:
        ToolError: `tool_not_available`; a required rule cannot be enforced.
    """
    abilities = probe()
    holes = [hole for hole in missing(confinement, abilities) if hole.rule in confinement.required]
    if holes:
        text = "; ".join(dict.fromkeys(hole.text for hole in holes))
        raise ToolError(
            ErrorCode.TOOL_NOT_AVAILABLE, f"the required sandbox is not available: {text}"
        )
    if abilities.sandbox_exec:
        return [abilities.sandbox_exec, "-p", profile(confinement)], b""
    if not sys.platform.startswith("linux"):
        return [], b""
    jail: dict[str, object] = asdict(abilities)
    del jail["sandbox_exec"], jail["renames"]
    write = _encoded(confinement.write)
    jail["write"] = write
    jail["read"] = None if confinement.read is None else _encoded(confinement.read)
    hidden = _encoded(confinement.hidden)
    binds = plan(write, _encoded(confinement.protect), hidden if abilities.has_mounts else [])
    jail["binds"] = [(str(kind), path) for kind, path in binds]
    masked = {path for kind, path in binds if kind == Kind.HIDE}
    jail["unmasked"] = [path for path in hidden if path not in masked]
    pairs = confinement.copies if abilities.has_copies else ()
    jail["copies"] = {os.fsencode(path): os.fsencode(copy) for path, copy in pairs}
    jail["network"] = confinement.network
    return [], marshal.dumps(jail)


def _encoded(paths: Iterable[str]) -> list[bytes]:
    return [os.fsencode(os.path.normpath(path)) for path in paths]


def profile(confinement: Confinement) -> str:
    """The confinement as macOS' `sandbox-exec` reads it; of its rules the last one counts."""

    def paths(kind: str, given: Iterable[str]) -> str:
        return " ".join(f"({kind} {_quoted(path)})" for path in given)

    lines = ["(version 1)", "(allow default)", "(deny file-write*)", "(deny file-link)"]
    lines.append(f'(allow file-write* (literal "/dev/null") {paths("subpath", confinement.write)})')
    if confinement.protect:
        lines.append(f"(deny file-write* {paths('subpath', confinement.protect)})")
        above = {str(folder) for path in confinement.protect for folder in Path(path).parents}
        lines.append(f"(deny file-write-unlink {paths('literal', sorted(above))})")
    if confinement.read is not None:
        allowed = [*_MACOS_SYSTEM, *confinement.write, *confinement.read]
        lines.append("(deny file-read-data)")
        lines.append(f'(allow file-read-data (literal "/") {paths("subpath", allowed)})')
    if confinement.hidden:
        lines.append(f"(deny file-read* file-write* {paths('subpath', confinement.hidden)})")
    if not confinement.network:
        lines.append("(deny network*)")
    lines += ["(deny mach-lookup)", "(deny signal (target others))"]
    return "\n".join(lines)


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def nearest(path: str, folders: Iterable[str]) -> int:
    """Return the length of the longest folder that is a path or lies above it; 0 for none."""
    return max((len(folder) for folder in folders if _holds(folder, path)), default=0)


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")

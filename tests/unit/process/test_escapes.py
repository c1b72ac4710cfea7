"""What a confined program must not achieve: the list in `tests/corpus/escapes.toml`."""

import contextlib
import ctypes
import fcntl
import os
import platform
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.process import Command, Launcher, run
from agent_core.process.confinement import Abilities, Confinement, Rule, missing, probe
from sweeps import sampled

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the list is for Linux; macOS is not tried"
)

CORPUS = Path(__file__).parents[2] / "corpus" / "escapes.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape:
    """One entry of the list."""

    name: str
    rule: Rule
    program: str
    control: bool = True
    root: bool = False


LISTED = tomllib.loads(CORPUS.read_text(encoding="utf-8"))
PRELUDE: str = LISTED["prelude"]
ESCAPES = [Escape(**entry) for entry in LISTED["escape"]]

FOUND = probe()
BUBBLEWRAP = FOUND.bubblewrap or shutil.which("bwrap")
NO_MOUNTS = replace(FOUND, namespaces=False, network_namespace=False, bubblewrap=None)
ABILITIES = {
    "everything": FOUND,
    "no-mounts": NO_MOUNTS,
    "no-mounts-and-the-first-landlock": replace(NO_MOUNTS, landlock=min(FOUND.landlock, 1)),
    "no-landlock": replace(FOUND, landlock=0, bubblewrap=None),
    "no-filter": replace(FOUND, seccomp=False),
    "bubblewrap": replace(NO_MOUNTS, landlock=0, bubblewrap=BUBBLEWRAP),
}
ESCAPES_TRIED = {"everything": len(ESCAPES), "no-mounts": 16}
"""How many of the list `make test` tries on a system; of the others, fewer."""

CONTROLS = sampled([escape for escape in ESCAPES if escape.control], keep=12)


def tried() -> Iterator[object]:
    """Yield the name of a system and an escape; systems that are like this one are left out."""
    for system, abilities in ABILITIES.items():
        if abilities == FOUND and system != "everything":
            continue
        chosen = sampled(ESCAPES, keep=ESCAPES_TRIED.get(system, 8))
        if system == "bubblewrap" and not BUBBLEWRAP:
            reason = "needs bubblewrap (Debian: apt-get install bubblewrap)"
            yield pytest.param(system, chosen[0], id=system, marks=pytest.mark.skip(reason))
            continue
        for escape in chosen:
            yield pytest.param(system, escape, id=f"{escape.name}-{system}")


class World:
    """Where an escape is tried, and what it leaves there."""

    def __init__(self, folder: Path, files: ExitStack, *, has_other: bool) -> None:
        self._files = files
        self.inside, self.outside = folder / "in", folder / "out"
        for path in ("in/.git/hooks", "in/deep/er", "out/folder", "out/locks"):
            (folder / path).mkdir(parents=True)
        for path in (
            "in/.git/config",
            "in/deep/er/secret",
            "in/.git/copied",
            "in/.git/hooks/old",
            "out/file",
        ):
            (folder / path).write_text("old")
        for path in ("out/db", "out/locks/lock"):
            (folder / path).write_text("old")
        (self.outside / "run").write_text("#!/bin/sh\necho ESCAPED\n")
        (self.outside / "run").chmod(0o755)
        os.mkfifo(self.outside / "fifo")
        self.protected = [self.inside / name for name in (".git/config", ".git/hooks", "absent/x")]
        self.protected.append(self.inside / "deep/er/secret")
        self.protected.append(self.inside / ".git/copied")
        self._copies = folder / "copies"
        self._copies.mkdir()
        for name in ("copied", "other"):
            (self._copies / name).write_text("old")
        self._readers = [os.open(self.outside / "fifo", os.O_RDONLY | os.O_NONBLOCK)]
        terminal, theirs = os.openpty()
        os.set_blocking(terminal, False)
        self._readers.append(terminal)
        for fd in (*self._readers, theirs):
            files.callback(os.close, fd)
        self.variables = {
            "IN": str(self.inside),
            "OUT": str(self.outside),
            "PROTECTED": str(self.inside / ".git"),
            "COPIES": str(self._copies),
            "TTY": os.ttyname(theirs),
            "PATH": os.environ["PATH"],
        }
        self._listen(folder)
        self._share()
        victim = ["/bin/sh", "-c", "exec 9<>file; echo; exec sleep 600"]
        self.victim = files.enter_context(
            subprocess.Popen(  # noqa: S603 - a shell
                victim,
                cwd=self.outside,
                stdout=subprocess.PIPE,
                env={"SECRET": "hidden-from-others", "PATH": os.environ["PATH"]},
            )
        )
        files.callback(self.victim.kill)
        assert self.victim.stdout is not None
        self.victim.stdout.readline()  # its descriptor is open
        self.variables["VICTIM"] = str(self.victim.pid)
        self._open_to_others(tmp=folder)
        if has_other:
            self._start_other()
        self._before = self._state()

    def _open_to_others(self, tmp: Path) -> None:
        """A folder outside to which other users may write."""
        (self.outside / "open").mkdir()
        (self.outside / "open").chmod(0o777)
        self.variables |= {"OPEN": str(self.outside / "open"), "OTHER": str(os.getpid())}
        if os.geteuid() == 0:
            os.mknod(self.outside / "device", 0o020644, Path("/dev/null").stat().st_rdev)
            for folder in tmp.parents[:3]:
                folder.chmod(folder.stat().st_mode | 0o011)
            tmp.chmod(0o755)

    def _start_other(self) -> None:
        """A process of another user."""
        if os.geteuid() == 0:
            other = subprocess.Popen(["/bin/sleep", "600"], user=65534, group=65534, cwd="/")
            self._files.enter_context(other)
            self._files.callback(other.kill)
            self.variables["OTHER"] = str(other.pid)

    def _listen(self, folder: Path) -> None:
        abstract = f"agent-core-{os.getpid()}-{folder}"
        short = self._files.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        self._sockets = [short]
        self.variables["ABSTRACT"] = abstract
        short.bind("\0" + abstract)
        for name, kind in (("STREAM", socket.SOCK_STREAM), ("DGRAM", socket.SOCK_DGRAM)):
            path = self.outside / name[0]
            listener = socket.socket(socket.AF_UNIX, kind)
            listener.bind(os.path.relpath(path))
            self._sockets.append(self._files.enter_context(contextlib.closing(listener)))
            self.variables[name] = str(path)
        for name, kind in (("TCP", socket.SOCK_STREAM), ("UDP", socket.SOCK_DGRAM)):
            listener = socket.socket(socket.AF_INET, kind)
            listener.bind(("127.0.0.1", 0))
            self._sockets.append(self._files.enter_context(contextlib.closing(listener)))
            self.variables[name] = str(listener.getsockname()[1])
        for listener in self._sockets:
            listener.setblocking(False)
            if listener.type == socket.SOCK_STREAM:
                listener.listen()

    def _share(self) -> None:
        libc = ctypes.CDLL(None)
        segment = libc.shmget(0, 4096, 0o1600)
        self._files.callback(libc.shmctl, segment, 0, None)
        queue = f"agent-core-{os.getpid()}".encode()
        opened = libc.mq_open(b"/" + queue, os.O_CREAT | os.O_RDWR, 0o600, None)
        self._files.callback(libc.mq_unlink, b"/" + queue)
        self._files.callback(os.close, opened)
        self._memory = Path("/dev/shm", queue.decode())  # noqa: S108 - the one for shared memory
        self._memory.write_text("old")
        self._files.callback(self._memory.unlink)
        self.variables |= {
            "SHMID": str(segment),
            "MQ": queue.decode(),
            "SHM": str(self._memory),
        }

    def confinement(self, rule: Rule) -> Confinement:
        """The one that the list is written for."""
        python = {str(Path(sys.prefix).resolve()), str(Path(sys.base_prefix).resolve())}
        return Confinement(
            write=(str(self.inside),),
            protect=tuple(map(str, self.protected)),
            read=tuple(sorted(python)) if rule == "read" else None,
            hidden=tuple(str(self.outside / name) for name in ("db", "locks")),
            copies=((str(self.inside / ".git/copied"), str(self._copies / "copied")),),
        )

    def _state(self) -> object:
        """Names, contents, modes, owners, times and attributes of what has to stay as it is."""
        paths = [self.outside, *self.outside.rglob("*"), self._memory, self.inside / "absent"]
        paths += [self._copies / "other", *self.protected, *self.protected[1].rglob("*")]
        return {path: _seen(path) for path in sorted(paths)}

    def traces(self, output: str) -> list[str]:
        """What tells that a program has escaped."""
        found = ["it says so"] if "ESCAPED" in output else []
        found += ["a file differs"] if self._state() != self._before else []
        found += ["the other process has ended"] if self.victim.poll() is not None else []
        for listener in self._sockets:
            with contextlib.suppress(BlockingIOError):
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(1)
                found.append(f"something came in at {listener.getsockname()!r}")
        for reader in self._readers:
            with contextlib.suppress(BlockingIOError):
                if os.read(reader, 1):
                    found.append("something was written outside")
        with contextlib.suppress(FileNotFoundError), (self.inside / "alive").open("rb") as alive:
            try:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append("a process survives")
        return found


def _seen(path: Path) -> object:
    try:
        stat = path.lstat()
        attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
        content = path.read_bytes() if path.is_file() else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    place = (stat.st_ino, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_nlink, stat.st_mtime_ns)
    return (place, attributes, content)


@pytest.fixture
def world(tmp_path: Path, escape: Escape) -> Iterator[World]:
    with ExitStack() as files:
        yield World(tmp_path, files, has_other="OTHER" in escape.program)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with contextlib.closing(Launcher()) as opened:
        yield opened


async def attempt(
    escape: Escape, world: World, launcher: Launcher, confinement: Confinement | None
) -> tuple[list[str], str]:
    """What tells that the program has escaped, and what it has printed."""
    command = Command(
        argv=[sys.executable, "-I", "-S", "-c", PRELUDE + escape.program],
        cwd=world.inside,
        env=world.variables,
        confinement=confinement,
    )
    result = await run(command, launcher=launcher, timeout_s=60)
    return world.traces(result.stdout.text), result.stdout.text + result.stderr.text


@pytest.mark.long
@pytest.mark.parametrize("escape", [pytest.param(each, id=each.name) for each in CONTROLS])
async def test_a_program_without_a_confinement_succeeds(
    escape: Escape, world: World, launcher: Launcher
) -> None:
    if escape.root and os.geteuid():
        pytest.skip("only the superuser can do it")
    traces, printed = await attempt(escape, world, launcher, None)
    assert traces, printed


@pytest.mark.parametrize(("system", "escape"), [*tried()])
async def test_a_confined_program_does_not_escape(
    system: str,
    escape: Escape,
    world: World,
    launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    abilities = ABILITIES[system]
    confinement = world.confinement(escape.rule)
    for hole in missing(confinement, abilities):
        if hole.rule == escape.rule:
            pytest.skip(hole.text)

    def found() -> Abilities:
        return abilities

    monkeypatch.setattr("agent_core.process.confinement.probe", found)
    traces, printed = await attempt(escape, world, launcher, confinement)
    assert not traces, printed


def test_the_list_names_each_escape_once_and_every_rule() -> None:
    names = [escape.name for escape in ESCAPES]
    assert len(names) == len(set(names))
    assert platform.system() != "Linux" or len(names) > 100

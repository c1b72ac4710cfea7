"""Holds a program to its confinement on Linux; loaded by the supervisor for the first such one.

The keeper enters namespaces of its own, and a thread of it gives up everything else and starts the
program: capabilities, Landlock and a filter of system calls belong to a thread and what it starts.
"""

import _thread
import errno
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial

from agent_core.process import bubblewrap, kernel, landlock, mounts, seccomp

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITY_VERSION = 0x2008_0522
_KEPT_OF_ROOT = (0, 1, 3, 4, 6, 7, 10)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID, NET_BIND_SERVICE."""

_PROCESSES = 4096
_TRUSTED_PATH = "/usr/local/bin:/usr/bin:/bin"
_SYSTEM = (
    *(b"/usr", b"/bin", b"/sbin", b"/lib", b"/lib32", b"/lib64", b"/libx32", b"/etc", b"/opt"),
    *(b"/nix", b"/gnu", b"/proc", b"/sys", b"/run/systemd/resolve"),
)
_DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/tty")
_OWN_DEVICES = (b"/dev/shm", b"/dev/pts", b"/dev/ptmx")
_READABLE_DEVICES = (b"/dev/random", b"/dev/urandom", b"/dev/fd")


class StepError(OSError):
    """A part of a confinement that could not be set up.

    Attributes:
        step: which part.
    """

    def __init__(self, error: OSError, step: str) -> None:
        super().__init__(error.errno, error.strerror)
        self.step = step


@contextmanager
def step(name: str) -> Generator[None]:
    """Say of a failure what it was that failed."""
    try:
        yield
    except OSError as error:
        raise StepError(error, name) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """What a confinement comes to on this system; made of what a request brings.

    Attributes:
        write: paths that may be written to.
        read: paths that may be read, the system's own not among them; None: everything.
        protect: paths beneath `write` that stay as they are.
        network: the network may be used.
        landlock: the version to use, 0 for none.
        seccomp: filter system calls.
        namespaces: make mounts.
        network_namespace: without `network`, give it one of its own.
        bubblewrap: let this program make the mounts.
    """

    write: list[bytes]
    read: list[bytes] | None
    protect: list[bytes]
    network: bool
    landlock: int
    seccomp: bool
    namespaces: bool
    network_namespace: bool
    bubblewrap: str | None

    def enter(self, folder: int, files: ExitStack) -> int:
        """Move this process to where its program is to run, without giving up a right.

        Args:
            folder: where the program runs.
            files: closes what has to stay open until the program has ended.

        Returns:
            The folder as it is found there: the descriptor that was given leads outside.

        Raises:
            StepError: it cannot be done.
        """
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not self.namespaces or self.bubblewrap:
            return folder
        path = os.readlink(b"/proc/self/fd/%d" % folder)  # noqa: PTH115
        with step("namespaces"):
            mounts.enter_namespaces(shared(), network=self.has_own_network)
        with step("mounts"):
            mounts.make_read_only(self.write, self.protect, files)
        with step("working folder"):
            inside = kernel.open_path(path, os.O_DIRECTORY)
            if not os.path.samestat(os.fstat(inside), os.fstat(folder)):
                raise FileNotFoundError(errno.ENOENT, "it was replaced")
        os.close(folder)
        return inside

    def command(self, argv: list[bytes], files: ExitStack) -> list[bytes]:
        """The arguments to start: those given, or `bwrap` in front of them.

        Raises:
            StepError: it cannot be done.
        """
        if not self.bubblewrap:
            return argv
        with step("bubblewrap"):
            cwd = os.readlink(b"/proc/self/cwd")  # noqa: PTH115
            read = None if self.read is None else [*_SYSTEM, *self.read]
            words = [os.fsencode(self.bubblewrap), *bubblewrap.options(network=self.network)]
            words += bubblewrap.view(self.write, read, self.protect, files)
            if self.seccomp:
                filter_file = os.memfd_create("filter", 0)  # `bwrap` inherits it
                os.write(filter_file, seccomp.program(internet=True, shared_memory=True))
                os.lseek(filter_file, 0, os.SEEK_SET)
                words += [b"--seccomp", b"%d" % filter_file]
            return [*words, b"--chdir", cwd, b"--", *argv]

    def start(self, spawn: Callable[[], int]) -> int:
        """Start a program from a thread that has given up what the program must not have.

        Raises:
            StepError: it cannot be done.
            OSError: the program cannot be started.
        """
        results: list[int | BaseException] = []
        ended = _thread.allocate_lock()
        ended.acquire()

        def confine_and_spawn() -> None:
            try:
                self._give_up()
                results.append(spawn())
            except BaseException as error:  # noqa: BLE001 - it is raised below
                results.append(error)
            finally:
                ended.release()

        _thread.start_new_thread(confine_and_spawn, ())
        ended.acquire()
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def _give_up(self) -> None:
        if self.bubblewrap:
            return  # it takes what it gives up itself
        with step("capabilities"):
            _drop_capabilities()
            kernel.library_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if self.landlock:
            with step("Landlock"):
                self._restrict_files()
        if self.seccomp:
            with step("seccomp"):
                internet = self.network or self.has_own_network
                seccomp.install(filter_program(internet, self.namespaces))

    def _restrict_files(self) -> None:
        reads = self.read is not None
        no_tcp = not self.network and not self.has_own_network
        rules = landlock.Ruleset(abi=self.landlock, reads=reads, tcp=no_tcp)
        rules.allow(self.write, landlock.WRITE | landlock.READ)
        rules.allow(_DEVICES, landlock.DEVICE | landlock.READ)
        if self.namespaces:
            rules.allow(_OWN_DEVICES, landlock.WRITE | landlock.READ)
        if self.read is not None:
            system = (*_SYSTEM, *_READABLE_DEVICES)
            rules.allow(map(os.path.realpath, system), landlock.READ)
            rules.allow(self.read, landlock.READ)
        rules.restrict()

    @property
    def has_own_network(self) -> bool:
        """Whether it gets a network with nothing but a loopback."""
        return self.namespaces and self.network_namespace and not self.network


@cache
def shared() -> mounts.Shared:
    """The namespaces that all programs share."""
    return mounts.open_shared()


@cache
def filter_program(internet: bool, shared_memory: bool) -> bytes:
    """The filter of system calls, built once."""
    return seccomp.program(internet=internet, shared_memory=shared_memory)


def prepare() -> None:
    """Do once, in the supervisor, what each keeper would have to do."""
    if seccomp.is_known_processor():
        for has_mounts in (False, True):
            filter_program(True, has_mounts)
            filter_program(False, has_mounts)
    with suppress(OSError):
        shared()


def made_of(request: bytes) -> Jail:
    """The jail that a request describes, in JSON with names of files as text."""
    fields = json.loads(request)
    for name in ("write", "read", "protect"):
        if fields[name] is not None:
            fields[name] = [os.fsencode(path) for path in fields[name]]
    return Jail(**fields)


def _drop_capabilities() -> None:
    """Keep no privilege, but for the superuser those that the files of a tree of many take.

    Together with `PR_SET_NO_NEW_PRIVS` none comes back when a program is started.
    """
    kept = sum(1 << number for number in _KEPT_OF_ROOT) if os.geteuid() == 0 else 0
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _, held, _ = struct.unpack("=III", _capabilities(header)[:12])
    kept &= held
    kernel.library_call("capset", header, struct.pack("=IIIIII", kept, kept, 0, 0, 0, 0))


def _capabilities(header: bytes) -> bytes:
    address, held = kernel.memory(bytes(24))
    kernel.library_call("capget", header, address)
    return held.raw


def abilities() -> str:
    """What this system can enforce: `agent_core.process.confinement.Abilities` as JSON."""
    version = landlock.version()
    has_mounts = _succeeds(_try_mounts)
    bwrap = None
    if not version or not has_mounts:
        bwrap = shutil.which("bwrap", path=_TRUSTED_PATH)
        if bwrap and not _succeeds(partial(_try_bubblewrap, bwrap)):
            bwrap = None
    found = {
        "landlock": version,
        "seccomp": seccomp.is_known_processor() and _succeeds(_try_seccomp),
        "namespaces": has_mounts,
        "network_namespace": has_mounts and shared().network is not None,
        "bubblewrap": bwrap,
    }
    return json.dumps(found)


def _succeeds(attempt: Callable[[], object]) -> bool:
    """Whether something works, tried in a process of its own."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            attempt()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _try_mounts() -> None:
    mounts.enter_namespaces(mounts.open_shared(), network=True)
    with ExitStack() as files:
        mounts.make_read_only([], [b"/usr"], files)
    if not os.statvfs("/").f_flag & os.ST_RDONLY:
        raise PermissionError


def _try_seccomp() -> None:
    kernel.library_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    seccomp.install(seccomp.program(internet=False, shared_memory=False))


def _try_bubblewrap(path: str) -> None:
    with ExitStack() as files:
        words = [*bubblewrap.options(network=False), *bubblewrap.view([], None, [], files)]
        os.execve(path, [os.fsencode(path), *words, b"--", b"/bin/true"], {})  # noqa: S606

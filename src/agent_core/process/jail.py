"""Holds a program to its confinement on Linux; loaded when the first one is started.

The keeper enters namespaces of its own, and a thread of it gives up everything else and starts the
program: capabilities, Landlock and a filter of system calls belong to a thread and its children.
"""

import _thread
import errno
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from agent_core.process import bubblewrap, kernel, landlock, mounts, renames, seccomp
from agent_core.process.binds import Bind, is_beneath

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITY_VERSION = 0x2008_0522
_KEPT_OF_ROOT, _OTHER_USERS = (0, 1, 3, 4, 10), (6, 7)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, NET_BIND_SERVICE; SETGID, SETUID."""

_PROCESSES = 4096
_TRUSTED_PATH = "/usr/local/bin:/usr/bin:/bin"
_SYSTEM = (
    *(b"/usr", b"/bin", b"/sbin", b"/lib", b"/lib32", b"/lib64", b"/libx32", b"/etc", b"/opt"),
    *(b"/nix", b"/gnu", b"/proc", b"/sys", b"/run/systemd/resolve"),
)
_DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/tty")
_READABLE_DEVICES = (b"/dev/random", b"/dev/urandom", b"/dev/fd")

_USUAL_DEVICES = (*_DEVICES, b"/dev/random", b"/dev/urandom")


@dataclass(slots=True, kw_only=True)
class Jail:
    """A confinement as this system can enforce it; made from a request.

    Attributes:
        write: paths that may be written to.
        read: paths that may be read, besides the system's own; None: everything.
        unmasked: paths that cannot be opened, and that no mount covers.
        binds: the mounts.
        copies: protected files, each with the copy that covers it; all copies are in one folder.
        network: the network may be used.
        landlock: the version to use, 0 for none.
        seccomp: filter system calls.
        namespaces: make mounts.
        network_namespace: without `network`, give the program a network of its own.
        bubblewrap: let this program make the mounts.
        devices: devices of the program alone.
        step: the part that is being set up.
    """

    write: list[bytes]
    read: list[bytes] | None
    unmasked: list[bytes]
    binds: list[Bind]
    copies: dict[bytes, bytes]
    network: bool
    landlock: int
    seccomp: bool
    namespaces: bool
    network_namespace: bool
    bubblewrap: str | None
    devices: list[bytes] = field(default_factory=list[bytes])
    step: str = ""
    _copies: renames.Copies | None = None
    _listener: int = -1

    def enter(self, folder: int, files: ExitStack) -> int:
        """Move this process to the folder of its program, without giving up a right.

        Args:
            folder: where the program runs.
            files: closes the files that stay open until the program has ended.

        Returns:
            The folder inside the namespaces: the given descriptor leads outside of them.

        Raises:
            OSError: `step` cannot be done.
        """
        self.step = "limits"
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not self.namespaces or self.bubblewrap:
            return folder
        path = os.readlink(b"/proc/self/fd/%d" % folder)  # noqa: PTH115
        self.step = "namespaces"
        mounts.enter_namespaces(shared(), network=self.has_own_network)
        if shared().user is not None:  # there the count is of these programs alone
            most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            most = _PROCESSES if most == resource.RLIM_INFINITY else min(most, _PROCESSES)
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        self.step = "mounts"
        only = () if self.landlock else filter(os.path.exists, _USUAL_DEVICES)
        folders = {os.path.dirname(copy) for copy in self.copies.values()}  # noqa: PTH120
        hidden = [(each, mounts.clone(each)) for each in folders]
        self.devices = mounts.make_read_only(
            self.binds, files, only_devices=only, copied=self.copies
        )
        for copies_folder, tree in hidden:
            mounts.attach_hidden(tree, copies_folder)
            names = {file: os.path.basename(copy) for file, copy in self.copies.items()}  # noqa: PTH119
            self._copies = renames.Copies(tree, names)
        self.step = "working folder"
        inside = kernel.open_path(path, os.O_DIRECTORY)
        if not os.path.samestat(os.fstat(inside), os.fstat(folder)):
            raise FileNotFoundError(errno.ENOENT, "it was replaced")
        os.close(folder)
        return inside

    def command(self, argv: list[bytes], files: ExitStack) -> list[bytes]:
        """The arguments to start: those given, or `bwrap` in front of them.

        Raises:
            OSError: `step` cannot be done.
        """
        if not self.bubblewrap:
            return argv
        self.step = "bubblewrap"
        cwd = os.readlink(b"/proc/self/cwd")  # noqa: PTH115
        read = None if self.read is None else [*_SYSTEM, *self.read]
        for _, path in self.binds:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.close(kernel.open_path(path))  # `bwrap` would follow a link
        words = [os.fsencode(self.bubblewrap), *bubblewrap.options(network=self.network)]
        words += bubblewrap.view(self.binds, read, files)
        if self.seccomp:
            filter_file = os.memfd_create("filter", 0)  # `bwrap` inherits it
            os.write(filter_file, seccomp.program(internet=True, shared_memory=True))
            os.lseek(filter_file, 0, os.SEEK_SET)
            words += [b"--seccomp", b"%d" % filter_file]
        return [*words, b"--chdir", cwd, b"--", *argv]

    def start(self, spawn: Callable[[], int]) -> int:
        """Start a program from a thread that has given up the rights the program must not have.

        Raises:
            OSError: `step` cannot be done, or, if there is none, the program cannot be started.
        """
        if self.bubblewrap:  # it gives up rights itself, and dies with the thread that starts it
            self.step = ""
            return spawn()
        results: list[int | BaseException] = []
        ended = _thread.allocate_lock()
        ended.acquire()

        def confine_and_spawn() -> None:
            try:
                self._give_up()
                self.step = ""
                results.append(spawn())
            except BaseException as error:  # noqa: BLE001 - it is raised below
                results.append(error)
            finally:
                ended.release()

        _thread.start_new_thread(confine_and_spawn, ())
        ended.acquire()
        if isinstance(results[0], BaseException):
            raise results[0]
        if self._copies is not None:
            _thread.start_new_thread(self._copies.serve, (self._listener,))
        return results[0]

    def _give_up(self) -> None:
        self.step = "capabilities"
        kernel.library_call("capset", *capabilities(self.landlock > 0))
        kernel.library_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if self.landlock:
            self.step = "Landlock"
            self._restrict_files()
        if self._copies is not None:
            self.step = "renames"
            self._listener = seccomp.listen_to_renames()
        if self.seccomp:
            self.step = "seccomp"
            internet = self.network or self.has_own_network
            seccomp.install(filter_header(internet, self.namespaces))

    def _restrict_files(self) -> None:
        reads = landlock.READ
        if self.read is None:
            reads = landlock.READ_FILE if self.unmasked else 0
        no_tcp = not self.network and not self.has_own_network
        rules = landlock.Ruleset(abi=self.landlock, reads=reads, tcp=no_tcp)
        rules.allow(self.write, landlock.WRITE | landlock.READ)
        rules.allow(_DEVICES, landlock.DEVICE | landlock.READ)
        rules.allow(self.devices, landlock.WRITE | landlock.READ)
        if reads:
            roots = [b"/"] if self.read is None else [*system_paths(), *self.read]
            rules.allow(roots, landlock.READ_DIR)
            rules.allow(all_but(self.unmasked, roots), reads)
        rules.restrict()

    @property
    def has_own_network(self) -> bool:
        """Return whether the program gets a network with nothing but a loopback."""
        return self.namespaces and self.network_namespace and not self.network


@cache
def shared() -> mounts.Shared:
    """The namespaces that all programs share."""
    return mounts.open_shared()


@cache
def system_paths() -> list[bytes]:
    """Return the paths that programs need to read, links resolved."""
    paths = map(os.path.realpath, (*_SYSTEM, *_READABLE_DEVICES))
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]  # noqa: PTH110


def all_but(hidden: list[bytes], roots: list[bytes]) -> list[bytes]:
    """Return the content of some folders without the hidden paths: whole folders if possible.

    Files made later in a folder above a hidden path are not included.
    """
    found: list[bytes] = []
    pending = list(roots)
    while pending:
        path = pending.pop()
        if any(is_beneath(path, each) for each in hidden):
            continue
        if not any(is_beneath(each, path) for each in hidden):
            found.append(path)
            continue
        with suppress(OSError), os.scandir(path) as entries:
            pending += [entry.path for entry in entries if not entry.is_symlink()]
    return found


@cache
def filter_header(internet: bool, shared_memory: bool) -> bytes:
    """Return a header for a filter of system calls in this process and its forks."""
    return seccomp.header(seccomp.program(internet=internet, shared_memory=shared_memory))


@cache
def capabilities(has_landlock: bool) -> tuple[bytes, bytes]:
    """Return arguments of `capset` that keep no privilege; root keeps access to others' files.

    Together with `PR_SET_NO_NEW_PRIVS` no privilege comes back when a program is started. If
    Landlock does not keep root from looking into processes, it may not switch to other users.
    """
    numbers = (*_KEPT_OF_ROOT, *_OTHER_USERS) if has_landlock else _KEPT_OF_ROOT
    kept = sum(1 << number for number in numbers) if os.geteuid() == 0 else 0
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapPrm:"):
            kept &= int(line.split()[1], 16)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    return header, struct.pack("=IIIIII", kept, kept, 0, 0, 0, 0)


def prepare() -> None:
    """Do the work of every keeper once, in the supervisor."""
    capabilities(landlock.version() > 0)
    system_paths()
    if seccomp.is_known_processor():
        for internet in (False, True):
            filter_header(internet, False)
            filter_header(internet, True)
    with suppress(OSError):
        shared()


def abilities() -> str:
    """Return `agent_core.process.confinement.Abilities` of this system as JSON."""
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
        "renames": seccomp.is_known_processor() and _succeeds(_try_listener),
    }
    return json.dumps(found)


def _succeeds(attempt: Callable[[], object]) -> bool:
    """Return whether an attempt succeeds, made in a process of its own."""
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
        mounts.make_read_only([], files)
    if not os.statvfs("/").f_flag & os.ST_RDONLY:
        raise PermissionError


def _try_seccomp() -> None:
    kernel.library_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    seccomp.install(filter_header(False, False))


def _try_listener() -> None:
    kernel.library_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    seccomp.listen_to_renames()


def _try_bubblewrap(path: str) -> None:
    with ExitStack() as files:
        words = [*bubblewrap.options(network=False), *bubblewrap.view([], None, files)]
        os.execve(path, [os.fsencode(path), *words, b"--", b"/bin/true"], {})  # noqa: S606

"""A view of the file system for the program alone: read-only except for the paths it may write.

It takes a mount namespace, and where this user may not make one, a user namespace around it. Both
are made by the keeper, which stays in them and gives up nothing; its program gets no privilege.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Container, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from agent_core.process import kernel
from agent_core.process.binds import PLACEHOLDER_MODE, Bind, Kind, is_vacant

_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x0002_0000, 0x0800_0000, 0x1000_0000, 0x4000_0000
_OPEN_TREE_CLONE, _AT_RECURSIVE, _NOT_THROUGH_LINKS = 1, 0x8000, 0x100
_FROM_EMPTY_PATH, _TO_EMPTY_PATH = 0x04, 0x40
_MS_READ_ONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_BIND, _MS_PRIVATE = 4096, 1 << 18
_ATTR_READ_ONLY, _ATTR_NO_DEVICES = 1, 4
_MNT_DETACH = 2
_DEVICE = b"/dev/null"
"""A device cannot be opened where devices are switched off, not even by the superuser."""
_LOCK_S, _PAUSE_S = 2.0, 0.005

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


@dataclass(frozen=True, slots=True)
class Shared:
    """Namespaces that all programs of one supervisor share: a new network takes milliseconds.

    Attributes:
        user: a descriptor of the user namespace; None where this user needs none.
        network: a descriptor of a network with nothing but a loopback; None if none can be made.
    """

    user: int | None
    network: int | None


def open_shared() -> Shared:
    """Make the shared namespaces, by a process that ends when they are open.

    Raises:
        OSError: this user may make no namespaces.
    """
    kinds = _open_namespaces(_NEWNS | _NEWNET)
    if kinds is None:
        kinds = _open_namespaces(_NEWNS)
        if kinds is None:
            raise PermissionError(errno.EPERM, "namespaces cannot be made")
        os.close(kinds[1])
        return Shared(kinds[0], None)
    return Shared(*kinds)


def _open_namespaces(flags: int) -> tuple[int | None, int] | None:
    """Descriptors of new namespaces of a user, if it takes one, and a network."""
    ready, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            ready.close()
            _make_namespaces(flags)
            theirs.send(b"+")
            theirs.recv(1)
        finally:
            os._exit(0)
    theirs.close()
    try:
        if not ready.recv(1):
            return None
        user = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        if os.path.samestat(os.fstat(user), os.stat("/proc/self/ns/user")):  # noqa: PTH116
            os.close(user)
            user = None
        return user, os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        ready.close()
        os.waitpid(pid, 0)


def _make_namespaces(flags: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.library_call("unshare", flags)
    except PermissionError:
        kernel.library_call("unshare", flags | _NEWUSER)
        for name, content in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(content)
    if flags & _NEWNET:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("16sh22x", b"lo", _IFF_UP)
            fcntl.ioctl(any_socket.fileno(), _SIOCSIFFLAGS, request)


def enter_namespaces(shared: Shared, *, network: bool) -> None:
    """Move this process, which must have one thread only, into namespaces of its own.

    Args:
        shared: the shared namespaces.
        network: into the shared network, too.

    Raises:
        OSError: the kernel refuses.
    """
    if shared.user is not None:
        kernel.library_call("setns", shared.user, _NEWUSER)
    if network and shared.network is not None:
        kernel.library_call("setns", shared.network, _NEWNET)
    kernel.library_call("unshare", _NEWNS | _NEWIPC)


def make_read_only(
    binds: list[Bind],
    files: ExitStack,
    *,
    only_devices: Iterable[bytes] = (),
    copied: Container[bytes] = (),
) -> list[bytes]:
    """Make the whole file system read-only in this namespace, except for some paths.

    Args:
        binds: the mounts, in this order.
        files: closes the files that stay open until the program has ended.
        only_devices: if there are any, no others can be opened: a device on a read-only mount
            can be written to nevertheless.
        copied: protected files that are covered with copies afterwards.

    Returns:
        Devices that are the program's own, and may be written to.

    Raises:
        OSError: the kernel refuses, or there is a link in a path (ELOOP).
    """
    _set_attributes(b"/", propagation=_MS_PRIVATE)
    trees = dict[bytes, int]()
    for kind, path in binds:
        if kind == Kind.WRITE:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                trees[path] = clone(path)
    kept = [(path, clone(path)) for path in only_devices]
    no_devices = _ATTR_NO_DEVICES if kept else 0
    if b"/" in trees:
        os.close(trees.pop(b"/"))
    else:
        _set_attributes(b"/", attributes=_ATTR_READ_ONLY | no_devices)
    for path, tree in kept:
        _attach(tree, path)
        os.close(tree)
    devices = _mount_own_devices(binds)
    for kind, path in binds:
        if tree := trees.get(path):
            _attach(tree, path)
            os.close(tree)
        elif kind == Kind.PIN:
            _bind(path)
        elif kind == Kind.PROTECT and path not in copied and hold_placeholder(path, files):
            _bind(path, attributes=_ATTR_READ_ONLY)
        elif kind == Kind.HIDE:
            _hide(path)
    return devices


def hold_placeholder(path: bytes, files: ExitStack) -> bool:
    """Keep an empty folder at a path where nothing exists: only existing paths can be read-only.

    It is removed when the last program that must not write there has ended. Each of them holds a
    lock on it, because removing a folder removes the mounts of others with it.

    Returns:
        False if nothing can be made there, neither by this process nor by the program.
    """
    if not is_vacant(path):
        return True
    deadline = time.monotonic() + _LOCK_S
    while True:
        with contextlib.suppress(FileExistsError):
            try:
                os.mkdir(path)  # noqa: PTH102
            except (PermissionError, FileNotFoundError, NotADirectoryError):
                return False
            os.chmod(path, PLACEHOLDER_MODE)  # noqa: PTH101
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        is_held = _lock(fd)
        if is_held and os.fstat(fd).st_nlink:
            break
        os.close(fd)  # the last program that held it removes it, or has
        if not is_held and time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def remove() -> None:
        with contextlib.suppress(OSError):
            kernel.library_call("umount2", path, _MNT_DETACH)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rmdir(path)  # noqa: PTH106
        os.close(fd)

    files.callback(remove)
    return True


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_PAUSE_S)
        return False
    return True


def _mount_own_devices(binds: list[Bind]) -> list[bytes]:
    """Mount shared memory and terminals that no program outside has; return the mounts."""
    mounted: list[bytes] = []
    memory, terminals, new_terminal = b"/dev/shm", b"/dev/pts", b"/dev/ptmx"
    with contextlib.suppress(OSError):
        if not any(path.startswith(memory) for _, path in binds):
            _mount(b"tmpfs", memory, b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=1777")
            mounted.append(memory)
    with contextlib.suppress(OSError):
        options = b"newinstance,ptmxmode=0666"
        _mount(b"devpts", terminals, b"devpts", _MS_NOSUID | _MS_NOEXEC, options)
        mounted.append(terminals)
        _mount(b"/dev/pts/ptmx", new_terminal, None, _MS_BIND, None)
        mounted.append(new_terminal)
    return mounted


def _mount(
    source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None
) -> None:
    kernel.library_call("mount", source, target, kind, flags, options)


def _hide(path: bytes) -> None:
    """Mount an inaccessible file over a file, and an empty folder over a folder."""
    try:
        target = kernel.open_path(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        if stat.S_ISDIR(os.fstat(target).st_mode):
            flags = _MS_READ_ONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
            _mount(b"tmpfs", b"/proc/self/fd/%d" % target, b"tmpfs", flags, b"mode=000")
            return
        tree = clone(_DEVICE)
        try:
            _set_attributes(b"", tree, attributes=_ATTR_READ_ONLY | _ATTR_NO_DEVICES)
            _move_mount(tree, target)
        finally:
            os.close(tree)
    finally:
        os.close(target)


def attach_hidden(tree: int, path: bytes) -> None:
    """Mount a clone of a folder, and cover it: only its descriptor leads to it then."""
    _attach(tree, path)
    _bind(path, attributes=_ATTR_READ_ONLY)


def cover(path: bytes, folder: int, name: bytes) -> None:
    """Mount a file over another one.

    Args:
        path: of the covered file.
        folder: a descriptor of the folder that the other file is in.
        name: of that file.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _NOT_THROUGH_LINKS
    tree = kernel.system_call(kernel.OPEN_TREE, folder, name, flags)
    try:
        _attach(tree, path)
    finally:
        os.close(tree)


def _bind(path: bytes, *, attributes: int = 0) -> None:
    """Mount a path on itself."""
    tree = clone(path)
    try:
        if attributes:
            _set_attributes(b"", tree, attributes=attributes)
        _attach(tree, path)
    finally:
        os.close(tree)


def clone(path: bytes) -> int:
    """Return a descriptor of a mount of a file or folder, which is nowhere yet."""
    fd = kernel.open_path(path)
    try:
        flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | kernel.AT_EMPTY_PATH | os.O_CLOEXEC
        return kernel.system_call(kernel.OPEN_TREE, fd, b"", flags)
    finally:
        os.close(fd)


def _attach(tree: int, path: bytes) -> None:
    target = kernel.open_path(path)
    try:
        _move_mount(tree, target)
    finally:
        os.close(target)


def _move_mount(tree: int, target: int) -> None:
    flags = _FROM_EMPTY_PATH | _TO_EMPTY_PATH
    kernel.system_call(kernel.MOVE_MOUNT, tree, b"", target, b"", flags)


def _set_attributes(
    path: bytes, folder: int = kernel.AT_FDCWD, *, attributes: int = 0, propagation: int = 0
) -> None:
    fields = struct.pack("=QQQQ", attributes, 0, propagation, 0)
    flags = _AT_RECURSIVE | (0 if path else kernel.AT_EMPTY_PATH)
    kernel.system_call(kernel.MOUNT_SETATTR, folder, path, flags, fields, len(fields))

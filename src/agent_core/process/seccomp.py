"""A filter of system calls, for actions that no file rule covers.

The filter is a program for the kernel's packet filter (BPF), built here for the processor it runs
on. It admits the calls that were known when it was written, except those listed here; later ones,
and those of another instruction set (32 bits, x32), do not exist for the program.
"""

import errno
import os
import struct

from agent_core.process import kernel

_LAST_KNOWN = 462
"""`mseal`, Linux 6.10. Later calls (`setxattrat`, `file_setattr`, ...) are reported as missing."""

_ARCHITECTURES = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # into other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # mounts, roots and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    # files without a path, and past every check
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    # the kernel itself
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}
_ABSENT = {  # the caller falls back on an older call, whose arguments can be seen here
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_SHARED = {  # System V and POSIX: by number or name, past the file system
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
_CLONE, _UNSHARE = (56, 220), (272, 97)
_SOCKET, _SOCKETPAIR, _IOCTL, _PRLIMIT = (41, 198), (53, 199), (16, 29), (302, 261)

_NEW_NAMESPACES = 0x7E02_0080
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: type, or paste, into the terminal of others."""

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE = 1, 5, 0xF
_NETLINK_ROUTE = 0

_RENAMES = ((82, None), (264, 38), (316, 276))
"""`rename`, `renameat`, `renameat2`."""

_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _GREATER, _GREATER_EQUAL, _AND, _RETURN, _ANY_BIT = (
    0x20,
    0x15,
    0x25,
    0x35,
    0x54,
    0x06,
    0x45,
)
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF_0000, 0x0005_0000, 0x7FC0_0000

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_SECCOMP = (317, 277)
_SET_FILTER, _NEW_LISTENER = 1, 8


def is_known_processor() -> bool:
    """Return whether the numbers of this processor's calls are known here."""
    return os.uname().machine in _ARCHITECTURES and struct.calcsize("P") == 8


def program(*, internet: bool, shared_memory: bool, machine: str | None = None) -> bytes:
    """The filter.

    Args:
        internet: sockets of IPv4 and IPv6 may be made, and routes asked for.
        shared_memory: segments, semaphores and queues of System V and POSIX may be used.
        machine: the processor, as `uname` names it; this one by default.
    """
    architecture, column = _ARCHITECTURES[machine or os.uname().machine]
    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_EQUAL, architecture, 1, 0),
        _refuse(errno.ENOSYS),
        _line(_LOAD, _NUMBER),
        *_if(_GREATER, _LAST_KNOWN, [_refuse(errno.ENOSYS)]),
    ]
    no_namespace = [
        _line(_LOAD, _argument(0)),
        *_if(_ANY_BIT, _NEW_NAMESPACES, [_refuse(errno.EPERM)]),
        _line(_RETURN, _ALLOW),
    ]
    lines += _if(_EQUAL, _CLONE[column], _without_time_namespace(no_namespace))
    lines += _if(_EQUAL, _UNSHARE[column], no_namespace)
    lines += _if(_EQUAL, _IOCTL[column], _ioctl())
    own_limits = [_line(_LOAD, _argument(0)), *_if(_EQUAL, 0, [_line(_RETURN, _ALLOW)])]
    lines += _if(_EQUAL, _PRLIMIT[column], [*own_limits, _refuse(errno.EPERM)])
    lines += _if(_EQUAL, _SOCKETPAIR[column], _socketpair())
    lines += _if(_EQUAL, _SOCKET[column], _socket(internet=internet))
    for call in _ABSENT.values():
        lines += _if(_EQUAL, call[column], [_refuse(errno.ENOSYS)])
    refused = [*_REFUSED.values(), *(() if shared_memory else _SHARED.values())]
    for call in refused:
        lines += _if(_EQUAL, call[column], [_refuse(errno.EPERM)])
    lines.append(_line(_RETURN, _ALLOW))
    return b"".join(lines)


def _without_time_namespace(lines: list[bytes]) -> list[bytes]:
    """Return lines for `clone`, whose lowest byte is a signal and not a set of flags."""
    return [lines[0], *_if(_ANY_BIT, _NEW_NAMESPACES & ~0xFF, [_refuse(errno.EPERM)]), lines[-1]]


def _ioctl() -> list[bytes]:
    lines = [_line(_LOAD, _argument(1))]
    for request in _TERMINAL_INPUT:
        lines += _if(_EQUAL, request, [_refuse(errno.EPERM)])
    return [*lines, _line(_RETURN, _ALLOW)]


def _socketpair() -> list[bytes]:
    """Return lines that admit only stream pairs: a datagram socket can be given a new address."""
    lines = [_line(_LOAD, _argument(1)), _line(_AND, _SOCK_TYPE)]
    for kind in (_SOCK_STREAM, _SOCK_SEQPACKET):
        lines += _if(_EQUAL, kind, [_line(_RETURN, _ALLOW)])
    return [*lines, _refuse(errno.EACCES)]


def _socket(*, internet: bool) -> list[bytes]:
    if not internet:
        return [_refuse(errno.EACCES)]
    lines = [_line(_LOAD, _argument(0))]
    for family in (_AF_INET, _AF_INET6):
        lines += _if(_EQUAL, family, [_line(_RETURN, _ALLOW)])
    route = [
        _line(_LOAD, _argument(2)),
        *_if(_EQUAL, _NETLINK_ROUTE, [_line(_RETURN, _ALLOW)]),
        _refuse(errno.EACCES),
    ]
    return [*lines, *_if(_EQUAL, _AF_NETLINK, route), _refuse(errno.EACCES)]


def rename_calls() -> tuple[int | None, int | None, int | None]:
    """Return the numbers of `rename`, which not every processor has, `renameat` and `renameat2`."""
    column = _column()
    first, second, third = (call[column] for call in _RENAMES)
    return first, second, third


def listen_to_renames() -> int:
    """Stop each rename of this thread, and of everything it starts, until a listener decides.

    Returns:
        A descriptor of the listener, to which this process answers.

    Raises:
        OSError: the kernel refuses, for example because there is another listener.
    """
    lines = [_line(_LOAD, _NUMBER)]
    for call in rename_calls():
        lines += _if(_EQUAL, call, [_line(_RETURN, _NOTIFY)])
    lines.append(_line(_RETURN, _ALLOW))
    number = _SECCOMP[_column()]
    return kernel.system_call(number, _SET_FILTER, _NEW_LISTENER, header(b"".join(lines)))


def _column() -> int:
    return _ARCHITECTURES[os.uname().machine][1]


def header(filter_program: bytes) -> bytes:
    """Return the header of a filter, which stays in memory for the life of the process."""
    return struct.pack("@HP", len(filter_program) // 8, kernel.keep(filter_program))


def install(filter_header: bytes) -> None:
    """Hold this thread, and everything it starts from now on, to a filter.

    Raises:
        OSError: the kernel refuses.
    """
    kernel.library_call("prctl", _PR_SET_SECCOMP, _MODE_FILTER, filter_header, 0, 0)


def _line(code: int, operand: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, operand)


def _if(test: int, operand: int | None, then: list[bytes]) -> list[bytes]:
    """Return lines that are skipped unless the test holds for the value loaded last."""
    return [] if operand is None else [_line(test, operand, 0, len(then)), *then]


def _refuse(number: int) -> bytes:
    return _line(_RETURN, _ERRNO | number)


def _argument(index: int) -> int:
    """Return the offset of an argument's lower half; both processors are little-endian."""
    return _ARGUMENT + 8 * index

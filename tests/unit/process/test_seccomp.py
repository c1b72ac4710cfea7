"""The filter of system calls, run by an interpreter of the kernel's packet filter."""

import errno
import struct
import sys

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("only Linux has such filters", allow_module_level=True)

from agent_core.process import seccomp
from tables import together

ALLOW = 0x7FFF_0000
X86, ARM = "x86_64", "aarch64"
ARCHITECTURES = {X86: 0xC000_003E, ARM: 0xC000_00B7}


def judge(program: bytes, number: int, arguments: tuple[int, ...], architecture: int) -> int:
    """What the filter returns for a call."""
    words = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    call = struct.pack("=iIQ6Q", number, architecture, 0, *words)
    lines = list(struct.iter_unpack("=HBBI", program))
    loaded, at = 0, 0
    while True:
        code, when_true, when_false, operand = lines[at]
        at += 1
        match code:
            case 0x20:
                loaded = struct.unpack_from("=I", call, operand)[0]
            case 0x54:
                loaded &= operand
            case 0x06:
                return operand
            case 0x15 | 0x25 | 0x35 | 0x45:
                holds = {
                    0x15: loaded == operand,
                    0x25: loaded > operand,
                    0x35: loaded >= operand,
                    0x45: bool(loaded & operand),
                }[code]
                at += when_true if holds else when_false
            case _:
                raise AssertionError(code)


def refused(number: int) -> int:
    return 0x0005_0000 | number


@together(
    ("machine", "number", "arguments", "expected"),
    [
        (X86, 0, (), ALLOW),  # read
        (ARM, 63, (), ALLOW),
        (X86, 59, (), ALLOW),  # execve
        (ARM, 221, (), ALLOW),
        (X86, 101, (), refused(errno.EPERM)),  # ptrace
        (ARM, 117, (), refused(errno.EPERM)),
        (X86, 165, (), refused(errno.EPERM)),  # mount
        (ARM, 40, (), refused(errno.EPERM)),
        (X86, 56, (17,), ALLOW),  # clone
        (ARM, 220, (17,), ALLOW),
        (X86, 56, (0x003D_0F00,), ALLOW),  # a thread
        (X86, 56, (0x1000_0011,), refused(errno.EPERM)),
        (ARM, 220, (0x1000_0011,), refused(errno.EPERM)),
        (X86, 56, (0x91,), ALLOW),  # a signal, not CLONE_NEWTIME
        (X86, 272, (0x80,), refused(errno.EPERM)),  # unshare(CLONE_NEWTIME)
        (ARM, 97, (0x0002_0000,), refused(errno.EPERM)),
        (X86, 272, (0x200,), ALLOW),  # unshare(CLONE_FS)
        (X86, 435, (), refused(errno.ENOSYS)),  # clone3
        (ARM, 425, (), refused(errno.ENOSYS)),  # io_uring_setup
        (X86, 463, (), refused(errno.ENOSYS)),  # later than the filter
        (ARM, 9999, (), refused(errno.ENOSYS)),
        (X86, 0x4000_0000, (), refused(errno.ENOSYS)),  # x32
        (X86, -1, (), refused(errno.ENOSYS)),
        (X86, 41, (1, 1), refused(errno.EACCES)),  # socket(AF_UNIX)
        (X86, 41, (2, 1), ALLOW),
        (ARM, 198, (10, 2), ALLOW),
        (X86, 41, (16, 3, 0), ALLOW),  # routes
        (X86, 41, (16, 3, 9), refused(errno.EACCES)),
        (X86, 41, (17, 3), refused(errno.EACCES)),
        (X86, 41, (1 << 32 | 1, 1), refused(errno.EACCES)),
        (X86, 53, (1, 1), ALLOW),  # socketpair
        (X86, 53, (1, 0o2000001), ALLOW),
        (X86, 53, (1, 2), refused(errno.EACCES)),
        (ARM, 199, (1, 3), refused(errno.EACCES)),
        (X86, 16, (0, 0x5412), refused(errno.EPERM)),  # ioctl(TIOCSTI)
        (X86, 16, (0, 1 << 32 | 0x5412), refused(errno.EPERM)),
        (ARM, 29, (0, 0x5401), ALLOW),
        (X86, 302, (0, 7), ALLOW),  # prlimit64
        (X86, 302, (42, 7), refused(errno.EPERM)),
        (X86, 30, (), refused(errno.EPERM)),  # shmat
    ],
)
def test_a_call_is_judged(
    machine: str, number: int, arguments: tuple[int, ...], expected: int
) -> None:
    program = seccomp.program(internet=True, shared_memory=False, machine=machine)
    assert judge(program, number, arguments, ARCHITECTURES[machine]) == expected


@pytest.mark.parametrize("machine", [X86, ARM])
def test_without_a_network_no_socket_is_made(machine: str) -> None:
    program = seccomp.program(internet=False, shared_memory=True, machine=machine)
    number = 41 if machine == X86 else 198
    for family in range(64):
        assert judge(program, number, (family, 1), ARCHITECTURES[machine]) == refused(errno.EACCES)


@together("architecture", [0x4000_0003, 0x4000_0028, ARCHITECTURES[ARM]])
def test_calls_of_another_instruction_set_are_missing(architecture: int) -> None:
    program = seccomp.program(internet=True, shared_memory=True, machine=X86)
    assert judge(program, 0, (), architecture) == refused(errno.ENOSYS)

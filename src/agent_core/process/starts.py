"""Reasons why a program cannot be started, named by what is missing and how to get it.

The system says "No such file or directory" of a program whose interpreter or folder is missing.
"""

import errno
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile, islice
from pathlib import Path

from agent_core.errors import ErrorCode, ToolError
from agent_core.opening import read_beginning
from agent_core.text import shortened

_FIRST_LINE = 256
"""Bytes of a script that the system reads for its interpreter."""

_MAY_PASS = frozenset(
    (
        *(errno.EAGAIN, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        *(errno.ENOSPC, errno.ETIMEDOUT, errno.ETXTBSY),
    )
)
"""Failures of a moment; any other comes again."""

CANNOT_RUN = (126, 127)
"""Exit codes of a shell, or of `env`, for a program that it could not start."""

_MOST_WORDS = 100
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_BEFORE = frozenset(
    {"!", "{", "if", "elif", "else", "then", "while", "until", "do", "command", "exec", "time"}
)
"""Words of a shell after which a program may follow."""

_CRLF = (
    "its lines end with CRLF, so that the carriage return becomes a part of what its first line"
    " names; convert it to LF line ends"
)


def check_start(program: str, *, cwd: Path | str, env: Mapping[str, str]) -> None:
    """Refuse a program that cannot be started: its folder or its interpreter is missing.

    Raises:
        ToolError: `file_not_found` or `validation_error`; names what is missing, and the cure.
    """
    check_folder(cwd)
    place = os.path.join(cwd, program)  # noqa: PTH118
    check_program_file(place, program)
    if problem := _find_interpreter_problem(place, cwd=cwd, env=env):
        text = f"{_shown(program)} was not started: {problem}"
        code = ErrorCode.VALIDATION_ERROR if problem is _CRLF else ErrorCode.FILE_NOT_FOUND
        raise ToolError(code, text)


def check_folder(cwd: Path | str) -> None:
    """Refuse a working folder that does not exist or is not a folder.

    Raises:
        ToolError: `file_not_found`; it is named.
    """
    if not os.path.isdir(cwd):  # noqa: PTH112
        what = "is a file, not a folder" if os.path.lexists(cwd) else "does not exist"
        text = f"the working folder {shortened(str(cwd), 500)} {what}; create it, or name another"
        raise ToolError(ErrorCode.FILE_NOT_FOUND, text)


def check_program_file(place: str, program: str) -> None:
    """Refuse a file that is no program.

    Args:
        place: its path.
        program: as it was named.

    Raises:
        ToolError: `file_not_found`, or `validation_error` for a file that is not executable.
    """
    try:
        mode = os.stat(place).st_mode  # noqa: PTH116
    except (OSError, ValueError) as error:
        text = f"there is no program {_shown(program)}"
        if os.path.islink(place):  # noqa: PTH114
            text += "; it is a link to a file that does not exist"
        raise ToolError(ErrorCode.FILE_NOT_FOUND, text) from error
    if stat.S_ISDIR(mode):
        text = f"there is no program {_shown(program)}: it is a folder; name a file in it"
        raise ToolError(ErrorCode.FILE_NOT_FOUND, text)
    if not stat.S_ISREG(mode):
        text = f"there is no program {_shown(program)}: it is not a regular file"
        raise ToolError(ErrorCode.FILE_NOT_FOUND, text)
    if not os.access(place, os.X_OK):
        text = f"{_shown(program)} is not executable; chmod +x it, or give it to its interpreter"
        raise ToolError(ErrorCode.VALIDATION_ERROR, text)


def not_started(error: OSError | ValueError, program: str, step: str = "") -> ToolError:
    """Return the error for a program that the system has not started.

    Args:
        error: its reason.
        program: the path.
        step: the part of its sandbox that failed.
    """
    shown = _shown(program)
    if step and isinstance(error, OSError):
        text = (
            f"{shown} was not started: its sandbox could not be set up ({step}: {error.strerror})"
        )
        return ToolError(ErrorCode.INTERNAL_ERROR, text)
    if isinstance(error, ValueError):  # a NUL, or text that is no Unicode
        text = f"the command for {shown} has a character no argument can hold: {error}"
        return ToolError(ErrorCode.VALIDATION_ERROR, text)
    if error.errno == errno.E2BIG:
        text = f"the arguments of {shown} are too long for this system; use a file"
        return ToolError(ErrorCode.VALIDATION_ERROR, text)
    text = f"{shown} could not be started: {error.strerror or 'it did not answer in time'}"
    if error.errno in {errno.ENOENT, errno.ENOEXEC}:
        text += "; it may be built for another system"
    may_pass = error.errno is None or error.errno in _MAY_PASS
    return ToolError(ErrorCode.INTERNAL_ERROR, text, retryable=may_pass)


def explain_exit(
    exit_code: int, argv: Sequence[str], said: str, *, cwd: Path | str, env: Mapping[str, str]
) -> str | None:
    """Return why a command that failed could not start a script; None if it did not say so.

    A shell, or `env`, names the script in its last line and ends with 126 or 127. An interpreter
    that gets an option with a carriage return refuses the option and does not read the script.

    Args:
        exit_code: of the command.
        argv: the command.
        said: its text on standard error.
        cwd: its working folder.
        env: its environment.
    """
    if exit_code in CANNOT_RUN:
        from shutil import which  # noqa: PLC0415 - slow to import

        last = said.rstrip().rpartition("\n")[2]
        for word in islice(dict.fromkeys(_programs(argv)), _MOST_WORDS):
            name = os.path.expanduser(word)  # noqa: PTH111
            if not re.search(rf"(?<![^\s/'\"\u2018`]){re.escape(name)}['\"\u2019]?:", last):
                continue
            place = os.path.join(cwd, name)  # noqa: PTH118
            if "/" not in name:
                place = which(name, path=env.get("PATH")) or ""
            if place and (problem := _find_interpreter_problem(place, cwd=cwd, env=env)):
                return f"{_shown(word)} cannot be started: {problem}"
    elif exit_code != 0 and argv and _has_refused_option(os.path.join(cwd, argv[0]), said):  # noqa: PTH118
        return f"{_shown(argv[0])} cannot be started: {_CRLF}"
    return None


def _programs(words: Sequence[str]) -> Iterator[str]:
    """Yield the programs that a command, or the script it gives to a shell, starts by name."""
    words = list(dropwhile(_comes_before_program, words))
    if not words:
        return
    yield words[0]
    is_shell = os.path.basename(words[0]) in _SHELLS  # noqa: PTH119
    if is_shell and len(words) > 2 and re.fullmatch("-[a-z]*c", words[1]):
        for command in _commands(words[2]):
            yield from _programs(command)


def _comes_before_program(word: str) -> bool:
    is_env = os.path.basename(word) == "env"  # noqa: PTH119
    return is_env or word in _BEFORE or bool(re.match(r"-|\w+=", word))


def _commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a script, as far as it can be read."""
    reader = shlex.shlex(script, posix=True, punctuation_chars="();<>|&\n")
    reader.whitespace, reader.whitespace_split = " \t", True
    command: list[str] = []
    with suppress(ValueError):  # a quotation without an end
        for word in reader:
            if set(word) <= set(";|&()\n"):
                yield command
                command = []
            else:
                command.append(word)
    yield command


def _has_refused_option(place: str, said: str) -> bool:
    """Return whether the interpreter of a script refused the carriage return of its first line."""
    first = _first_line(place)
    refusal = said.partition("\n")[0]
    is_option = re.match(rb"#![ \t]*\S+[ \t]+-.*\r$", first) is not None
    return is_option and "-\r" in refusal and "option" in refusal.lower()


def _find_interpreter_problem(place: str, *, cwd: Path | str, env: Mapping[str, str]) -> str | None:
    """Return why the interpreter that a script names cannot run it; None if it can, or has none."""
    first = _first_line(place)
    if not first.startswith(b"#!") or len(first) == _FIRST_LINE:
        return None
    words = os.fsdecode(first[2:]).strip(" \t\r").split(maxsplit=1)
    if not words:
        return None
    name, *rest = words
    is_env = bool(rest) and Path(name).name == "env"
    is_env = is_env and not rest[0].startswith("-") and not any(map(rest[0].count, "= \t/"))
    if first.endswith(b"\r") and (is_env or not rest):
        return _CRLF
    interpreter = os.path.join(cwd, name)  # noqa: PTH118
    cure = "install it, or change the first line"
    if not os.path.exists(interpreter):  # noqa: PTH110
        return f"its interpreter {_shown(name)} does not exist; {cure}"
    if os.path.isdir(interpreter) or not os.access(interpreter, os.X_OK):  # noqa: PTH112
        return f"its interpreter {_shown(name)} is not executable; change the first line"
    if is_env:
        from shutil import which  # noqa: PLC0415 - slow to import

        if which(rest[0], path=env.get("PATH") or os.defpath) is None:
            return f"its interpreter {_shown(rest[0])} is not in PATH; {cure}"
    return None


def _first_line(place: str) -> bytes:
    return read_beginning(place, _FIRST_LINE).partition(b"\n")[0]


def _shown(name: str) -> str:
    return repr(shortened(name, 200))

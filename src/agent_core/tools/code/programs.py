"""The scope of an answer "for the session" to a command: these words, or a program that reads.

A program is covered with all its known options if `readers` says that with these it only reads,
and what it opens may be read. Another environment, a program file that tools can write, or a
repository whose settings make git run something all mean the same: exactly this command.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from agent_core.process.environment import changing_names
from agent_core.text.shell import command_line
from agent_core.tools.code.languages import split_git
from agent_core.tools.code.readers import is_known, opened_by
from agent_core.tools.code.repositories import find_plain_tree
from agent_core.tools.workspace import PathPolicy

_WORD_FOR_WORD = frozenset({"sort"})
"""Programs that only read, but keep a large input in temporary files: answers are exact."""

_SEVERAL_IN_ONE = frozenset({"busybox", "coreutils", "toybox", "uutils"})


class CommandLine(Struct, frozen=True, kw_only=True):
    """A command that has been looked up but not run.

    Attributes:
        program: the absolute path of its file, links not followed.
        argv: the words as the model wrote them.
        cwd: the folder it runs in, resolved.
        env: all that it sees of the environment.
        reason: why it is asked for whatever was allowed before.
        opens_only_what_may_be_read: it is known what it opens, and reading that needs no question.
        opens_outside: some of that is outside the project.
        policy: which places may be read and written.
    """

    program: Path
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    reason: str | None
    opens_only_what_may_be_read: bool
    opens_outside: bool = False
    policy: PathPolicy


def session_scope(command: CommandLine) -> str:
    """Return the scope that an `allow_for_session` answer to this command would cover.

    The name it is called by counts as well as its file: one file may be many programs. It is read
    in the question; every word is quoted, so that no two commands read the same.
    """
    shown, real = shlex.quote(str(command.program)), os.path.realpath(command.program)
    if real != str(command.program):
        shown += f" ({shlex.quote(real)})"
    where = f" in {shlex.quote(str(command.cwd))}"
    subcommand = _harmless_subcommand(command)
    if subcommand is not None:
        return f"{shown}{subcommand} with options that only read, on paths of the project{where}"
    return f"{shown} as exactly: {command_line(command.argv)}{where}"


def _harmless_subcommand(command: CommandLine) -> str | None:
    """Return the subcommand of a command that reads what may be read in the project, or nothing."""
    is_open = command.reason is None and command.opens_only_what_may_be_read
    is_open = is_open and not command.opens_outside and command.program.name not in _WORD_FOR_WORD
    return reading_subcommand(command) if is_open else None


def reading_subcommand(command: CommandLine, *, may_start: bool = False) -> str | None:
    """Return the subcommand of a command that certainly changes nothing, or None.

    Args:
        command: looked up.
        may_start: it may be a `find` that starts programs, which are judged by themselves.
    """
    policy, name, words = command.policy, command.program.name, command.argv[1:]
    real = Path(os.path.realpath(command.program))
    if not is_program_of_its_name(command.program, real):
        return None
    if any(map(policy.is_below_write_root, (command.program, real))):
        return None
    if changing_names(command.env):
        return None
    opening = opened_by(name, words)
    if opening is None or not opening.only_reads or (opening.starts and not may_start):
        return None
    if name != "git":
        return ""
    # Git shows all of its tree, and its settings in a folder that tools write to are not only
    # the user's.
    tree = find_plain_tree(command.cwd)
    home = Path(os.path.realpath(command.env.get("HOME", os.devnull)))
    is_inside = tree is not None and policy.is_below_write_root(tree)
    if not is_inside or policy.is_below_write_root(home):
        return None
    return f" {split_git(words)[0]}"


def is_program_of_its_name(program: Path, real: Path) -> bool:
    """Return whether the file found under a known name really is the program of this name.

    Args:
        program: where it is found.
        real: the same path with links followed; systems add a variant's suffix (`which.gnu`).
    """
    name = program.name
    if not is_known(name):
        return False
    is_variant = real.name.partition(".")[0] == name
    is_awk = name.endswith("awk") and real.name in {"gawk", "mawk", "nawk", "original-awk"}
    return is_variant or is_awk or real.name in _SEVERAL_IN_ONE


_PYTHON = re.compile(r"(?:pypy|python)[\d.]*")


def is_python_of_environment(file: str, program: str) -> bool:
    """Return whether a link is the interpreter of a virtual environment, as its tools make it."""
    link, real = Path(file), Path(program)
    has_settings = (link.parent.parent / "pyvenv.cfg").is_file()
    return has_settings and all(_PYTHON.fullmatch(each.name) for each in (link, real))

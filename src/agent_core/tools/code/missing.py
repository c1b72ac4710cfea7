"""Find the programs of a hook or a declarative tool that are missing, before they are needed."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path

from agent_core.opening import open_binary
from agent_core.tools.code.views import read_command
from agent_core.tools.shells import ALL_SHELLS, bare_name, words_of
from agent_core.tools.workspace import PathPolicy
from agent_core.types import CommandView

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_UNKNOWN = re.compile(r"[$`*?\[{]")
_LOOKUPS = ("command", "type", "hash", "which")
"""Commands with which a script looks whether a program is there."""
_TAKE_SCRIPTS = ALL_SHELLS | words_of(
    ". source python pypy node nodejs ruby perl php lua luajit rscript julia tclsh guile"
)
"""Programs whose first argument is the file of a script."""
_FLAG = re.compile(r"-[uBEIsSOqbxevnf]+")
_DEFINED = re.compile(r"([\w.-]+)\s*\(\s*\)|(?:function|alias)\s+([\w.-]+)")
_LONGEST_LINE = 256


def missing_programs(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], policy: PathPolicy
) -> list[str]:
    """Return what is missing for a command: programs and scripts that are named in its words.

    Only what is certain is returned: words that are known only when it runs are left out, and
    programs that a script itself looks for.

    Args:
        argv: the words of the command.
        cwd: the folder it runs in.
        env: its environment.
        policy: of the project.
    """
    command = read_command(argv, cwd=cwd, env=env, policy=policy).for_rules
    looked_for = {
        word for view in command.views if view.argv[:1] and view.argv[0] in _LOOKUPS
        for word in view.argv[1:]
    }  # fmt: skip
    script = argv[-1] if argv else ""
    looked_for |= {name for names in _DEFINED.findall(script) for name in names}
    moves = any(view.program in {"cd", "chdir", "pushd"} for view in command.views)
    found: dict[str, None] = {}
    for view in command.views:
        names = set(view.argv) & looked_for
        if view.argv and not (names or view.argv[0] in _LOOKUPS):
            found |= dict.fromkeys(_problems(view, None if moves else cwd, env))
    return list(found)


def _problems(view: CommandView, cwd: Path | None, env: Mapping[str, str]) -> Iterator[str]:
    """Yield what is missing for one program; without `cwd` relative paths are left out."""
    name = _expanded(view.argv[0], env)
    if name is None or not name:
        return
    if "/" not in name:
        if view.program is None:
            yield f"there is no program {name} in PATH"
    else:
        yield from _file_problems(name, cwd, env, must_run=True)
    if bare_name(name) not in _TAKE_SCRIPTS:
        return
    words = list(dropwhile(_FLAG.fullmatch, view.argv[1:]))
    script = _expanded(words[0], env) if words else None
    if script and not script.startswith("-"):
        yield from _file_problems(script, cwd, env, must_run=False)


def _file_problems(
    name: str, cwd: Path | None, env: Mapping[str, str], *, must_run: bool
) -> Iterator[str]:
    if cwd is None and not Path(name).is_absolute():
        return
    path = (cwd or Path("/")) / name
    if not path.exists():
        yield f"{path} does not exist"
    elif not path.is_file():
        yield f"{path} is not a file"
    elif not os.access(path, os.X_OK if must_run else os.R_OK):
        yield f"{path} is not {'executable' if must_run else 'readable'}"
    elif must_run and (interpreter := _missing_interpreter(path, env)):
        yield f"{path} needs {interpreter}, which does not exist"


def _missing_interpreter(path: Path, env: Mapping[str, str]) -> str | None:
    """Return the interpreter that the first line of a script names, if it is missing."""
    try:
        with open_binary(path) as file:
            line = file.readline(_LONGEST_LINE).rstrip(b"\n")
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].strip(b" \t").decode(errors="replace").split(" ")
    if not Path(words[0]).exists():
        return repr(words[0])
    if Path(words[0]).name != "env" or len(words) < 2 or words[1].startswith("-"):
        return None
    folders = (env.get("PATH") or os.defpath).split(os.pathsep)
    return None if any(Path(each, words[1]).exists() for each in folders) else repr(words[1])


def _expanded(word: str, env: Mapping[str, str]) -> str | None:
    """Return a word with its variables and `~` replaced; None if it is not known."""
    if word == "~" or word.startswith("~/"):
        word = f"${{HOME}}{word[1:]}"
    known = _VARIABLE.sub(lambda match: env.get(match[1] or match[2], "$"), word)
    return None if _UNKNOWN.search(known) else known

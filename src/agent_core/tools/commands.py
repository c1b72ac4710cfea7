"""The commands of a script that may be given a value: those that do not run it as a program.

A value is one word of the command, so the shell that runs the script never evaluates it. The
command itself may: `eval`, `sh -c`, `awk`. Of the shell's own commands only those known to be safe
are admitted. A shell or an interpreter is admitted if the text of its program is written
out before the value. Any other program may be given a value as a word of its own, or after plain
text such as `--name=`; in a longer text with spaces or quotes only if that is known to be text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from agent_core.tools.options import OptionTable
from agent_core.tools.shells import (
    FIND_ACTIONS,
    JOINERS,
    OTHER_SHELLS,
    SHELL_COMMANDS,
    SHELLS,
    WRAPPERS,
    words_of,
)


class ScriptWord(Struct, frozen=True):
    """A word of a command.

    Attributes:
        literal: its text; None if something is expanded in it.
        text: what is written in it, without what is expanded.
        has_value: a placeholder is in it.
        prefix: what is written before the first expansion.
    """

    literal: str | None
    text: str
    has_value: bool
    prefix: str


_SHELLS = SHELLS | OTHER_SHELLS
_INTERPRETERS = words_of(
    """
    python pypy perl ruby node nodejs deno bun php lua luajit tclsh wish expect rscript julia
    awk gawk mawk nawk sed gsed pwsh powershell cmd osascript
    guile scheme emacs vi vim ed ex gdb m4 bc dc
    """
)
_JOINING = JOINERS | words_of(
    ". source trap let declare typeset ssh autossh su runuser at batch crontab"
)
"""Programs that join their words to one text, or run its content: no value is safe in them."""

_ASKING_SHELLS = words_of("eval ssh su runuser")
"""Programs that are looked for among the arguments of unknown programs, too."""

_ALWAYS = {
    "eval": "remove eval: a value could become a part of what it runs",
    "alias": "remove alias: it changes what later commands mean",
}
"""Commands that change the meaning of the rest of a script, with or without a placeholder."""

_HARMLESS = words_of(": [ cd chdir echo exec command false kill printf pwd test true")
"""Shell commands that take a value as data; `exec` and `command` run the words behind them."""

_WRAPPERS = {
    **WRAPPERS,
    "busybox": OptionTable(leading=True),
    "doas": OptionTable("-n", leading=True),
    "sudo": OptionTable("-EHSn", leading=True),
}

_FLAGS = {
    "python": re.compile(r"-[uBEIsSOqbx]+"),
    "pypy": re.compile(r"-[uBEIsSOqbx]+"),
    "sed": re.compile(r"-[nErsuz]+"),
    "gsed": re.compile(r"-[nErsuz]+"),
    **{name: re.compile(r"-[euxfnv]+") for name in _SHELLS},
}
"""Options without a value that may precede the program text of an interpreter."""

_REPLACES = re.compile(r"-[0rtx]*[Ii]|--replace")
_READ_COMMANDS = words_of(". source at batch parallel crontab su runuser")
"""Programs that run their input."""

_RUN_INPUT = (
    _SHELLS
    | (_INTERPRETERS - {"sed", "gsed"})
    | (_WRAPPERS.keys() - {"command", "exec", "time"})
    | {"parallel", "runuser", "ssh", "su"}
)
"""Programs that may, and are looked for among the arguments of unknown ones, too."""

_AWK = words_of("awk gawk mawk nawk")
_READ_OPTIONS_LATER = _AWK | {"sed", "gsed"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PROGRAM_OPTION = re.compile(r"-[lnpasw]*[cem]|--")
_VERSION = re.compile(r"[-.\d]+$")
_STRUCTURE = re.compile(r"[\s'\"`\\;|$()<>{}!]")
_TEXT_COMMANDS = words_of("echo printf grep egrep fgrep logger test [")
_TEXT_OPTIONS = {
    "git": {"-m", "--message", "--grep", "--author", "-S", "-G"},
    "curl": {"-H", "--header", "-d", "--data", "--data-raw", "--data-urlencode", "-A", "-F"},
    "wget": {"--header", "--post-data"},
    "jq": {"--arg"},
}
"""Options whose value is always text."""

_PLAIN_FLAGS = words_of("-e -n -i -r -rn -E -F --")
"""Options of those commands that may precede a text."""

_UNARY = words_of("-n -z -e -f -d -r -w -x -s -L -h -b -c -p -S -g -u -k")
_BINARY = words_of("= != -eq -ne -gt -ge -lt -le -nt -ot -ef")
MIXED_TEST = "write one test such as [ -n … ] or [ … = … ] for each [, joined by &&"
_UNKNOWN_INNER = "write out the program that {} runs, with no other options before it"
_NESTED = "the script of {} is no place for a value; give it a script file and the value after it"


def find_problem(words: Sequence[ScriptWord]) -> str | None:
    """Return why a command must not be in a script with placeholders; None if it may."""
    program = _program(words[0]) if words else None
    if program in _ALWAYS:
        return _ALWAYS[program]
    if program in _WRAPPERS:
        return _find_wrapped_problem(program, words)
    if program in _SHELLS:
        return _find_interpreter_problem(program, words)
    if not any(word.has_value for word in words):
        return None
    if program is None or program.startswith("-"):
        return "write out the name of a program that is given a placeholder"
    if program in _JOINING:
        return _NESTED.format(program)
    if program in _INTERPRETERS:
        return _find_interpreter_problem(program, words)
    if program in SHELL_COMMANDS:
        return _find_builtin_problem(program, words)
    if any(a.literal in FIND_ACTIONS and b.literal is None for a, b in pairwise(words)):
        return f"write out the program that {program} runs"
    return _find_shell_argument(words) or _find_embedded_value(program, words)


def _find_builtin_problem(program: str, words: Sequence[ScriptWord]) -> str | None:
    if program not in _HARMLESS:
        return f"{program} takes no placeholder: what it does with a value is up to the shell"
    if program == "printf":
        operands = words[2:] if words[1].literal == "--" else words[1:]
        first = operands[0].literal if operands else None
        if first is None or first.startswith("-"):
            return "write out the format of printf"
    if program in {"test", "["} and not is_plain_test([word.literal for word in words[1:]]):
        return "write one test for each test or [, joined by &&"
    return None


def find_input_problem(words: Sequence[ScriptWord]) -> str | None:
    """Return why a command must not read a value from its standard input; None if it may."""
    program, operands = _program(words[0]), words[1:]
    if program is None:
        return "write out the name of a program that reads a placeholder"
    if program in _WRAPPERS:
        return _find_wrapped_input_problem(program, words)
    texts = [word.literal or "" for word in operands]
    # Without a command after the host, ssh runs its input. An option may have a value.
    plain = [now for before, now in pairwise(["", *texts]) if now[:1] != "-" and before[:1] != "-"]
    if program in _READ_COMMANDS or (program == "ssh" and len(plain) < 2):
        return _NESTED.format(program)
    is_interpreter = program in _INTERPRETERS - _READ_OPTIONS_LATER
    if is_interpreter and ("-" in texts or all(text.startswith("-") for text in texts)):
        return f"{program} would run what it reads; write out its program"
    if program in _SHELLS:
        return _find_interpreter_problem(program, words)
    if program in _TEXT_COMMANDS | _INTERPRETERS:
        return None
    inner = (index for index, word in enumerate(words) if index and _program(word) in _RUN_INPUT)
    problems = (find_input_problem(words[index:]) for index in inner)
    return next(filter(None, problems), None)


def _find_wrapped_input_problem(wrapper: str, words: Sequence[ScriptWord]) -> str | None:
    """Return why the command that a wrapper starts must not read a value; xargs makes it words."""
    parsed = _unwrapped(wrapper, words)
    if parsed is None:
        return _UNKNOWN_INNER.format(wrapper)
    options, inner = parsed
    if not inner:
        return None
    if wrapper != "xargs":
        return find_input_problem(inner)
    mark = options.get("-I")
    if mark is None:
        return find_problem([*inner, ScriptWord(None, "", has_value=True, prefix="")])
    return find_problem([_with_value(word, mark) for word in inner])


def _with_value(word: ScriptWord, mark: str) -> ScriptWord:
    """Return a word in which the value that xargs read replaces the mark."""
    if mark not in word.text:
        return word
    text, prefix = word.text.replace(mark, ""), word.prefix.partition(mark)[0]
    return ScriptWord(None, text, has_value=True, prefix=prefix)


def nested_scripts(words: Sequence[ScriptWord], *, is_fed: bool) -> Iterator[str]:
    """The scripts of `sh -c` in a command that get values: as words, from xargs, or as input."""
    is_given = is_fed or (bool(words) and _program(words[0]) == "xargs")
    for index, word in enumerate(words):
        shell = _program(word)
        if shell not in _SHELLS:
            continue
        has_option, rest = _split_options(shell, words[index + 1 :])
        if not has_option or not rest or not rest[0].literal:
            continue
        if is_given or any(each.has_value for each in rest[1:]):
            yield rest[0].literal


def is_plain_test(words: Sequence[str | None]) -> bool:
    """Return whether a test has one written operator, so that no value can be read as one.

    None in `words` means an unknown word.
    """
    operands = [word for word in words if word != "]"]
    match operands[1:] if operands[:1] == ["!"] else operands:
        case [_]:
            return True
        case [operator, _]:
            return operator in _UNARY
        case [_, operator, _]:
            return operator in _BINARY
        case _:
            return False


def _program(word: ScriptWord) -> str | None:
    """The name of a program without its folder and its version."""
    if not word.literal:
        return None
    name = word.literal.rpartition("/")[2].lower()
    bare = _VERSION.sub("", name)
    return bare if bare in _INTERPRETERS or bare in _SHELLS else name


def _find_wrapped_problem(wrapper: str, words: Sequence[ScriptWord]) -> str | None:
    """Judge a command that runs another one by that one, if it can be made out."""
    programs = {_program(word) for word in words}
    replaces = any(_REPLACES.match(word.literal or "") for word in words)
    if wrapper == "xargs" and replaces and programs & (_SHELLS | _INTERPRETERS):
        return "xargs -I would put what it reads into a program; leave it out and use $1 there"
    _, inner = _unwrapped(wrapper, words) or ({}, ())
    if inner and inner[0].literal is not None:
        return find_problem(inner)
    if any(word.has_value for word in words) or programs & _SHELLS:
        return _UNKNOWN_INNER.format(wrapper)
    return None


def _unwrapped(
    wrapper: str, words: Sequence[ScriptWord]
) -> tuple[Mapping[str, str], Sequence[ScriptWord]] | None:
    """Return the options of a wrapper and the command it starts; None if they are not known."""
    parsed = _WRAPPERS[wrapper].parse([word.text for word in words[1:]])
    if parsed is None:
        return None
    start = len(words) - len(parsed[1])
    while wrapper == "env" and start < len(words) and _ASSIGNMENT.match(words[start].prefix):
        start += 1
    start += wrapper == "timeout"
    is_known = all(word.literal is not None for word in words[:start])
    return (parsed[0], words[start:]) if is_known else None


def _find_interpreter_problem(program: str, words: Sequence[ScriptWord]) -> str | None:
    """The program's text, or the file it is in, must be written out before any value."""
    _, rest = _split_options(program, words[1:])
    if not rest or not rest[0].literal or rest[0].literal.startswith("-"):
        return _NESTED.format(program)
    for before, word in pairwise(rest if program in _READ_OPTIONS_LATER else ()):
        is_option = (before.literal or "").startswith("-") and before.literal != "--"
        if word.has_value and (is_option or word.prefix.startswith("-")):
            return _NESTED.format(program)
    return None


def _split_options(program: str, words: Sequence[ScriptWord]) -> tuple[bool, Sequence[ScriptWord]]:
    """Skip flags; return whether an option such as `-c` comes next, and the words after it."""
    flags = _FLAGS.get(program)
    while words and flags and flags.fullmatch(words[0].literal or ""):
        words = words[1:]
    # `awk -v name={{args.x}}` sets a variable to a text.
    while program in _AWK and len(words) > 1 and words[0].literal == "-v":
        if not _ASSIGNMENT.match(words[1].prefix):
            break
        words = words[2:]
    has_option = bool(words) and _PROGRAM_OPTION.fullmatch(words[0].literal or "") is not None
    return has_option, words[1:] if has_option else words


def _find_shell_argument(words: Sequence[ScriptWord]) -> str | None:
    """Judge a shell that is an argument (`find -exec sh -c`) like one that is a command.

    An interpreter that is given a value as its program, and a program that asks a shell to run one,
    are judged the same way.
    """
    for index, word in enumerate(words[1:], 1):
        program, rest = _program(word), words[index:]
        if not program or not any(each.has_value for each in rest):
            continue
        if program in _INTERPRETERS:
            has_option, after = _split_options(program, rest[1:])
            reads_value = bool(after) and after[0].has_value
            if reads_value and (has_option or program in _READ_OPTIONS_LATER):
                return _find_interpreter_problem(program, rest)
        elif program in _SHELLS:
            return _find_interpreter_problem(program, rest)
        elif program in _ASKING_SHELLS and words[0].literal not in _TEXT_COMMANDS:
            return _NESTED.format(program)
    return None


def _find_embedded_value(program: str, words: Sequence[ScriptWord]) -> str | None:
    """A value within a longer text, where the program is not known to take that as text."""
    for before, word in pairwise(words):
        option = before.literal or ""
        is_text = option in _TEXT_OPTIONS.get(program, ())
        if program in _TEXT_COMMANDS and not word.prefix.startswith("-"):
            is_text |= not option.startswith("-") or option in _PLAIN_FLAGS
        if word.has_value and not is_text and _STRUCTURE.search(word.text):
            return (
                f"{program} may read the text around a placeholder as a program;"
                " give it the value as a word of its own"
            )
    return None

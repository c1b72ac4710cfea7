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

from agent_core.tools.shell_reader import Word, is_plain_test
from agent_core.tools.shells import (
    ALL_SHELLS,
    AS_ANOTHER_USER,
    FIND_ACTIONS,
    INTERPRETERS,
    JOINERS,
    RUN_INPUT,
    RUNNERS,
    SHELL_COMMANDS,
    STARTERS,
    bare_name,
    words_of,
)

_JOINING = (
    JOINERS
    | (AS_ANOTHER_USER - STARTERS.keys())
    | words_of(". source trap let declare typeset ssh autossh at batch crontab")
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

_FLAGS = {
    "python": re.compile(r"-[uBEIsSOqbx]+"),
    "pypy": re.compile(r"-[uBEIsSOqbx]+"),
    "sed": re.compile(r"-[nErsuz]+"),
    "gsed": re.compile(r"-[nErsuz]+"),
    **{name: re.compile(r"-[euxfnv]+") for name in ALL_SHELLS},
}
"""Options without a value that may precede the program text of an interpreter."""

_REPLACES = re.compile(r"-[0rtx]*[Ii]|--replace")
_RUN_INPUT = RUN_INPUT | {"runuser", "ssh", "su", *STARTERS.keys() - {"command", "exec", "time"}}
"""Programs that may run their input, and are looked for among arguments of unknown ones, too."""

_NEVER_FED = (RUN_INPUT - INTERPRETERS - ALL_SHELLS) | words_of(". source su runuser")
_AWK = words_of("awk gawk mawk nawk")
_READ_OPTIONS_LATER = _AWK | {"sed", "gsed"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PROGRAM_OPTION = re.compile(r"-[lnpasw]*[cem]|--")
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
"""Options of these commands that may precede a text."""

_UNKNOWN_INNER = "write out the program that {} runs, with no other options before it"
_NESTED = "the script of {} is no place for a value; give it a script file and the value after it"


def find_problem(words: Sequence[Word]) -> str | None:
    """Return why a command must not be in a script with placeholders; None if it may."""
    program = _program(words[0]) if words else None
    if program in _ALWAYS:
        return _ALWAYS[program]
    if program is not None and program in STARTERS:
        return _find_wrapped_problem(program, words)
    if program in ALL_SHELLS:
        return _find_interpreter_problem(program, words)
    if not any(word.has_value for word in words):
        return None
    if program is None or program.startswith("-"):
        return "write out the name of a program that is given a placeholder"
    if program in _JOINING:
        return _NESTED.format(program)
    if program in INTERPRETERS:
        return _find_interpreter_problem(program, words)
    if program in SHELL_COMMANDS:
        return _find_builtin_problem(program, words)
    if any(a.literal in FIND_ACTIONS and b.literal is None for a, b in pairwise(words)):
        return f"write out the program that {program} runs"
    if problem := _find_shell_argument(words):
        return problem
    if program in RUNNERS:
        return f"{program} could run a value; write a script file that calls it, and give it that"
    return _find_embedded_value(program, words)


def _find_builtin_problem(program: str, words: Sequence[Word]) -> str | None:
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


def find_input_problem(words: Sequence[Word]) -> str | None:
    """Return why a command must not read a value from its standard input; None if it may."""
    program, operands = _program(words[0]), words[1:]
    if program is None:
        return "write out the name of a program that reads a placeholder"
    if program in STARTERS:
        return _find_wrapped_input_problem(program, words)
    texts = [word.literal or "" for word in operands]
    # Without a command after the host, ssh runs its input. An option may have a value.
    plain = [now for before, now in pairwise(["", *texts]) if now[:1] != "-" and before[:1] != "-"]
    if program in _NEVER_FED or (program == "ssh" and len(plain) < 2):
        return _NESTED.format(program)
    is_interpreter = program in INTERPRETERS - _READ_OPTIONS_LATER
    if is_interpreter and ("-" in texts or all(text.startswith("-") for text in texts)):
        return f"{program} would run what it reads; write out its program"
    if program in ALL_SHELLS:
        return _find_interpreter_problem(program, words)
    if program in _TEXT_COMMANDS | INTERPRETERS:
        return None
    inner = (index for index, word in enumerate(words) if index and _program(word) in _RUN_INPUT)
    problems = (find_input_problem(words[index:]) for index in inner)
    return next(filter(None, problems), None)


def _find_wrapped_input_problem(wrapper: str, words: Sequence[Word]) -> str | None:
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
        return find_problem([*inner, Word("…", is_known=False, has_value=True)])
    return find_problem([_with_value(word, mark) for word in inner])


def _with_value(word: Word, mark: str) -> Word:
    """Return a word in which the value that xargs read replaces the mark."""
    if mark not in word.written:
        return word
    pieces = (word.written.partition(mark)[0], None, word.written.replace(mark, ""))
    return Word(word.text, is_known=False, pieces=pieces, has_value=True)


def nested_scripts(words: Sequence[Word], *, is_fed: bool) -> Iterator[str]:
    """Yield each script of `sh -c` in a command that gets values: as words or as input."""
    is_given = is_fed or (bool(words) and _program(words[0]) == "xargs")
    for index, word in enumerate(words):
        shell = _program(word)
        if shell not in ALL_SHELLS:
            continue
        has_option, rest = _split_options(shell, words[index + 1 :])
        if not has_option or not rest or not rest[0].literal:
            continue
        if is_given or any(each.has_value for each in rest[1:]):
            yield rest[0].literal


def _program(word: Word) -> str | None:
    return bare_name(word.literal) if word.literal else None


def _find_wrapped_problem(wrapper: str, words: Sequence[Word]) -> str | None:
    """Judge a command that runs another one by that one, if it can be made out."""
    programs = {_program(word) for word in words}
    replaces = any(_REPLACES.match(word.literal or "") for word in words)
    if wrapper == "xargs" and replaces and programs & (ALL_SHELLS | INTERPRETERS):
        return "xargs -I would put what it reads into a program; leave it out and use $1 there"
    _, inner = _unwrapped(wrapper, words) or ({}, ())
    if inner and inner[0].literal is not None:
        return find_problem(inner)
    if any(word.has_value for word in words) or programs & ALL_SHELLS:
        return _UNKNOWN_INNER.format(wrapper)
    return None


def _unwrapped(
    wrapper: str, words: Sequence[Word]
) -> tuple[Mapping[str, str], Sequence[Word]] | None:
    """Return the options of a wrapper and the command it starts; None if they are not known."""
    parsed = STARTERS[wrapper].parse([word.written for word in words[1:]])
    if parsed is None:
        return None
    start = len(words) - len(parsed[1])
    while wrapper == "env" and start < len(words) and _ASSIGNMENT.match(words[start].prefix):
        start += 1
    start += wrapper == "timeout"
    is_known = all(word.literal is not None for word in words[:start])
    return (parsed[0], words[start:]) if is_known else None


def _find_interpreter_problem(program: str, words: Sequence[Word]) -> str | None:
    """Require a program's text, or the file it is in, to be written out before any value."""
    _, rest = _split_options(program, words[1:])
    if not rest or not rest[0].literal or rest[0].literal.startswith("-"):
        return _NESTED.format(program)
    for before, word in pairwise(rest if program in _READ_OPTIONS_LATER else ()):
        is_option = (before.literal or "").startswith("-") and before.literal != "--"
        if word.has_value and (is_option or word.prefix.startswith("-")):
            return _NESTED.format(program)
    return None


def _split_options(program: str, words: Sequence[Word]) -> tuple[bool, Sequence[Word]]:
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


def _find_shell_argument(words: Sequence[Word]) -> str | None:
    """Judge a shell that is an argument (`find -exec sh -c`) like one that is a command.

    An interpreter that is given a value as its program, and a program that asks a shell to run one,
    are judged the same way.
    """
    for index, word in enumerate(words[1:], 1):
        program, rest = _program(word), words[index:]
        if not program or not any(each.has_value for each in rest):
            continue
        if program in INTERPRETERS:
            has_option, after = _split_options(program, rest[1:])
            reads_value = bool(after) and after[0].has_value
            if reads_value and (has_option or program in _READ_OPTIONS_LATER):
                return _find_interpreter_problem(program, rest)
        elif program in ALL_SHELLS:
            return _find_interpreter_problem(program, rest)
        elif program in _ASKING_SHELLS and words[0].literal not in _TEXT_COMMANDS:
            return _NESTED.format(program)
    return None


def _find_embedded_value(program: str, words: Sequence[Word]) -> str | None:
    """Return why a value is in a longer text that is not known to be text for the program."""
    for before, word in pairwise(words):
        option = before.literal or ""
        is_text = option in _TEXT_OPTIONS.get(program, ())
        if program in _TEXT_COMMANDS and not word.prefix.startswith("-"):
            is_text |= not option.startswith("-") or option in _PLAIN_FLAGS
        if word.has_value and not is_text and _STRUCTURE.search(word.written):
            return (
                f"{program} may read the text around a placeholder as a program;"
                " give it the value as a word of its own"
            )
    return None

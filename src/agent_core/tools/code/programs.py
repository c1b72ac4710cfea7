"""What an answer "for the session" covers of a command: these words, unless it is known harmless.

Known harmless is what stands in a table: programs with the options that only read what they are
given, checked option by option. An option that is not in the table, an abbreviation of one, another
environment or a program file that tools can write all mean the same: exactly this command. There is
no list of dangerous programs.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

from agent_core.tools.code.repositories import plain_repository
from agent_core.tools.code.words import NamedPlaces
from agent_core.tools.paths import PathPolicy

_ENVIRONMENT = re.compile(
    r"PATH|HOME|TMPDIR|LANG|LC_[A-Z]+|TZ|TERM|USER|LOGNAME|SHELL|PWD|COLUMNS|LINES|NO_COLOR"
)
"""Variables that no program of the table takes options or programs from."""

_SEVERAL_IN_ONE = frozenset({"busybox", "coreutils", "toybox", "uutils"})
_MAX_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a program that only read.

    Attributes:
        flags: options without a value, and long ones whose value is optional.
        valued: options with a value, in the same word or in the next.
        walks: the flags that make it enter folders.
        always_walks: it enters folders without being asked to.
        counts: `-5` is a count.
    """

    flags: frozenset[str]
    valued: frozenset[str] = frozenset()
    walks: frozenset[str] = frozenset()
    always_walks: bool = False
    counts: bool = False

    @classmethod
    def of(
        cls,
        flags: str,
        valued: str = "",
        *,
        walks: str = "",
        always_walks: bool = False,
        counts: bool = False,
    ) -> Self:
        """From words; `-abc` stands for `-a -b -c`."""
        split = [frozenset(_spelled_out(words)) for words in (flags, valued, walks)]
        return cls(split[0] | split[2], split[1], split[2], always_walks, counts)

    def used(self, argv: Sequence[str]) -> "Used | None":
        """The options and operands of a command; None if one is not in the table."""
        options: list[str] = []
        operands: list[str] = []
        rest = iter(argv)
        for word in rest:
            if word == "--":
                operands.extend(rest)
            elif not word.startswith("-") or word == "-":
                operands.append(word)
            elif self.counts and word[1:].isdecimal():
                continue
            elif (found := self._in_word(word, rest)) is not None:
                options.extend(found)
            else:
                return None
        return Used(frozenset(options), tuple(operands))

    def _in_word(self, word: str, rest: Iterator[str]) -> list[str] | None:
        """The options of one word, which may take the next one as a value."""
        if word.startswith("--"):
            name, has_value, _ = word.partition("=")
            if name in self.flags:
                return [name]
            return [name] if name in self.valued and (has_value or _has_value(rest)) else None
        found: list[str] = []
        for position, letter in enumerate(word[1:], 2):
            name = f"-{letter}"
            if name in self.valued:
                has_value = position <= len(word) - 1 or _has_value(rest)
                return [*found, name] if has_value else None
            if name not in self.flags:
                return None
            found.append(name)
        return found


@dataclass(frozen=True, slots=True)
class Used:
    """The options and operands of one command."""

    options: frozenset[str]
    operands: tuple[str, ...]


def _has_value(rest: Iterator[str]) -> bool:
    """Is the next word a value? One that looks like an option is not taken for one."""
    value = next(rest, "-")
    return not value.startswith("-") or value[1:].isdecimal()


def _spelled_out(words: str) -> Iterator[str]:
    for word in words.split():
        if word.startswith("--"):
            yield word
        else:
            yield from (f"-{letter}" for letter in word[1:])


_LS = Options.of(
    """
    -1AaBbCcdFfGgHhiklmNnopqQrSstUuvXxZ --all --almost-all --author --color --directory
    --full-time --human-readable --inode --numeric-uid-gid --reverse --si --size --zero
    """,
    "-ITw --hide --ignore --sort --time --time-style --width",
    walks="-R --recursive",
)
_CAT = Options.of(
    "-AbEensTtuv --number --number-nonblank --show-all --show-ends --show-tabs --squeeze-blank"
)
_HEAD = Options.of(
    "-qvz --quiet --silent --verbose --zero-terminated", "-cn --bytes --lines", counts=True
)
_WC = Options.of("-cLlmw --bytes --chars --lines --max-line-length --words")
_GREP = Options.of(
    """
    -EFGHILPTUVZabchilnoqsvwxyz --basic-regexp --byte-offset --color --colour --count
    --extended-regexp --files-with-matches --files-without-match --fixed-strings --ignore-case
    --initial-tab --invert-match --line-number --line-regexp --no-filename --no-ignore-case
    --no-messages --null --null-data --only-matching --perl-regexp --quiet --silent --text
    --with-filename --word-regexp
    """,
    """
    -ABCem --after-context --before-context --context --exclude --exclude-dir --include --label
    --max-count --regexp
    """,
    walks="-r --recursive",
    counts=True,
)
_RG = Options.of(
    """
    -.0FHINPSUVabchilnopqsuvwx --block-buffered --byte-offset --case-sensitive --column --count
    --count-matches --crlf --files --files-with-matches --files-without-match --fixed-strings
    --heading --hidden --ignore-case --invert-match --json --line-number --line-regexp
    --multiline --multiline-dotall --no-config --no-filename --no-heading --no-ignore
    --no-ignore-vcs --no-line-number --no-messages --null --null-data --only-matching
    --one-file-system --pcre2 --pretty --quiet --smart-case --stats --text --trim --unrestricted
    --vimgrep --with-filename --word-regexp
    """,
    """
    -ABCMTdegjmrt --after-context --before-context --color --context --encoding --glob --iglob
    --max-columns --max-count --max-depth --max-filesize --regexp --replace --sort --sortr
    --threads --type --type-not
    """,
    always_walks=True,
)
_DIFF_FLAGS = """
    -DRabpsuwz --abbrev --abbrev-commit --cached --check --color --cumulative --dirstat
    --exit-code --find-copies --find-copies-harder --find-renames --full-index
    --function-context --histogram --ignore-all-space --ignore-blank-lines
    --ignore-space-at-eol --ignore-space-change --merge-base --minimal --name-only --name-status
    --no-color --no-color-moved --no-ext-diff --no-patch --no-prefix --no-renames --no-textconv
    --numstat --patch --patch-with-stat --patience --quiet --raw --shortstat --staged --stat
    --summary --text --unified --word-diff
    """
_DIFF_VALUED = "-GSUl --diff-filter --inter-hunk-context"
_LOG_FLAGS = """
    -cgi --all --author-date-order --basic-regexp --branches --cherry --cherry-mark --cherry-pick
    --date-order --decorate --extended-regexp --first-parent --fixed-strings --follow
    --full-history --graph --invert-grep --left-right --merges --no-decorate --no-merges
    --no-notes --oneline --parents --perl-regexp --regexp-ignore-case --relative-date --remotes
    --reverse --root --tags --topo-order --walk-reflogs
    """
_LOG_VALUED = """
    -Ln --after --author --before --committer --date --grep --max-count --since --skip --until
    """
_LOG = Options.of(_DIFF_FLAGS + _LOG_FLAGS, _DIFF_VALUED + _LOG_VALUED, counts=True)

_READERS: Mapping[str, Options] = {
    "cat": _CAT,
    "grep": _GREP,
    "head": _HEAD,
    "ls": _LS,
    "pwd": Options.of("-LP --logical --physical"),
    "rg": _RG,
    "tail": _HEAD,
    "wc": _WC,
}
_GIT: Mapping[str, Options] = {
    "diff": Options.of(_DIFF_FLAGS, _DIFF_VALUED),
    "log": _LOG,
    "show": _LOG,
    "status": Options.of(
        """
        -bsuvz --ahead-behind --branch --ignored --long --no-ahead-behind --no-renames --null
        --porcelain --renames --short --show-stash --untracked-files --verbose
        """
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A command that has been looked up but not run.

    Attributes:
        program: the absolute path of its file, links not followed.
        argv: the words as the model wrote them.
        cwd: the folder it runs in, resolved.
        env: all that it sees of the environment.
        named: the places that its words name.
    """

    program: Path
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    named: NamedPlaces

    @property
    def real_program(self) -> Path:
        """The program's file, links followed."""
        return Path(os.path.realpath(self.program))


def scope_of(command: CommandLine, boundaries: PathPolicy) -> str:
    """What an `allow_for_session` of this command would cover.

    The name it is called by counts as well as its file: one file may be many programs. It is read
    in the question; every word is quoted, so that no two commands read the same.
    """
    shown = shlex.quote(str(command.program))
    if command.real_program != command.program:
        shown += f" ({shlex.quote(str(command.real_program))})"
    where = f" in {shlex.quote(str(command.cwd))}"
    subcommand = _harmless(command, boundaries)
    if subcommand is not None:
        return f"{shown}{subcommand} with options that only read, on paths of the project{where}"
    return f"{shown} as exactly: {shlex.join(command.argv)}{where}"


def _harmless(command: CommandLine, boundaries: PathPolicy) -> str | None:
    """The subcommand of a command known to only read, empty without one; else None."""
    if command.named.reason or not _is_known_program(command, boundaries):
        return None
    if command.program.name == "git":
        return _harmless_git(command, boundaries)
    reader, words = _READERS[command.program.name], command.argv[1:]
    used = reader.used(words)
    if used is None:
        return None
    walks = reader.always_walks or not used.options.isdisjoint(reader.walks)
    return "" if not walks or _all_open(command, boundaries, used.operands) else None


def _harmless_git(command: CommandLine, boundaries: PathPolicy) -> str | None:
    subcommand, *words = command.argv[1:] or [""]
    options = _GIT.get(subcommand)
    if options is None or options.used(words) is None:
        return None
    # Git shows all of its tree, and its settings in a folder that tools write to are not only
    # the user's.
    tree = plain_repository(command.cwd)
    home = Path(os.path.realpath(command.env.get("HOME", os.devnull)))
    is_inside = tree is not None and boundaries.is_below_write_root(tree)
    return f" {subcommand}" if is_inside and not boundaries.is_below_write_root(home) else None


def _is_known_program(command: CommandLine, boundaries: PathPolicy) -> bool:
    """Is it the program that its name says, in an environment that changes nothing about it?"""
    name, real = command.program.name, command.real_program
    if name not in _READERS and name != "git":
        return False
    if real.name != name and real.name not in _SEVERAL_IN_ONE:
        return False
    if any(not _ENVIRONMENT.fullmatch(variable) for variable in command.env):
        return False
    files = (command.program, real)
    return not any(boundaries.is_below_write_root(file) for file in files)


def _all_open(command: CommandLine, boundaries: PathPolicy, operands: Sequence[str]) -> bool:
    """Is there nothing below the operands that is read only after a question?

    A word that is no folder (a pattern to search for) has nothing below it. Folders too large to
    look through are not known to be open.
    """
    folders = {Path(os.path.realpath(command.cwd / word)) for word in operands} or {command.cwd}
    entries = (entry for folder in (*folders, command.cwd) for entry in _below(folder))
    seen = list(islice(entries, _MAX_ENTRIES + 1))
    return len(seen) <= _MAX_ENTRIES and not any(map(boundaries.is_closed, seen))


def _below(folder: Path) -> Iterator[Path]:
    for current, folders, files in os.walk(folder):
        yield from (Path(current, name) for name in (*folders, *files))

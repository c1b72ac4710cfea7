"""What an answer "for the session" covers of a command: these words, unless it is known harmless.

Known harmless is what is in a table: programs with the options that only read what they are
given, checked option by option. An option that is not in the table, an abbreviation of one, another
environment or a program file that tools can write all mean the same: exactly this command. There is
no list of dangerous programs.

Git runs what a repository's own settings name when it only reads: a file monitor, filters,
converters, hooks, a signature checker, and the same in every repository nested in it. Settings come
with a project, so only a repository whose settings are all of a known kind, without hooks and
without others inside, counts as plain. The user's own settings of Git are trusted.
"""

import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from agent_core.opening import read_bytes
from agent_core.process.environment import is_unattended
from agent_core.tools.options import OptionTable
from agent_core.tools.workspace import PathPolicy

_ENVIRONMENT = re.compile(
    r"PATH|HOME|TMPDIR|LANG|LC_[A-Z]+|TZ|TERM|USER|LOGNAME|SHELL|PWD|COLUMNS|LINES|NO_COLOR"
)
"""Variables that no program of the table takes options or programs from."""

_SEVERAL_IN_ONE = frozenset({"busybox", "coreutils", "toybox", "uutils"})
_MAX_ENTRIES = 10_000

_HEAD = OptionTable(
    "-qvz --quiet --silent --verbose --zero-terminated", "-cn --bytes --lines", counts=True
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
_LOG = OptionTable(_DIFF_FLAGS + _LOG_FLAGS, _DIFF_VALUED + _LOG_VALUED, counts=True)

_SUMS = OptionTable("-btz --binary --tag --text --zero")
_READERS: Mapping[str, OptionTable] = {
    "basename": OptionTable("-az --multiple --zero", "-s --suffix"),
    "cat": OptionTable(
        "-AbEensTtuv --number --number-nonblank --show-all --show-ends --show-tabs --squeeze-blank"
    ),
    "cmp": OptionTable(
        "-bls --print-bytes --quiet --silent --verbose", "-in --bytes --ignore-initial"
    ),
    "comm": OptionTable("-123z --check-order --nocheck-order --total --zero-terminated"),
    "cut": OptionTable(
        "-nsz --complement --only-delimited --zero-terminated",
        "-bcdf --bytes --characters --delimiter --fields --output-delimiter",
    ),
    "diff": OptionTable(
        """
        -BENTZabdeinpqstuwy --brief --color --context --expand-tabs --ignore-all-space
        --ignore-blank-lines --ignore-case --ignore-space-change --ignore-trailing-space --minimal
        --new-file --report-identical-files --side-by-side --strip-trailing-cr
        --suppress-common-lines --text --unified
        """,
        "-CFIUWx --exclude --label --show-function-line --width",
        walks="-r --recursive",
    ),
    "dirname": OptionTable("-z --zero"),
    "du": OptionTable(
        """
        -0Sabchklmsx --all --apparent-size --bytes --human-readable --null --si --summarize
        --total
        """,
        "-dt --exclude --max-depth --threshold",
        always_walks=True,
    ),
    "echo": OptionTable("-Een"),
    "false": OptionTable(),
    "file": OptionTable("-bhi --brief --mime --mime-encoding --mime-type --no-dereference"),
    "grep": OptionTable(
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
    ),
    "head": _HEAD,
    "ls": OptionTable(
        """
        -1AaBbCcdFfGgHhiklmNnopqQrSstUuvXxZ --all --almost-all --author --color --directory
        --full-time --human-readable --inode --numeric-uid-gid --reverse --si --size --zero
        """,
        "-ITw --hide --ignore --sort --time --time-style --width",
        walks="-R --recursive",
    ),
    "md5sum": _SUMS,
    "nl": OptionTable("-p --no-renumber", "-bdfhilnsvw --body-numbering --number-format"),
    "printf": OptionTable(),
    "pwd": OptionTable("-LP --logical --physical"),
    "readlink": OptionTable("-efmnz --canonicalize --canonicalize-existing --no-newline --zero"),
    "realpath": OptionTable(
        "-LPemqsz --logical --physical --quiet", "--relative-base --relative-to"
    ),
    "rg": OptionTable(
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
    ),
    "seq": OptionTable("-w --equal-width", "-fs --format --separator"),
    "sha1sum": _SUMS,
    "sha256sum": _SUMS,
    "sha512sum": _SUMS,
    "stat": OptionTable("-Lft --dereference --file-system --terse", "-c --format --printf"),
    "tac": OptionTable("-br --before --regex", "-s --separator"),
    "tail": _HEAD,
    "tr": OptionTable("-Ccdst --complement --delete --squeeze-repeats --truncate-set1"),
    "tree": OptionTable("-ACDFQSadfghinpqrstuvx --dirsfirst --noreport", "-ILP", always_walks=True),
    "true": OptionTable(),
    "uname": OptionTable("-amnoprsv --all --kernel-name --kernel-release --machine"),
    "wc": OptionTable("-cLlmw --bytes --chars --lines --max-line-length --words"),
    "which": OptionTable("-a"),
    "whoami": OptionTable(),
}
_GIT: Mapping[str, OptionTable] = {
    "diff": OptionTable(_DIFF_FLAGS, _DIFF_VALUED),
    "log": _LOG,
    "show": _LOG,
    "status": OptionTable(
        """
        -bsuvz --ahead-behind --branch --ignored --long --no-ahead-behind --no-renames --null
        --porcelain --renames --short --show-stash --untracked-files --verbose
        """
    ),
}


class CommandLine(Struct, frozen=True, kw_only=True):
    """A command that has been looked up but not run.

    Attributes:
        program: the absolute path of its file, links not followed.
        argv: the words as the model wrote them.
        cwd: the folder it runs in, resolved.
        env: all that it sees of the environment.
        reason: why it is asked for whatever was allowed before.
        policy: which places may be read and written.
    """

    program: Path
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    reason: str | None
    policy: PathPolicy


def only_reads(argv: Sequence[str]) -> bool:
    """Whether a program of this name and with these words makes no file."""
    name, words = argv[0].rpartition("/")[2], argv[1:]
    if name == "git":
        options = _GIT.get(words[0]) if words else None
        words = words[1:]
    else:
        options = _READERS.get(name)
    return options is not None and options.parse(words) is not None


def session_scope(command: CommandLine) -> str:
    """What an `allow_for_session` of this command would cover.

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
    return f"{shown} as exactly: {shlex.join(command.argv)}{where}"


def _harmless_subcommand(command: CommandLine) -> str | None:
    """The subcommand of a command that reads what may be read, empty without one; else None."""
    subcommand = None if command.reason else reading_subcommand(command)
    if subcommand != "":
        return subcommand
    reader = _READERS[command.program.name]
    options, operands = reader.parse(command.argv[1:]) or ({}, [])
    walks = reader.always_walks or not reader.walks.isdisjoint(options)
    return "" if not walks or _all_open(command, operands) else None


def reading_subcommand(command: CommandLine) -> str | None:
    """The subcommand of a command that certainly changes nothing, empty without one; else None."""
    policy, name, words = command.policy, command.program.name, command.argv[1:]
    if not _is_known_program(command):
        return None
    if name == "git":
        subcommand, *words = words or [""]
        options = _GIT.get(subcommand)
        if options is None or options.parse(words) is None:
            return None
        # Git shows all of its tree, and its settings in a folder that tools write to are not only
        # the user's.
        tree = _plain_repository(command.cwd)
        home = Path(os.path.realpath(command.env.get("HOME", os.devnull)))
        is_inside = tree is not None and policy.is_below_write_root(tree)
        return f" {subcommand}" if is_inside and not policy.is_below_write_root(home) else None
    return None if _READERS[name].parse(words) is None else ""


def _is_known_program(command: CommandLine) -> bool:
    """Whether it is the program of its name, in an environment that does not change it."""
    name, real = command.program.name, Path(os.path.realpath(command.program))
    if name not in _READERS and name != "git":
        return False
    if real.name != name and real.name not in _SEVERAL_IN_ONE:
        return False
    if not all(
        _ENVIRONMENT.fullmatch(name) or is_unattended(name, value)
        for name, value in command.env.items()
    ):
        return False
    return not any(map(command.policy.is_below_write_root, (command.program, real)))


def _all_open(command: CommandLine, operands: Sequence[str]) -> bool:
    """Whether everything below the operands can be read without a question.

    A word that is no folder (a pattern to search for) has nothing below it. Folders too large to
    look through are not known to be open.
    """
    folders = {Path(os.path.realpath(command.cwd / word)) for word in operands}
    entries = (
        Path(current, name)
        for folder in (*folders, command.cwd)
        for current, names, files in os.walk(folder)
        for name in (*names, *files)
    )
    seen = list(islice(entries, _MAX_ENTRIES + 1))
    return len(seen) <= _MAX_ENTRIES and not any(map(command.policy.is_closed, seen))


_MAX_CONFIG_BYTES = 64_000
_MAX_TREE_ENTRIES = 50_000
_SECTION = re.compile(r'\[(core|user|init|(?:remote|branch) "[^"\\\n]+")\]', re.IGNORECASE)
_KEYS = {
    "core": "bare filemode ignorecase logallrefupdates precomposeunicode repositoryformatversion "
    "symlinks autocrlf eol",
    "user": "name email",
    "init": "defaultbranch",
    "remote": "url fetch pushurl tagopt",
    "branch": "remote merge rebase",
}
_SETTING = re.compile(r"([a-z]+)[ \t]*=[ \t]*([^\\\"\n]*)", re.IGNORECASE)
_OF_A_REPOSITORY = ("HEAD", "objects", "refs")


def _plain_repository(cwd: Path) -> Path | None:
    """The working tree around `cwd` if nothing in its repository can make Git run a program."""
    for folder in (cwd, *cwd.parents):
        if all((folder / name).exists() for name in _OF_A_REPOSITORY):
            return None  # a repository without a working tree
        if os.path.lexists(folder / ".git"):
            is_plain = _is_plain(folder / ".git") and not _has_others_inside(folder)
            return folder if is_plain else None
    return None


def _is_plain(repository: Path) -> bool:
    """Whether it is a whole repository in a folder of its own, with known settings only."""
    try:
        if not stat.S_ISDIR(repository.lstat().st_mode):
            return False
        if not all((repository / name).exists() for name in _OF_A_REPOSITORY):
            return False  # Git would go on looking elsewhere
        if any(os.path.lexists(repository / name) for name in ("commondir", "config.worktree")):
            return False
        hooks = repository / "hooks"
        files = hooks.iterdir() if os.path.lexists(hooks) else ()
        if not all(file.name.endswith(".sample") for file in files):
            return False  # there are hooks beside the samples that Git puts there
        return _has_known_settings(repository / "config")
    except OSError:
        return False


def _has_known_settings(config: Path) -> bool:
    if not stat.S_ISREG(config.lstat().st_mode) or config.stat().st_size > _MAX_CONFIG_BYTES:
        return False
    keys: list[str] = []
    for line in read_bytes(config).decode("utf-8", "replace").split("\n"):
        text = line.strip(" \t\r")
        if not text or text[0] in "#;":
            continue
        if section := _SECTION.fullmatch(text):
            keys = _KEYS[section[1].split()[0].lower()].split()
        elif not (setting := _SETTING.fullmatch(text)) or setting[1].lower() not in keys:
            return False
    return True


def _has_others_inside(folder: Path) -> bool:
    """Whether a repository is below this one, whose settings Git would follow too.

    Folders too large to look through are not known to have none.
    """
    seen = 0
    for current, folders, files in os.walk(folder):
        if Path(current) == folder:
            folders[:] = [name for name in folders if name != ".git"]
        names = [*folders, *files]
        seen += 1 + len(names)
        if ".git" in map(str.casefold, names) or seen > _MAX_TREE_ENTRIES:
            return True
    return False

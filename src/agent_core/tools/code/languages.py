"""Git, find and tar: programs whose words form a language of their own."""

import os
import re
from collections.abc import Mapping, Sequence

from agent_core.tools.code.openings import Opening, has_brackets, values_of
from agent_core.tools.options import OptionTable, spell_out
from agent_core.tools.shells import FIND_ACTIONS, words_of

_DIFF_FLAGS = """
    -DRabpsuwz --abbrev --abbrev-commit --cached --check --color --color-words --cumulative
    --dirstat --exit-code --find-copies --find-copies-harder --find-renames --full-index
    --function-context --histogram --ignore-all-space --ignore-blank-lines
    --ignore-cr-at-eol --ignore-space-at-eol --ignore-space-change --merge-base --minimal
    --name-only --name-status --no-color --no-color-moved --no-ext-diff --no-patch --no-prefix
    --no-renames --no-textconv --numstat --patch --patch-with-stat --patience --quiet --raw
    --shortstat --staged --stat --summary --text --unified --word-diff
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
_GIT: Mapping[str, OptionTable] = {
    "blame": OptionTable("-CMbcefilnpstw --date-order --porcelain --show-email", "-L --since"),
    "describe": OptionTable("--abbrev --all --always --dirty --long --tags", "--exclude --match"),
    "diff": OptionTable(f"{_DIFF_FLAGS} --no-index", f"{_DIFF_VALUED} -O"),
    "grep": OptionTable(
        """
        -EFGIPWacehilnopqvwz --all-match --and --break --cached --color --column --count
        --extended-regexp --files-with-matches --files-without-match --fixed-strings --full-name
        --function-context --heading --ignore-case --invert-match --line-number --name-only
        --no-color --no-index --not --null --only-matching --or --perl-regexp --quiet
        --show-function --text --untracked --word-regexp
        """,
        "-ABCem --after-context --before-context --context --max-count --max-depth",
        counts=True,
    ),
    "log": _LOG,
    "ls-files": OptionTable(
        """
        -cdkmostuvz --cached --deleted --eol --error-unmatch --exclude-standard --full-name
        --ignored --killed --modified --others --stage --unmerged
        """,
        "-x --exclude",
    ),
    "ls-tree": OptionTable("-dlrtz --abbrev --full-name --full-tree --long --name-only"),
    "merge-base": OptionTable("-a --all --fork-point --is-ancestor --octopus"),
    "rev-list": OptionTable(
        "--all --branches --count --left-right --merges --no-merges --reverse --tags",
        "-n --after --before --max-count --since --skip --until",
        counts=True,
    ),
    "rev-parse": OptionTable(
        """
        -q --abbrev-ref --absolute-git-dir --git-common-dir --git-dir --is-bare-repository
        --is-inside-work-tree --quiet --short --show-cdup --show-prefix
        --show-superproject-working-tree --show-toplevel --symbolic-full-name --verify
        """
    ),
    "show": _LOG,
    "status": OptionTable(
        """
        -bsuvz --ahead-behind --branch --ignored --long --no-ahead-behind --no-renames --null
        --porcelain --renames --short --show-stash --untracked-files --verbose
        """
    ),
}
_FORMATS = re.compile(r"--(?:format|pretty)=(?!.*%[-+ ]?(?:G|\())[^\0]*", re.DOTALL)
"""A format that shows no signature, which would run a program that checks it."""

_PATCHES = frozenset(
    spell_out("-LUcpu --check --color-words --patch --patch-with-stat --unified --word-diff")
)
_SUMMARIES = frozenset(
    spell_out(
        "-s --dirstat --name-only --name-status --no-patch --numstat --quiet --raw "
        "--shortstat --stat --summary"
    )
)


def split_git(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the subcommand of git and its words, without global options that change nothing."""
    while words and words[0] in {"--no-pager", "-P"}:
        words = words[1:]
    return (words[0], words[1:]) if words else ("", [])


_MOST_COLONS = 10
_PATHSPEC = re.compile(r"\A:|[*?\[\\]")
"""The signs that make git take an operand for a pattern, or for a path from the top."""

_LEADS_OUT = re.compile(r"\A[/~]|(?:\A|/)\.\.(?:/|\Z)")
"""The signs of a path that may be outside of the repository."""

_COMMIT = re.compile(r"(?:HEAD|@)(?:[~^]\d*)*")
"""A name that certainly means a commit, not a stored file."""


def _behind_colons(word: str) -> list[str]:
    """Return what may be the path of a file in a commit, or in a stage of the index."""
    return [word[at.end() :] for at in re.finditer(":", word)]


def _shows_content(subcommand: str, names: set[str], operands: Sequence[str]) -> bool:
    """Return whether git shows what is in the files that it tracks."""
    match subcommand:
        case "grep":
            return True
        case "diff":
            return not names & _SUMMARIES or bool(names & _PATCHES)
        case "show":  # of a stored file it shows all, whatever the options
            is_summary = names & _SUMMARIES and not names & _PATCHES
            return not is_summary or not all(map(_COMMIT.fullmatch, operands))
        case "log":
            return bool(names & _PATCHES)
        case "status":
            return not names.isdisjoint({"-v", "--verbose"})
        case _:
            return False


def open_git(words: Sequence[str]) -> Opening | None:
    subcommand, words = split_git(words)
    table = _GIT.get(subcommand)
    if table is None:
        return None
    if subcommand in {"log", "show"}:
        words = [word for word in words if not _FORMATS.fullmatch(word)]
    parsed = table.parse_all(words)
    if parsed is None:
        return None
    options, operands = parsed
    names = {name for name, _ in options}
    if subcommand == "grep" and "-e" not in names:
        operands = operands[1:]
    if any(word.count(":") > _MOST_COLONS for word in operands):
        return None
    of_commits = [path for word in operands for path in _behind_colons(word)]
    of_lines = [value.rpartition(":")[2] for value in values_of(options, "-L")]
    found = Opening(
        paths=[*operands, *filter(None, [*of_commits, *of_lines])], places=values_of(options, "-O")
    )
    if not names.isdisjoint({"--no-index", "--untracked"}):
        if any(map(_PATHSPEC.search, operands)):
            return None
        found.depth = "tree"
        found.paths = operands or ["."]
    elif _shows_content(subcommand, names, operands):
        found.tracked = operands
        if subcommand == "diff" and any(map(_LEADS_OUT.search, operands)):
            found.depth = "tree"  # of two paths one of which is outside, it compares all
        is_of_commits = subcommand in {"log", "show", "status"}
        found.shows_history = is_of_commits or not names.isdisjoint({"--cached", "--staged"})
    return found


def open_listed(words: Sequence[str]) -> Opening | None:
    """Return the files whose names `git ls-files` prints, one a line; None if it prints more."""
    subcommand, words = split_git(words)
    parsed = _GIT["ls-files"].parse_all(words) if subcommand == "ls-files" else None
    if parsed is None or any(name not in {"-c", "--cached"} for name, _ in parsed[0]):
        return None
    operands = parsed[1]
    if any(word.startswith(":") for word in operands):
        return None
    is_plain = bool(operands) and not any(map(_PATHSPEC.search, operands))
    return Opening(tracked=operands if is_plain else ["."], gives_names="words")


def paths_from_top(words: Sequence[str]) -> list[str]:
    """Return the words git may read as paths from the top of the working tree: `HEAD:x`, `:/x`."""
    found = list[str]()
    for word in words:
        for piece in _behind_colons(word)[:_MOST_COLONS]:
            path = os.path.normpath(re.sub(r"\A\([^)]*\)", "", piece).lstrip("/"))
            is_relative = piece.startswith(("./", "../")) or path.partition("/")[0] in {".", ".."}
            if not is_relative and not piece.startswith("//"):
                found.append(path)
    return found


_FIND_VALUED = words_of(
    """
    -amin -atime -cmin -context -ctime -fstype -gid -group -ilname -iname -inum -ipath -iregex
    -iwholename -links -lname -maxdepth -mindepth -mmin -mtime -name -path -perm -printf -regex
    -regextype -size -type -uid -used -user -wholename -xtype
    """
)
_FIND_FLAGS = words_of(
    """
    ! ( ) , -a -and -daystart -depth -empty -executable -false -follow -ls -mount -nogroup
    -noleaf -not -nouser -nowarn -o -or -print -print0 -prune -quit -readable -true -warn
    -writable -xdev
    """
)
_FIND_FILES = words_of("-anewer -cnewer -newer -samefile")
_FIND_WRITTEN = words_of("-fls -fprint -fprint0")
_FIND_OPERATORS = words_of("! ( ) , -not -o -or")


def open_find(words: Sequence[str]) -> Opening | None:
    """Read the starting points and the expression of find."""
    found = Opening(depth="tree", names_only=True)
    rest = list(words)
    while rest and rest[0] in {"-H", "-L", "-P"}:
        found.follows |= rest.pop(0) == "-L"
    while rest and not rest[0].startswith("-") and rest[0] not in {"!", "(", ")", ","}:
        found.paths.append(rest.pop(0))
    found.paths = found.paths or ["."]
    found.follows |= "-follow" in rest
    is_plain = _FIND_OPERATORS.isdisjoint(rest)
    names = list[str]()
    finds_no_links = False
    while rest:
        word = rest.pop(0)
        if word in _FIND_FLAGS:
            continue
        if word in FIND_ACTIONS or word == "-delete":
            if word != "-delete" and found.names_only:
                found.names_only = False
                found.gives_names = "exact"
                found.gives_links = not (is_plain and finds_no_links)
                # Only the tests in front of it decide what it opens.
                found.included = names[:1] if is_plain else []
            found.only_reads &= word == "-exec"
            found.starts |= word == "-exec"
            _skip_command(word, rest)
        elif rest and word in _FIND_VALUED:
            value = rest.pop(0)
            finds_no_links |= word == "-type" and "l" not in value
            names += [value] if word in {"-iname", "-name"} and not has_brackets(value) else []
        elif rest and word in _FIND_FILES | _FIND_WRITTEN:
            found.places.append(rest.pop(0))
            found.only_reads &= word in _FIND_FILES
        else:
            return None
    if found.names_only:  # another program may open what it lists
        found.included = names[:1] if is_plain else []
        found.gives_links = not (is_plain and finds_no_links)
    return found


def _skip_command(action: str, rest: list[str]) -> None:
    """Drop the words of the command that `find` runs."""
    if action == "-delete":
        return
    before = ""
    while rest and rest[0] != ";" and not (rest[0] == "+" and before == "{}"):
        before = rest.pop(0)
    rest[:1] = []


_TAR_FLAGS = "-JSZacjkmoprtuvxz --auto-compress --bzip2 --create --extract --get --gzip --list"
_TAR = OptionTable(
    f"{_TAR_FLAGS} --preserve-permissions --same-owner --verbose --xz --zstd -h --dereference",
    "-Cf --directory --exclude --file --strip-components --transform",
)


def open_tar(words: Sequence[str]) -> Opening | None:
    """Read what tar puts into an archive, or the archive that it reads."""
    if words and not words[0].startswith("-"):
        letters = words[0].replace("f", "") + ("f" if "f" in words[0] else "")
        words = [f"-{letters}", *words[1:]]
    parsed = _TAR.parse_all(words)
    if parsed is None:
        return None
    options, operands = parsed
    names = {name for name, _ in options}
    folders = values_of(options, "-C", "--directory")
    found = Opening(
        places=[*values_of(options, "-f", "--file"), *folders],
        follows=not names.isdisjoint({"-h", "--dereference"}),
        only_reads=False,
    )
    if not names.isdisjoint({"-c", "-r", "-u", "--create"}):
        found.depth = "tree"
        found.paths = [
            *operands,
            *(f"{folder}/{word}" for folder in folders for word in operands if word[:1] != "/"),
        ]
    return found

"""The files that programs open: one table for answers, rules, questions and `explain`.

A program is modelled by its options, and by what it does with its operands: the files and folders
that it opens, with or without what is below them, and whether it follows the links that it meets.
Words that it does not open (patterns, scripts, separators, counts) are no paths. An option that is
not in the table, or an abbreviation of one, means that nothing is known. There is no list of
dangerous programs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from agent_core.tools.options import OptionTable, spell_out
from agent_core.tools.shells import FIND_ACTIONS, words_of

Depth = Literal["itself", "folder", "tree"]


class Opening(Struct, kw_only=True):
    """The places that a program opens with its words.

    Attributes:
        paths: words that it opens, as they are given.
        places: words that it opens or writes, without anything below them.
        depth: `itself`: of a folder at most the names in it; `folder`: the files in it, too;
            `tree`: everything below.
        names_only: below a folder it opens folders only, and shows the names in them.
        follows: it follows links that it meets below a folder.
        has_hidden: it opens hidden entries below a folder.
        ignores: it leaves out what ignore files name.
        shown: globs for names that it opens even if they are hidden.
        included: globs that names of files fit; with none all do.
        excluded: globs for names of files that it leaves out.
        excluded_folders: the same for folders.
        tracked: it opens what git tracks below these paths, or all that it tracks if there are
            none; None: nothing.
        only_reads: it makes no file, runs nothing and connects to nothing.
    """

    paths: list[str] = field(default_factory=list[str])
    places: list[str] = field(default_factory=list[str])
    depth: Depth = "itself"
    names_only: bool = False
    follows: bool = False
    has_hidden: bool = True
    ignores: bool = False
    shown: list[str] = field(default_factory=list[str])
    included: list[str] = field(default_factory=list[str])
    excluded: list[str] = field(default_factory=list[str])
    excluded_folders: list[str] = field(default_factory=list[str])
    tracked: list[str] | None = None
    only_reads: bool = True


_Options = list[tuple[str, str]]


class Program:
    """A program whose options are known.

    Args:
        flags: options without a value, with which it only reads.
        valued: options with a value that it does not open.
        counts: `-5` is a count.
        files: options with a value that it reads as a file.
        other: options without a value, with which it does more than read.
        other_valued: the same with a value that it does not open.
        written: options with a value that it writes as a file or a folder.
        lists: options with which it opens what a file names.
        listed: the same with a value: that file.
        depth: how much of a folder it opens.
        walks: flags with which it opens all below.
        follows: flags with which it follows links that it meets.
        names_only: it shows names of what is below a folder.
        texts: how many operands in front are not opened.
        text_options: options that take the place of those operands.
        default: opened if there is no operand, and it walks or always reads a folder.
        is_reader: it only reads with `flags`, `valued` and `files`.
        most: how many operands it reads; it writes what follows.
        adjust: changes what is opened, by options and the operands that are not; returns False if
            it cannot be told.
    """

    def __init__(
        self,
        flags: str = "",
        valued: str = "",
        *,
        counts: bool = False,
        files: str = "",
        other: str = "",
        other_valued: str = "",
        written: str = "",
        lists: str = "",
        listed: str = "",
        depth: Depth = "itself",
        walks: str = "",
        follows: str = "",
        always_follows: bool = False,
        names_only: bool = False,
        texts: int = 0,
        text_options: str = "",
        default: str = "",
        is_reader: bool = True,
        most: int | None = None,
        adjust: Callable[[Opening, _Options, list[str]], bool] | None = None,
    ) -> None:
        self._files = frozenset(spell_out(files))
        self._written = frozenset(spell_out(written))
        self._unclear = frozenset(spell_out(f"{lists} {listed}"))
        self._more = frozenset(spell_out(f"{other} {other_valued} {written}"))
        self._walks = frozenset(spell_out(walks))
        self._follows = frozenset(spell_out(follows))
        self._text_options = frozenset(spell_out(text_options))
        self._options = OptionTable(
            f"{flags} {other} {lists} {walks} {follows}",
            f"{valued} {files} {other_valued} {written} {listed}",
            counts=counts,
        )
        self._depth: Depth = depth
        self._always_follows = always_follows
        self._names_only = names_only
        self._texts = texts
        self._default = default
        self._is_reader = is_reader
        self._most = most
        self._adjust = adjust

    @property
    def opens_nothing(self) -> bool:
        """Return whether none of its operands is opened."""
        return self._texts == _NOTHING_OPENED

    @property
    def may_walk(self) -> bool:
        """Return whether it can open what is below a folder."""
        return self._depth != "itself" or bool(self._walks)

    def open(self, words: Sequence[str]) -> Opening | None:
        """Return what it opens with these words; None if that cannot be told."""
        parsed = self._options.parse_all(words)
        if parsed is None:
            return None
        options, operands = parsed
        names = {name for name, _ in options}
        if names & self._unclear:
            return None
        texts = 0 if names & self._text_options else self._texts
        depth: Depth = "tree" if names & self._walks else self._depth
        opening = Opening(
            paths=[word for word in operands[texts:] if word != "-"],
            places=[value for name, value in options if name in self._files | self._written],
            depth=depth,
            names_only=self._names_only,
            follows=self._always_follows or bool(names & self._follows),
            only_reads=self._is_reader and not names & self._more,
        )
        if self._most is not None and len(operands) > self._most:
            opening.only_reads = False
        if not operands[texts:] and self._default:
            opening.paths = [self._default]
        if self._adjust and not self._adjust(opening, options, operands[:texts]):
            return None
        return opening


def _values(options: _Options, *names: str) -> list[str]:
    return [value for name, value in options if name in names]


def _adjust_grep(opening: Opening, options: _Options, _: list[str]) -> bool:
    """Read which names below a folder grep opens."""
    if opening.depth != "tree":
        if opening.paths == ["."]:
            opening.paths = []  # it reads its standard input
        return True
    included, excluded = _values(options, "--include"), _values(options, "--exclude")
    folders = [name.rstrip("/") for name in _values(options, "--exclude-dir")]
    if not excluded and all(map(_is_for_names, included)):
        opening.included = included
    opening.excluded = [] if included else [*filter(_is_for_names, excluded)]
    opening.excluded_folders = [*filter(_is_for_names, folders)]
    return True


def _is_for_names(glob: str) -> bool:
    """Return whether a glob is certainly compared with single names, and read in one way."""
    return "/" not in glob and not _has_brackets(glob)


def _has_brackets(glob: str) -> bool:
    """Return whether a glob has signs that programs read in different ways."""
    return not {"[", "{", "\\"}.isdisjoint(glob)


_TYPES: Mapping[str, str] = {
    "c": "*.[chH] *.h.in *.cats",
    "cpp": "*.[ChH] *.[ch]pp *.[ch]xx *.[ch]c *.[ch]h *.inl *.[ChH].in *.[ch]pp.in",
    "css": "*.css *.scss",
    "go": "*.go",
    "html": "*.htm *.html *.ejs",
    "java": "*.java *.jsp *.jspx *.properties",
    "js": "*.js *.jsx *.mjs *.cjs *.vue",
    "json": "*.json *.sarif *.lock",
    "md": "*.markdown *.md *.mdown *.mdwn *.mdx *.mkd *.mkdn",
    "py": "*.py *.pyi",
    "rust": "*.rs",
    "toml": "*.toml *.lock",
    "ts": "*.ts *.tsx *.cts *.mts",
    "yaml": "*.yaml *.yml",
}
"""The names that ripgrep opens for a type, even if they are hidden."""


def _adjust_rg(opening: Opening, options: _Options, _: list[str]) -> bool:
    """Read what ripgrep leaves out: hidden entries, and what ignore files name."""
    names = [name for name, _ in options]
    unrestricted = names.count("-u") + names.count("--unrestricted")
    opening.has_hidden = unrestricted > 1 or not {"-.", "--hidden"}.isdisjoint(names)
    opening.ignores = not unrestricted and not any(name.startswith("--no-ignore") for name in names)
    globs = _values(options, "-g", "--glob", "--iglob")
    opening.shown = [glob for glob in globs if not glob.startswith("!")]
    for kind in _values(options, "-t", "--type"):
        if kind not in _TYPES:
            opening.has_hidden = True
        opening.shown += _TYPES.get(kind, "").split()
    return True


_SED_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n\[]|\\.|\[\^?\]?[^\]/\n]*\])*/[IM]?)"
# Seds differ in whether a separator in brackets ends the pattern: there must be none.
_SED_REPLACED = (
    r"(?P<d>[^\w\s\\\[])(?:(?!(?P=d))[^\\\n\[]|\\.|\[\^?\]?(?:(?!(?P=d))[^\]\n])*\])*(?P=d)"
    r"(?:(?!(?P=d))[^\\\n]|\\.)*(?P=d)"
)
_SED_COMMAND = re.compile(
    rf"[\s;{{}}]*(?:{_SED_ADDRESS}(?:,(?:{_SED_ADDRESS}|[+~]\d+))?)?\s*!?\s*"
    rf"(?:[pdDPnNgGhHx=l{{}}]|[qQ]\d*|[sy]{_SED_REPLACED}[gpiIM\d]*|\Z)"
    rf"[ \t]*(?=[;}}\n]|\Z|(?<=\{{))",
    re.DOTALL,
)


def _adjust_sed(_: Opening, options: _Options, texts: list[str]) -> bool:
    """Tell whether a script of sed opens no file and runs nothing."""
    scripts = [*_values(options, "-e", "--expression"), *texts]
    return bool(scripts) and all(map(_is_plain_sed, scripts))


def _is_plain_sed(script: str) -> bool:
    at = 0
    while at < len(script):
        found = _SED_COMMAND.match(script, at)
        if found is None or found.end() == at:
            return not script[at:].strip(" \t\n;}")
        at = found.end()
    return True


_AWK_PATTERN = re.compile(r"((?:^|[~(,&|!{;\n])\s*)/(?:[^/\\\n]|\\.)*/")
_AWK_REACHES = re.compile(r"getline|system|\||@|print[^;}\n]*>|ARGV|PROCINFO")


def _adjust_awk(opening: Opening, _: _Options, texts: list[str]) -> bool:
    """Tell whether a program of awk opens no file and runs nothing."""
    opening.paths = [word for word in opening.paths if not re.match(r"[A-Za-z_]\w*=", word)]
    # A division cannot be taken for the end of a pattern: patterns begin behind these signs only.
    code = [_AWK_PATTERN.sub(r"\1", text).replace("||", " ") for text in texts]
    return bool(code) and not any(map(_AWK_REACHES.search, code))


def _adjust_jq(_: Opening, __: _Options, texts: list[str]) -> bool:
    return bool(texts) and not re.search(r"\b(?:import|include)\b", texts[0])


def _adjust_ag(opening: Opening, options: _Options, _: list[str]) -> bool:
    shown = {"-a", "-t", "-u", "--all-text", "--all-types", "--hidden", "--unrestricted"}
    opening.has_hidden = any(name in shown for name, _ in options)
    opening.ignores = not opening.has_hidden
    return True


def _adjust_diff(opening: Opening, options: _Options, _: list[str]) -> bool:
    """Add what every operand is compared with; it may be a folder, too."""
    values = _values(options, "--from-file", "--to-file")
    opening.paths += [value for value in values if value != "-"]
    return True


def _adjust_ls(opening: Opening, options: _Options, _: list[str]) -> bool:
    shown = {"-A", "-a", "-f", "--all", "--almost-all"}
    opening.has_hidden = any(name in shown for name, _ in options)
    return True


def _adjust_copy(opening: Opening, options: _Options, _: list[str]) -> bool:
    """Take the last operand of a copy for what it writes."""
    targets = _values(options, "-t", "--target-directory")
    if not targets and opening.paths:
        opening.places.append(opening.paths.pop())
    return True


def _adjust_zip(opening: Opening, _: _Options, texts: list[str]) -> bool:
    opening.places += texts
    return True


def _adjust_rsync(opening: Opening, options: _Options, texts: list[str]) -> bool:
    if not {"-a", "-r", "--archive", "--recursive"}.isdisjoint(name for name, _ in options):
        opening.depth = "tree"
    return _adjust_copy(opening, options, texts)


_HEAD = Program(
    "-qvz --quiet --silent --verbose --zero-terminated",
    "-cn --bytes --lines",
    counts=True,
    other="-fF --follow --retry",
    other_valued="-s --pid --sleep-interval",
)
_SUMS = Program("-btz --binary --tag --text --zero", lists="-c --check")
_SED = Program(
    "-Ernsuz --null-data --quiet --regexp-extended --separate --silent --unbuffered",
    "-el --expression --line-length",
    other="-i --in-place",
    texts=1,
    text_options="-e --expression",
    adjust=_adjust_sed,
)
_AWK = Program("", "-Fv --assign --field-separator", texts=1, is_reader=False, adjust=_adjust_awk)
_GREP_FLAGS = """
    -EFGHILPTUVZabchilnoqsvwxyz --basic-regexp --byte-offset --color --colour --count
    --extended-regexp --files-with-matches --files-without-match --fixed-strings --ignore-case
    --initial-tab --invert-match --line-buffered --line-number --line-regexp --no-filename
    --no-ignore-case --no-messages --null --null-data --only-matching --perl-regexp --quiet
    --silent --text --with-filename --word-regexp
    """
_GREP_VALUED = """
    -ABCem --after-context --before-context --context --exclude --exclude-dir --include
    --label --max-count --regexp
    """
_GREP = Program(
    _GREP_FLAGS,
    _GREP_VALUED,
    files="-f --exclude-from --file",
    walks="-Rr --dereference-recursive --recursive",
    follows="-R --dereference-recursive",
    counts=True,
    texts=1,
    text_options="-ef --file --regexp",
    default=".",
    adjust=_adjust_grep,
)
_NOTHING_OPENED = 10_000
"""As many operands as no command has: none of them is opened."""

PROGRAMS: Mapping[str, Program] = {
    "ag": Program(
        """
        -FHLQSatUciloqsuvw --all-text --all-types --column --count --files-with-matches
        --fixed-strings --hidden --ignore-case --literal --nocolor --nofilename --nogroup
        --numbers --smart-case --unrestricted --word-regexp
        """,
        "-ABCGgm --after --before --context --depth --file-search-regex --ignore --max-count",
        depth="tree",
        follows="-f --follow",
        texts=1,
        default=".",
        is_reader=False,
        adjust=_adjust_ag,
    ),
    "awk": _AWK,
    "basename": Program("-az --multiple --zero", "-s --suffix", texts=_NOTHING_OPENED),
    "cat": Program(
        "-AbEensTtuv --number --number-nonblank --show-all --show-ends --show-nonprinting "
        "--show-tabs --squeeze-blank"
    ),
    "cksum": _SUMS,
    "cmp": Program("-bls --print-bytes --quiet --silent --verbose", "-in --bytes --ignore-initial"),
    "comm": Program("-123z --check-order --nocheck-order --total --zero-terminated"),
    "cp": Program(
        "-HPTdfilnpsuvx --force --interactive --link --no-clobber --no-dereference "
        "--no-target-directory --one-file-system --parents --preserve --update --verbose",
        "-S --suffix",
        written="-t --target-directory",
        walks="-Rar --archive --recursive",
        follows="-L --dereference",
        is_reader=False,
        adjust=_adjust_copy,
    ),
    "cut": Program(
        "-nsz --complement --only-delimited --zero-terminated",
        "-bcdf --bytes --characters --delimiter --fields --output-delimiter",
    ),
    "diff": Program(
        """
        -BENTZabdeinpqstuwy --brief --color --context --expand-tabs --ignore-all-space
        --ignore-blank-lines --ignore-case --ignore-file-name-case --ignore-space-change
        --ignore-trailing-space --minimal --new-file --no-dereference --report-identical-files
        --side-by-side --strip-trailing-cr --suppress-common-lines --text
        --unidirectional-new-file --unified
        """,
        """
        -CFIUWx --exclude --from-file --label --ignore-matching-lines --show-function-line
        --to-file --width
        """,
        files="-X --exclude-from",
        other="-l --paginate",
        depth="folder",
        walks="-r --recursive",
        always_follows=True,
        adjust=_adjust_diff,
    ),
    "dirname": Program("-z --zero", texts=_NOTHING_OPENED),
    "du": Program(
        """
        -0DHPSabchklmsx --all --apparent-size --bytes --human-readable --no-dereference --null
        --si --summarize --total
        """,
        "-Bdt --block-size --exclude --max-depth --threshold",
        files="-X --exclude-from",
        listed="--files0-from",
        depth="tree",
        names_only=True,
        follows="-L --dereference",
        default=".",
    ),
    "echo": Program("-Een", texts=_NOTHING_OPENED),
    "egrep": _GREP,
    "false": Program(texts=_NOTHING_OPENED),
    "fgrep": _GREP,
    "file": Program(
        "-Lbhi --brief --dereference --mime --mime-encoding --mime-type --no-dereference",
        listed="-f --files-from",
    ),
    "fold": Program("-bs --bytes --spaces", "-w --width", counts=True),
    "gawk": _AWK,
    "grep": _GREP,
    "head": _HEAD,
    "id": Program("-GZgnruz --group --groups --name --real --user", texts=_NOTHING_OPENED),
    "jq": Program(
        "-CMRSacejnrs --ascii-output --color-output --compact-output --exit-status --join-output "
        "--monochrome-output --null-input --raw-input --raw-output --slurp --sort-keys --tab",
        "--indent",
        texts=1,
        is_reader=False,
        adjust=_adjust_jq,
    ),
    "less": Program(
        "-EFGIMNRSXaefginqrsw --chop-long-lines --ignore-case --no-init --quit-if-one-screen "
        "--raw-control-chars",
        "-p --pattern",
        written="-Oo --log-file",
        is_reader=False,
    ),
    "ls": Program(
        """
        -1AaBbCcdFfGgHhiklmNnopqQrSstUuvXxZ --all --almost-all --author --classify --color
        --directory --file-type --full-time --group-directories-first --human-readable --inode
        --no-group --numeric-uid-gid --quote-name --reverse --si --size --zero
        """,
        "-ITw --format --hide --ignore --indicator-style --sort --time --time-style --width",
        names_only=True,
        walks="-R --recursive",
        follows="-L --dereference",
        default=".",
        adjust=_adjust_ls,
    ),
    "mawk": _AWK,
    "md5sum": _SUMS,
    "more": Program(is_reader=False),
    "nawk": _AWK,
    "nl": Program("-p --no-renumber", "-bdfhilnsvw --body-numbering --number-format"),
    "od": Program("-bcdfiloSsvx", "-AjNtw", is_reader=False),
    "paste": Program("-sz --serial --zero-terminated", "-d --delimiters"),
    "printf": Program(texts=_NOTHING_OPENED),
    "pwd": Program("-LP --logical --physical", texts=_NOTHING_OPENED),
    "readlink": Program(
        "-efmnz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --zero"
    ),
    "realpath": Program(
        "-LPemqsz --canonicalize-existing --canonicalize-missing --logical --no-symlinks "
        "--physical --quiet --zero",
        "--relative-base --relative-to",
    ),
    "rev": Program(),
    "rg": Program(
        """
        -.0FHINPSUVabchilnopqsuvwx --block-buffered --byte-offset --case-sensitive --column --count
        --count-matches --crlf --files --files-with-matches --files-without-match --fixed-strings
        --heading --hidden --ignore-case --include-zero --invert-match --json --line-number
        --line-regexp --max-columns-preview --multiline --multiline-dotall --no-config
        --no-filename --no-heading --no-ignore --no-ignore-dot --no-ignore-parent --no-ignore-vcs
        --no-line-number --no-messages --no-follow --null --null-data --one-file-system
        --only-matching --passthru --pcre2 --pretty --quiet --smart-case --stats --text --trim
        --unrestricted --vimgrep --with-filename --word-regexp
        """,
        """
        -ABCMTdegjmrt --after-context --before-context --color --colors --context --encoding --glob
        --iglob --max-columns --max-count --max-depth --max-filesize --regexp --replace --sort
        --sortr --threads --type --type-not
        """,
        files="-f --file",
        depth="tree",
        follows="-L --follow",
        texts=1,
        text_options="-ef --file --files --regexp",
        default=".",
        adjust=_adjust_rg,
    ),
    "rsync": Program(
        "-HPRacghlnoprtuvxz --archive --checksum --compress --delete --dry-run --human-readable "
        "--links --partial --perms --progress --recursive --relative --stats --times --verbose",
        "--exclude --include",
        files="--exclude-from --include-from",
        follows="-L --copy-links",
        is_reader=False,
        adjust=_adjust_rsync,
    ),
    "sed": _SED,
    "gsed": _SED,
    "seq": Program("-w --equal-width", "-fs --format --separator", texts=_NOTHING_OPENED),
    "sha1sum": _SUMS,
    "sha256sum": _SUMS,
    "sha512sum": _SUMS,
    "sleep": Program(texts=_NOTHING_OPENED, is_reader=False),
    "sort": Program(
        "-CMRVbcdfghimnrsuz --check --debug --dictionary-order --general-numeric-sort "
        "--human-numeric-sort --ignore-case --ignore-leading-blanks --ignore-nonprinting --merge "
        "--month-sort --numeric-sort --random-sort --reverse --stable --unique --version-sort "
        "--zero-terminated",
        "-Skt --batch-size --buffer-size --field-separator --key --parallel --sort",
        files="--random-source",
        written="-To --output --temporary-directory",
        listed="--files0-from",
        is_reader=False,
    ),
    "stat": Program("-Lft --dereference --file-system --terse", "-c --format --printf"),
    "strings": Program("-af --all --print-file-name", "-eno --bytes --encoding", is_reader=False),
    "tac": Program("-br --before --regex", "-s --separator"),
    "tail": _HEAD,
    "tee": Program("-ai --append --ignore-interrupts", is_reader=False),
    "tr": Program(
        "-Ccdst --complement --delete --squeeze-repeats --truncate-set1", texts=_NOTHING_OPENED
    ),
    "tree": Program(
        "-ACDFQSadfghinpqrstuvx --dirsfirst --du --gitignore --noreport",
        "-ILP --filelimit",
        written="-o",
        lists="--fromfile",
        depth="tree",
        names_only=True,
        follows="-l",
        default=".",
        adjust=_adjust_ls,
    ),
    "true": Program(texts=_NOTHING_OPENED),
    "uname": Program(
        "-amnoprsv --all --kernel-name --kernel-release --machine", texts=_NOTHING_OPENED
    ),
    "uniq": Program(
        "-Dcdiuz --count --ignore-case --repeated --unique --zero-terminated",
        "-fsw --check-chars --skip-chars --skip-fields",
        most=1,
    ),
    "wc": Program(
        "-cLlmw --bytes --chars --lines --max-line-length --words", listed="--files0-from"
    ),
    "which": Program("-a", texts=_NOTHING_OPENED),
    "whoami": Program(),
    "zip": Program(
        "-0123456789FXdefjlmoqruvy",
        "-nx",
        walks="-r",
        always_follows=True,
        texts=1,
        is_reader=False,
        adjust=_adjust_zip,
    ),
}
"""The programs that are known; `git`, `find` and `tar` have a language of their own, see below."""

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
    """Return the subcommand of git and the words behind it, without what changes nothing."""
    while words and words[0] in {"--no-pager", "-P"}:
        words = words[1:]
    return (words[0], words[1:]) if words else ("", [])


_MOST_COLONS = 10
_PATHSPEC = re.compile(r"\A:|[*?\[\\]")
"""The signs that make git take an operand for a pattern, or for a path from the top."""

_COMMIT = re.compile(r"(?:HEAD|@)(?:[~^]\d*)*")
"""A name that is certainly that of a commit, not of a file that is stored."""


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


def _open_git(words: Sequence[str]) -> Opening | None:
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
    of_lines = [value.rpartition(":")[2] for value in _values(options, "-L")]
    found = Opening(
        paths=[*operands, *filter(None, [*of_commits, *of_lines])], places=_values(options, "-O")
    )
    if not names.isdisjoint({"--no-index", "--untracked"}):
        if any(map(_PATHSPEC.search, operands)):
            return None
        found.depth = "tree"
        found.paths = operands or ["."]
    elif _shows_content(subcommand, names, operands):
        found.tracked = operands
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


def _open_find(words: Sequence[str]) -> Opening | None:
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
    while rest:
        word = rest.pop(0)
        if word in _FIND_FLAGS:
            continue
        if word in FIND_ACTIONS or word == "-delete":
            if word != "-delete" and found.names_only:
                found.names_only = False
                # Only the tests in front of it decide what it opens.
                found.included = names[:1] if is_plain else []
            found.only_reads = False
            _skip_command(word, rest)
        elif rest and word in _FIND_VALUED:
            value = rest.pop(0)
            names += [value] if word in {"-iname", "-name"} and not _has_brackets(value) else []
        elif rest and word in _FIND_FILES | _FIND_WRITTEN:
            found.places.append(rest.pop(0))
            found.only_reads &= word in _FIND_FILES
        else:
            return None
    if found.names_only:  # another program may open what it lists
        found.included = names[:1] if is_plain else []
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


def _open_tar(words: Sequence[str]) -> Opening | None:
    """Read what tar puts into an archive, or the archive that it reads."""
    if words and not words[0].startswith("-"):
        letters = words[0].replace("f", "") + ("f" if "f" in words[0] else "")
        words = [f"-{letters}", *words[1:]]
    parsed = _TAR.parse_all(words)
    if parsed is None:
        return None
    options, operands = parsed
    names = {name for name, _ in options}
    folders = _values(options, "-C", "--directory")
    found = Opening(
        places=[*_values(options, "-f", "--file"), *folders],
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


_UNTOLD = words_of("7z 7za ack bsdtar cpio pax scp ugrep")
"""Programs that open what is below folders, with options that are in no table."""


def opened_by(name: str, words: Sequence[str]) -> Opening | None:
    """Return what a program of this name opens with these words; None if that cannot be told."""
    match name:
        case "git":
            return _open_git(words)
        case "find":
            return _open_find(words)
        case "tar":
            return _open_tar(words)
        case _:
            program = PROGRAMS.get(name)
            return program.open(words) if program else None


def is_known(name: str) -> bool:
    """Return whether the table says what a program of this name opens."""
    return name in PROGRAMS or name in {"find", "git", "tar"} or name in _UNTOLD


def may_walk(name: str) -> bool:
    """Return whether a program of this name can show what is below a folder."""
    program = PROGRAMS.get(name)
    return program.may_walk if program else name != "git"


def opens_nothing(name: str) -> bool:
    """Return whether a program of this name opens none of its operands."""
    return name in PROGRAMS and PROGRAMS[name].opens_nothing


_GIT_CHANGES = words_of(
    """
    add am apply bisect branch checkout cherry-pick clean clone commit config fetch gc init lfs
    maintenance merge mv prune pull push rebase remote reset restore revert rm sparse-checkout
    submodule switch tag worktree
    """
)
"""Subcommands that show no files."""


def is_reader(name: str, words: Sequence[str]) -> bool:
    """Return whether a program of the table may show what is in files, with whatever options."""
    return name != "git" or split_git(words)[0] not in _GIT_CHANGES


_WRITES_ITS_WORDS = words_of(
    "awk basename cut dirname echo gawk gsed jq mawk nawk paste printf sed seq tr"
)
_ONLY_MATCHING = re.compile(r"-[A-Za-z]*o[A-Za-z]*|--only-matching")
_REPLACING = re.compile(r"-[A-Za-z]*r.*|--replace(?:=.*)?", re.DOTALL)


def writes_its_words(name: str, words: Sequence[str]) -> bool:
    """Return whether the output of a program may have a word of its own in it."""
    if name in {"ag", "egrep", "fgrep", "grep", "rg"}:
        replaces = name == "rg" and any(map(_REPLACING.fullmatch, words))
        return replaces or any(map(_ONLY_MATCHING.fullmatch, words))
    is_format = name in {"find", "git"} and any(
        "printf" in word or "format" in word for word in words
    )
    return is_format or name in _WRITES_ITS_WORDS

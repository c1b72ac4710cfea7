"""The files that programs open: one table for answers, rules, questions and `explain`.

A program is modelled by its options, and by what it does with its operands: the files and folders
that it opens, with or without what is below them, and whether it follows the links that it meets.
Words that it does not open (patterns, scripts, separators, counts) are no paths. An option that is
not in the table, or an abbreviation of one, means that nothing is known. There is no list of
dangerous programs.
"""

import re
from collections.abc import Mapping, Sequence

from agent_core.tools.code.languages import (
    open_find,
    open_git,
    open_listed,
    open_tar,
    split_git,
)
from agent_core.tools.code.openings import (
    DOES_MORE,
    NOTHING_OPENED,
    Effects,
    FileOptions,
    Folders,
    Opening,
    Operands,
    Options,
    Program,
    has_brackets,
    values_of,
)
from agent_core.tools.options import spell_out
from agent_core.tools.shells import words_of


def _adjust_grep(opening: Opening, options: Options, _: list[str]) -> bool:
    """Read which names below a folder grep opens."""
    if opening.depth != "tree":
        if opening.paths == ["."]:
            opening.paths = []  # it reads its standard input
        return True
    included, excluded = values_of(options, "--include"), values_of(options, "--exclude")
    folders = [name.rstrip("/") for name in values_of(options, "--exclude-dir")]
    if not excluded and all(map(_is_for_names, included)):
        opening.included = included
    opening.excluded = [] if included else [*filter(_is_for_names, excluded)]
    opening.excluded_folders = [*filter(_is_for_names, folders)]
    return True


def _is_for_names(glob: str) -> bool:
    """Return whether a glob is certainly compared with single names, and read in one way."""
    return "/" not in glob and not has_brackets(glob)


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


def _adjust_rg(opening: Opening, options: Options, _: list[str]) -> bool:
    """Read what ripgrep leaves out: hidden entries, and what ignore files name."""
    names = [name for name, _ in options]
    unrestricted = names.count("-u") + names.count("--unrestricted")
    opening.has_hidden = unrestricted > 1 or not {"-.", "--hidden"}.isdisjoint(names)
    opening.ignores = not unrestricted and not any(name.startswith("--no-ignore") for name in names)
    globs = values_of(options, "-g", "--glob", "--iglob")
    opening.shown = [glob for glob in globs if not glob.startswith("!")]
    for kind in values_of(options, "-t", "--type"):
        if kind not in _TYPES:
            opening.has_hidden = True
        opening.shown += _TYPES.get(kind, "").split()
    return True


_SED_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n\[]|\\.|\[\^?\]?[^\]/\n]*\])*/[IM]?)"
# Versions of sed differ in whether a separator in brackets ends the pattern, so none may be there.
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


def _adjust_sed(_: Opening, options: Options, texts: list[str]) -> bool:
    """Tell whether a script of sed opens no file and runs nothing."""
    scripts = [*values_of(options, "-e", "--expression"), *texts]
    return bool(scripts) and all(map(is_plain_sed, scripts))


def is_plain_sed(script: str) -> bool:
    at = 0
    while at < len(script):
        found = _SED_COMMAND.match(script, at)
        if found is None or found.end() == at:
            return not script[at:].strip(" \t\n;}")
        at = found.end()
    return True


_AWK_PATTERN = re.compile(r"((?:^|[~(,&|!{;\n])\s*)/(?:[^/\\\n]|\\.)*/")
_AWK_REACHES = re.compile(r"getline|system|\||@|print[^;}\n]*>|ARGV|PROCINFO")


def _adjust_awk(opening: Opening, _: Options, texts: list[str]) -> bool:
    """Tell whether a program of awk opens no file and runs nothing."""
    opening.paths = [word for word in opening.paths if not re.match(r"[A-Za-z_]\w*=", word)]
    # A division cannot be taken for the end of a pattern: patterns begin behind these signs only.
    code = [_AWK_PATTERN.sub(r"\1", text).replace("||", " ") for text in texts]
    return bool(code) and not any(map(_AWK_REACHES.search, code))


def _adjust_jq(_: Opening, __: Options, texts: list[str]) -> bool:
    return bool(texts) and not re.search(r"\b(?:import|include)\b", texts[0])


def _adjust_ag(opening: Opening, options: Options, _: list[str]) -> bool:
    shown = {"-a", "-t", "-u", "--all-text", "--all-types", "--hidden", "--unrestricted"}
    opening.has_hidden = any(name in shown for name, _ in options)
    opening.ignores = not opening.has_hidden
    return True


def _adjust_diff(opening: Opening, options: Options, _: list[str]) -> bool:
    """Add the files that every operand is compared with; one may be a folder, too."""
    values = values_of(options, "--from-file", "--to-file")
    opening.paths += [value for value in values if value != "-"]
    return True


def _adjust_ls(opening: Opening, options: Options, _: list[str]) -> bool:
    shown = {"-A", "-a", "-f", "--all", "--almost-all"}
    opening.has_hidden = any(name in shown for name, _ in options)
    return True


def _adjust_copy(opening: Opening, options: Options, _: list[str]) -> bool:
    """Treat the last operand of a copy as its target."""
    targets = values_of(options, "-t", "--target-directory")
    if not targets and opening.paths:
        opening.places.append(opening.paths.pop())
    return True


def _adjust_zip(opening: Opening, _: Options, texts: list[str]) -> bool:
    opening.places += texts
    return True


def _adjust_rsync(opening: Opening, options: Options, texts: list[str]) -> bool:
    if not {"-a", "-r", "--archive", "--recursive"}.isdisjoint(name for name, _ in options):
        opening.depth = "tree"
    return _adjust_copy(opening, options, texts)


_HEAD = Program(
    "-qvz --quiet --silent --verbose --zero-terminated",
    "-cn --bytes --lines",
    counts=True,
    effects=Effects(flags="-fF --follow --retry", valued="-s --pid --sleep-interval"),
)
_SUMS = Program("-btz --binary --tag --text --zero", files=FileOptions(lists="-c --check"))
_SED = Program(
    "-Ernsuz --null-data --quiet --regexp-extended --separate --silent --unbuffered",
    "-el --expression --line-length",
    effects=Effects(flags="-i --in-place"),
    operands=Operands(texts=1, text_options="-e --expression"),
    adjust=_adjust_sed,
)
_AWK = Program(
    "",
    "-Fv --assign --field-separator",
    effects=DOES_MORE,
    operands=Operands(texts=1),
    adjust=_adjust_awk,
)
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
    counts=True,
    files=FileOptions(read="-f --exclude-from --file"),
    folders=Folders(
        walks="-Rr --dereference-recursive --recursive", follows="-R --dereference-recursive"
    ),
    operands=Operands(texts=1, text_options="-ef --file --regexp", default="."),
    adjust=_adjust_grep,
)
PROGRAMS: Mapping[str, Program] = {
    "ag": Program(
        """
        -FHLQSatUciloqsuvw --all-text --all-types --column --count --files-with-matches
        --fixed-strings --hidden --ignore-case --literal --nocolor --nofilename --nogroup
        --numbers --smart-case --unrestricted --word-regexp --after --before --context
        """,
        "-ABCGgm --depth --file-search-regex --ignore --max-count",
        effects=DOES_MORE,
        folders=Folders(depth="tree", follows="-f --follow"),
        operands=Operands(texts=1, default="."),
        adjust=_adjust_ag,
    ),
    "awk": _AWK,
    "basename": Program("-az --multiple --zero", "-s --suffix", operands=NOTHING_OPENED),
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
        effects=Effects(written="-t --target-directory", always=True),
        folders=Folders(walks="-Rar --archive --recursive", follows="-L --dereference"),
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
        effects=Effects(flags="-l --paginate"),
        files=FileOptions(read="-X --exclude-from"),
        folders=Folders(depth="folder", walks="-r --recursive", always_follows=True),
        adjust=_adjust_diff,
    ),
    "dirname": Program("-z --zero", operands=NOTHING_OPENED),
    "du": Program(
        """
        -0DHPSabchklmsx --all --apparent-size --bytes --human-readable --no-dereference --null
        --si --summarize --total
        """,
        "-Bdt --block-size --exclude --max-depth --threshold",
        files=FileOptions(read="-X --exclude-from", listed="--files0-from"),
        folders=Folders(depth="tree", names_only=True, follows="-L --dereference"),
        operands=Operands(default="."),
    ),
    "echo": Program("-Een", operands=NOTHING_OPENED),
    "egrep": _GREP,
    "false": Program(operands=NOTHING_OPENED),
    "fgrep": _GREP,
    "file": Program(
        "-Lbhi --brief --dereference --mime --mime-encoding --mime-type --no-dereference",
        files=FileOptions(listed="-f --files-from"),
    ),
    "fold": Program("-bs --bytes --spaces", "-w --width", counts=True),
    "gawk": _AWK,
    "grep": _GREP,
    "head": _HEAD,
    "id": Program("-GZgnruz --group --groups --name --real --user", operands=NOTHING_OPENED),
    "jq": Program(
        "-CMRSacejnrs --ascii-output --color-output --compact-output --exit-status --join-output "
        "--monochrome-output --null-input --raw-input --raw-output --slurp --sort-keys --tab",
        "--indent",
        effects=DOES_MORE,
        operands=Operands(texts=1),
        adjust=_adjust_jq,
    ),
    "less": Program(
        "-EFGIMNRSXaefginqrsw --chop-long-lines --ignore-case --no-init --quit-if-one-screen "
        "--raw-control-chars",
        "-p --pattern",
        effects=Effects(written="-Oo --log-file", always=True),
    ),
    "ls": Program(
        """
        -1AaBbCcdFfGgHhiklmNnopqQrSstUuvXxZ --all --almost-all --author --classify --color
        --directory --file-type --full-time --group-directories-first --human-readable --inode
        --no-group --numeric-uid-gid --quote-name --reverse --si --size --zero
        """,
        "-ITw --format --hide --ignore --indicator-style --sort --time --time-style --width",
        folders=Folders(names_only=True, walks="-R --recursive", follows="-L --dereference"),
        operands=Operands(default="."),
        adjust=_adjust_ls,
    ),
    "mawk": _AWK,
    "md5sum": _SUMS,
    "more": Program(effects=DOES_MORE),
    "nawk": _AWK,
    "nl": Program("-p --no-renumber", "-bdfhilnsvw --body-numbering --number-format"),
    "od": Program("-bcdfilosvwx", "-AjNSt", effects=DOES_MORE),
    "paste": Program("-sz --serial --zero-terminated", "-d --delimiters"),
    "printf": Program(operands=NOTHING_OPENED),
    "pwd": Program("-LP --logical --physical", operands=NOTHING_OPENED),
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
        files=FileOptions(read="-f --file"),
        folders=Folders(depth="tree", follows="-L --follow"),
        operands=Operands(texts=1, text_options="-ef --file --files --regexp", default="."),
        adjust=_adjust_rg,
    ),
    "rsync": Program(
        "-HPRacghlnoprtuvxz --archive --checksum --compress --delete --dry-run --human-readable "
        "--links --partial --perms --progress --recursive --relative --stats --times --verbose",
        "--exclude --include",
        effects=DOES_MORE,
        files=FileOptions(read="--exclude-from --include-from"),
        folders=Folders(follows="-L --copy-links"),
        adjust=_adjust_rsync,
    ),
    "sed": _SED,
    "gsed": _SED,
    "seq": Program("-w --equal-width", "-fs --format --separator", operands=NOTHING_OPENED),
    "sha1sum": _SUMS,
    "sha256sum": _SUMS,
    "sha512sum": _SUMS,
    "sleep": Program(effects=DOES_MORE, operands=NOTHING_OPENED),
    "sort": Program(
        "-CMRVbcdfghimnrsuz --check --debug --dictionary-order --general-numeric-sort "
        "--human-numeric-sort --ignore-case --ignore-leading-blanks --ignore-nonprinting --merge "
        "--month-sort --numeric-sort --random-sort --reverse --stable --unique --version-sort "
        "--zero-terminated",
        "-Skt --batch-size --buffer-size --field-separator --key --parallel --sort",
        effects=Effects(written="-To --output --temporary-directory"),
        files=FileOptions(read="--random-source", listed="--files0-from"),
    ),
    "stat": Program("-Lft --dereference --file-system --terse", "-c --format --printf"),
    "strings": Program(
        "-afo --all --print-file-name", "-ent --bytes --encoding", effects=DOES_MORE
    ),
    "tac": Program("-br --before --regex", "-s --separator"),
    "tail": _HEAD,
    "tee": Program("-ai --append --ignore-interrupts", effects=DOES_MORE),
    "tr": Program(
        "-Ccdst --complement --delete --squeeze-repeats --truncate-set1", operands=NOTHING_OPENED
    ),
    "tree": Program(
        "-ACDFQSadfghinpqrstuvx --dirsfirst --du --gitignore --noreport",
        "-ILP --filelimit",
        effects=Effects(written="-o"),
        files=FileOptions(lists="--fromfile"),
        folders=Folders(depth="tree", names_only=True, follows="-l"),
        operands=Operands(default="."),
        adjust=_adjust_ls,
    ),
    "true": Program(operands=NOTHING_OPENED),
    "uname": Program(
        "-amnoprsv --all --kernel-name --kernel-release --machine", operands=NOTHING_OPENED
    ),
    "uniq": Program(
        "-Dcdiuz --count --ignore-case --repeated --unique --zero-terminated",
        "-fsw --check-chars --skip-chars --skip-fields",
        operands=Operands(most=1),
    ),
    "wc": Program(
        "-cLlmw --bytes --chars --lines --max-line-length --words",
        files=FileOptions(listed="--files0-from"),
    ),
    "which": Program("-a", operands=NOTHING_OPENED),
    "whoami": Program(),
    "zip": Program(
        "-0123456789FXdefjlmoqruvy",
        "-nx",
        effects=DOES_MORE,
        folders=Folders(walks="-r", always_follows=True),
        operands=Operands(texts=1),
        adjust=_adjust_zip,
    ),
}
"""The programs that are known; `git`, `find` and `tar` are in `languages`."""

_UNTOLD = words_of("7z 7za ack bsdtar cpio pax scp ugrep")
"""Programs that open what is below folders, with options that are in no table."""


def opened_by(name: str, words: Sequence[str]) -> Opening | None:
    """Return what a program of this name opens with these words; None if that is not known."""
    match name:
        case "git":
            return open_git(words)
        case "find":
            return open_find(words)
        case "tar":
            return open_tar(words)
        case _:
            program = PROGRAMS.get(name)
            return program.open(words) if program else None


def is_known(name: str) -> bool:
    """Return whether the table describes a program of this name."""
    return name in PROGRAMS or name in {"find", "git", "tar"} or name in _UNTOLD


def may_walk(name: str) -> bool:
    """Return whether a program of this name can show what is below a folder."""
    program = PROGRAMS.get(name)
    return program.may_walk if program else name != "git"


def opens_nothing(name: str) -> bool:
    """Return whether a program of this name opens no operand."""
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
    """Return whether a program of the table may show the content of files, with any options."""
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


_PRINTS_ONLY_NAMES = frozenset(
    spell_out(
        "-EFGIRSTegilnrstuw. --exclude --exclude-dir --extended-regexp --files "
        "--files-with-matches --fixed-strings --glob --hidden --iglob --ignore-case --include "
        "--no-ignore --no-messages --recursive --regexp --smart-case --type --type-not "
        "--unrestricted --word-regexp"
    )
)
_LISTS = frozenset(spell_out("-l --files --files-with-matches"))
_FIND_PRINTS_MORE = words_of("-follow -ls -printf")
_FILTERS = {
    "cat": re.compile(r""),
    "grep": re.compile(r"(?:-[EFivwx]+ )*(?:-e )?[^-\s]\S*"),
    "head": re.compile(r"(?:-\d+|-n ?\d+)?"),
    "sort": re.compile(r"(?:-[Vfnru]+ ?)*"),
    "tac": re.compile(r""),
    "tail": re.compile(r"(?:-\d+|-n ?\+?\d+)?"),
    "uniq": re.compile(r""),
}


def passes_lines(name: str, words: Sequence[str]) -> bool:
    """Return whether a program prints lines that it reads, whole and unchanged, and no others."""
    return name in _FILTERS and _FILTERS[name].fullmatch(" ".join(words)) is not None


def printed_by(name: str, words: Sequence[str], *, is_exact: bool) -> Opening | None:
    """Return the places whose names a program prints; None if it may print anything else.

    Args:
        name: of the program.
        words: that it is given.
        is_exact: a NUL is expected behind each name; else the end of a line.
    """
    if name == "git":
        return None if is_exact else open_listed(words)
    opening = opened_by(name, words)
    if opening is None or not opening.only_reads or opening.starts or opening.follows:
        return None
    if name == "find":
        others = {"-print"} if is_exact else {"-print0"}
        is_plain = (_FIND_PRINTS_MORE | others).isdisjoint(words)
        is_plain &= not is_exact or "-print0" in words
    else:
        names = PROGRAMS[name].names_of(words) if name in {"egrep", "fgrep", "grep", "rg"} else None
        is_plain = names is not None and names <= _PRINTS_ONLY_NAMES and not is_exact
        is_plain = is_plain and not _LISTS.isdisjoint(names or ())
        # Of their standard input they print a name that is none; rg reads it if it has no path.
        is_plain &= bool(opening.paths) and "-" not in words
        is_plain &= name != "rg" or opening.paths[0] in words
    if not is_plain:
        return None
    opening.names_only = False
    opening.gives_names = "exact" if is_exact else "words"
    return opening

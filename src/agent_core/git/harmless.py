"""The settings of Git that execute nothing, even if an attacker has written them.

The rule admits what is known. A setting that is not in the table, and a value that Git could take
for a program, may execute something.
"""

import posixpath
import re
from collections.abc import Mapping
from urllib.parse import unquote

from agent_core.git.settings import parse_settings, read_text

_KNOWN: Mapping[str, frozenset[str]] = {
    section: frozenset(keys.split())
    for section, keys in {
        "advice": "*",
        "am": "keepcr threeway",
        "apply": "ignorewhitespace whitespace",
        "blame": "blankboundary coloring date ignorerevsfile showemail showroot",
        "branch": "autosetupmerge autosetuprebase description gh-merge-base"
        " github-pr-owner-number merge pushremote rebase remote sort vscode-merge-base",
        "checkout": "defaultremote guess thresholdforparallelism workers",
        "clone": "defaultremotename rejectshallow",
        "color": "*",
        "column": "*",
        "commit": "cleanup gpgsign status template verbose",
        "core": "abbrev attributesfile autocrlf bare bigfilethreshold checkroundtripencoding"
        " checkstat commentchar commitgraph compression deltabasecachelimit eol excludesfile"
        " filemode fscache hidedotfiles ignorecase logallrefupdates longpaths multipackindex"
        " precomposeunicode preloadindex quotepath repositoryformatversion"
        " safecrlf sharedrepository sparsecheckout sparsecheckoutcone splitindex symlinks"
        " trustctime untrackedcache warnambiguousrefs whitespace worktree",
        "diff": "algorithm autorefreshindex colormoved colormovedws context dirstat"
        " ignoresubmodules indentheuristic interhunkcontext mnemonicprefix noprefix relative"
        " renamelimit renames statgraphwidth submodule suppressblankempty wserrorhighlight",
        "extensions": "compatobjectformat noop objectformat preciousobjects refstorage"
        " relativeworktrees worktreeconfig",
        "feature": "*",
        "fetch": "fsckobjects output parallel prune prunetags recursesubmodules showforcedupdates"
        " writecommitgraph",
        "gc": "aggressivedepth aggressivewindow auto autodetach autopacklimit pruneexpire"
        " reflogexpire reflogexpireunreachable worktreepruneexpire writecommitgraph",
        "grep": "column extendedregexp fallbacktonoindex fullname linenumber patterntype threads",
        "index": "*",
        "init": "defaultbranch",
        "lfs": "access locksverify repositoryformatversion",
        "log": "abbrevcommit date decorate diffmerges follow graphcolors mailmap showroot",
        "maintenance": "auto strategy",
        "merge": "autostash conflictstyle directoryrenames ff log renamelimit renames renormalize"
        " stat verbosity",
        "pack": "depth threads window windowmemory",
        "pull": "ff rebase",
        "push": "autosetupremote default followtags gpgsign recursesubmodules useforceifincludes",
        "rebase": "abbreviatecommands autosquash autostash forkpoint missingcommitscheck stat"
        " updaterefs",
        "remote": "fetch gh-resolved mirror prune prunetags push"
        " pushdefault pushurl skipdefaultupdate skipfetchall tagopt url",
        "rerere": "autoupdate enabled",
        "stash": "showincludeuntracked showpatch showstat",
        "status": "*",
        "submodule": "active branch fetchjobs fetchrecursesubmodules ignore propagatebranches"
        " recurse shallow url",
        "tag": "forcesignannotated gpgsign sort",
        "transfer": "fsckobjects hiderefs unpacklimit",
        "user": "email name signingkey useconfigonly",
        "worktree": "guessremote userelativepaths",
    }.items()
}
"""The settings by section; `*` is all of a section. What is between both parts may be anything."""

_LFS = {
    "filter.lfs.clean": r"git-lfs clean -- %f",
    "filter.lfs.smudge": r"git-lfs smudge (?:--skip )?-- %f",
    "filter.lfs.process": r"git-lfs filter-process(?: --skip)?",
    "filter.lfs.required": r"true|false",
}
"""The settings that `git lfs install --local` writes."""

_UPDATES = frozenset(("checkout", "merge", "none", "rebase"))
"""The ways to update a submodule that run no command."""

_PAGERS = re.compile(r"core\.pager|pager\..*", re.DOTALL)
_PAGER = re.compile(r"true|false|cat|more|less(?: -[FRSXKMi]+)*")
"""Known pagers, with options that neither run nor write anything."""

_NAMES = {
    "remote": re.compile(
        r"(?![-/])(?!.*(?:\.\.|@\{|//|/\.|\.lock(?:/|\Z)))(?!\.)"
        r"[^\0-\x20~^:?*\[\\\x7f-\x9f\ud800-\udfff]*[^\0-\x20~^:?*\[\\\x7f-\x9f\ud800-\udfff/.]"
    ),
    "submodule": re.compile(r"(?![-/])(?!(?:.*/)?\.\.(?:/|\Z))[^\0-\x1f\x7f-\x9f]+"),
}
"""Names that Git would take: of a remote, as a part of references; of a submodule, as a path."""

_ADDRESSES = re.compile(
    r"(?:remote|submodule)\..*\.(?:push)?url|branch\..*\.(?:push)?remote|remote\.pushdefault",
    re.DOTALL,
)
_ADDRESS = re.compile(
    r"(?!-)(?:(?:https?|ftps?|ssh|git|git\+ssh|ssh\+git|file)://(?!-)|(?![\w.+-]*:(?:://|:|//)))"
    r"[^\0\r\n]*",
    re.ASCII | re.IGNORECASE,
)
"""A path, a host or a web address; any other text before colons is the name of a program."""


def is_harmless(name: str, value: str) -> bool:
    """Return whether Git executes nothing because of a setting, apart from its own programs.

    Where files are read from and written to is not judged: see `core.worktree`.
    """
    if name in _LFS:
        return re.fullmatch(_LFS[name], value) is not None
    section, _, rest = name.partition(".")
    below, has_below, key = rest.rpartition(".")
    if has_below and section in _NAMES and not _NAMES[section].fullmatch(below):
        return False
    if (section, key) == ("submodule", "update"):
        return value in _UPDATES
    if _PAGERS.fullmatch(name):
        return _PAGER.fullmatch(value) is not None
    if _ADDRESSES.fullmatch(name):
        return _ADDRESS.fullmatch(value) is not None and not _is_inside_git(value)
    keys = _KNOWN.get(section, frozenset())
    return key in keys or "*" in keys


def _is_inside_git(address: str) -> bool:
    """Return whether an address leads below a folder `.git`, where repositories are not searched.

    Git runs the hooks of a repository on this machine that it fetches from or pushes to.
    """
    path = address.partition("://")[2] if "://" in address else address
    parts = posixpath.normpath(unquote(path)).casefold().split("/")
    return ".git" in parts[:-1]


def find_executing(content: bytes) -> set[tuple[str, str]]:
    """Return the settings of a file that may execute something, with their values.

    Raises:
        ValueError: it is unclear how Git reads it.
    """
    settings = parse_settings(read_text(content))
    return {(name, value) for name, value in settings if not is_harmless(name, value)}

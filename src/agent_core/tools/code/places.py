"""The places that the words of a command name, before it runs.

A word is resolved whole, and in the pieces that options, scripts and addresses are made of. This
is what a person has to see. It is no boundary: a script can build a path in other ways.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from agent_core.errors import ToolError
from agent_core.tools.paths import PathPolicy, ResolvedPath

MAX_WORDS = 5_000

_BETWEEN = re.compile(r"[\s'\"=;|&<>()`,:{}]+")
_ADDRESS = re.compile(r"\b(?!file:)[a-z][a-z0-9+.-]{0,31}://[^\s'\"`;|&<>()]*", re.IGNORECASE)
_HOME_VARIABLE = re.compile(r"\$(?:HOME\b|\{HOME\})")
_STREAMS = frozenset(
    Path("/dev", name) for name in ("null", "zero", "stdin", "stdout", "stderr", "tty")
)
_OF_ANOTHER_PROCESS = (Path("/proc"), Path("/dev"))  # what these lead to depends on who looks
_LONGEST_BUNDLE = 32


@dataclass(frozen=True, slots=True)
class NamedPlaces:
    """What the words of a command name, resolved.

    Attributes:
        protected: the first word that names the program's own files; None if none does.
        sensitive: places that are likely to hold secrets.
        outside: places outside the project and the allowed roots.
        is_complete: every word was looked at.
    """

    protected: str | None = None
    sensitive: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def reason(self) -> str | None:
        """Why the command needs a question whatever was allowed before."""
        if self.sensitive:
            return "sensitive"
        return None if self.is_complete and not self.outside else "outside_roots"

    @property
    def shown(self) -> tuple[str, ...]:
        """The places that are the reason."""
        rest = () if self.is_complete else (f"more than {MAX_WORDS} words",)
        return (*dict.fromkeys((*self.sensitive, *self.outside)), *rest)


def find_named_places(
    policy: PathPolicy, argv: Sequence[str], *, program: Path, cwd: Path
) -> NamedPlaces:
    """Resolve every word of a command; the program and the folder must not be protected ones."""
    for place in (program, cwd):
        if policy.is_protected(Path(os.path.realpath(place))):
            return NamedPlaces(protected=str(place))
    roots = (rf"(?i:{re.escape(str(root))})(?![\w.-])" for root in policy.protected)
    names_own = re.compile("|".join(("SOONG_AGENT_HOME", *roots)))  # anywhere in a word
    for word in argv[1:]:
        if names_own.search(word):
            return NamedPlaces(protected=word)
    words = list(islice(dict.fromkeys(_words(argv[1:])), MAX_WORDS + 1))
    places = [
        place
        for word in (str(cwd), *words[:MAX_WORDS])
        if Path(os.path.normpath(cwd / word)) not in _STREAMS
        for place in _resolve(policy, word, cwd)
    ]
    for place in places:
        if policy.is_protected(place.path):
            return NamedPlaces(protected=str(place.path))
    if policy.is_linked_from_protected(place.path for place in places):
        return NamedPlaces(protected="a hard link")
    return NamedPlaces(
        sensitive=tuple(dict.fromkeys(str(each.path) for each in places if each.sensitive)),
        outside=tuple(dict.fromkeys(str(each.path) for each in places if not each.writable)),
        is_complete=len(words) <= MAX_WORDS,
    )


def _words(argv: Sequence[str]) -> Iterator[str]:
    """The words, and the pieces of those that are options or scripts; addresses are no paths.

    Each is given unchanged, without the `@` of a file with arguments, and as the value behind a
    short option.
    """
    for argument in argv:
        pieces = _BETWEEN.split(_ADDRESS.sub(" ", argument))
        for word in (argument, *(piece for piece in pieces if piece != argument)):
            if word:
                yield word
            if word.startswith("@"):
                yield word.lstrip("@")
            if word.startswith("-") and not word.startswith("--"):
                # The value may begin behind any letter of a bundle: `-xflink` is `-x -f link`.
                yield from (word[start:] for start in range(2, min(len(word), _LONGEST_BUNDLE)))


def _resolve(policy: PathPolicy, word: str, cwd: Path) -> Iterator[ResolvedPath]:
    """Where a word leads, read as a program does and as a shell does."""
    expanded = _HOME_VARIABLE.sub("~", word, count=1)
    for form in dict.fromkeys((word, expanded, f"./{word}" if word.startswith("~") else word)):
        try:
            place = policy.resolve(form, base=cwd)
        except ToolError:  # no path at all
            continue
        named = Path(os.path.normpath(cwd / form))
        if any(named.is_relative_to(folder) for folder in _OF_ANOTHER_PROCESS):
            place = replace(place, path=named, writable=False)
        yield place

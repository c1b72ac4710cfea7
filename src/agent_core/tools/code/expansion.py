"""Words of a script that stand for others: patterns, variables of loops, what programs print."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from glob import has_magic, iglob
from itertools import islice, product
from pathlib import Path

from msgspec import Struct, field

from agent_core.tools.code.opened import is_one_word
from agent_core.tools.code.openings import Opening
from agent_core.tools.code.readers import opens_nothing, passes_lines, printed_by
from agent_core.tools.shell_reader import SimpleCommand, Word

FOUND_BY_FIND = -1
GIVEN = ("\0given", "\0more")
"""Words in place of names that another program gives: more than one, so that each is an operand."""

_MAX_MATCHES = 6_000
_MAX_PATTERNS = 40
_MAX_STARS = 3
_MOST_TOGETHER = 64
_BRACKETS = re.compile(r"\[[!^]?\]?[^\]]*\]")
_ESCAPED = re.compile(r"\[([*?\[])\]")
_PLAIN_BRACKETS = re.compile(r"\[[!^]?[\w-]+\]")


class Expansion(Struct):
    """The words that a program gets.

    Attributes:
        texts: the words themselves; what other programs print is two words.
        matched: the words that a pattern matches now.
        values: the words that are values of a loop's variable.
        printed: the places whose names are printed.
        is_given: what another program finds or prints is among them.
        is_whole: these are all.
        is_sure: they are, whatever happens to the files meanwhile that does not concern them.
    """

    texts: list[str] = field(default_factory=list[str])
    matched: list[str] = field(default_factory=list[str])
    values: list[str] = field(default_factory=list[str])
    printed: list[Opening] = field(default_factory=list[Opening])
    is_given: bool = False
    is_whole: bool = True
    is_sure: bool = True


class Expander:
    """Finds what the words of one command stand for.

    Args:
        cwd: the folder that it runs in.
        folders: other folders that its relative paths start from; they may become more.
        report: notes why something is not known.
        is_of_table: tells whether a word is a program of the table of readers.

    Attributes:
        feeds: commands whose output becomes words, as the script at hand numbers them.
        expanded: the names of files that words were found to stand for.
    """

    def __init__(
        self,
        cwd: Path,
        folders: Sequence[Path],
        *,
        report: Callable[[str], None],
        is_of_table: Callable[[Word], bool],
    ) -> None:
        self._cwd = cwd
        self._folders = folders
        self._report = report
        self._is_of_table = is_of_table
        self._matches: dict[tuple[str, Path], list[str]] = {}
        self.feeds: list[list[SimpleCommand]] = []
        self.expanded: dict[str, None] = {}

    def take_turns(self, words: Sequence[Word], *, takes_names: bool = True) -> Iterator[Expansion]:
        """Yield the words as a program gets them, each time that a loop starts it.

        Args:
            words: as they are written.
            takes_names: words that other programs print or find are known.
        """
        choices = [word.alternatives or (word,) for word in words]
        if math.prod(map(len, choices)) > _MOST_TOGETHER:
            choices = [(word,) for word in words]
        for chosen in product(*choices):
            yield self.expand(chosen, words, takes_names=takes_names)

    def expand(
        self, chosen: Sequence[Word], words: Sequence[Word], *, takes_names: bool = True
    ) -> Expansion:
        """Return the words as a program gets them, with the names that patterns match now."""
        found = Expansion()
        for word, written in zip(chosen, words, strict=True):
            texts = [word.text]
            if word.is_glob:
                texts = self._matches_of(word.text)
                found.is_sure &= _is_tame(word.text) and len(texts) < _MAX_MATCHES
                found.matched += texts
            elif word.printed and takes_names:
                texts = [*GIVEN]
                found.is_given = True
                self._add_printed(word, found)
            elif not word.is_known:
                found.is_whole = False
            if word is not written and not written.is_one and not word.printed:
                found.is_whole &= all(map(is_one_word, texts))  # what it is split into is unknown
            found.values += texts if word is not written and not word.printed else []
            found.texts += texts
        return found

    def _add_printed(self, word: Word, found: Expansion) -> None:
        """Add the places whose names become words of a program."""
        if word.printed != FOUND_BY_FIND:
            printed = self._find_printed(word)
            found.is_whole &= printed is not None
            found.printed += [printed] if printed else []

    def _find_printed(self, word: Word) -> Opening | None:
        """Return the places whose names a feed consists of; None if it may be anything else."""
        if not 0 < word.printed <= len(self.feeds):
            return None
        first, *filters = self.feeds[word.printed - 1]
        commands = [(each.words[0], each.words[1:]) for each in (first, *filters) if each.words]
        if len(commands) <= len(filters):
            return None
        is_exact = word.is_exact
        if not all(self._is_of_table(name) for name, _ in commands):
            return None
        for (name, words), each in zip(commands[1:], filters, strict=True):
            is_plain = all(part.is_known for part in words) and each.feed and not each.shares
            texts = [part.text for part in words]
            if is_exact or not is_plain or not passes_lines(Path(name.text).name, texts):
                return None
        name, words = commands[0]
        expanded = self.expand(words, words, takes_names=False)
        if not expanded.is_whole or not expanded.is_sure:
            return None
        printed = printed_by(Path(name.text).name, expanded.texts, is_exact=is_exact)
        if printed is None or not all(map(is_one_word, printed.paths)):
            return None
        if set(expanded.matched) - {*printed.paths}:
            return None
        self.expanded |= dict.fromkeys(expanded.matched)
        return printed

    def _matches_of(self, pattern: str) -> list[str]:
        """Return the names that a pattern matches now: itself, if there are none."""
        names = list(self.match(pattern))
        for base in self._folders:
            names += self.match(pattern, base)
        names = names or [_ESCAPED.sub(r"\1", pattern)]
        return [name if name[:1] != "-" else f"-\0{name}" for name in names]

    def match(self, pattern: str, base: Path | None = None) -> list[str]:
        """Return the names that a shell pattern matches now, and some more."""
        key = (pattern, base or self._cwd)
        if key in self._matches:
            return self._matches[key]
        is_wide = sum(map(has_magic, pattern.split("/"))) > _MAX_STARS
        if is_wide or len(self._matches) > _MAX_PATTERNS or "[:" in pattern:
            self._report(f"what the pattern {pattern} stands for is not known")
            return []
        # Shells differ in how they read brackets, so a bracket matches any one character.
        glob = _BRACKETS.sub("?", pattern)
        names = list(islice(iglob(glob, root_dir=key[1]), _MAX_MATCHES))  # noqa: PTH207 - as shells do
        self._matches[key] = names
        return names


def takes_given(name: str, opening: Opening | None, turn: Expansion) -> bool:
    """Return whether a program opens what another one gives it, and nothing below that."""
    if not turn.is_given:
        return True
    if opening is None or name == "git" or not turn.is_whole:
        return False
    is_operand = opening.depth == "itself" and {*GIVEN}.issubset(opening.paths)
    return is_operand or opens_nothing(name)


def _is_tame(pattern: str) -> bool:
    """Return whether all shells read a pattern alike, and it reaches no hidden names."""
    plain = _PLAIN_BRACKETS.sub("?", _ESCAPED.sub("", pattern))
    parts = plain.split("/")
    is_hidden = any(part.startswith(".") and has_magic(part) for part in parts)
    return not is_hidden and ".." not in parts and "[" not in plain and "]" not in plain

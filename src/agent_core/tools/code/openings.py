"""The places that a program opens, derived from its options and its operands."""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct, field

from agent_core.tools.options import OptionTable, spell_out

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
        shows_history: it shows what was in files that are tracked no more.
        only_reads: it makes no file, runs nothing and connects to nothing.
        starts: it only starts other programs, for the files that it finds; they are views.
        gives_names: it gives the names of what it finds to another program, which opens them:
            `words` where that program splits them at blanks, `exact` where not.
        gives_links: the names of links are among them.
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
    shows_history: bool = False
    only_reads: bool = True
    starts: bool = False
    gives_names: Literal["", "words", "exact"] = ""
    gives_links: bool = True


Options = list[tuple[str, str]]

NOTHING_OPENED = 10_000
"""More operands than any command has: with this value none of them is opened."""


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
            it is not known.
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
        adjust: Callable[[Opening, Options, list[str]], bool] | None = None,
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
        return self._texts == NOTHING_OPENED

    @property
    def may_walk(self) -> bool:
        """Return whether it can open what is below a folder."""
        return self._depth != "itself" or bool(self._walks)

    def names_of(self, words: Sequence[str]) -> set[str] | None:
        """Return the names of the options among some words; None if one is not known."""
        parsed = self._options.parse_all(words)
        return None if parsed is None else {name for name, _ in parsed[0]}

    def open(self, words: Sequence[str]) -> Opening | None:
        """Return what it opens with these words; None if that is not known."""
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


def values_of(options: Options, *names: str) -> list[str]:
    """Return the values of some options, in the order they are given."""
    return [value for name, value in options if name in names]


def has_brackets(glob: str) -> bool:
    """Return whether a glob has signs that programs read in different ways."""
    return not {"[", "{", "\\"}.isdisjoint(glob)

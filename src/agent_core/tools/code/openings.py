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


class Effects(Struct, frozen=True, kw_only=True):
    """The options with which a program does more than read.

    Attributes:
        flags: options without a value.
        valued: options with a value that it does not open.
        written: options with a value that it writes as a file or a folder.
        always: it does more than read without any of them.
    """

    flags: str = ""
    valued: str = ""
    written: str = ""
    always: bool = False


class FileOptions(Struct, frozen=True, kw_only=True):
    """The options that name files to read.

    Attributes:
        read: options with a value that it reads as a file.
        lists: options without a value, with which it opens what a file names.
        listed: options with a value, the file that names what it opens.
    """

    read: str = ""
    lists: str = ""
    listed: str = ""


class Folders(Struct, frozen=True, kw_only=True):
    """The part of a folder that a program opens.

    Attributes:
        depth: how much of it.
        walks: flags with which it opens all below.
        follows: flags with which it follows links below it.
        always_follows: it follows them without a flag.
        names_only: it only shows names of what is below.
    """

    depth: Depth = "itself"
    walks: str = ""
    follows: str = ""
    always_follows: bool = False
    names_only: bool = False


class Operands(Struct, frozen=True, kw_only=True):
    """The operands that a program opens.

    Attributes:
        texts: the number of operands in front that are not opened.
        text_options: options that replace those operands.
        default: opened if there is no operand.
        most: the number of operands that it reads, if it writes those after them.
    """

    texts: int = 0
    text_options: str = ""
    default: str = ""
    most: int | None = None


DOES_MORE = Effects(always=True)
"""Effects of a program that does more than read, whatever its options."""

NOTHING_OPENED = Operands(texts=10_000)
"""Operands of a program that opens none: no command has as many."""


class Program:
    """A program whose options are known.

    Args:
        flags: options without a value, with which it only reads.
        valued: options with a value that it does not open.
        counts: `-5` is a count.
        effects: the options with which it does more.
        files: the options that name files to read.
        folders: what it opens of a folder.
        operands: the operands that it opens.
        adjust: changes what is opened, by options and the operands that are not; returns False if
            it is not known.
    """

    def __init__(
        self,
        flags: str = "",
        valued: str = "",
        *,
        counts: bool = False,
        effects: Effects = Effects(),  # noqa: B008 - frozen
        files: FileOptions = FileOptions(),  # noqa: B008
        folders: Folders = Folders(),  # noqa: B008
        operands: Operands = Operands(),  # noqa: B008
        adjust: Callable[[Opening, Options, list[str]], bool] | None = None,
    ) -> None:
        self._files = frozenset(spell_out(f"{files.read} {effects.written}"))
        self._unclear = frozenset(spell_out(f"{files.lists} {files.listed}"))
        self._more = frozenset(spell_out(f"{effects.flags} {effects.valued} {effects.written}"))
        self._walks = frozenset(spell_out(folders.walks))
        self._follows = frozenset(spell_out(folders.follows))
        self._text_options = frozenset(spell_out(operands.text_options))
        self._options = OptionTable(
            f"{flags} {effects.flags} {files.lists} {folders.walks} {folders.follows}",
            f"{valued} {files.read} {effects.valued} {effects.written} {files.listed}",
            counts=counts,
        )
        self._effects = effects
        self._folders = folders
        self._operands = operands
        self._adjust = adjust

    @property
    def opens_nothing(self) -> bool:
        """Return whether none of its operands is opened."""
        return self._operands == NOTHING_OPENED

    @property
    def may_walk(self) -> bool:
        """Return whether it can open what is below a folder."""
        return self._folders.depth != "itself" or bool(self._walks)

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
        folders, default, most = self._folders, self._operands.default, self._operands.most
        texts = 0 if names & self._text_options else self._operands.texts
        depth: Depth = "tree" if names & self._walks else folders.depth
        opening = Opening(
            paths=[word for word in operands[texts:] if word != "-"],
            places=[value for name, value in options if name in self._files],
            depth=depth,
            names_only=folders.names_only,
            follows=folders.always_follows or bool(names & self._follows),
            only_reads=not (self._effects.always or names & self._more),
        )
        if most is not None and len(operands) > most:
            opening.only_reads = False
        if not operands[texts:] and default:
            opening.paths = [default]
        if self._adjust and not self._adjust(opening, options, operands[:texts]):
            return None
        return opening


def values_of(options: Options, *names: str) -> list[str]:
    """Return the values of some options, in the order they are given."""
    return [value for name, value in options if name in names]


def has_brackets(glob: str) -> bool:
    """Return whether a glob has signs that programs read in different ways."""
    return not {"[", "{", "\\"}.isdisjoint(glob)

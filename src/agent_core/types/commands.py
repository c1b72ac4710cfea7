"""The programs that a command runs, for matching with rules about commands."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandView:
    """One program that a command runs, with its words.

    Attributes:
        argv: the words, quotes removed; empty for a redirection without a command.
        program: the absolute path of its file, links followed; the bare name of a command that
            only the shell has (`cd`); None where there is no such program.
        reads: resolved paths that its standard input or another descriptor is read from.
        writes: resolved paths that a redirection writes. `/dev/null` and the like are no paths.
        unknown_from: the index of the first word that is known only when it runs (`$x`, `*.py`,
            what `xargs` adds). It and all after it may be any words, or none, so that only a
            final `*` of a rule covers them, and a rule that denies or asks may mean them.
        only_reads: a program of this name makes no file with these words.
        file: where the program is found, links not followed; None as above.
    """

    argv: tuple[str, ...]
    program: str | None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    unknown_from: int | None = None
    only_reads: bool = False
    file: str | None = None


@dataclass(frozen=True, slots=True)
class CommandViews:
    """All programs that a command runs, including those inside wrappers and shells.

    Attributes:
        views: what rules are matched with. With a problem they may be too many or too few.
        problem: why no rule may allow the command; None if the views are all there is to it.
        unseen: why it is not known which files it reads; None if that is known, as far as
            programs are in the table of readers. No rule may allow it then, if another one denies
            paths or asks for them.
        asks_anyway: the problem is not one of reading the command: no rule for commands allows it.
    """

    views: tuple[CommandView, ...]
    problem: str | None = None
    unseen: str | None = None
    asks_anyway: bool = False

"""Options of programs, read exactly: with an option that is not in the table nothing is known."""

from collections.abc import Iterator, Mapping, Sequence


class OptionTable:
    """The known options of a program, as words; `-abc` means `-a -b -c`.

    Args:
        flags: options without a value, and long ones whose value is optional.
        valued: options with a value, in the same word or in the next.
        counts: `-5` is a count.
        leading: the first operand ends the options.
    """

    def __init__(
        self, flags: str = "", valued: str = "", *, counts: bool = False, leading: bool = False
    ) -> None:
        self._flags = frozenset(spell_out(flags))
        self._valued = frozenset(spell_out(valued))
        self._counts = counts
        self._leading = leading

    def parse(self, argv: Sequence[str]) -> tuple[Mapping[str, str], list[str]] | None:
        """Return the options with their values, and the operands; None if one is unknown."""
        found = self.parse_all(argv)
        return found and (dict(found[0]), found[1])

    def parse_all(self, argv: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]] | None:
        """Return the same with every option as often as it is given."""
        options: list[tuple[str, str]] = []
        operands: list[str] = []
        rest = iter(argv)
        for word in rest:
            if word == "--":
                operands.extend(rest)
            elif not word.startswith("-") or word == "-":
                operands.append(word)
                operands.extend(rest if self._leading else ())
            elif self._counts and word[1:].isdecimal():
                continue
            elif (found := self._in_word(word, rest)) is not None:
                options.extend(found)
            else:
                return None
        return options, operands

    def _in_word(self, word: str, rest: Iterator[str]) -> list[tuple[str, str]] | None:
        """Return the options of one word, which may take the next one as a value."""
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            if name in self._flags:
                return [(name, value)]
            given = value if has_value else _value(rest)
            return [(name, given)] if name in self._valued and given is not None else None
        found: list[tuple[str, str]] = []
        for position, letter in enumerate(word[1:], 2):
            name = f"-{letter}"
            if name in self._valued:
                given = word[position:] or _value(rest)
                return None if given is None else [*found, (name, given)]
            if name not in self._flags:
                return None
            found.append((name, ""))
        return found


def _value(rest: Iterator[str]) -> str | None:
    """Return the next word as a value, unless it looks like an option."""
    value = next(rest, "-")
    return value if not value.startswith("-") or value[1:].isdecimal() else None


def spell_out(words: str) -> Iterator[str]:
    """Yield the options of a table one by one: `-ab --all` is `-a`, `-b` and `--all`."""
    for word in words.split():
        yield from [word] if word.startswith("--") else (f"-{letter}" for letter in word[1:])

"""The base of the dataclasses that programs are given."""

from dataclasses import fields
from reprlib import recursive_repr
from typing import Any, cast


class Value:
    """Compares, hashes and shows a dataclass as `dataclass` would, by its fields.

    Its subclasses are made with `eq=False, repr=False`: methods that are compiled for each of them
    take a third of what it costs to make one, and a start makes all of them.
    """

    __slots__ = ()

    def _compared(self) -> tuple[object, ...]:
        known = fields(cast("Any", self))
        return tuple([getattr(self, each.name) for each in known if each.compare])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Value) and other.__class__ is self.__class__:
            return self._compared() == other._compared()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared())

    @recursive_repr()
    def __repr__(self) -> str:
        known = fields(cast("Any", self))
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in known if each.repr]
        return f"{self.__class__.__qualname__}({', '.join(shown)})"

"""What was serialised once is kept, so that a turn costs what is new in it.

Messages and tool definitions are the same frozen objects from turn to turn. Keeping their bytes
makes the same history the same bytes every time, which is what caches on the server go by.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar
from weakref import KeyedRef

from agent_core.providers import jsontext

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """A cache by identity. It holds no object alive, and forgets what dies."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[KeyedRef[int, K], V]] = {}

    def get(self, obj: K, make: Callable[[K], V]) -> V:
        """What `make(obj)` gave the first time."""
        key = id(obj)
        found = self._made.get(key)
        if found is not None and found[0]() is obj:
            return found[1]
        value = make(obj)
        self._made[key] = (KeyedRef(obj, self._forget, key), value)
        return value

    def get_all(self, objs: Iterable[K], make: Callable[[K], V]) -> list[V]:
        """`get` for each, in a loop of its own: histories are long, and nearly all is known."""
        made = self._made
        values: list[V] = []
        for obj in objs:
            found = made.get(id(obj))
            if found is not None and found[0]() is obj:
                values.append(found[1])
            else:
                values.append(self.get(obj, make))
        return values

    def __len__(self) -> int:
        return len(self._made)

    def _forget(self, dead: KeyedRef[int, K]) -> None:
        found = self._made.get(dead.key)
        if found is not None and found[0] is dead:
            del self._made[dead.key]


def body_of(head: Mapping[str, Any], arrays: Mapping[str, Iterable[bytes]]) -> bytes:
    """A request body: the small fields in sorted order, then arrays of what is serialised already.

    `head` is not empty; empty arrays are left out. The array that grows stands last, so that the
    body of the next turn begins with this one up to its closing brackets. Fields and items alike
    have commas between them, so one join makes the body and a long history is copied once.
    """
    pieces = [jsontext.dump(head)[:-1]]
    for name, items in arrays.items():
        written = list(filter(None, items))
        if written:
            written[0] = b'"%b":[%b' % (name.encode(), written[0])
            written[-1] += b"]"
            pieces += written
    pieces[-1] += b"}"
    return b",".join(pieces)

"""Tool names on the wire: `code.read_file` is `code__read_file` to a provider, and back.

Providers take letters, digits, `_` and `-`, at most 64 of them. A name that cannot be told apart
from another one after the dots are written out gets a hash of itself as a suffix, so the wire name
depends on the name alone: the history reads the same whatever tools a request offers.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from agent_core.errors import ErrorCode, ProviderError

MAX_WIRE_NAME = 64
MAX_CANONICAL_NAME = 256
_HASH_DIGITS = 10
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


@lru_cache(maxsize=4096)
def wire_name(canonical: str) -> str:
    """The provider-safe form of a canonical name: always the same, never longer than 64."""
    name = canonical.replace(".", "__")
    if 0 < len(name) <= MAX_WIRE_NAME and not _FOREIGN.search(name) and plain(name) == canonical:
        return name
    digest = hashlib.sha256(canonical.encode("utf-8", "replace")).hexdigest()[:_HASH_DIGITS]
    return f"{_FOREIGN.sub('_', name)[: MAX_WIRE_NAME - _HASH_DIGITS - 1]}_{digest}"


def plain(wire: str) -> str:
    """The canonical name of a wire name without a hash suffix."""
    return wire.replace("__", ".")


class ToolNames:
    """The tools of one request by their wire names.

    Raises:
        ProviderError: two tools would have the same wire name.
    """

    def __init__(self, canonical: Iterable[str]) -> None:
        self._canonical: dict[str, str] = {}
        for name in canonical:
            other = self._canonical.setdefault(wire_name(name), name)
            if other != name:
                raise ProviderError(
                    ErrorCode.VALIDATION_ERROR,
                    f"the tools {other!r} and {name!r} have the same name for a provider, "
                    f"{wire_name(name)!r}; rename one of them",
                )

    @property
    def by_wire(self) -> Mapping[str, str]:
        """Wire name → canonical name."""
        return self._canonical

    def canonical(self, wire: str) -> str:
        """What the model meant. A name nobody offered is given back readable, to be refused."""
        known = self._canonical.get(wire)
        return known if known is not None else plain(wire)[:MAX_CANONICAL_NAME]

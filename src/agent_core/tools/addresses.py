"""Which hosts a network call names, so that the network policy can judge it before it is made.

A tool says nothing about its hosts but what stands in its arguments: addresses, and arguments that
are named like a host. What cannot be read beyond doubt is given back as it stands, because no list
of allowed hosts has it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

_NAMED = frozenset({"address", "domain", "endpoint", "host", "hostname", "uri", "url"})
_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_UNCLEAR = re.compile(r"[\\\s,\x00-\x20\x7f-\U0010ffff]")
_MAX_NESTING = 8
_MAX_SHOWN = 200


def hosts_in(arguments: Mapping[str, Any]) -> list[str]:
    """The hosts of all addresses in the arguments, sorted, each once, in lower case."""
    return sorted(set(_hosts("", dict(arguments), 0)))


def _hosts(name: str, value: object, depth: int) -> Iterator[str]:
    match value:
        case str() if _ADDRESS.match(value) or (name.lower() in _NAMED and value.strip()):
            yield _host(value)
        case dict() if depth < _MAX_NESTING:
            for key, inner in cast("dict[str, object]", value).items():
                yield from _hosts(str(key), inner, depth + 1)
        case list() if depth < _MAX_NESTING:
            for inner in cast("list[object]", value):
                yield from _hosts(name, inner, depth + 1)
        case _:
            pass


def _host(text: str) -> str:
    """The host of an address or of `host:port`.

    Clients disagree about backslashes, white space and what is not ASCII: one goes where another
    would not. Such an address is shown whole and is on nobody's list.
    """
    address = text.strip()
    address = address if _ADDRESS.match(address) else f"//{address}"
    if not _UNCLEAR.search(address):
        try:
            if host := urlsplit(address).hostname:
                return host
        except ValueError:  # a bracket without its pair
            pass
    return f"?{text.strip()[:_MAX_SHOWN]}".replace(",", ";")

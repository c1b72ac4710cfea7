"""Finds the hosts that a network call names, so that the network policy can judge it first.

Every string of the arguments is searched, keys included, at any depth, both unchanged and without
its percent-encoding. A possible host that cannot be read with certainty is returned with a `?`
in front: no list of allowed hosts contains it.
"""

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import cast
from unicodedata import category, normalize
from urllib.parse import unquote, urlsplit

from agent_core.text.json_text import JsonValue
from agent_core.types import CommandView

_HOST_WORDS = """
    address addr authority broker callback dest destination dns domain endpoint fqdn gateway host
    hostname href ip ipv mirror nameserver netloc origin peer proxy relay remote server site socket
    upstream uri url webhook
    """
_NAMED = frozenset(_HOST_WORDS.split())
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]*:)?[/\\]{2}", re.IGNORECASE)
_PAIR = re.compile(
    r"([a-z][a-z0-9_-]{0,63})[\"']?\s{0,8}[:=]\s{0,8}[\"']?([a-z_\[][^\s\"'&,;<>(){}]*)",
    re.IGNORECASE,
)
_UNCLEAR = re.compile(r"[^!-+\--\[\]-~]")
_PLAIN_HOST = re.compile(r"[a-z0-9._-]+", re.IGNORECASE)

_SLASHES = re.compile(
    r"(?:([a-z][a-z0-9+.-]{0,31}:)[/\\]+|[/\\]{2,})([^\s/\\?#\"'<>`|^{}]*)", re.IGNORECASE
)
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]{0,31}:[/\\]+|[/\\]{2,})[^\s\"'<>`|^{}]*", re.IGNORECASE)
_USER_AT = re.compile(r"@((?:[^\s@/\\?#:\"'<>`|^{}()\[\],;=&]+)|\[[0-9a-f:.%]+\])", re.IGNORECASE)
_TOKEN = re.compile(r"[^\s\"'<>`|^{}(),;=&]+")
_NAME = re.compile(
    r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)+(?:[a-z]{2,}|xn--[a-z0-9-]+)\.?"
    # A last part with digits, as inside a company; a number such as `3.11rc1` does not count.
    r"|[0-9-]*[a-z_][a-z0-9_-]*\.(?:[a-z0-9_-]+\.)*[0-9]*[a-z][a-z0-9-]+\.?",
    re.IGNORECASE,
)
_NAME_AND_PORT = re.compile(r"[0-9-]*[a-z][a-z0-9_-]*|[0-9]+(?:\.[0-9]+)+", re.IGNORECASE)
_WITHOUT_SLASHES = re.compile(r"(?:https?|wss?|ftp):([^/\\\s]+)", re.IGNORECASE)
_HEX_NUMBER = re.compile(r"0x[0-9a-f]{1,8}(?:\.\w+){0,3}", re.IGNORECASE)
_DOTS = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})
_LONGEST_NAME = 254
_MAX_ROUNDS = 5
"""Of percent-encoding that are undone."""
_MAX_SHOWN = 200


def hosts_in(arguments: Mapping[str, JsonValue], views: Sequence[CommandView] = ()) -> list[str]:
    """Return the hosts of all addresses in the arguments, sorted, each once, in lower case.

    Args:
        arguments: of a call.
        views: of a command: its words without the quotes of a shell.
    """
    arguments = {**arguments, "": [view.argv for view in views]} if views else arguments
    found: set[str] = set()
    for name, text in _texts(arguments):
        if _ADDRESS.match(text) or (_is_named(name) and text.strip()):
            found.add(_host(text))
        for _ in range(_MAX_ROUNDS + 1):
            found.update(_in_text(text))
            found.update(_host(pair[2]) for pair in _PAIR.finditer(text) if _is_named(pair[1]))
            if (plain := unquote(text)) == text:
                break
            text = plain
    return sorted(found)


def is_host(host: str, name: str) -> bool:
    """Return whether a host is the one of a name: `*.x` is every name below `x`."""
    wanted = _ascii(name)
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


def may_be_host(host: str, name: str) -> bool:
    """Return whether some client may read a host as a name, or as another form of a number.

    A host that cannot be read with certainty has the name in it.
    """
    if not host.startswith("?"):
        return is_host(_number(host) or host, name)
    text = _readable(host)
    return any(each.removeprefix("*.") in text for each in (_ascii(name), _readable(name)))


def _ascii(name: str) -> str:
    """A host as clients ask for it."""
    text = name.strip().lower().rstrip(".")
    if not text.isascii():
        try:
            text = text.encode("idna").decode()
        except UnicodeError:
            return text
    return _number(text.strip("[]")) or text


def _readable(text: str) -> str:
    """A text with one spelling for the letters that clients take for the same."""
    shown = "".join(char for char in normalize("NFKC", text) if category(char) != "Cf")
    lower = shown.translate(_DOTS).lower()
    try:
        return lower.encode().decode("idna") if "xn--" in lower else lower
    except UnicodeError:
        return lower


def _number(host: str) -> str | None:
    """The IP address of a host that is one, also in the forms that few know: `127.1`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):
            return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def _texts(arguments: Mapping[str, JsonValue]) -> Iterator[tuple[str, str]]:
    """Yield every string, with the name of the argument it belongs to; numbers that are named too.

    A string in an object belongs to its key, or to the object's own name if that promises a
    host and none of the keys does: `{"server": {"name": "intranet"}}`.
    """
    waiting: list[tuple[str, object]] = [("", dict(arguments))]
    while waiting:
        name, value = waiting.pop()
        match value:
            case str():
                yield name, value
            case bool():
                pass
            case int() | float() if _is_named(name):
                yield name, str(value)
            case dict():
                table = cast("dict[object, object]", value)
                inherits = _is_named(name) and not any(_is_named(str(key)) for key in table)
                for key, inner in table.items():
                    yield "", str(key)
                    waiting.append((name if inherits else str(key), inner))
            case list() | tuple():
                waiting.extend((name, inner) for inner in cast("list[object]", value))
            case _:
                pass


def _is_named(name: str) -> bool:
    words = {word.lower() for word in _WORD.findall(name)}
    return not _NAMED.isdisjoint(words | {word.removesuffix("s") for word in words})


def _in_text(text: str) -> Iterator[str]:
    for found in _SLASHES.finditer(text):
        scheme, authority = found[1], found[2].strip(".,;:()")
        is_certain = scheme is not None and authority
        if is_certain or _is_like_a_host(authority.rpartition("@")[2].partition(":")[0]):
            yield _host(f"//{authority}")
    for found in _USER_AT.finditer(text):
        name = found[1].strip(".")
        if name.startswith("[") or _is_like_a_host(name):
            yield _host(f"//{name}")
    for found in _TOKEN.finditer(_URL.sub(" ", text)):
        yield from _in_token(found[0])
        if without_slashes := _WITHOUT_SLASHES.match(found[0]):
            yield _host(f"//{without_slashes[1]}")


def _in_token(token: str) -> Iterator[str]:
    """The host of `host:port`, `host/path`, `user@host:path`, `http:host`, or an IP address."""
    head = re.split(r"[/\\?#]", token, maxsplit=1)[0].rpartition("@")[2]
    if head.count(":") > 1 and (address := _ip(head)):
        yield address
        return
    parts = head.strip("[]").split(":")
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        name = part.strip(".[]")
        if _is_like_a_host(name) or (following.isdecimal() and _NAME_AND_PORT.fullmatch(name)):
            yield _host(f"//{name}")


def _is_like_a_host(name: str) -> bool:
    if len(name) > _LONGEST_NAME:
        return False
    if not name.isascii():
        # Clients read it differently; a dot between letters is enough to be careful.
        first, _, last = normalize("NFKC", name).translate(_DOTS).rpartition(".")
        return bool(first) and len(last) > 1
    if name.lower() == "localhost" or _NAME.fullmatch(name) or _HEX_NUMBER.fullmatch(name):
        return True
    return name.count(".") == 3 and name.replace(".", "").isdecimal()


def _ip(text: str) -> str | None:
    address = text.rpartition("]")[0] or text
    try:
        return str(ipaddress.ip_address(address.lstrip("[").partition("%")[0]))
    except ValueError:
        return None


def _host(text: str) -> str:
    """Return the host of an address or of `host:port`.

    Clients disagree about backslashes, white space and characters beyond ASCII, and may connect to
    different hosts. Such an address is shown whole and is on no list.
    """
    address = text.strip()
    address = address if _ADDRESS.match(address) else f"//{address}"
    if not _UNCLEAR.search(address):
        try:
            host = urlsplit(address).hostname or ""
        except ValueError:  # a bracket without its pair
            host = ""
        if _PLAIN_HOST.fullmatch(host) and host.strip("."):
            return host.rstrip(".")
        if address_of_host := _ip(host):
            return address_of_host
    return f"?{text.strip().removeprefix('//')[:_MAX_SHOWN]}".replace(",", ";")

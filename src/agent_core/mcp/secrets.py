"""Find the secrets in `mcp.json`, which redaction keeps from models, disk and screen.

Every value of `env` and `headers` is a secret, whatever its name and whether or not its server is
enabled, and so is each part of it that is a secret by itself: the token after `Bearer`, the
password of an address, the value of a cookie. The one exception are values known to be harmless,
because they occur in ordinary texts and files, where replacing them would do damage: see
`is_harmless`. In addresses and arguments, the parts that carry a key are secrets.
"""

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, count, pairwise
from urllib.parse import parse_qsl, unquote, urlsplit

from agent_core.mcp.config import ServerConfig, StdioServer
from agent_core.redaction.redactor import SHORTEST_SECRET, Redactor
from agent_core.secret_shapes import kind_of_name

_WORDS = frozenset((
    "true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default", "enabled",
    "disabled", "always", "never", "debug", "info", "notice", "warn", "warning", "error",
    "critical", "fatal", "trace", "verbose", "silent", "quiet", "production", "development",
    "staging", "testing", "test", "prod", "local", "localhost", "stdio", "http", "https",
    "utf-8", "utf8", "posix", "json", "text", "plain", "gzip", "deflate", "identity",
    "no-cache", "keep-alive", "close", "bearer", "basic", "digest",
))  # fmt: skip
_MEDIA_TYPES = frozenset((
    "*/*", "application/json", "application/xml", "application/octet-stream", "application/*",
    "text/plain", "text/html", "text/xml", "text/*", "text/event-stream",
))  # fmt: skip
_SMALL_NUMBER = re.compile(r"-?[0-9]{1,5}")
_LOCALE = re.compile(r"(?:C|[a-z]{2,3}_[A-Z]{2})\.(?i:utf-?8)|[a-z]{2,3}[_-][A-Z]{2}")
_LOOPBACK = re.compile(r"(?:https?://)?(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?/?")
_PROTOCOL_DATE = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*[ \t]+(?=\S)")
_PAIR = re.compile(r"[A-Za-z0-9_.-]+=[\"']?([^;,&\s\"']+)")
_SHORTEST_PATH_KEY = 16
_SHORTEST_PART = 8


def secret_values(servers: Mapping[str, ServerConfig]) -> dict[str, str]:
    """Return the values to redact, by `<server>_<name>`, with a number for further parts.

    `servers` are all that the file names, disabled ones included.
    """
    found: dict[str, str] = {}
    for server_id, server in servers.items():
        if isinstance(server, StdioServer):
            named = [*server.env.items(), *(("args", each) for each in _in_arguments(server.args))]
        else:
            named = [*server.headers.items(), *(("url", key) for key in _in_address(server.url))]
            if server.oauth.client_secret:
                named.append(("client_secret", server.oauth.client_secret))
        for name, value in named:
            for part in _parts(name, value):
                if is_harmless(part) or part in found.values():
                    continue
                kind = f"{server_id}_{name}"
                kinds = chain([kind], (f"{kind}_{number}" for number in count(2)))
                found[next(each for each in kinds if each not in found)] = part
    return found


def is_harmless(value: str) -> bool:
    """Return whether a value is known not to be a secret.

    Harmless are: fewer than four characters; a number of up to five digits; a word of a short list
    (`true`, `debug`, `production`, …); a locale such as `en_US.UTF-8`; a date; a usual media type,
    or several; this machine's address with a port; paths that exist on this machine.
    """
    value = value.strip()
    if len(value) < SHORTEST_SECRET or value.lower() in _WORDS:
        return True
    if any(known.fullmatch(value) for known in (_SMALL_NUMBER, _LOCALE, _LOOPBACK, _PROTOCOL_DATE)):
        return True
    types = [part.partition(";")[0].strip().lower() for part in value.split(",")]
    paths = filter(None, value.split(os.pathsep))
    return _MEDIA_TYPES.issuperset(types) or all(
        path.startswith("/") and os.path.lexists(path) for path in paths
    )


def _parts(name: str, value: str) -> Iterator[str]:
    """Yield the value, and the parts of it that are secrets by themselves.

    A part of fewer than eight characters counts only under a name that promises a secret, because
    short words occur in many texts.
    """
    value = value.strip()
    is_named = kind_of_name(name) is not None or name.lower() == "cookie"
    shortest = SHORTEST_SECRET if is_named else _SHORTEST_PART
    yield value
    parts: list[str] = []
    if scheme := _SCHEME.match(value):
        token = value[scheme.end() :].strip()
        parts.append(token)
        if scheme[0].strip().lower() == "basic":
            with suppress(binascii.Error, UnicodeDecodeError):
                login = base64.b64decode(token, validate=True).decode()
                yield from (login, login.partition(":")[2])
    if "://" not in value:
        parts += _PAIR.findall(value)
    yield from (part for part in parts if len(part) >= shortest)
    yield from _in_address(value)


def _in_address(value: str) -> Iterator[str]:
    """Yield the password, query values, fragment, and long path segments with digits in them."""
    if "://" not in value:
        return
    try:
        address = urlsplit(value)
    except ValueError:
        return
    path = [
        segment
        for segment in address.path.split("/")
        if len(segment) >= _SHORTEST_PATH_KEY and any(map(str.isdigit, segment))
    ]
    user, _, password = address.netloc.rpartition("@")[0].partition(":")
    query = [given for _, given in parse_qsl(address.query)]
    raw = [pair.partition("=")[2] or pair for pair in address.query.split("&")]
    for key in (password or user, *query, *raw, address.fragment, *path):
        yield key
        yield unquote(key)


def _in_arguments(args: list[str]) -> Iterator[str]:
    """Yield the arguments that are named like a secret, look like one, or hold one."""
    shapes = Redactor({})
    for before, argument in pairwise(["", *args]):
        name, has_value, value = argument.partition("=")
        if has_value and kind_of_name(name.lstrip("-")):
            yield value
        elif before.startswith("-") and kind_of_name(before.lstrip("-")):
            yield argument
        elif "://" in argument:
            yield from _in_address(argument)
        elif shapes.text(argument) != argument:
            yield argument

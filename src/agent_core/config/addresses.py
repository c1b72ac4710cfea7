"""The secrets in addresses, in every spelling in which a message or a file may repeat them."""

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote, unquote_plus

HTTP_PARAMETERS = r"(?i).*(key|token|secret|pass|sig|auth|cred).*"
"""Names of the query parameters of services that hold a secret."""

POSTGRES_PARAMETERS = "password|sslpassword|oauth_client_secret|scram_client_key|scram_server_key"
"""Names of the parameters of libpq that hold a secret; `sslkey` and `passfile` are paths."""


def spellings(kind: str, written: str) -> dict[str, str]:
    """Return a secret of an address by kind: decoded, as it is written, and encoded by others."""
    decoded = unquote(written)
    found = {kind: decoded}
    others = (written, unquote_plus(written), quote(decoded), quote(decoded, safe=""))
    for number, other in enumerate(dict.fromkeys(others), start=1):
        if other not in found.values():
            found[f"{kind}_{number}_quoted" if number > 1 else f"{kind}_quoted"] = other
    return {kind: value for kind, value in found.items() if value}


def password_spellings(kind: str, url: str) -> dict[str, str]:
    """Return the password of an address; of a name without a password, the name, as for tokens."""
    user, _, password = _credentials(url).partition(":")
    return spellings(kind, password or user)


def parameter_spellings(kind: str, url: str, secret: str) -> dict[str, str]:
    """Return the values of the query parameters whose whole name matches `secret`."""
    found: dict[str, str] = {}
    for number, (name, value) in enumerate(_parameters(url)):
        if re.fullmatch(secret, name):
            key = f"{kind}_{name}"
            found |= spellings(f"{key}_{number}" if key in found else key, value)
    return found


def _credentials(url: str) -> str:
    """Return the name and password of an address, read as leniently as any client would."""
    rest = url.strip().partition("://")[2] or url.strip()
    return rest.partition("/")[0].rpartition("@")[0]


def _parameters(url: str) -> Iterator[tuple[str, str]]:
    text = url.strip()
    if credentials := _credentials(url):  # a question mark in them begins no query
        text = text.partition(f"{credentials}@")[2]
    for pair in filter(None, text.partition("?")[2].split("&")):
        name, _, value = pair.partition("=")
        yield unquote(name), value
        if "#" in value:  # part of the value for libpq, and the end of the query for others
            yield unquote(name), value.partition("#")[0]

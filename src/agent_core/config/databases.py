"""Find and check the address of a Postgres database, without ever showing it.

Messages name its source instead, because the address may contain a password.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_core.config.addresses import POSTGRES_PARAMETERS, parameter_spellings, password_spellings
from agent_core.errors import ArgumentError, ConfigError, ErrorCode

if TYPE_CHECKING:
    from agent_core.config.paths import Setup

_URL = r"postgres(?:ql)?://(?:[^\s\x00-\x1f\x7f%]|%[0-9A-Fa-f]{2})+"
_HOST = r"(?:\[[^][/@]+\]|[^][/@?:,]*)(?::[0-9]{0,5})?"
_HOSTS = rf"[a-z]+://(?:[^/@]*@)?{_HOST}(?:,{_HOST})*(?:[/?].*)?"
"""Host names and ports, as libpq reads an address."""


def find_database_url(setup: "Setup", environ: Mapping[str, str]) -> str | None:
    """Return the program's address, else the one in the variable `[store] url_env`, else None.

    Raises:
        ConfigError: the variable is not set, or does not hold the address of a database.
    """
    if setup.database_url is not None:
        return setup.database_url
    name = setup.config.store.url_env
    if name is None:
        return None
    if not (url := environ.get(name, "").strip()):
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"store.url_env names the environment variable {name}, and it is not set; set it to"
            " postgresql://user:password@host/database, or remove store.url_env to keep sessions"
            " in a file",
            details={"key": "store.url_env", "variable": name},
        )
    check_database_url(url, f"the environment variable {name} of store.url_env")
    return url


def check_database_url(url: str, place: str, *, is_argument: bool = False) -> None:
    """Check that a value is the address of a Postgres database.

    Args:
        url: the value.
        place: where it comes from, for the message.
        is_argument: a program passed it, as the argument `place`.

    Raises:
        ConfigError: it is not; the message names the place. An argument is an `ArgumentError`.
    """
    is_text = isinstance(url, str)  # pyright: ignore[reportUnnecessaryIsInstance] - from a program
    if not (is_text and re.fullmatch(_URL, url) and re.fullmatch(_HOSTS, url)):
        message = (
            f"{place} is not the address of a Postgres database: it must be"
            " postgresql://user:password@host:port/database, with a number as port (default:"
            " 5432), and with characters of the password other than letters and digits as %XX"
        )
        if is_argument:
            raise ArgumentError(message, place)
        raise ConfigError(ErrorCode.CONFIG_ERROR, message)


def database_secrets(variable: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets of the address in a variable, and libpq's password, by kind."""
    if variable is None:
        return {}
    return url_secrets(environ.get(variable, "").strip(), variable, environ)


def url_secrets(url: str, kind: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets of an address by kind: the whole address, and the passwords in it."""
    secrets = {kind: url, "PGPASSWORD": environ.get("PGPASSWORD", "")}
    if ":" in url.partition("://")[2].rpartition("@")[0]:  # a name alone is no secret
        secrets |= password_spellings(f"{kind}_password", url)
    secrets |= parameter_spellings(kind, url, POSTGRES_PARAMETERS)
    return {kind: value for kind, value in secrets.items() if value}

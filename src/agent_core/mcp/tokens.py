"""Logins of HTTP servers on disk: one file for each address, for this user only.

The files are in `<home>/mcp-auth`. Their tokens and client secrets are redacted everywhere else, by
means of `stored_secrets`.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from agent_core.config.problems import read_json_file
from agent_core.disk.folders import make_private
from agent_core.errors import ConfigError
from agent_core.opening import open_descriptor
from agent_core.text.json_text import JsonObject, table

FOLDER = "mcp-auth"

_SECRET_KEYS = ("access_token", "refresh_token", "client_secret")


class StoredLogin:
    """The login at one address. Does file work: call it in a thread.

    Args:
        home: where the file is.
        url: the address.
        persist: new fields are written there; otherwise they end with this object.
    """

    def __init__(self, home: Path, url: str, *, persist: bool = True) -> None:
        self._url = url
        self._unwritten: JsonObject | None = None if persist else {}
        self._path = home / FOLDER / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"

    def read(self) -> dict[str, Any]:
        """Return the stored fields; empty if there are none, or they cannot be read."""
        with suppress(ConfigError, OSError):
            found: object = read_json_file(self._path, "a login")
            if isinstance(found, dict):
                fields = cast("JsonObject", found)
                if fields.get("url") == self._url:
                    return fields | (self._unwritten or {})
        return self._unwritten or {}

    def write(self, **fields: Any) -> None:
        """Add these fields to the stored ones, all or none.

        Raises:
            OSError: the disk is full, read-only …
        """
        if self._unwritten is not None:
            self._unwritten |= fields
            return
        content = json.dumps(self.read() | fields | {"url": self._url}, indent=1)
        make_private(self._path.parent)
        draft = self._path.with_suffix(f".{secrets.token_hex(4)}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(open_descriptor(draft, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def forget(self) -> bool:
        """Delete it; False if there was none."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        return True


def secrets_in(fields: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the secrets in a stored login, or in a part of one, as kind and value."""
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from secrets_in(value)
        elif key in _SECRET_KEYS and isinstance(value, str) and value:
            yield f"mcp_{key}", value


def stored_secrets(home: Path) -> dict[str, str]:
    """Return the secrets of all stored logins, also for servers that were removed."""
    found: dict[str, str] = {}
    for path in sorted((home / FOLDER).glob("*.json")):
        with suppress(ConfigError, OSError):
            for kind, value in secrets_in(table(read_json_file(path, "a login"))):
                found[f"{kind}_{len(found) + 1}"] = value
    return found

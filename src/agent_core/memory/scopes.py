"""Find the folder of a memory scope.

The shared memory is the memory folder itself. Each user and each tenant has a folder below it,
whose name is derived from the id so that no two ids share a name, even if a file system ignores
case or composes characters: it has small ASCII letters, digits and a few signs only.
"""

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from agent_core.memory.folder import MemoryFolder
from agent_core.types.memory_scopes import MEMORY_SHARED, USER_SCOPE

_TENANTS, _USERS = "tenants", "users"
_ESCAPED = r"[^a-z0-9-]"
_LONGEST_NAME = 160
_KEPT_OF_LONG = 100
_HASHED = "~"
"""Separates the hash of a long id from the beginning of the id; no other name contains it."""


def memory_folder(root: Path, scope: str, tenant: str | None = None) -> MemoryFolder:
    """Return the folder of a scope, below the memory folder `root` of the home.

    Args:
        root: the memory folder of the home.
        scope: `shared`, or the scope of a user.
        tenant: the tenant of the session; a tenant's users are its own.
    """
    below = [] if tenant is None else [_TENANTS, folder_name(tenant)]
    if scope != MEMORY_SHARED:
        below += [_USERS, folder_name(scope.removeprefix(USER_SCOPE))]
    return MemoryFolder(root, *below)


def folder_name(name: str) -> str:
    """Return the name of the folder of a user or a tenant."""
    escaped = re.sub(_ESCAPED, _escape, name)
    if len(escaped) <= _LONGEST_NAME:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{escaped[:_KEPT_OF_LONG]}{_HASHED}{digest}"


def find_users(root: Path, tenant: str | None = None) -> list[str]:
    """Return the scopes of the users that have a memory of their own, in order."""
    return [
        f"{USER_SCOPE}{name}"
        for name in _names_in(memory_folder(root, "shared", tenant).root / _USERS)
    ]


def find_tenants(root: Path) -> list[str]:
    """Return the tenants that have a memory in this home, in order."""
    return _names_in(root / _TENANTS)


def _names_in(folder: Path) -> list[str]:
    found: list[str] = []
    with suppress(OSError):
        found = [
            _name_of(entry.name)
            for entry in os.scandir(folder)
            if entry.is_dir(follow_symlinks=False)
        ]
    return sorted(found)


def _name_of(folder: str) -> str:
    """Return the id that a folder is named after; only the beginning of a long one."""
    escaped, hashed, _ = folder.partition(_HASHED)
    name = re.sub(r"(?:_[0-9a-f]{2})+", _unescape, escaped)
    return f"{name}…" if hashed else name


def _unescape(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("_", "")).decode("utf-8", "replace")


def _escape(found: re.Match[str]) -> str:
    return "".join(f"_{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))

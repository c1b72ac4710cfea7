"""Commands that add packages to this installation.

The program is in no package index, where anyone could take its name. So its extras come from the
source of the program itself; if that is unknown, the command names their packages.
"""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from agent_core.opening import read_text
from agent_core.text.json_text import JsonObject, table

_NAME = "soong-agent"
_SOURCE = Path(__file__).parents[2]
"""The checkout, if this file is in one."""

_PIPX_RECORD, _UV_RECORD = "pipx_metadata.json", "uv-receipt.toml"
"""Files in environments that pipx and uv have made for one program."""


def extra_command(extra: str) -> str:
    """Return the command that installs an extra."""
    origin, is_editable = _origin()
    if not _is_by(_PIPX_RECORD) and origin is not None:
        spec = f"{origin}[{extra}]" if origin.startswith("/") else f"{_NAME}[{extra}] @ {origin}"
        if _is_by(_UV_RECORD):
            return _line("uv tool install --force", ["--editable"] * is_editable, spec)
        return _line(_installer(), ["--editable"] * is_editable, spec)
    if packages := _packages_of(extra):
        return package_command(*packages)
    return f"install the packages that pyproject.toml lists for the extra {extra}"


def package_command(*packages: str, again: bool = False) -> str:
    """Return the command that installs packages from an index next to the program.

    Args:
        packages: their requirements.
        again: reinstall packages that are installed but do not work.
    """
    if _is_by(_PIPX_RECORD):
        program = shlex.quote(Path(sys.prefix).name)
        return _line(f"pipx inject {program}", ["--force"] * again, *packages)
    force = "--force-reinstall" if find_spec("pip") else "--reinstall"
    return _line(_installer(), [force] * again, *packages)


def _installer() -> str:
    """Return the command that installs into this environment, whichever one the shell uses."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _line(command: str, options: Sequence[str], *packages: str) -> str:
    return " ".join([command, *options, *map(shlex.quote, packages)])


def _is_by(record: str) -> bool:
    return Path(sys.prefix, record).is_file()


def _distribution() -> Distribution | None:
    try:
        return distribution(_NAME)
    except PackageNotFoundError:
        return None


def _origin() -> tuple[str | None, bool]:
    """Return the source of the installation, and whether the program runs from that checkout.

    A folder or a file exists. None: the source is an index, or cannot be used again.
    """
    found = _distribution()
    if found is None:
        return (str(_SOURCE), True) if (_SOURCE / "pyproject.toml").is_file() else (None, False)
    place = f"{_NAME.replace('-', '_')}-{found.version}.dist-info/direct_url.json"
    try:
        record: Any = json.loads(read_text(str(found.locate_file(place))))
    except (OSError, ValueError):
        record = None
    origin = table(record)
    url = origin.get("url")
    if not isinstance(url, str):
        return None, False
    is_editable = bool(table(origin.get("dir_info")).get("editable"))
    try:
        return _usable(url, origin), is_editable
    except ValueError:
        return None, False


def _usable(url: str, origin: JsonObject) -> str | None:
    """Return a path, or a URL without credentials, from which the program can be reinstalled.

    Raises:
        ValueError: it is not a URL.
    """
    parts, inner = urlsplit(url), origin.get("subdirectory")
    if parts.scheme == "file" and "vcs_info" not in origin:
        path = Path(unquote(parts.path), inner if isinstance(inner, str) else "")
        return str(path) if path.is_absolute() and path.exists() else None
    if not parts.scheme or parts.query or not url.isprintable() or " " in url:
        return None  # a query may be a key
    host = parts.netloc.rpartition("@")[2]
    place = parts._replace(netloc=host, fragment="").geturl()
    if control := table(origin.get("vcs_info")):
        revision = control.get("requested_revision") or control.get("commit_id")
        place = f"{control.get('vcs')}+{place}" + (f"@{revision}" if revision else "")
    return f"{place}#subdirectory={inner}" if inner else place


def _packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra, as listed in the program's metadata."""
    found = _distribution()
    marker = rf"""\bextra\s*==\s*['"]{re.escape(extra)}['"]"""
    parts = (each.partition(";") for each in (found.requires if found else None) or ())
    return [name.strip() for name, _, condition in parts if re.search(marker, condition)]

"""Changes `mcp.json` as its owner would: one server, and nothing else in the file.

Entries are put in and taken out of the text, so that the others keep their order and layout. The
new text is read as a start reads it before it replaces the old one.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from agent_core.config.problems import parse_json, read_text
from agent_core.disk.folders import make_private
from agent_core.disk.replacing import replace_file, writing_alone
from agent_core.errors import ConfigError, ErrorCode
from agent_core.mcp import ServerConfig, read_servers
from agent_core.mcp.config import MCP_FILE_NAME, servers_of
from agent_core.opening import read_bytes

LOCK_NAME = "mcp.lock"
_SERVERS = "mcpServers"
_LONE_FEED = re.compile(r"(?<!\r)\n")
_SPACE = re.compile(r"\s*")
_WIDTH = 100
_EMPTY = f'{{\n  "{_SERVERS}": {{}}\n}}\n'

Entries = dict[str, Any]


class ServerFile:
    """The user's `mcp.json`, to be changed.

    Args:
        home: where it is.
        project: fills the placeholder of that name in a server's folder.
    """

    def __init__(self, home: Path, project: Path) -> None:
        self._home = home
        self._project = project
        self.path = home / MCP_FILE_NAME

    def put(self, entries: Mapping[str, Any], *, replaces: bool) -> dict[str, ServerConfig]:
        """Add servers, all or none, and return them as a run will read them.

        Args:
            entries: their fields, by id.
            replaces: put them in the place of servers with the same ids.

        Raises:
            KeyError: there is a server with this id, and it is kept.
            ConfigError: the file cannot be used, before or with them; nothing was written.
            OSError: the file cannot be written, and is unchanged.
        """

        def change(text: str, table: Entries) -> str:
            if taken := [name for name in entries if name in table and not replaces]:
                raise KeyError(taken[0])
            for name, fields in entries.items():
                text = _put(text, name, fields)
                table[name] = fields
            return text

        found = self._change(change)
        return {name: found[name] for name in entries}

    def remove(self, name: str) -> ServerConfig:
        """Remove a server, and return what it was.

        Raises:
            KeyError: there is none with this id.
            ConfigError: the file cannot be used; nothing was written.
            OSError: the file cannot be written, and is unchanged.
        """
        before = read_servers(self._home, self._project)[name]

        def change(text: str, table: Entries) -> str:
            del table[name]
            return _without(text, name)

        self._change(change)
        return before

    def _change(self, change: Callable[[str, Entries], str]) -> dict[str, ServerConfig]:
        """Change the file by a function of its text and of its servers; return those it has."""
        if not self._home.exists():
            make_private(self._home)
        with writing_alone(self._home / LOCK_NAME):
            read_servers(self._home, self._project)  # a broken file is named, and stays as it is
            before = read_bytes(self.path) if self.path.exists() else b""
            text = read_text(self.path) or ""
            text = text if text.strip() else _EMPTY
            document = cast("Entries", parse_json(text))
            after = change(text, document.setdefault(_SERVERS, {}))
            if "\r\n" in text and not _LONE_FEED.search(text):
                after = _LONE_FEED.sub("\r\n", after)
            if parse_json(after) != document:
                message = f"{self.path} cannot be changed without touching the rest; edit it"
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            found = servers_of(document, self.path, home=self._home, project=self._project)
            mark = BOM_UTF8 if before.startswith(BOM_UTF8) else b""
            # The mode is for its user only, whatever it was: the file holds secrets.
            replace_file(self.path.resolve(), mark + after.encode(), home=self._home)
        return found


class _Member(Struct, frozen=True):
    """A key of an object and its value, as places in a text."""

    key: str
    starts_at: int
    value_at: int
    ends_at: int


def _members(text: str, at: int) -> tuple[list[_Member], int]:
    """Return the members of the object at a place of a valid text, and where its brace closes."""
    found: list[_Member] = []
    decoder = json.JSONDecoder()
    at = _skip(text, at + 1)
    while text[at] != "}":
        at = _skip(text, at + 1) if text[at] == "," else at
        key, colon = decoder.raw_decode(text, at)
        value_at = _skip(text, _skip(text, colon) + 1)
        _, end = decoder.raw_decode(text, value_at)
        found.append(_Member(key, at, value_at, end))
        at = _skip(text, end)
    return found, at


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _put(text: str, name: str, fields: Mapping[str, Any]) -> str:
    """Return the text with this server in its place, or after the other servers."""
    root = _skip(text, 0)
    above, _ = _members(text, root)
    holder = next((each for each in above if each.key == _SERVERS), None)
    if holder is None:
        behind = "," if above else "\n"
        text = f'{text[: root + 1]}\n  "{_SERVERS}": {{}}{behind}{text[root + 1 :]}'
        above, _ = _members(text, root)
        holder = above[0]
    servers, closes_at = _members(text, holder.value_at)
    outer = _indent(text, holder.starts_at)
    if known := next((each for each in servers if each.key == name), None):
        inner = _indent(text, known.starts_at)
        return text[: known.value_at] + _layout(fields, inner) + text[known.ends_at :]
    inner = _indent(text, servers[-1].starts_at) if servers else None
    if inner is None:
        inner = None if servers or outer is None else outer + (outer or "  ")
    line = f"{json.dumps(name)}: {_layout(fields, inner)}"
    if servers:
        gap = " " if inner is None else f"\n{inner}"
        return f"{text[: servers[-1].ends_at]},{gap}{line}{text[servers[-1].ends_at :]}"
    if inner is None:
        return text[: holder.value_at + 1] + line + text[closes_at:]
    opened = text[: holder.value_at + 1]
    return f"{opened}\n{inner}{line}\n{outer}{text[closes_at:]}"


def _without(text: str, name: str) -> str:
    above, _ = _members(text, _skip(text, 0))
    holder = next(each for each in above if each.key == _SERVERS)
    servers, closes_at = _members(text, holder.value_at)
    at = next(number for number, each in enumerate(servers) if each.key == name)
    if len(servers) == 1:
        return text[: holder.value_at + 1] + text[closes_at:]
    if at:
        return text[: servers[at - 1].ends_at] + text[servers[at].ends_at :]
    return text[: servers[0].starts_at] + text[servers[1].starts_at :]


def _indent(text: str, at: int) -> str | None:
    """Return the indentation of the line that begins at this place; None if none does."""
    before = text[:at].rpartition("\n")
    return before[2] if before[1] and not before[2].strip() else None


def _layout(fields: Mapping[str, Any], indent: str | None) -> str:
    """Return an entry on one line, or on several where one would be long."""
    line = json.dumps(fields, ensure_ascii=False)
    if indent is None or len(line) + len(indent) <= _WIDTH:
        return line
    return json.dumps(fields, ensure_ascii=False, indent=2).replace("\n", f"\n{indent}")

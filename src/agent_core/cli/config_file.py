"""Changes `config.toml` as its owner would: one key or one rule, and nothing else in the file.

A change is made in the text, comments and layout kept, and checked before anything is written: the
new text has to be a valid configuration, and to differ from the old one by that change alone.
"""

import math
import re
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from msgspec import Struct, structs

from agent_core.config.load import CONFIG_NAME, parse_config, read_setup
from agent_core.config.model_names import model_fields
from agent_core.config.models import Config, expand_home
from agent_core.config.paths import Setup
from agent_core.config.positions import dotted_key, find_line, find_lines, leaves
from agent_core.config.problems import lacks_only_a_model, read_text
from agent_core.config.removal import remove_table
from agent_core.config.rules import PermissionRule
from agent_core.config.section import Section
from agent_core.disk.folders import make_private
from agent_core.disk.replacing import replace_file, writing_alone
from agent_core.errors import ConfigError, ErrorCode
from agent_core.opening import read_bytes
from agent_core.redaction import Redactor
from agent_core.secret_shapes import kind_of_name
from agent_core.text import nearest

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

LOCK_NAME = "config.lock"
_LONE_FEED = re.compile(r"(?<!\r)\n")
_OF_A_SERVICE = ("base_url", "api_key_env", "api_key_command", "compat", "path")
"""Keys of a model that belong to its service, and not to another."""

_FILES = ("path", "ca_file")
"""Keys of a model that name a file."""

_OF_FILES = ("local", "scripted")
"""Providers whose model is a file."""

_MOST_NAMED = 5

Parts = tuple[str, ...]
Table = dict[str, Any]


class Change(Struct, frozen=True):
    """A change that was written.

    Attributes:
        key: as TOML writes it.
        line: of the key in the new file; None if it was removed.
        before: the former value; None if the file had none.
        after: the value in the file; None if it was removed.
        dropped: keys that were removed with it: they belonged to another service.
    """

    key: str
    line: int | None
    before: Any
    after: Any
    dropped: Sequence[str] = ()


class ConfigFile:
    """The user's `config.toml`, to be changed.

    Args:
        home: where it is.
        redactor: knows what is a secret; none is written.
        check: checks the new settings further, and raises a `ConfigError`.
    """

    def __init__(
        self, home: Path, redactor: Redactor, check: Callable[[Setup], object] | None = None
    ) -> None:
        self._home = home
        self._redactor = redactor
        self._check_more = check
        self._text = ""
        self.path = home / CONFIG_NAME

    def set_value(self, key: str, text: str) -> Change:
        """Give a key a value.

        Args:
            key: with dots; parts that need it are in quotes, as in TOML.
            text: TOML, or the string itself where the key takes a string. The path of a model's
                file is one from the current folder, and is written absolute.

        Raises:
            ConfigError: the file, the key or the value cannot be used; nothing was written.
            OSError: the file cannot be written, and is unchanged.
        """
        path = _parts(key)
        self._refuse_secret(path, text)
        field = _field_at(path)
        value = _from_here(path, _value(text, field))
        if isinstance(value, float) and math.isnan(value):
            raise _error(f"{dotted_key(path)} takes a finite number")
        if isinstance(value, str) and _kinds_of(field) <= {list, NoneType}:
            raise _error(f"""{dotted_key(path)} takes an array, such as '["one", "two"]'""")

        def change(document: "TOMLDocument", table: Table) -> Sequence[str]:
            if path == ("model",) and isinstance(value, str):
                return _set_model(document, table, value)
            _refuse_tables(path, table, field)
            for at in range(1, len(path)):
                if not isinstance(_get(table, path[:at]) or {}, dict):
                    above = dotted_key(path[:at])
                    message = f"{above} has a single value in {CONFIG_NAME}, so it has no keys"
                    raise _error(f"{message}: make it a table there{_at(self._text, path)}")
            _set(document, path, value)
            _set(table, path, value)
            return ()

        return self._change(path, change)

    def unset(self, key: str) -> Change:
        """Remove a key, so that its default applies. Without the key nothing is written.

        Raises:
            ConfigError: the file or the key cannot be used; nothing was written.
            OSError: the file cannot be written, and is unchanged.
        """
        path = _parts(key)
        _field_at(path)

        def change(document: "TOMLDocument", table: Table) -> Sequence[str]:
            if _get(table, path) is not None:
                _refuse_arrays(path, table)
                for each in (document, table):
                    del cast("Table", _get(each, path[:-1]))[path[-1]]
            return ()

        return self._change(path, change)

    def add_rule(self, rule: Mapping[str, Any]) -> Change:
        """Add a permission rule after the existing ones.

        Raises:
            ConfigError: the file or the rule cannot be used; nothing was written.
            OSError: the file cannot be written, and is unchanged.
        """
        path = ("permissions", "rules")
        for key, value in rule.items():
            self._refuse_secret((key,), str(value))

        def change(document: "TOMLDocument", table: Table) -> Sequence[str]:
            from tomlkit import aot, inline_table, item  # noqa: PLC0415 - slow to import
            from tomlkit.items import AoT  # noqa: PLC0415

            rules: Any = _get(document, path)
            if dict(rule) in (_get(table, path) or []):
                return ()
            if rules is None:
                rules = aot()
                _set(document, path, rules)
            if isinstance(rules, AoT):
                row = item(dict(rule))
                row.trivia.indent = "\n" if len(rules) else ""
                cast("list[Any]", rules).append(row)
            else:
                inline: Any = inline_table()
                inline.update(rule)
                rules.append(inline)
            _set(table, path, [*(_get(table, path) or []), dict(rule)])
            return ()

        done = self._change(path, change)
        key = f"{done.key}[{done.after.index(dict(rule))}]"
        line = find_lines(read_text(self.path) or "").get(key)
        return structs.replace(done, key=key, line=line)

    def remove_rule(self, number: int, rule: PermissionRule) -> Change:
        """Remove a permission rule.

        Args:
            number: its place among the rules of the file, from 1.
            rule: the rule that has to be there.

        Raises:
            ConfigError: the rule is not there, or the file cannot be used; nothing was written.
            OSError: the file cannot be written, and is unchanged.
        """
        path = ("permissions", "rules")

        def change(document: "TOMLDocument", table: Table) -> Sequence[str]:
            found = cast("list[Any]", _get(table, path) or [])
            there = [PermissionRule.model_validate(each) for each in found[number - 1 : number]]
            if there != [rule]:
                raise _error(f"{self.path} has changed: its rule {number} is another one now")
            remove_table(document, *path, number - 1)
            del found[number - 1]
            return ()

        return self._change(path, change)

    def create(self, text: str) -> None:
        """Write the first configuration.

        Raises:
            ConfigError: it is none, or has a secret.
            FileExistsError: there is one by now; it is kept.
            OSError: it cannot be written.
        """
        self._refuse_secret(("model",), text)
        self._check(text)
        make_private(self._home)
        with writing_alone(self._home / LOCK_NAME):
            replace_file(self.path, text.encode(), home=self._home, may_exist=False)

    def _change(
        self, path: Parts, change: "Callable[[TOMLDocument, Table], Sequence[str]]"
    ) -> Change:
        """Change the file by a function of its document and of its values."""
        if not self._home.exists():
            make_private(self._home)
        with writing_alone(self._home / LOCK_NAME):
            raw, text = self._read()
            self._text = text
            from tomlkit import parse  # noqa: PLC0415 - slow to import, and used here only

            document, table = parse(text), tomllib.loads(text)
            before = deepcopy(_get(table, path))
            dropped = change(document, table)
            after = document.as_string()
            if "\r\n" in text and not _LONE_FEED.search(text):
                after = _LONE_FEED.sub("\r\n", after)
            key = dotted_key(path)
            if not _is_same(after, table):
                message = f"{key} cannot be changed without touching the rest of {self.path}"
                raise _error(f"{message}: edit it there{_at(text, path)}")
            if after != text:
                self._check(after)
                self._write(raw, after)
        value = _get(table, path)
        line = find_line(find_lines(after, with_headers=True), key) if value is not None else None
        return Change(key, line, before, value, dropped)

    def _read(self) -> tuple[bytes, str]:
        """Return the file as it is, and its text, which is valid; empty if there is none.

        Raises:
            ConfigError: it is broken; names the line.
        """
        try:
            text = read_text(self.path)
        except ValueError as error:
            raise _error(f"the configuration {self.path} cannot be used: {error}") from None
        if text is None:
            return b"", ""
        try:
            parse_config(text, self.path)
        except ConfigError as error:
            if not lacks_only_a_model(error):  # which may be what is added now
                raise
        return read_bytes(self.path), text

    def _check(self, text: str) -> None:
        """Check a text as a start does.

        Raises:
            ConfigError: it would be refused.
        """
        try:
            setup = read_setup(config=parse_config(text, self.path), home_dir=self._home)
            if self._check_more is not None:
                self._check_more(setup)
        except ConfigError as error:
            problems: list[dict[str, str]] = error.details.get("problems", [])
            said = "; ".join(f"{each['key']} {each['message']}" for each in problems)
            message = f"nothing was written: {said or error.message}"
            raise _error(message, **error.details) from None

    def _write(self, before: bytes, text: str) -> None:
        target = self.path.resolve()  # a link stays one
        mark = BOM_UTF8 if before.startswith(BOM_UTF8) else b""
        mode = target.stat().st_mode & 0o777 if before or target.exists() else 0o600
        if (read_bytes(target) if target.exists() else b"") != before:
            raise _error(f"{self.path} was changed by something else; nothing was written")
        replace_file(target, mark + text.encode(), home=self._home, mode=mode)

    def _refuse_secret(self, path: Parts, text: str) -> None:
        name, parents = path[-1], path[:-1]
        is_named = kind_of_name(name) is not None and not name.endswith("_env")
        is_known = _is_known(path) and "headers" not in parents
        if (is_named and not is_known) or self._redactor.text(text) != text:
            message = f"{dotted_key(path)} would put a secret into {CONFIG_NAME}: export it in an"
            message += " environment variable, and name that: config set model.api_key_env NAME"
            raise _error(message)


def setting_keys() -> list[str]:
    """Return every key that has a single place in the file, with dots."""
    return [key for key, _ in _known_keys(Config)]


def setting_values() -> dict[str, list[str]]:
    """Return the values of each key that takes certain words alone; the others have none."""
    return {key: [*dict.fromkeys(_words_of(kind))] for key, kind in _known_keys(Config)}


def _known_keys(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _known_keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind


def _words_of(kind: Any) -> Iterator[str]:
    """Yield the words that a type names one by one."""
    if kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from (value for value in get_args(kind) if isinstance(value, str))
    elif get_origin(kind) not in {list, dict}:
        for part in get_args(kind):
            yield from _words_of(part)


def _parts(key: str) -> Parts:
    """Split a dotted key.

    Raises:
        ConfigError: it is none.
    """
    if re.search(r"\[\d*\]", key):
        array = key.partition("[")[0]
        message = f"{key} is a part of an array: edit the file, or set {array} as a whole"
        raise _error(message)
    try:
        ((path, _),) = leaves(tomllib.loads(f"{key} = 0"))
    except ValueError:
        raise _error(f"{key!r} is not a key; write one such as model.name") from None
    return path


def _field_at(path: Parts) -> Any:
    """Return the type of a key.

    Raises:
        ConfigError: there is no such key; names the nearest.
    """
    kind: Any = Config
    for at, part in enumerate(path):
        section = next(_sections_of(kind), None)
        if section is not None and part in section.model_fields:
            kind = section.model_fields[part].annotation
        elif section is None and (inner := _values_of(kind)) is not None:
            kind = inner
        elif section is None and list in _kinds_of(kind):
            array = dotted_key(path[:at])
            raise _error(f"{array} is an array: edit the file, or set {array} as a whole")
        else:
            raise _unknown(path, section, path[:at])
    return kind


def _unknown(path: Parts, section: type[Section] | None, above: Parts) -> ConfigError:
    key, parent = dotted_key(path), dotted_key(above)
    if section is None:
        return _error(f"{parent} has no keys of its own; set {parent}")
    names = [dotted_key((*above, name)) for name in section.model_fields]
    hint = nearest(key, [*names, *setting_keys()])
    takes = f"; {parent or 'the file'} takes {_some([*section.model_fields], parent)}"
    end = "" if hint else takes
    return _error(f"{key} is not a known key{hint}{end}")


def _some(names: Sequence[str], section: str) -> str:
    """Return the first names of a section, and the command that lists all of them."""
    command = f"soong-agent config show {section}".rstrip()
    more = [f"… ({command} lists them all)"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])


def _is_known(path: Parts) -> bool:
    try:
        _field_at(path)
    except ConfigError:
        return False
    return True


def _sections_of(kind: Any) -> Iterator[type[Section]]:
    if isinstance(kind, type):
        if issubclass(kind, Section):
            yield kind
    elif get_origin(kind) not in {dict, list}:
        for part in get_args(kind):
            yield from _sections_of(part)


def _values_of(kind: Any) -> Any:
    """Return the type of the values of a table whose keys the user chooses; None if it is none."""
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    if kind is Any:
        return Any
    found = (_values_of(part) for part in get_args(kind) if get_origin(kind) is not list)
    return next((each for each in found if each is not None), None)


def _kinds_of(kind: Any) -> set[Any]:
    """Return the types that a key takes."""
    if isinstance(kind, type) and get_origin(kind) is None:
        return {kind}
    origin = get_origin(kind)
    if origin is Literal:
        return {type(value) for value in get_args(kind)}
    if origin in {list, dict}:
        return {origin}
    return set[Any]().union(*(_kinds_of(part) for part in get_args(kind))) or {Any}


def _value(text: str, field: Any) -> Any:
    """Read a value: TOML, or the text itself where the key takes a string or it is no TOML."""
    if text[:1] not in {'"', "'"} and _kinds_of(field) <= {str, NoneType}:
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if set(table) == {"value"} else text


def _from_here(path: Parts, value: Any) -> Any:
    """Make the path of a model's file absolute: a start would read it from the home folder."""
    if isinstance(value, list):
        return [_from_here(path, each) for each in cast("list[Any]", value)]
    is_of_model = any("model" in part for part in path[:2]) and path[-1] != "name"
    if not isinstance(value, str) or not is_of_model:
        return value
    if path[-1] in _FILES:
        return str(expand_home(value).absolute())
    provider, colon, file = value.strip().partition(":")
    if not colon or provider not in _OF_FILES or file.startswith("//"):
        return value
    return f"{provider}:{expand_home(file).absolute()}"


def _get(table: Mapping[str, Any], path: Parts) -> Any:
    found: Any = table
    for part in path:
        if not isinstance(found, Mapping):
            return None
        found = cast("Mapping[str, Any]", found).get(part)
    return found


def _set(table: Any, path: Parts, value: Any) -> None:
    from tomlkit import table as new_table  # noqa: PLC0415 - slow to import
    from tomlkit.container import Container  # noqa: PLC0415
    from tomlkit.items import Item, Table as Section_  # noqa: PLC0415

    is_document = isinstance(table, Container | Item)
    for at, part in enumerate(path):
        is_last = at == len(path) - 1
        if not is_last and part in table:
            table = table[part]
            continue
        given: Any = value if is_last else new_table() if is_document else {}
        if part not in table and isinstance(table, Section_):
            _add(table.value.body, table, part, given)
        else:
            table[part] = given
        table = table[part]


def _add(body: list[Any], table: Any, key: str, value: Any) -> None:
    """Add a key to a table of a document, above the comments that belong to what follows it."""
    below: list[Any] = []
    while body and body[-1][0] is None:
        below.insert(0, body.pop())
    table[key] = value
    body.extend(below)


def _set_model(document: Any, table: Table, name: str) -> Sequence[str]:
    """Make a model string the model: in its table, where other settings of a model are kept."""
    try:
        fields = model_fields(name)
    except ValueError as error:
        raise _error(f"nothing was written: model {error}") from None
    before = table.get("model")
    if isinstance(before, str):
        document["model"] = table["model"] = name
        return ()
    known = cast("Table", before or {})
    is_other = any(known.get(key) != fields.get(key) for key in ("provider", "base_url") if known)
    dropped = [key for key in _OF_A_SERVICE if is_other and key in known and key not in fields]
    for key in dropped:
        del document["model"][key], table["model"][key]
    for key, value in fields.items():
        _set(document, ("model", key), value)
        _set(table, ("model", key), value)
    return [f"model.{key}" for key in dropped]


def _refuse_tables(path: Parts, table: Table, field: Any) -> None:
    """Refuse to give a value to a section, and to what has keys of its own in the file."""
    if (section := field) in [*_sections_of(field)]:
        keys = [dotted_key((*path, name)) for name in section.model_fields]
        names = _some(keys, dotted_key(path))
        raise _error(f"{dotted_key(path)} is a section; set one of its keys: {names}")
    _refuse_arrays(path, table)


def _refuse_arrays(path: Parts, table: Table) -> None:
    """Refuse to replace or remove many tables at once, and their comments."""
    found = _get(table, path)
    if isinstance(found, list) and any(isinstance(each, dict) for each in cast("list[Any]", found)):
        raise _error(f"{dotted_key(path)} is an array of tables: edit it in {CONFIG_NAME}")


def _is_same(text: str, table: Table) -> bool:
    try:
        return _pruned(tomllib.loads(text)) == _pruned(table)
    except (ValueError, RecursionError):
        return False


def _pruned(table: Table) -> Table:
    """Return a table without empty ones: a dotted key takes them with it."""
    pruned = {
        key: _pruned(cast("Table", value)) if isinstance(value, dict) else value
        for key, value in table.items()
    }
    return {key: value for key, value in pruned.items() if value != {}}


def _at(text: str, path: Parts) -> str:
    lines = find_lines(text, with_headers=True)
    line = find_line(lines, dotted_key(path))
    return f", line {line}" if line else ""


def _error(message: str, **details: Any) -> ConfigError:
    return ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)

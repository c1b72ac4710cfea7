"""Markdown with front matter, as used by instruction files, skills, agents and memories.

The head is YAML between two `---` lines. Files come from anywhere, so only a known part of YAML is
allowed: keys with scalars, flat lists of scalars, and tables of such values. Size and depth are
bounded before values are built, and an unreadable head is reported in `problem`, not raised.
"""

import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from agent_core.text import quoted
from agent_core.text.json_text import JsonObject, JsonValue

if TYPE_CHECKING:
    import yaml

MAX_HEAD_BYTES = 8192
"""Longest head that is read; a longer one is not a description."""
MAX_DEPTH = 5
"""Deepest nesting of tables and lists, counting the head itself."""

_HEAD = re.compile(
    rb"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_ENTRY = r"(?m)^[^\s#][^\n]*(?:\n(?:[ \t][^\n]*)?$)*"
"""A key of the head with its value: a line, and the indented or empty lines below it."""
_JSON_TEXT = r'"(?:[^"\\]|\\["\\nt])*+"'
_JSON_LINE = rf"[a-z_]++: (?:{_JSON_TEXT}|\[(?:{_JSON_TEXT}(?:, {_JSON_TEXT})*+)?\])"
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_INTEGER = r"[-+]?(?:0|[1-9][0-9]{0,17})"
_FLOAT = r"[-+]?[0-9]{1,18}\.[0-9]{0,18}(?:[eE][-+]?[0-9]{1,3})?"


class FrontMatter(Struct, frozen=True):
    """A text split into its head and its body.

    Attributes:
        fields: the head's keys and values; empty without a readable head. Values are strings, whole
          and decimal numbers, truth values, None, flat lists and tables of these. Scalars with
          other meanings in YAML (dates, other notations) stay strings.
        body: the text after the head; the whole text if there is no head.
        problem: the reason why an existing head could not be read, for the file's author.
    """

    fields: Mapping[str, JsonValue] = field(default_factory=JsonObject)
    body: str = ""
    problem: str | None = None

    def text(self, key: str) -> str:
        """Return the value of `key` on one line; empty if it is absent or not a scalar."""
        value = self.fields.get(key)
        if value is None or isinstance(value, dict | list):
            return ""
        return " ".join(str(value).split())


def parse_front_matter(content: str | bytes) -> FrontMatter:
    """Split a file's content into head and body. Never raises: errors are reported in `problem`.

    Bytes of the body that are not UTF-8 become replacement characters, and NULs in it are removed;
    a head with either is not read.
    """
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    raw = raw.removeprefix(BOM_UTF8)
    if not raw.startswith(b"---"):
        return FrontMatter(body=_decode_body(raw))
    match = _HEAD.match(raw, 0, MAX_HEAD_BYTES)
    if match is None:
        problem = f"the front matter has no end line '---' within {MAX_HEAD_BYTES} bytes"
        return FrontMatter(body=_decode_body(raw), problem=problem)
    body = _decode_body(raw[match.end() :])
    try:
        fields = _parse_head(match[1].decode())
    except UnicodeDecodeError:
        return FrontMatter(body=body, problem="the front matter is not UTF-8")
    except ValueError as error:
        return FrontMatter(body=body, problem=f"the front matter is not readable: {error}")
    return FrontMatter(fields, body)


def read_fields(content: str, keys: Collection[str]) -> FrontMatter:
    """Split a file of another program into head and body, and read these keys of its head.

    Other keys may hold anything; `problem` says if they cannot be read. A value that is not
    readable, or is no scalar, is taken as it stands: the words of its line and of the indented
    lines below it.
    """
    whole = parse_front_matter(content)
    if not whole.problem and all(whole.text(key) or key not in whole.fields for key in keys):
        return whole
    raw = content.removeprefix("\ufeff").encode("utf-8", "surrogatepass")
    match = _HEAD.match(raw, 0, MAX_HEAD_BYTES)
    if match is None:
        return whole
    fields: JsonObject = {}
    for entry in re.findall(_ENTRY, match[1].decode("utf-8", "replace")):
        key, _, written = entry.partition(":")
        key = key.strip().strip("\"'")
        if key in keys and key not in fields:
            fields[key] = _read_value(entry, key) or _as_it_stands(written)
    return FrontMatter(fields, whole.body, whole.problem)


def _read_value(entry: str, key: str) -> str:
    """Return the text of a key in its lines of YAML; empty if they are not readable."""
    try:
        return FrontMatter(parse_yaml(entry)).text(key)
    except ValueError:
        return ""


def _as_it_stands(written: str) -> str:
    """Return the words of a value, without the quotes around it or the mark of a block."""
    words = " ".join(re.sub(r"\A\s*[|>][-+0-9]*\s*$", "", written, count=1, flags=re.M).split())
    return words[1:-1] if len(words) > 1 and words[0] == words[-1] and words[0] in "\"'" else words


def _decode_body(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\0", "")


def _parse_head(head: str) -> Mapping[str, JsonValue]:
    """Parse the table in a head.

    Raises:
        ValueError: it is not a table, or has something that is not allowed in a head.
    """
    if not head.strip():
        return {}
    fields = _parse_json_lines(head)
    return parse_yaml(head) if fields is None else fields


@lru_cache(maxsize=2048)
def parse_yaml(head: str) -> Mapping[str, JsonValue]:
    """Parse a head as YAML, cached because every run reads the same skills and instructions.

    Raises:
        ValueError: as `_parse_head`.
    """
    import yaml  # noqa: PLC0415 - most runs read no front matter

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        return _Reader(yaml.parse(head, Loader=loader)).read()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 2}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ValueError(f"{reason}{place}"[:200]) from None


def _parse_json_lines(head: str) -> JsonObject | None:
    """Read a head as this program writes it: each line a name, and a JSON text or list of texts.

    YAML reads these lines in the same way, but takes ten times as long. None for any other head.
    """
    lines = head.rstrip("\n").split("\n")
    if (
        not all(re.fullmatch(_JSON_LINE, line) for line in lines)
        or not "".join(lines).isprintable()
    ):
        return None
    members = (f'"{key}":{written}' for key, _, written in (line.partition(": ") for line in lines))
    fields: JsonObject = json.loads(f"{{{','.join(members)}}}")
    return fields if len(fields) == len(lines) else None


class _Reader:
    """Builds plain values from YAML events; allows the kinds it names and refuses all others.

    Reading stops at the first event that is refused, so that the rest costs nothing.
    """

    def __init__(self, events: Iterator["yaml.Event"]) -> None:
        import yaml  # noqa: PLC0415

        self._events = events
        self._yaml = yaml
        self._ends = (yaml.MappingEndEvent, yaml.SequenceEndEvent)

    def read(self) -> JsonObject:
        yaml = self._yaml
        for event in self._events:
            match event:
                case yaml.MappingStartEvent():
                    self._check_plain(event)
                    table = self._table(1)
                    for after in self._events:
                        if not isinstance(after, yaml.DocumentEndEvent | yaml.StreamEndEvent):
                            raise _refused("a second document", after)
                    return table
                case yaml.StreamEndEvent() | yaml.ScalarEvent(value="", tag=None):
                    return {}  # comments only
                case yaml.StreamStartEvent() | yaml.DocumentStartEvent(version=None, tags=None):
                    pass
                case _:
                    raise _refused("it is not a table of keys and values", event)
        return {}

    def _table(self, depth: int) -> JsonObject:
        table: JsonObject = {}
        for event in self._events:
            if isinstance(event, self._ends):
                break
            if not isinstance(event, self._yaml.ScalarEvent):
                raise _refused("a key that is not plain text", event)
            self._check_plain(event)
            key: str = event.value
            if event.implicit[0] and key == "<<":
                raise _refused("a merge key '<<', which is not admitted", event)
            if key in table:
                raise _refused(f"the key {quoted(key, 60)} is there twice", event)
            table[key] = self._value(next(self._events), depth)
        return table

    def _list(self) -> list[Any]:
        items: list[Any] = []
        for event in self._events:
            if isinstance(event, self._ends):
                break
            if not isinstance(event, self._yaml.ScalarEvent):
                raise _refused("a list holds something other than plain values", event)
            self._check_plain(event)
            items.append(_resolve_scalar(event))
        return items

    def _value(self, event: "yaml.Event", depth: int) -> Any:
        self._check_plain(event)
        if isinstance(event, self._yaml.ScalarEvent):
            return _resolve_scalar(event)
        if depth == MAX_DEPTH:
            raise _refused(f"more than {MAX_DEPTH} levels within each other", event)
        if isinstance(event, self._yaml.SequenceStartEvent):
            return self._list()
        if isinstance(event, self._yaml.MappingStartEvent):
            return self._table(depth + 1)
        raise _refused("an alias, which is not admitted", event)

    def _check_plain(self, event: "yaml.Event") -> None:
        if getattr(event, "tag", None) is not None:
            raise _refused(f"the tag {quoted(str(getattr(event, 'tag', '')), 60)}", event)
        if getattr(event, "anchor", None) is not None:
            raise _refused("an anchor or an alias, which are not admitted", event)


def _resolve_scalar(event: "yaml.ScalarEvent") -> Any:
    """Return the value of a scalar; its text if it is quoted or in no simple notation."""
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if re.fullmatch(_INTEGER, text):
        return int(text)
    if re.fullmatch(_FLOAT, text) and math.isfinite(number := float(text)):
        return number
    return text


def _refused(what: str, event: "yaml.Event") -> ValueError:
    mark = event.start_mark
    return ValueError(f"{what} (line {mark.line + 2})" if mark else what)

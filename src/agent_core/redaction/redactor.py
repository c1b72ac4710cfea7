"""Remove secrets from texts, values and live streams, and make invisible text visible.

Configured secrets are found in their usual spellings, others by their shape.
"""

import json
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, cast
from urllib.parse import quote, quote_plus

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from agent_core.secret_shapes import ShapeFilter, has_lead, kind_of_name, marker, without_secrets
from agent_core.text import common_start, join_surrogates, noun, visible
from agent_core.types import (
    OPAQUE,
    REDACTED,
    CitationBlock,
    ContentBlock,
    PendingEvent,
    ProviderToolBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
)

SHORTEST_SECRET = 4
"""Shorter values are ignored: replacing every `a` would destroy the text and hide nothing."""

_PLACEHOLDERS = {
    *("any", "anything", "changeme", "dummy", "empty", "fake", "local", "localhost", "lm-studio"),
    *("lmstudio", "no-key", "none", "not-needed", "null", "ollama", "placeholder", "test"),
    *("sk-no-key-required", "testing", "unused", "vllm"),
}
"""Words that stand for a key at servers that need none: as secrets they would destroy texts."""

_PERCENT = re.compile(r"%[0-9A-F]{2}")
_CUT_BEHIND = re.compile(r"(?:\n|\\n)?(?:\u2026|\\u2026| ?\[\.\.\. omitted)")
_CUT_BEFORE = r"\u2026(?:\n|\\n)?\Z"
_LONGEST_CUT = len("\u2026\\n")
_SHORTEST_LINE = 16
"""Shortest line of a multi-line secret, such as a private key, that is also searched for."""

_UNSAFE_IN_KIND = re.compile(r"[^A-Za-z0-9_.-]+")


class SecretValues:
    """Secret values as a set of strings to look for.

    A value is found as it is, without surrounding white space, JSON-escaped once or twice, as a
    Python literal, and URL-quoted; of a value with several lines, each long line is found too. If a
    text was cut, which a `…` shows, the remaining part is found: the beginning of a value before
    the cut, or its end after it. Base64, other encodings and other parts of a value are not found.
    """

    def __init__(self, kinds: Mapping[str, str], *, encoding: str | None = None) -> None:
        """Take `value -> kind`; the kind is shown in place of the value.

        With `encoding`, the text to be searched is bytes read as Latin-1, and the values are
        looked for as they are in that encoding.
        """
        self._markers: dict[str, str] = {}
        for value, kind in kinds.items():
            shown = marker(_UNSAFE_IN_KIND.sub("_", kind))
            bare = value.strip()
            if len(bare) < SHORTEST_SECRET or _is_placeholder(bare, kind):
                continue
            spellings = (form for part in _parts(bare) for form in _spellings(part))
            for form in spellings:
                form = (
                    form.encode(encoding, "surrogateescape").decode("latin-1") if encoding else form
                )
                self._markers.setdefault(form, shown)
        self._forms = sorted(self._markers, key=len, reverse=True)
        self._longest = len(self._forms[0]) if self._forms else 0
        self._pattern = re.compile("|".join(map(re.escape, self._forms)))
        self._first = re.compile("|".join(sorted({re.escape(form[0]) for form in self._forms})))

    def replace(self, text: str) -> str:
        """Return `text` without the values; the same object if it has none."""
        for form in self._forms:
            if form in text:
                text = self._pattern.sub(lambda found: self._markers[found[0]], text)
                break
        if "\u2026" not in text and "[... omitted" not in text:
            return text
        out: list[str] = []
        done = 0
        for start, end, shown in sorted(self._find_fragments(text)):
            if start >= done:
                out += text[done:start], shown
                done = end
        return "".join((*out, text[done:])) if out else text

    def _find_fragments(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield start, end and marker of the remains of cut values, of at least four characters."""
        for form, shown in self._markers.items():
            for at in _found(form[:SHORTEST_SECRET], text):
                end = at + common_start(form, text[at : at + len(form)])
                if _CUT_BEHIND.match(text, end):
                    yield at, end, shown
            for at in _found(form[-SHORTEST_SECRET:], text):
                end = at + SHORTEST_SECRET
                start = end - common_start(form[::-1], text[max(0, end - len(form)) : end][::-1])
                if re.search(_CUT_BEFORE, text[max(0, start - _LONGEST_CUT) : start]):
                    yield start, end, shown

    def settle(self, text: str) -> tuple[str, str]:
        """Split `text`, whose continuation is unknown, into a part to show and a part to hold back.

        No continuation can change the first, in which values are replaced; the second is a
        tail that may be the beginning of a value.
        """
        if not self._forms:
            return text, ""
        out: list[str] = []
        done = 0
        while True:
            hold = self._open_tail(text, done)
            found = self._pattern.search(text, done)
            if found is None or found.start() >= hold:
                out.append(text[done:hold])
                return "".join(out), text[hold:]
            out += text[done : found.start()], self._markers[found[0]]
            done = found.end()

    def _open_tail(self, text: str, start: int) -> int:
        """Return where the earliest unfinished value could begin, or the end of `text`."""
        # Only the last `longest` characters: a longer tail would be a whole value, not a beginning.
        for found in self._first.finditer(text, max(start, len(text) - self._longest + 1)):
            tail = text[found.start() :]
            if any(len(form) > len(tail) and form.startswith(tail) for form in self._forms):
                return found.start()
        return len(text)


def _parts(value: str) -> Iterator[str]:
    """Yield a value, and its long lines, because tools show lines one by one."""
    yield value
    lines = value.split("\n")
    if len(lines) > 1:
        shown = (line.strip() for line in lines)
        yield from (line for line in shown if len(line) >= _SHORTEST_LINE and line[0] != "-")


def _found(piece: str, text: str) -> Iterator[int]:
    return (found.start() for found in re.finditer(re.escape(piece), text))


def _is_placeholder(value: str, kind: str) -> bool:
    """Return whether a key is only a word; a password may be one and still protect something."""
    return "key" in kind.casefold() and value.casefold() in _PLACEHOLDERS


def _spellings(value: str) -> set[str]:
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted = {
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
    }
    return {
        value,
        repr(value)[1:-1],
        *escaped,
        *(json.dumps(each)[1:-1] for each in escaped),
        *quoted,
        *(_PERCENT.sub(lambda code: code[0].lower(), each) for each in quoted),
    }


DEEPEST = 200
"""Levels of nesting that are searched; deeper values are replaced as a whole."""

_SHORTEST_NUMBER, _LONGEST_NUMBER = 10**5, 10**40
_LONE_MARKER = r"-?\[redacted:[^\]]*\]"
_SHOWN_ENDS = 10_000  # characters of each end of a long traceback


class LiveText(Struct, eq=False):
    """One live text, redacted while it is being written.

    The outputs of `feed` and `finish`, joined, are the redaction of the whole text, however it
    was cut. Ordinary words pass at once; only possible beginnings of secrets wait.
    """

    _values: SecretValues
    _held: str = ""
    _shapes: ShapeFilter = field(default_factory=ShapeFilter)

    def feed(self, text: str) -> str:
        """Take the next piece and return what can be shown now; may be empty."""
        settled, self._held = self._values.settle(self._held + text)
        return self._shapes.feed(settled)

    def finish(self) -> str:
        """Return the text held back, and start again with an empty text."""
        rest, self._held = self._values.replace(self._held), ""
        shown = self._shapes.feed(rest, final=True)
        self._shapes = ShapeFilter()
        return shown


class LiveBytes:
    """Like `LiveText` for bytes of any kind; all but secrets passes unchanged.

    The bytes are read as Latin-1, where each is one character. `values` must have been made for
    that (`SecretValues(…, encoding="utf-8")`).
    """

    def __init__(self, values: SecretValues) -> None:
        self._text = LiveText(values)

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return what can be stored now; may be empty."""
        return self._text.feed(data.decode("latin-1")).encode("latin-1")

    def finish(self) -> bytes:
        """Return the bytes held back."""
        return self._text.finish().encode("latin-1")


_NO_VALUES = SecretValues({})


class Redactor:
    """Removes secrets from texts, JSON-like values and bytes.

    Two strengths: `secrets_only` removes the values of configured secrets and is for what a model
    must be able to read back; `text` also removes what merely looks like a secret, and is for
    events, logs, artifacts and screens. A value without secrets is returned as the same object.

    Args:
        secrets: `kind -> value`; the kind, usually the name of the environment variable, is
            shown instead: `[redacted:OPENAI_API_KEY]`. Values of fewer than four characters are
            ignored: they occur everywhere, and replacing them would destroy the text.

    Attributes:
        has_secrets: true if any secret is known.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._kinds: dict[str, str] = {}  # by value: two secrets may have the same kind
        self.has_secrets = False
        self._values = self._values_in_bytes = _NO_VALUES
        if secrets:
            self.learn(secrets)

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Remove these values too, from now on; live texts that have begun are not affected.

        A value that was known before stays known, even if its kind now has another value.
        """
        unknown = {value: kind for kind, value in secrets.items() if value not in self._kinds}
        if not unknown:
            return
        self._kinds |= unknown
        self.has_secrets = True
        self._values = SecretValues(self._kinds)
        self._values_in_bytes = SecretValues(self._kinds, encoding="utf-8")

    @property
    def known(self) -> int:
        """The number of known secrets; it grows when more are learnt."""
        return len(self._kinds)

    def secrets_only(self, text: str) -> str:
        """Return `text` without the values of configured secrets."""
        return self._values.replace(text)

    def text(self, text: str) -> str:
        """Return `text` without configured secrets and without token shapes."""
        text = self._values.replace(text)
        return ShapeFilter().feed(text, final=True) if has_lead(text) else text

    def payload(self, value: Any) -> Any:
        """Apply `text` to every string of a JSON-like value, including keys.

        A string under a name that promises a secret (`{"password": "…"}`) is replaced as a whole.
        """
        text = json_text(value)
        is_plain = text is not None and self.is_plain(text)
        return value if is_plain else walk(value, self.text, named=True)

    def is_plain(self, text: str) -> bool:
        """Return whether a JSON text cannot contain a secret, as is true of most payloads."""
        # Token counts are in many payloads and do not name secrets. Only the end of a name is
        # removed: other leads may begin within a word (`tokensecret=`).
        counted = text.replace('tokens":', '":').replace('token_count":', '":')
        return not has_lead(counted) and self._values.replace(text) is text

    def payload_secrets_only(self, value: Any) -> Any:
        """Apply `secrets_only` to every string of a JSON-like value, including keys."""
        return walk(value, self.secrets_only)

    def raw(self, data: bytes) -> bytes:
        """Redact bytes of any kind as `text` does, where they are ASCII or UTF-8 text."""
        live = self.raw_stream()
        return live.feed(data) + live.finish()

    def stream(self) -> LiveText:
        """Return a redactor for one text that arrives in pieces; as strong as `text`."""
        return LiveText(self._values)

    def raw_stream(self) -> LiveBytes:
        """Return a redactor for bytes that arrive in pieces, for files of any size."""
        return LiveBytes(self._values_in_bytes)


def walk(value: Any, clean: Callable[[str], str], *, named: bool = False, depth: int = 0) -> Any:
    """Apply `clean` to every string of a JSON-like value, including keys.

    Returns the same object if nothing changes. An integer of six digits or more is replaced if it
    is a secret as a whole; shorter ones are usually counts and durations. With `named`, a string
    under a name that promises a secret is replaced as a whole.
    """
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int) and _SHORTEST_NUMBER <= abs(value) <= _LONGEST_NUMBER:
        digits = str(value)
        shown = clean(digits)
        return shown if digits not in shown and re.fullmatch(_LONE_MARKER, shown) else value
    if depth > DEEPEST and isinstance(value, dict | list | tuple):
        return marker("nesting")
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        walked = [walk(item, clean, named=named, depth=depth + 1) for item in items]
        is_same = all(new is old for new, old in zip(walked, items, strict=True))
        return items if is_same else walked
    if not isinstance(value, dict):
        return value
    table = cast("dict[Any, Any]", value)
    changed: dict[Any, Any] = {}
    is_same = True
    for key, item in table.items():
        new_key = clean(key) if isinstance(key, str) else key
        kind = kind_of_name(key) if named and isinstance(key, str) else None
        if kind and isinstance(item, str) and item and not item.startswith("[redacted:"):
            new_item = marker(kind)
        else:
            new_item = walk(item, clean, named=named, depth=depth + 1)
        is_same = is_same and new_key is key and new_item is item
        changed[new_key] = new_item
    return table if is_same else changed


def log_failure(
    logger: logging.Logger,
    what: str,
    *,
    error: BaseException,
    clean: Callable[[str], str] = without_secrets,
    level: int = logging.ERROR,
) -> None:
    """Log an unexpected exception with its traceback as text, because `exc_info` cannot be cleaned.

    The text is safe for every log and terminal: control characters and lone surrogates are escaped.

    Args:
        logger: the logger to use.
        what: the failed action, for a person.
        error: the exception.
        clean: removes secrets from text; by default what shows by its shape.
        level: the level of the record.
    """
    text = visible(clean("".join(traceback.format_exception(error)).rstrip()))
    if (left_out := len(text) - 2 * _SHOWN_ENDS) > 0:
        gap = f"[… {left_out} {noun(left_out, 'character')} …]"
        text = f"{text[:_SHOWN_ENDS]}\n{gap}\n{text[-_SHOWN_ENDS:]}"
    logger.log(level, "%s\n%s", what, text)


_OPAQUE_KEYS = frozenset({OPAQUE, "redacted_thinking"})


class JournalRedactor:
    """Removes everything that looks like a secret from events, and known secrets from nodes.

    The result can always be written as UTF-8: half of a surrogate pair becomes U+FFFD.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self.stream = redactor.stream
        """Returns a redactor for the deltas of one text."""

    def payload(self, value: Any) -> Any:
        """Return the data of an event without secrets; the same object if it has none."""
        return self.payload_and_json(value)[0]

    def payload_and_json(self, value: Any) -> tuple[Any, str | None]:
        """Return the data of an event without secrets, and its JSON text if it was made."""
        text = json_text(value)
        if text is not None and self._redactor.is_plain(text):
            return value, text
        return _encodable(self._redactor.payload(value)), None

    def events(self, events: list[PendingEvent]) -> list[PendingEvent]:
        """Return the events without secrets, after one search through all their texts."""
        texts: list[str | None] = list(map(attrgetter("payload_json"), events))
        if None not in texts and self._redactor.is_plain("\n".join(cast("list[str]", texts))):
            return events
        return list(map(self._clean_event, events))

    def _clean_event(self, event: PendingEvent) -> PendingEvent:
        payload, text = self.payload_and_json(event.draft.payload)
        return replace(event, draft=replace(event.draft, payload=payload), payload_json=text)

    def content(self, blocks: Iterable[ContentBlock]) -> list[ContentBlock]:
        """Return the blocks of a node without secrets; the same objects if there are none."""
        encodable = map(_encodable_block, blocks)
        return list(map(self._clean, encodable) if self._redactor.has_secrets else encodable)

    def metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Clean a node's metadata, which the model never sees but the program reads back."""
        if not metadata:
            return {}
        plain: dict[str, Any] = _encodable(dict(metadata))
        return self._redactor.payload_secrets_only(plain) if self._redactor.has_secrets else plain

    def _clean(self, block: ContentBlock) -> ContentBlock:
        before = block.model_dump()
        after = self._redactor.payload_secrets_only(before)
        if after is before:
            return block
        # Opaque data goes back to the model whole or not at all: a changed one would be refused.
        if isinstance(block, ReasoningBlock):
            after["signature"] = None  # it signed other words
            own = after["metadata"].items()
            after["metadata"] = {key: item for key, item in own if key not in _OPAQUE_KEYS}
        elif isinstance(block, ProviderToolBlock | CitationBlock):
            after["metadata"] = {k: v for k, v in after["metadata"].items() if k != OPAQUE}
        elif isinstance(block, ToolCallBlock):
            opaque = before["metadata"].get(OPAQUE)
            if after["metadata"].get(OPAQUE) is not opaque:
                after["metadata"] = {**after["metadata"], OPAQUE: {}}
            if after["arguments"] is not before["arguments"]:
                after["metadata"] = {**after["metadata"], REDACTED: True}
        return type(block).model_validate(after)


def _encodable_block(block: ContentBlock) -> ContentBlock:
    if not isinstance(block, TextBlock) or block.text.isascii():
        return block
    text = join_surrogates(block.text)
    return block if text == block.text else block.model_copy(update={"text": text})


def _encodable(value: Any) -> Any:
    """Replace every half of a surrogate pair; the same object if there is none."""
    return walk(value, join_surrogates) if json_text(value) is None else value


def json_text(value: Any) -> str | None:
    """Encode a value as JSON text; None if the fast encoder does not take it."""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError):
        return None

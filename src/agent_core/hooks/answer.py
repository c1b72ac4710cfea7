"""Read the answer of a hook from what it printed and how it ended.

A deny counts wherever it can be read. An allow counts only if it is the whole output: text that a
hook repeats, such as the arguments of a call, must not pass for its answer.
"""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any, Literal, Self, cast

from pydantic import Field, ValidationError

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.hooks.file import HookPoint
from agent_core.hooks.other_forms import read_other_form
from agent_core.process import CompletedProcess
from agent_core.process.capture import Output
from agent_core.text import shortened
from agent_core.text.json_text import JsonObject
from agent_core.types import Frozen

logger = logging.getLogger(__name__)

MOST_SHOWN = 2000
"""Characters kept of a hook's stderr, reason and logs, and bytes of the metadata of its answer."""

_DENIAL_EXIT_CODE = 2
"""The exit code that denies, with the text on stderr as the reason."""
_DENIALS = frozenset(
    ("deny", "denied", "block", "blocked", "reject", "rejected", "refuse", "refused")
)
_DECISIONS = ("decision", "permissiondecision", "permission", "behavior")
_REASONS = (
    *("reason", "permissiondecisionreason", "stopreason", "message", "errormessage"),
    *("usermessage", "user_message", "agentmessage", "agent_message", "systemmessage"),
)
_NESTED = ("hookspecificoutput", "decision")
_DATA = frozenset(
    ("metadata", "logs", "arguments", "tool_input", "toolinput", "updatedinput", "result")
)
"""Names below which a hook repeats what it got: nothing in there is its decision."""
_ANY_DENIAL = "|".join(_DENIALS)
_DENIAL = re.compile(
    rf"""["'](?:{"|".join(_DECISIONS)})["']\s*:\s*["']\W*(?:{_ANY_DENIAL})\b""", re.IGNORECASE
)
_DENIAL_VALUE = re.compile(rf"\W*(?:{_ANY_DENIAL})\b", re.IGNORECASE)
_WORDS = re.compile(
    r"""(?:^[^\w\n]*(?:<\w+>[^\w\n]*)?"""
    r"""|(?P<key>\b(?:permission)?decision["'`*]*[ \t]*[:=][^\w\n]*))"""
    rf"""(?:{_ANY_DENIAL})\b(?![-/.]\w)(?:</\w+>)?(?P<reason>[^\n]*)""",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that begins with a deny, or a decision that is one, outside of any JSON."""
_NO_MORE = re.compile(r"""["']continue["']\s*:\s*false\b""", re.IGNORECASE)
_REASON = re.compile(
    r"""["'](?:permissionDecision)?reason["']\s*:\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""",
    re.IGNORECASE,
)
_REASON_LINE = re.compile(r"^[ \t]*reason[ \t]*[:=][ \t]*(.+)$", re.IGNORECASE | re.MULTILINE)
_LETTER = re.compile(r"(?<!\\)\\u00([46][1-9a-fA-F]|[57][0-9aA])")
_FORMATTING = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_CHUNK, _WINDOW = 2**20, 32_768
"""An output that is too long is read in chunks; a window is read on both sides of a deny in it."""
_MOST_PARTS = 1000
"""Faulty objects of a text that are looked into; what is behind them is taken for words."""


class HookAnswer(Frozen):
    """The answer of a hook; no output means allow."""

    decision: Literal["allow", "deny"] = "allow"
    reason: str | None = None
    metadata: JsonObject = Field(default_factory=JsonObject)
    logs: list[str] | str = Field(default_factory=list[str])

    def shortened(self) -> Self:
        """Return the answer as it is recorded and shown, with every part shortened."""
        logs = self.logs if isinstance(self.logs, str) else "\n".join(self.logs)
        is_long = len(logs) > MOST_SHOWN
        changes: JsonObject = {"logs": shortened(logs, MOST_SHOWN) if is_long else self.logs}
        if self.reason is not None:
            changes["reason"] = shortened(self.reason, MOST_SHOWN)
        written = json.dumps(self.metadata, ensure_ascii=False)
        size = len(written.encode("utf-8", "surrogatepass"))
        if size > MOST_SHOWN:
            changes["metadata"] = {"left_out": f"{size} bytes; at most {MOST_SHOWN} are kept"}
        return self.model_copy(update=changes)


class HookError(AgentCoreError):
    """A hook could not be run, or its answer could not be read."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.HOOK_FAILED, message)


def read_answer(finished: CompletedProcess, timeout_ms: int, point: HookPoint) -> HookAnswer:
    """Return a hook's answer.

    Raises:
        HookError: it ended badly, or its answer cannot be read.
    """
    stderr = finished.stderr.text.strip()
    denial = _find_denial(finished, point)
    if denial is not None:
        reason = denial.reason or last_part(stderr) or None
        return denial.model_copy(update={"reason": reason}).shortened()
    if finished.timed_out:
        raise HookError(f"it did not end within {timeout_ms} ms")
    printed = _plain(finished.stdout.text)
    if finished.exit_code == _DENIAL_EXIT_CODE:
        return HookAnswer(decision="deny", reason=last_part(stderr or printed) or None)
    if finished.exit_code != 0:
        said = last_part(stderr)
        because = f": {said}" if said else ""
        raise HookError(f"it ended with exit code {finished.exit_code}{because}")
    if not printed:
        return HookAnswer()
    if finished.stdout.truncated:
        raise HookError(f"its answer has {finished.stdout.size_bytes} bytes, which is too long")
    try:
        return HookAnswer.model_validate_json(printed).shortened()
    except ValidationError as error:
        if (answer := _answer_of_other_form(printed, point)) is not None:
            return answer
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(f"{part}: " for part in first["loc"])
        raise HookError(f"its answer cannot be read: {place}{first['msg']}"[:MOST_SHOWN]) from error


def _answer_of_other_form(printed: str, point: HookPoint) -> HookAnswer | None:
    """Return the answer of a hook that was written for another agent; None if it is unknown."""
    if (found := read_other_form(printed)) is None:
        return None
    answer, ignored = found
    if ignored:
        logger.info("the answer of a %s hook is an allow; ignored: %s", point, ", ".join(ignored))
    try:
        return HookAnswer.model_validate(answer).shortened()
    except ValidationError:
        return None


def last_part(text: str) -> str:
    """Return the end of a text that is too long to be recorded."""
    return text if len(text) <= MOST_SHOWN else f"…{text[-MOST_SHOWN:]}"


def _find_denial(finished: CompletedProcess, point: HookPoint) -> HookAnswer | None:
    """Return the deny that stdout or stderr holds, anywhere in it.

    Plain words on stderr count only if the hook has failed: otherwise it is a log, or the reason.
    """
    # "continue": false ends the work: before a call that denies it, at the end it is no objection.
    forms = [_DENIAL, *([] if point is HookPoint.STOP else [_NO_MORE])]
    has_failed = finished.timed_out or finished.exit_code not in {0, _DENIAL_EXIT_CODE}
    for output, has_words in ((finished.stdout, True), (finished.stderr, has_failed)):
        known = _Forms([*forms, _WORDS] if has_words else forms)
        for text in _texts(output, known):
            if (document := _denial_in(text, known)) is not None:
                return _answer_of(document)
    return None


class _Forms(list[re.Pattern[str]]):
    """The forms of a deny that count in a text."""

    def occur(self, text: str) -> bool:
        """Return whether the text has one of them."""
        return any(form.search(text) for form in self)

    def deny(self, named: JsonObject) -> bool:
        """Return whether an object denies by a value of its own."""
        if _NO_MORE in self and named.get("continue") is False:
            return True
        return any(_is_denial(named.get(name)) for name in _DECISIONS)


def _texts(output: Output, forms: _Forms) -> Iterator[str]:
    """Yield the text of an output; of one that was cut also the parts around a deny in its file."""
    yield _plain(output.text)
    if output.spool is None:
        return
    output.spool.seek(0)
    before = b""
    while chunk := output.spool.read(_CHUNK):
        part = _plain((before + chunk).decode(errors="replace"))
        for form in forms:
            place = 0
            while match := form.search(part, place):
                place = match.end() + _WINDOW
                yield part[max(0, match.start() - _WINDOW) : place]
        before = chunk[-_WINDOW:]


def _plain(text: str) -> str:
    """Return a text without a byte order mark, the zeros of UTF-16, formatting, escaped letters."""
    text = _FORMATTING.sub("", text.replace("\0", "")).lstrip("\ufeff\ufffd").strip()
    return _LETTER.sub(lambda found: chr(int(found[1], 16)), text)


def _denial_in(text: str, forms: _Forms) -> JsonObject | None:
    """Return the object in a text that denies; None if there is none."""
    try:
        whole: Any = json.loads(text)
        if isinstance(whole, str):  # an answer that was encoded twice
            text = whole
            whole = json.loads(text)
    except (ValueError, RecursionError):
        return _denial_beside(text, forms)
    return _denying(whole, forms)


def _denial_beside(text: str, forms: _Forms) -> JsonObject | None:
    """Return the object that denies in a text that has more in it than the object.

    An object that is not valid JSON, or was cut off, denies if it says so.
    """
    if not forms.occur(text):
        return None
    decoder, rest, place = json.JSONDecoder(), list[str](), 0
    while (start := text.find("{", place)) >= 0 and len(rest) < _MOST_PARTS:
        try:
            found, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            rest.append(text[place : start + 1])
            place = start + 1
            continue
        if (denial := _denying(found, forms)) is not None:
            return denial
        rest += text[place:start], "…"  # the words behind it do not begin a line
        place = end
    rest.append(text[place:])
    remaining = "".join(rest)
    if not forms.occur(remaining):
        return None
    if reason := _REASON.search(remaining) or _REASON_LINE.search(remaining):
        return {"reason": reason[reason.lastindex or 0]}
    words = _WORDS.search(remaining) if _WORDS in forms else None
    if words is None or words["key"]:
        return {}
    return {"reason": re.sub(r"^\W+", "", words["reason"]).rstrip()}


def _denying(document: Any, forms: _Forms) -> JsonObject | None:
    """Return the object that denies, in the form of these hooks or of other agents' hooks.

    It may lie in lists, or in an object that has no answer of its own. What surrounds it is in the
    result, too.
    """
    pending: list[tuple[Any, JsonObject]] = [(document, {})]
    for each, around in pending:  # it grows meanwhile
        if isinstance(each, list):
            pending += [(part, around) for part in cast("list[Any]", each)]
        if not isinstance(each, dict):
            continue
        named = _by_name(each)
        if forms.deny(named):
            return around | named
        has_answer = named.keys() <= HookAnswer.model_fields.keys() or any(
            isinstance(named.get(name), str) for name in _DECISIONS
        )
        inner = _NESTED if has_answer else named.keys() - _DATA
        pending += [(named[name], around or named) for name in inner if name in named]
    return None


def _is_denial(value: Any) -> bool:
    return isinstance(value, str) and _DENIAL_VALUE.match(value) is not None


def _by_name(document: Any) -> JsonObject:
    return {name.lower(): value for name, value in cast("JsonObject", document).items()}


def _answer_of(document: JsonObject) -> HookAnswer:
    """Return the deny of an object, with what can be used of the rest of it."""
    named = _by_name(document)
    answer: JsonObject = {"decision": "deny", "reason": _reason_of(named)}
    if isinstance(named.get("metadata"), dict):
        answer["metadata"] = named["metadata"]
    logs = named.get("logs")
    if isinstance(logs, str):
        answer["logs"] = logs
    elif isinstance(logs, list):
        lines = cast("list[Any]", logs)
        answer["logs"] = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    return HookAnswer.model_validate(answer)


def _reason_of(named: JsonObject) -> str | None:
    for name in _REASONS:
        reason = named.get(name)
        if reason is not None and reason != "":
            return reason if isinstance(reason, str) else json.dumps(reason)
    for name in _NESTED:
        if isinstance(nested := named.get(name), dict):
            return _reason_of(_by_name(nested))
    return None

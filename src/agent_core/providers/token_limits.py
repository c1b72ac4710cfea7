"""Recognises refusals about the number of tokens: a prompt too long, or an answer limit too large.

The status and the service's code count before its words. The words are a grammar of what services
say, not a list of their sentences. What it does not know is covered by the loop, which also
shortens a request that was refused without a reason after smaller ones were taken.

Recorded answers have the words of OpenAI, Anthropic, Gemini, Ollama and Bedrock. Others are quoted
from public bug reports and lists, or guessed; the tests say which.
"""

import re

from agent_core.errors import ErrorCode
from agent_core.types import ErrorPayload

HTTP_TOO_LARGE = 413
_LEAST_WINDOW, _MOST_WINDOW = 256, 100_000_000
_LEAST_OUTPUT = 256

_CODES = (
    r"context_(length|window)_exceeded|exceed_context_size|request_too_large|tokens_limit_reached"
    r"|max_prompt_tokens_exceeded|ContextWindowExceeded"
)
"""Codes of OpenAI, llama.cpp, Anthropic, GitHub Models, Copilot, LiteLLM."""

_LONG = (
    r"(too (long|large|big)|exceed|(longer|greater|larger|more) than|overflow|over the |not fit)"
)
_WINDOW = (
    r"(maximum|max) (allowed )?(context|prompt|input|sequence|model)[ -]?"
    r"(token |length|window|size)"
    rf"|\b(context|ctx|prompt|sequence length)( (token|length|window|size|count)s?)*\b"
    rf"[^.;]{{0,80}}?{_LONG}"
    r"|\b(prompt|context)\b[^.;]{0,40}\bat most \d|\b(no|not enough) [^.;]{0,12}(context|room)\b"
    r"[^.;]{0,12}\bleft\b|limit of (the|its) context"
    r"|only (process|handle|read|take) \d[\d,]* tokens"
    r"|shorten (the|your) (messages?|prompt|input|conversation)"
    rf"|{_LONG}[^.;]{{0,60}}?\b(context|prompt|input length|max_model_len)\b"
    rf"|total (number of )?tokens[^.;]{{0,60}}{_LONG}"
    r"|context (length|window|size)( is| of)* (only )?\d|context (length|window|size) of only"
    r"|range of input length|reduce the (length|size) of (the|your) (messages|prompt|input)"
    r"|expected maxlength: ?\d+, actual"
    r"|(输入|提示|上下文|prompt).{0,20}(超长|过长|超过|超出)"
)
"""A service's words about the context, whatever else they name."""
_TOKENS = (
    rf"\b(inputs?|request( body)?|messages?|conversation|tokens?)\b[^.;]{{0,80}}?{_LONG}"
    rf"|(prompt|input)_tokens\b[^.;]{{0,40}}?{_LONG}|{_LONG}[^.;]{{0,40}}?\btoken (budget|limit)\b"
    r"|too many (input |prompt )?tokens|tokens? (limit|budget) (is |was )?(exceeded|reached)"
    r"|(input token|tokens?`?)[^.;]{0,60}(only supports|must be <=|must have less)"
    r"|`inputs` must have less"
)
"""A service's words about tokens, which may also be about something else."""
_SOMETHING_ELSE = (
    r"\b(tools?|functions?|arguments?|images?|files?|pdf|names?|descriptions?|ids?|schemas?)\b"
    r"[^.;]{0,60}(exceed|too (long|large|many|big)|larger)"
    r"|\b(rate|time|deadline|timeout|quota|(?<!token )budget|credits?"
    r"|daily|monthly|concurren\w+|per (second|minute|day))\b"
)
_RATE = r"request too large.{0,200}\(TPM\): Limit (\d+), Requested (\d+)"
"""OpenAI's 429 about a single request that is larger than the limit of a minute."""

_NAMED_WINDOW = (
    r"(?:maximum (?:allowed )?(?:context|model|prompt|input|sequence)(?: (?:length|window|size))?"
    r"|context (?:length|window|size)|maximum number of (?:input )?tokens|n_ctx|max_model_len"
    r"|range of input length should be \[\d+,|model token limit|only supports up to"
    r"|configured limit of|exceeds the limit of|while limit is|max size|total tokens limit"
    r"|token budget of"
    r"|\(TPM\): Limit)"
    r"[^\d.;]{0,40}?(?<!exceeds limit \()(\d[\d,_]{2,12})"  # MiniMax: a code follows
    r"|(\d[\d,_]{2,12})(?: tokens?)? (?:maximum\b|max\b|context (?:length|window|size))"
    r"|must be <= (\d[\d,_]{2,12})"
)
"""How services name the window in a refusal: the first number counts."""

_OUTPUT = (
    r"(max_?(completion_?|output_?|new_?)?tokens\b|maximum tokens you requested"
    r"|(completion|output) tokens)"
)
_BEYOND = (
    r"(too large|exceed|>|above maximum|less than|lower than|<=|at most|larger than|greater than"
    r"|valid range|supported range|should be (in )?\[|cannot be)"
)
_OUTPUT_TOO_LARGE = rf"{_OUTPUT}.{{0,120}}{_BEYOND}|range of max_tokens should be"
_SUM = (
    r"context (length|limit|window|size)|`?inputs?`? (length|tokens)|\d \+ \d|\binputs?\b.{0,20}\+"
    r"|\+ ?`?max_"
)
"""Words of a refusal that counts the prompt, too: shortening it is what helps."""


def is_too_long(status: int, explanation: str) -> bool:
    """Return whether a refusal with this status is about the length of the request."""
    if status == HTTP_TOO_LARGE or re.search(_CODES, explanation):
        return True
    if status == 429:
        found = re.search(_RATE, explanation, re.IGNORECASE)
        return found is not None and int(found[2]) > int(found[1])
    if status in {401, 402, 403, 407} or _is_about_output(explanation):
        return False
    if re.search(_WINDOW, explanation, re.IGNORECASE):
        return True
    is_about_tokens = re.search(_TOKENS, explanation, re.IGNORECASE)
    return bool(is_about_tokens) and not re.search(_SOMETHING_ELSE, explanation, re.IGNORECASE)


def window_in(explanation: str) -> int | None:
    """Return the context window that a refusal names, in tokens."""
    found = re.search(_NAMED_WINDOW, explanation, re.IGNORECASE)
    digits = next(filter(None, found.groups()), "") if found else ""
    window = int(re.sub(r"\D", "", digits) or 0)
    return window if is_window(window) else None


def is_window(tokens: int) -> bool:
    """Return whether this number of tokens can be a context window."""
    return _LEAST_WINDOW <= tokens <= _MOST_WINDOW


def _is_about_output(explanation: str) -> bool:
    is_output = re.search(_OUTPUT_TOO_LARGE, explanation, re.IGNORECASE)
    return bool(is_output) and not re.search(_SUM, explanation, re.IGNORECASE)


OUTPUT_LIMITS = "output_limits"
"""Detail of a refusal of the answer's limit: the limits that it names, in ascending order."""


def output_limits_in(explanation: str) -> dict[str, list[int]]:
    """Return the details of a refusal of the answer's limit; empty if it is of something else."""
    if not _is_about_output(explanation):
        return {}
    found = re.findall(r"(\d[\d,_]*)( \(exclusive\))?", explanation)
    numbers = {int(re.sub(r"\D", "", number)) - bool(excluded) for number, excluded in found}
    return {OUTPUT_LIMITS: sorted(each for each in numbers if each >= _LEAST_OUTPUT)}


def smaller_output(error: ErrorPayload, asked: int) -> int | None:
    """Return a smaller limit for the answer, if a service refuses `asked` as too large.

    It is the largest number below `asked` that the refusal names; without one, half of `asked`.
    """
    is_refused = error.details.get("status") in {400, 416, 422}
    if error.code is not ErrorCode.PROVIDER_ERROR or not is_refused:
        return None
    limits = error.details.get(OUTPUT_LIMITS)
    if limits is None:
        return None
    smaller = max((each for each in limits if each < asked), default=asked // 2)
    return smaller if smaller >= _LEAST_OUTPUT else None

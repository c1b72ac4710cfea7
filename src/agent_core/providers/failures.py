"""Failures of a model call: the meaning of a refusal, and whether to try again."""

import random
import re
from collections.abc import Iterable, Mapping
from math import ceil
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from agent_core.config.models import RetryConfig
from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers import jsontext
from agent_core.providers.error_answers import (
    HtmlAnswer,
    document_of,
    error_in,
    explanation_in,
    foreign_line,
    is_error,
    named_status,
    retry_delay_in,
    shown_address,
    status_in,
)
from agent_core.providers.histories import DEMAND, demand_in
from agent_core.providers.token_limits import (
    HTTP_TOO_LARGE,
    is_too_long,
    output_limits_in,
    window_in,
)
from agent_core.text.json_text import table
from agent_core.types import ErrorPayload

MAX_RETRY_AFTER_S = 60.0
_LONGEST_NAMED_S = 7 * 24 * 3600.0
_random = random.SystemRandom()
HTTP_SIGN_IN = 511
_RETRYABLE = frozenset({408, 409, 429, *range(500, 600)}) - {HTTP_SIGN_IN}
_RETRYABLE_OF_PROXY = frozenset({408, 429, 500, 502, 503, 504})

# Failures are rare: `re` compiles these when one is first looked at.
_MISSING_CAPABILITIES = {
    "tools": (
        r"(?i)does ?n[o']t support (tools?|function)\b|not support (tools?|function)\b"
        r"|support tool use"
        r"|(tools?|tool.calling|tool.use|function.calling)\W{1,3}(is|are) not (supported|enabled)"
        r"|enable-auto-tool-choice|tools param requires"
    ),
    "tool_schema": (
        r"(?i)invalid_function_parameters|invalid schema for (function|tool)|input_schema"
        r"|schema conversion failed|failed to parse (tools|grammar)"
    ),
    "images": (
        r"(?i)(image|vision)s?( (input|content))?s?( modality)? (is|are) not (supported|enabled)"
        r"|supports? (the )?(images?|vision|multimodal)|image_url.{0,60}(only supported|expected)"
        r"|not a (multimodal|vision)|required for image input|at most 0 image"
        r"|unknown variant `?image_url|invalid content type.{0,20}image|content must be a string"
    ),
    "documents": r"(?i)support (the )?(documents?|pdf)",
    "thinking": r"(?i)does not support thinking",
}
"""Patterns of a service's words when it refuses a part of the request; the first match counts."""
UNREAD_CALL = "unread_call"
"""Detail of a failure: the text that the service could not read as a call."""

_CALL = (
    r"(\b(tool|function)[ _-]?(calls?|calling|use)\b|\b(tool|function|call)('s|s'?)? arguments\b)"
)
_FAULT = r"\b(un)?(pars|decod|deseriali[sz]|readable|malformed|invalid(?!_)|unexpected)\w*"
_UNREAD = (
    rf"(?i){_FAULT}[^.;]{{0,40}}{_CALL}"
    rf"|{_CALL}[^.;]{{0,40}}({_FAULT}|\b(validat|fail)\w*|\b(be read|cut off|not (a )?valid)\b)"
    r"|not a valid (tool|function) call|\btool_use_failed\b"
    r"|failed to (call a function|parse (input at pos|xml|fc related))"
    r"|xml syntax error|expected element type <|model produced (invalid|output)"
)
"""Words about calls of a model that its service could not parse, which it reports as failures of
its own. Groq's, Ollama's and Bedrock's, and those of llama.cpp and SGLang, are from public reports;
others are guessed. The tests say which."""
_MAX_UNREAD = 10_000
UNREAD_STOPS = frozenset(
    {
        "function_call_filter",
        "malformed_function_call",
        "malformed_tool_use",
        "unexpected_tool_call",
    }
)
"""Stop reasons of Gemini, of gateways to it, and of Bedrock."""

WITHOUT_TOOLS = "choose a model that supports tools, or name every tool in [tools] disabled"
"""Cure for a model that takes no tools."""
_ABOUT_THE_ACCOUNT = frozenset({401, 402, 403, 407, 429})
"""Refusals with these statuses are never about the content of the request."""

_FORM_STATUSES = frozenset({400, 422, 500})
"""Statuses of refusals of a conversation's form: errors of a template count as the server's."""

_USED_UP = (
    r"(?i)insufficient[ _](quota|credits?|balance|funds)|billing[ _](hard[ _]limit|not[ _]active)"
    r"|(credit )?balance is too low|(out of|run out of|no|more) credits|payment required"
    r"|(monthly|weekly|usage|spend(ing)?|spend cap|credit) limit"
    r"|key limit exceeded|quota_exhausted|exceeded (your|the) monthly|exceeded_current_quota_error"
    r"|balance is insufficient|arrear|used all available credits"
)
"""A service's words when an account has nothing left, which no pause of a minute changes.

Google's "exceeded your current quota" is not among them: Google uses it for a minute's quota, too,
and names the quota in the details.
"""
_FOR_TODAY = r"(?i)per[ _-]?day|\bdaily\b"
"""Words of a 429 about a daily rate, which no pause of a minute restores."""
_BAD_KEY = r"(?i)(invalid|incorrect) api key|api key (is )?(not valid|invalid|expired|not found)"
"""Words of Google and xAI about a bad key, sent with a status that is about the request."""
_FILTERED = (
    r"(?i)content[ _]?(filter|policy|management policy)|filter(ing)? policy|responsible ?ai"
    r"|data_?inspection_?failed|content exists risk|considered high risk|inappropriate content"
    r"|(prompt|input|output|request|content|message)s? [^.;]{0,60}\b(flagged|moderation)\b"
    r"|violat\w+ [^.;]{0,40}(usage|safety|content|our) (polic|guideline)|usage guidelines"
    r"|safety_check|new_sensitive|sensitive content|不安全或敏感|敏感内容"
    r"|\bsafety (systems?|filters?|reasons?|polic(y|ies)|checks?|guidelines?)\b|content safety"
    r"|\b(blocked|rejected|refused|denied|stopped)\b[^.;]{0,40}"
    r"\b(safety|moderation|guard(rail)?s?|legal reasons|prohibited)\b"
    r"|\bguardrails? (has |was |were )?(intervened|blocked|triggered)|prohibited[ _]content"
    r"|moderation_blocked|safety_blocked"
    r"|\b(harmful|unsafe|sensitive|offensive|illegal|explicit|toxic) (content|words?|material|text)"
    r"|\b(content|prompt|input|output|message)s? violat\w+ [^.;]{0,20}\bpolic"
)
"""A service's words when it refuses what a request says: Azure's are recorded; Alibaba's,
Anthropic's, DeepSeek's, MiniMax's, Moonshot's, OpenAI's, OpenRouter's, xAI's and Zhipu's are from
public reports; others are guessed.
"""
_FILTERING = frozenset({400, 403, 422, 451})
_STATUSES_OF_PAGES = frozenset({400, 403, HTTP_SIGN_IN})
"""Refusals with these statuses that are web pages come from something before the API."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_SHOWN_WORDS = 200
HTTP_OK = 200
HTTP_BAD_REQUEST = 400
HTTP_FAULT = 500
_CODE_OF_QUOTA = {403: ErrorCode.PROVIDER_AUTH_FAILED, 429: ErrorCode.PROVIDER_RATE_LIMITED}
HTTP_PAYMENT = 402
HTTP_PROXY_AUTH = 407
HTTP_TOO_MANY = 429
HTTP_TIMEOUT = 504
_CODES: Mapping[int, ErrorCode] = {
    401: ErrorCode.PROVIDER_AUTH_FAILED,
    403: ErrorCode.PROVIDER_AUTH_FAILED,
    HTTP_PROXY_AUTH: ErrorCode.PROVIDER_AUTH_FAILED,
    408: ErrorCode.PROVIDER_TIMEOUT,
    HTTP_TOO_MANY: ErrorCode.PROVIDER_RATE_LIMITED,
    HTTP_TIMEOUT: ErrorCode.PROVIDER_TIMEOUT,
}
"""Codes of refusals whose words say nothing else."""
QUOTA_CURE = "its quota is used up: add credit, or wait until it is renewed"
NO_KEY_CURE = "no key was sent, [model] api_key_env can name one"
_LATER = "try again later, or choose another model"
_AS_IT_SAYS = "correct what the service names below"
_NO_API_CURE = "check {address}provider and proxy, and look for a sign-in page"
"""Cure for an answer that no API has written; `address` is a setting with a comma, or empty."""
DAMAGE_CURE = "see the log of the server, or of a proxy on the way"
_SIZE_CURE = "a server or proxy limits the size of a request ({size} bytes): send less, or raise it"
_PROXY_CURES: Mapping[int, str] = {
    HTTP_PROXY_AUTH: "put its name and password in [model] proxy or HTTPS_PROXY",
    HTTP_SIGN_IN: "sign in to the network",
    **dict.fromkeys(range(300, 400), "sign in to the network, or correct HTTPS_PROXY"),
    **dict.fromkeys(_RETRYABLE_OF_PROXY, "check that it reaches the host; try again later"),
}
_OTHER_PROXY_CURE = "allow the host in the proxy, or name it in NO_PROXY"
_CURES: Mapping[ErrorCode, str] = {
    ErrorCode.CONTENT_FILTERED: "ask in other words, or choose another model",
    ErrorCode.PROMPT_TOO_LONG: "begin a new session, or choose a model with a larger window",
    ErrorCode.PROVIDER_RATE_LIMITED: _LATER,
    ErrorCode.PROVIDER_TIMEOUT: _LATER,
}


class CallError(ProviderError):
    """A failed attempt; `retryable` says whether the next one may succeed.

    Args:
        retry_after_s: seconds that the service asked to wait before the next attempt.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(code, message, retryable, details)
        self.retry_after_s = retry_after_s


class Called(Struct, frozen=True):
    """One call, as each of its failures names it.

    Attributes:
        provider: the provider.
        model: the model.
        offers_tools: the request has tools.
        url: the requested address; empty without one.
        proxy: address of the proxy on the way, as it may be shown; empty without one.
        address_setting: what names the address; empty if it is the service's own.
        size: bytes of the request's body.
        is_large: it is so large that the model's window may be the reason of a 413.
    """

    provider: str
    model: str
    offers_tools: bool = False
    url: str = ""
    proxy: str = ""
    address_setting: str = "[model] base_url"
    size: int = 0
    is_large: bool = True

    @property
    def address_cure(self) -> str:
        """Return what to check if nothing, or something else, is at the address."""
        if self.address_setting:
            return f"check {self.address_setting}"
        if self.proxy:
            return "check the network, and the proxy"
        return "check the network; [model] proxy can name a proxy, if it needs one"

    @property
    def _no_api_cure(self) -> str:
        setting = self.address_setting
        return _NO_API_CURE.format(address=f"{setting}, " if setting else "[model] ")

    def refused(
        self,
        status: int,
        explanation: str,
        *,
        what: str = "",
        retry_after_s: float | None = None,
        document: Any = None,
        has_key: bool = True,
    ) -> CallError:
        """Return the failure for a refusal with this HTTP status and explanation.

        The first line of its message names the model and the cure; the address and the service's
        words are on the second.

        Args:
            status: status of the answer, or that of an error in a stream.
            explanation: the service's words.
            what: what the service did, for an error in a stream.
            retry_after_s: seconds that the service asked to wait.
            document: the answer as `document_of` returns it.
            has_key: a key was sent.
        """
        details: dict[str, Any] = {**self.details, "status": status}
        if status == HTTP_TOO_LARGE:
            details["request_bytes"] = self.size
        if isinstance(document, HtmlAnswer) and status in _STATUSES_OF_PAGES:
            details["web_page"] = True
        if retry_after_s is not None:
            details["retry_after_s"] = retry_after_s
        is_used_up = (
            status == HTTP_PAYMENT
            or (status in {400, 403, 412, 429} and bool(re.search(_USED_UP, explanation)))
            or (status == HTTP_TOO_MANY and bool(re.search(_FOR_TODAY, explanation)))
        )
        is_of_request = status not in _ABOUT_THE_ACCOUNT
        overflows = is_too_long(status, explanation)
        missing = (
            name
            for name, pattern in _MISSING_CAPABILITIES.items()
            if (self.offers_tools or not name.startswith("tool"))
            and re.search(pattern, explanation)
        )
        capability = next(missing, None) if is_of_request else None
        code = ErrorCode.PROVIDER_ERROR
        answerable = self._answerable(status, explanation, document)
        if is_used_up:
            details["quota_used_up"] = True
            capability, overflows = None, False
            code = _CODE_OF_QUOTA.get(status, code)
        elif capability:
            code = ErrorCode.UNSUPPORTED_CAPABILITY
            details["capability"] = capability
        elif status in _FILTERING and re.search(_FILTERED, explanation):
            code = ErrorCode.CONTENT_FILTERED
        elif status == HTTP_BAD_REQUEST and re.search(_BAD_KEY, explanation):
            code = ErrorCode.PROVIDER_AUTH_FAILED
        elif overflows:
            code = ErrorCode.PROMPT_TOO_LONG
            if (window := window_in(explanation)) is not None:
                details["context_window"] = window
        else:
            code = _CODES.get(status, code)
        if code is ErrorCode.PROVIDER_ERROR:
            details |= answerable | output_limits_in(explanation)
        is_of_window = self.is_large or bool(what) or "context_window" in details
        if status == HTTP_TOO_LARGE and not is_of_window:
            cure = _SIZE_CURE.format(size=f"{self.size:,}")
        else:
            is_reported = bool(what or not self.url)
            cure = self._cure_of(code, details, has_key=has_key, is_reported=is_reported)
        return CallError(
            code,
            self._message(what or f"answered with status {status}", cure, explanation),
            status in _RETRYABLE and not (capability or overflows or is_used_up or answerable),
            details,
            retry_after_s=retry_after_s,
        )

    def _cure_of(
        self, code: ErrorCode, details: Mapping[str, Any], *, has_key: bool, is_reported: bool
    ) -> str:
        """Return what a person can do about a refusal with this code and these details.

        An error that was reported inside of a stream is not about the address.
        """
        if "web_page" in details and not {"quota_used_up", "capability"} & details.keys():
            return self._no_api_cure
        if cure := _known_cure(code, details, has_key=has_key, is_reported=is_reported):
            return cure
        status = details["status"]
        # A client error that says nothing about the request: this may be the wrong address.
        if is_reported or not 400 < status < 500 or status == 422:
            return _AS_IT_SAYS
        return f"check {' and '.join(filter(None, (self.address_setting, '[model] name')))}"

    def _answerable(self, status: int, explanation: str, document: Any) -> dict[str, Any]:
        """Return the details of a refusal that another form, or another call, can answer."""
        is_fault = status == HTTP_FAULT
        if status in _FORM_STATUSES and (demand := demand_in(explanation, is_fault=is_fault)):
            return {DEMAND: {**demand}}
        if self.offers_tools and status not in _ABOUT_THE_ACCOUNT:
            sent = _unread_call(explanation, table(error_in(document)))
            return {} if sent is None else {UNREAD_CALL: sent or explanation}
        return {}

    def reported(self, document: Any) -> CallError:
        """Return the failure that a service reports, as JSON or words, despite its status."""
        named = named_status(document)
        return self.refused(
            status_in(document),
            explanation_in(document),
            what=f"reported an error (status {named})" if named else "reported an error",
            retry_after_s=retry_delay_in(document),
            document=document,
        )

    def answered_otherwise(self, body: bytes, status: int = HTTP_OK) -> CallError:
        """Return the failure for an answer that is neither a refusal nor a reply of this API.

        Args:
            body: the answer, or its beginning.
            status: status of the answer.
        """
        if not body.strip():
            what, said = "answered with nothing", f"status {status}, and an empty body"
            is_passing = status == HTTP_OK
            return (self.broke if is_passing else self.protocol_error)(what, said, cure=_LATER)
        document = document_of(body)
        if is_error(document):
            return self.reported(document)
        words = explanation_in(document)
        said = words if isinstance(document, HtmlAnswer) else beginning_of(words)
        if status != HTTP_OK:
            said = f"status {status}; {said}"
        what = "answered with no stream of its API"
        return self.protocol_error(what, said, cure=self._no_api_cure)

    def redirected(self, status: int, location: str, *, base: str) -> CallError:
        """Return the failure for a redirect, which no key may follow.

        Args:
            status: status of the answer.
            location: where it leads; may be relative.
            base: the part of the requested address that the settings name.
        """
        target = shown_address(location, self.url)
        path = urlsplit(self.url.removeprefix(base)).path
        cure = "set [model] base_url to the final one, or sign in to the network"
        if path and target.endswith(path):
            cure = f"set [model] base_url to {target.removesuffix(path)}"
        return self.protocol_error(
            f"redirects with status {status}", f"it leads to {target or 'no address'}", cure=cure
        )

    def refused_by_proxy(
        self, status: int, reason: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> CallError:
        """Return the failure for a proxy that does not let a call through.

        Args:
            status: status of the proxy's answer.
            reason: its words; may be empty.
            headers: the headers of its answer.
        """
        code, cure = ErrorCode.PROVIDER_ERROR, _PROXY_CURES.get(status, _OTHER_PROXY_CURE)
        if status == HTTP_PROXY_AUTH:
            code = ErrorCode.PROVIDER_AUTH_FAILED
            scheme = headers.get("Proxy-Authenticate", "").partition(" ")[0]
            if scheme and scheme.lower() != "basic":
                cure = f"it asks for {foreign_line(scheme, 20)}, and only Basic is supported"
        elif status == HTTP_TIMEOUT:
            code = ErrorCode.PROVIDER_TIMEOUT
        said = foreign_line(reason) or "no explanation"
        if leads_to := shown_address(headers.get("Location", ""), self.url):
            said = f"{said}; it leads to {leads_to}"
        message = self._message(
            f"cannot be reached: its proxy answered with status {status}",
            cure,
            f"the proxy {self.proxy} did not connect to {self.url}: {said}",
            place="",
        )
        details = {**self.details, "sent": False, "proxy": self.proxy, "proxy_status": status}
        return CallError(code, message, status in _RETRYABLE_OF_PROXY, details)

    def unread(self, reason: str, words: str) -> CallError:
        """Return the failure for a call that the service could not parse, as its stop reason says.

        `words` are the service's own.
        """
        failure = self.protocol_error(f"could not read a call ({reason})", words or "no words")
        failure.details[UNREAD_CALL] = words or reason
        return failure

    def broke(
        self,
        what: str,
        said: str,
        *,
        cure: str = _LATER,
        code: ErrorCode = ErrorCode.PROVIDER_ERROR,
    ) -> CallError:
        """Return the failure of a call that was under way: another attempt may succeed."""
        message = self._message(what, cure, said)
        return CallError(code, message, retryable=True, details=self.details)

    def unreachable(
        self,
        what: str,
        said: str,
        *,
        cure: str,
        place: str | None = None,
        code: ErrorCode = ErrorCode.PROVIDER_ERROR,
        retryable: bool = True,
    ) -> CallError:
        """Return the failure of a call without a connection: nothing was sent or billed."""
        details = {**self.details, "sent": False}
        return CallError(code, self._message(what, cure, said, place=place), retryable, details)

    def protocol_error(self, what: str, said: str = "", *, cure: str = "") -> CallError:
        """Return the failure for a response that cannot be understood and would be repeated."""
        message = self._message(what, cure, said)
        return CallError(ErrorCode.PROVIDER_ERROR, message, details=self.details)

    def named(self, error: CallError) -> CallError:
        """Return a failure with the provider, the model and the address, if it lacks them."""
        if "provider" not in error.details:
            error.message = self._message("sent a damaged stream", DAMAGE_CURE, error.message)
            error.details |= self.details
        return error

    def _message(self, what: str, cure: str, said: str, *, place: str | None = None) -> str:
        """Return a line with the model and the cure, and a line with the place and the cause.

        Args:
            what: what happened, in words that follow the name of the service.
            cure: the remedy; may be empty.
            said: the cause, or the service's words; may be empty.
            place: what was not reached, unless it is the requested address.
        """
        first = "; ".join(filter(None, (f"{self.provider} {what} (model {self.model})", cure)))
        if place is None:
            place = f"{self.url} through the proxy {self.proxy}" if self.proxy else self.url
        second = ": ".join(filter(None, (place, said)))
        return "\n".join(filter(None, (first, second)))

    def unsupported(self, capability: str, why: str) -> ProviderError:
        """Return the error for a request that cannot be expressed; nothing is sent."""
        return ProviderError(
            ErrorCode.UNSUPPORTED_CAPABILITY,
            f"provider {self.provider} (model {self.model}): {why}",
            details={**self.details, "capability": capability},
        )

    @property
    def details(self) -> dict[str, Any]:
        """Provider and model, for error details."""
        return {"provider": self.provider, "model": self.model}


def _known_cure(
    code: ErrorCode, details: Mapping[str, Any], *, has_key: bool, is_reported: bool
) -> str:
    """Return the cure of a refusal that its code and details explain; empty for others."""
    status = details["status"]
    if "quota_used_up" in details:
        return QUOTA_CURE
    if code is ErrorCode.UNSUPPORTED_CAPABILITY:
        is_of_tools = details["capability"] == "tools"
        return WITHOUT_TOOLS if is_of_tools else "choose another model, or do without"
    if status == HTTP_SIGN_IN and not is_reported:
        return _PROXY_CURES[status]
    if code is ErrorCode.PROVIDER_AUTH_FAILED:
        if status == HTTP_PROXY_AUTH:
            return _PROXY_CURES[status]
        return "check the key that [model] api_key_env names" if has_key else NO_KEY_CURE
    asked_s = float(details.get("retry_after_s") or 0.0)
    if MAX_RETRY_AFTER_S < asked_s <= _LONGEST_NAMED_S and status in _RETRYABLE:
        return f"try again {_moment_in(asked_s)}, as it asks, or choose another model"
    if cure := _CURES.get(code):
        return cure
    return _LATER if status in _RETRYABLE else ""


def _moment_in(seconds: float) -> str:
    """Return when to come back, rounded up to minutes, or to hours where it is several."""
    minutes = ceil(seconds / 60)
    return f"in {minutes} minutes" if minutes < 2 * 60 else f"in {ceil(minutes / 60)} hours"


def _unread_call(explanation: str, error: Mapping[str, Any]) -> str | None:
    """Return what a service could not read as a call; None if a refusal is about something else.

    Args:
        explanation: the words of the refusal.
        error: the fields of the error, among which Groq puts the text.
    """
    given = error.get("failed_generation")
    if given is None and not re.search(_UNREAD, explanation):
        return None
    if not given:
        return ""
    return (given if isinstance(given, str) else jsontext.dump_text(given))[:_MAX_UNREAD]


_IS_REFUSED = (
    r"(?i)unsupported|not (yet )?supported|n[o']t support|unrecogni[sz]ed|unknown|unexpected"
    r"|extra (inputs?|fields?|parameters?)|extra_forbidden|additional propert|cannot find field"
    r"|not (permitted|allowed|accepted|available|implemented|enabled)|n[o']t (accept|allow|permit)"
    r"|only \S+ is (allowed|supported|accepted)"
    r"|deprecated|incompatible|only the default|may only be|cannot (both )?be (used|specified|set)"
    r"|only \S{1,9} is allowed|invalid (param(eter)?|argument|field)s?\b|no such (field|parameter)"
)
"""A service's words about a field that it does not accept, not about too large a value."""


def is_refused_request(error: ErrorPayload) -> bool:
    """Return whether a service refuses something in the request."""
    codes = {ErrorCode.PROVIDER_ERROR, ErrorCode.UNSUPPORTED_CAPABILITY}
    return error.details.get("status") in {400, 422} and error.code in codes


def refused_field(error: ErrorPayload, optional: Iterable[str]) -> str | None:
    """Return which of these fields a service has refused, if its refusal names one.

    If it names several ("use 'max_completion_tokens' instead of ..."), the first counts.
    """
    if not is_refused_request(error) or not re.search(_IS_REFUSED, error.message):
        return None
    found: list[tuple[int, str]] = []
    for field in optional:
        head, *tail = field.split("_")
        spellings = {field, head + "".join(map(str.capitalize, tail))}
        pattern = rf"(?<![A-Za-z0-9_])({'|'.join(spellings)})(?![A-Za-z0-9_])"
        if named := re.search(pattern, error.message):
            found.append((named.start(), field))
    return min(found)[1] if found else None


def beginning_of(words: str) -> str:
    """Return what is shown of an answer that no API has written, without tokens."""
    return f"it begins with {foreign_line(words, _SHOWN_WORDS)!r}"


def pause_before_retry_s(config: RetryConfig, attempt: int, failure: CallError) -> float | None:
    """Return the seconds to wait after attempt number `attempt` (from 1); None to give up.

    The pause is random between the initial backoff and a ceiling that doubles with every attempt,
    so that many clients do not come back at once; it is never shorter than the time the service
    asked for.
    """
    if not failure.retryable or attempt >= config.max_attempts:
        return None
    asked = failure.retry_after_s or 0.0
    if asked > MAX_RETRY_AFTER_S:
        return None
    longest = min(config.max_backoff_ms, config.initial_backoff_ms * 2 ** min(attempt, 30))
    shortest = min(config.initial_backoff_ms, longest)
    return max(asked, _random.uniform(shortest, longest) / 1000)

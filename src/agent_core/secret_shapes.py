r"""Recognise texts that look like secrets without being configured as such.

A shape begins with a *lead*, a literal such as `sk-` or `password`. The text after it is judged by
the shape's own rule, with one of three results: a `Hit`, not a secret, or `MORE` if the
text ends before this is decided. So one set of rules serves whole texts and live streams, and
each rule looks a bounded distance ahead: the time is linear for any input, and a stream holds
back little. Shapes:

* tokens with a known beginning: `sk-…`, `ghp_…`, `AKIA…`, `xoxb-…`, JWTs, …
* pairs in the spellings of shells, headers, INI, JSON, YAML, also JSON within JSON:
  `password=…`, `"api_key": "…"`, `Authorization: Bearer …`
* passwords in addresses of any scheme: `postgres://name:…@host`, `https://TOKEN@host`
* PEM and PGP private keys
"""

import re
from functools import cache

from msgspec import Struct

LONGEST_TOKEN_HEAD = 2048

# --- leads -----------------------------------------------------------------------------------
#
# Finding them runs over every event and every live delta. A regular expression over all leads
# costs a hundred microseconds a kilobyte; a few plain substring searches cost three. Only the
# leads that occur are looked for by their own expressions, which pass over those that nothing
# follows.


@cache
def _ascii(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when it is first needed: most programs meet few of the shapes."""
    return re.compile(pattern, re.ASCII)


_WORD, _DOTTED = r"[\w-]*+", r"[\w.-]*+"


class _Token(Struct, frozen=True):
    """A token with a known beginning.

    `whole` matches it at its lead. `after` matches the bounded text that has to follow the lead
    before it is worth judging, unless the text ends too early. `run` matches the characters that a
    token may have.
    """

    kind: str
    whole: str
    after: str
    run: str = _WORD


def _tokens(kind: str, one: str, least: int, *leads: str) -> dict[str, _Token]:
    """Build tokens whose lead is followed by at least `least` characters like `one`."""
    after = rf"(?:{one}{{{least}}}|{one}{{0,{least - 1}}}\Z)"
    return {lead: _Token(kind, rf"{lead}{one}{{{least},}}+", after) for lead in leads}


_TOKENS = {
    # Real keys have digits; without one the word must be long, or it may be a CSS class.
    "sk-": _Token(
        "api_key",
        r"sk-(?:(?=[\w-]{0,64}?\d)[\w-]{8,}+|[\w-]{16,}+)",
        r"(?:(?=[\w-]{0,64}?\d)[\w-]{8}|[\w-]{16}|[\w-]{0,15}\Z)",
    ),
    "eyJ": _Token(
        "jwt",
        rf"eyJ[\w-]{{5,{LONGEST_TOKEN_HEAD}}}+\.[\w-]{{4,}}+[\w.-]*+",
        r"(?:[\w-]{5,2048}+(?:\.(?:[\w-]{4}|[\w-]{0,3}\Z)|\Z)|[\w-]{0,4}\Z)",
        _DOTTED,
    ),
    **_tokens("api_key", r"\w", 8, "sk_live_", "sk_test_", "rk_live_"),
    **_tokens("github_token", r"\w", 12, "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    **_tokens("gitlab_token", r"[\w-]", 12, "glpat-"),
    **_tokens("aws_key", r"[A-Z0-9]", 12, "AKIA", "ASIA"),
    **_tokens("google_key", r"[\w-]", 30, "AIza"),
    **_tokens("huggingface_token", r"[A-Za-z0-9]", 20, "hf_"),
    **_tokens("slack_token", r"[\w-]", 10, "xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-"),
}
TOKEN_LEADS = tuple(_TOKENS)
"""Case matters, and none of them counts within a word."""

KEY_LEAD = "-----BEGIN "

ADDRESS_LEADS = ("://", ":\\/\\/")
"""Before the name and the password in an address; JSON may escape the slashes."""

KEYWORDS = (
    "password", "passwd", "passphrase", "secret", "token",
    "apikey", "api_key", "api-key", "access_key", "access-key", "accesskey",
    "authorization", "bearer",
)  # fmt: skip
"""Case does not matter; they count anywhere, as in `DB_PASSWORD`. No lead contains another."""

# The common part of a group of leads: without it, none of the group has to be searched for.
_TOKENS_BY_PART = {
    "-": {"sk-": ("sk-",), "xox": TOKEN_LEADS[-5:], "glpat-": ("glpat-",), KEY_LEAD: (KEY_LEAD,)},
    "_": {
        "_live_": ("sk_live_", "rk_live_"),
        "_test_": ("sk_test_",),
        "gh": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
        "github_pat_": ("github_pat_",),
        "hf_": ("hf_",),
    },
    "A": {"AKIA": ("AKIA",), "ASIA": ("ASIA",), "AIza": ("AIza",)},
    "J": {"eyJ": ("eyJ",)},
}
_KEYWORDS_BY_PART = {
    part: tuple(word for word in KEYWORDS if part in word)
    for part in ("pass", "secret", "token", "key", "authorization", "bearer")
}

# A space, a quote and a bracket end an address; a slash ends the part before the host.
_LONGEST_ADDRESS_NAME = 2048
_ADDRESS_NAME = rf"[^\s\"'`\\<>()\[\]{{}},;/?#:@]{{0,{_LONGEST_ADDRESS_NAME}}}+"

# The text that has to follow the other leads; compare `_Token.after`.
_AFTER_KEYWORD = r"[a-z_-]{0,11}+(?:\\{0,3}[\"'`]|\\{0,3}\Z)?\]?[ \t]{0,8}+(?:[:=]|\Z)"
_AFTER_BEARER = r"(?:[ \t]{1,8}+[^\s\"'`,;&<>(){}\[\]|\\]{16}|[ \t]{0,8}+[^\s]{0,15}\Z)"
_AFTER_KEY_LEAD = r"(?:[A-Z0-9 ]{0,40}?PRIVATE KEY|[A-Z0-9 -]{0,66}\Z)"
_AFTER_ADDRESS_LEAD = rf"{_ADDRESS_NAME}(?:[:@]|\Z)"

_WORTH_JUDGING = {
    # Not within a word. The literal comes first: a search for one is the fastest there is.
    **{lead: rf"{lead}(?<![A-Za-z0-9_-]{lead}){token.after}" for lead, token in _TOKENS.items()},
    **{word: word + (_AFTER_BEARER if word == "bearer" else _AFTER_KEYWORD) for word in KEYWORDS},
    KEY_LEAD: KEY_LEAD + _AFTER_KEY_LEAD,
    **{lead: re.escape(lead) + _AFTER_ADDRESS_LEAD for lead in ADDRESS_LEADS},
}

_ALL = [lead.lower() for lead in (*TOKEN_LEADS, KEY_LEAD, *ADDRESS_LEADS, *KEYWORDS)]
_BEGINNINGS = frozenset(lead[:size] for lead in _ALL for size in range(1, len(lead)))
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))


class LeadFinder:
    """Finds the leads of one text in order; each search starts where the last one ended."""

    def __init__(self, text: str, *, final: bool) -> None:
        self._text = text
        self._lower = _to_lower(text)
        self._next: dict[str, int] = {}
        for lead in _present(text, self._lower, final=final):
            self._find(lead, 0)

    def next(self, at: int) -> tuple[int, str] | None:
        """Return position and name of the first lead worth judging at or after `at`, or None."""
        while self._next:
            lead, start = min(self._next.items(), key=lambda item: item[1])
            if start >= at:
                return start, lead
            self._find(lead, at)
        return None

    def _find(self, lead: str, at: int) -> None:
        text = self._lower if lead in KEYWORDS else self._text
        found = _ascii(_WORTH_JUDGING[lead]).search(text, at)
        if found is None:
            self._next.pop(lead, None)
        else:
            self._next[lead] = found.start()


def open_tail(text: str, start: int) -> int:
    """Return where the earliest unfinished lead could begin, or the end of `text`."""
    tail = _to_lower(text[max(start, len(text) - _LONGEST_BEGINNING) :])
    for size in range(len(tail), 0, -1):
        if tail[-size:] in _BEGINNINGS:
            return len(text) - size
    return len(text)


def has_lead(text: str) -> bool:
    """Return whether `text` has a lead to judge."""
    return bool(_present(text, _to_lower(text), final=True))


def _present(text: str, lower: str, *, final: bool) -> list[str]:
    """Return the leads that occur. One character rules out most of them in most texts."""
    found: list[str] = []
    for character, groups in _TOKENS_BY_PART.items():
        if character in text:
            for part, leads in groups.items():
                if part in text:
                    found += [lead for lead in leads if lead in text]
    if "@" in text or not final:
        found += [lead for lead in ADDRESS_LEADS if lead in text]
    # A pair needs its sign, which may still come if the text continues.
    if not final or ":" in text or "=" in text or "bearer" in lower:
        for part, words in _KEYWORDS_BY_PART.items():
            if part in lower:
                found += [word for word in words if word in lower]
    return found


def _to_lower(text: str) -> str:
    # U+0130 is the one character whose lower case has another length; positions must agree.
    return text.lower() if text.isascii() else text.replace("\u0130", "I").lower()


# --- tokens ----------------------------------------------------------------------------------

LONGEST_PAIR_VALUE = 64  # judged whole; a longer value is always a secret
LONGEST_QUOTED_VALUE = 256
LONGEST_KEY_BODY = 8192


class Hit(Struct, frozen=True):
    """A secret from `start` to `end`; `more` matches its continuation after `end`."""

    kind: str
    start: int
    end: int
    more: re.Pattern[str] | None = None


class More:
    """The result if the text ends before a decision is possible."""


MORE = More()
Verdict = Hit | More | None


def judge(text: str, start: int, lead: str, *, final: bool) -> Verdict:
    """Decide whether a secret begins at `start`, the position of `lead`.

    Returns `MORE` only if `final` is false.
    """
    if token := _TOKENS.get(lead):
        found = _ascii(token.whole).match(text, start)
        if found:
            return Hit(token.kind, start, found.end(), _ascii(token.run))
        # A header segment of a JWT has a longest length; other tokens are decided much earlier.
        if final or len(text) - start > LONGEST_TOKEN_HEAD + len("eyJ.") + 4:
            return None
        run = _ascii(token.run).match(text, start)
        return MORE if run is not None and run.end() == len(text) else None
    if lead == KEY_LEAD:
        return _judge_private_key(text, start, final=final)
    end = start + len(lead)
    if lead in ADDRESS_LEADS:
        return _judge_address(text, end, final=final)
    if lead != "bearer":
        return _judge_pair(text, end, _kind(lead), final=final)
    if not final and _ascii(_SPACE_SO_FAR).fullmatch(text, end):
        return MORE
    space = _ascii(_SPACE).match(text, end)
    if space is None:
        return None
    verdict = _judge_run(text, space.end(), "authorization", final=final)
    if isinstance(verdict, Hit) and not _ascii(_OPAQUE).match(text, verdict.start, verdict.end):
        return None
    return verdict


# --- private keys ---------------------------------------------------------------------------

_KEY_HEADER = r"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY( BLOCK)?-----"
_KEY_HEADER_SO_FAR = r"-----BEGIN [A-Z0-9 ]{0,60}-{0,5}"
_KEY_BODY = rf"(?:[A-Za-z0-9+/=\s\\:,>|\"']|-(?!----)){{0,{LONGEST_KEY_BODY}}}+"
_PGP_BODY = rf"(?:[^-]|-(?!----)){{0,{LONGEST_KEY_BODY}}}+"
_KEY_FOOTER = r"-----END [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----"
_KEY_FOOTER_SO_FAR = r"-{0,5}(?:(?<=-----)(?:E|EN|END|END [A-Z0-9 ]{0,60}-{0,5}))?"
_KEY_LINES = r"(?:[\s\\nr>|\"',]{0,40}+[A-Za-z0-9+/=]{20,}+)++"


def _judge_private_key(text: str, start: int, *, final: bool) -> Verdict:
    header = _ascii(_KEY_HEADER).match(text, start)
    if header is None:
        so_far = _ascii(_KEY_HEADER_SO_FAR).fullmatch(text, start)
        return MORE if so_far and not final else None
    body = _ascii(_PGP_BODY if header[1] else _KEY_BODY).match(text, header.end())
    end = body.end() if body else header.end()
    footer = _ascii(_KEY_FOOTER).match(text, end)
    if footer:
        return Hit("private_key", start, footer.end())
    is_short = end - header.end() < LONGEST_KEY_BODY
    if not final and is_short and _ascii(_KEY_FOOTER_SO_FAR).fullmatch(text, end):
        return MORE
    # Cut off, or only mentioned: long lines of Base64 are a key, other words are not.
    lines = _ascii(_KEY_LINES).match(text, header.end(), end)
    return Hit("private_key", start, lines.end()) if lines else None


# --- pairs ----------------------------------------------------------------------------------


@cache
def _any_case(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.IGNORECASE)


_QUOTE = r"\\{0,3}[\"'`]"
# After the keyword: the rest of the name, its closing quote, and the sign before the value.
_SIGN = (
    r"(?:[_-]?access)?(?:[_-]?key)?"
    rf"(?:{_QUOTE})?\]?[ \t]{{0,8}}(?::=|=>|:(?!:)|=(?!=))[ \t]{{0,8}}"
)
_SIGN_SO_FAR = (
    rf"[A-Za-z_-]{{0,11}}(?:\\{{0,3}}|{_QUOTE})\]?[ \t]{{0,8}}[:=>]{{0,2}}[ \t]{{0,8}}\\{{0,3}}"
)
_SCHEME = r"(?:bearer|basic|token|digest|negotiate|apikey)[ \t]{1,8}"
_SCHEME_SO_FAR = r"[A-Za-z]{0,9}[ \t]{0,8}"
_SPACE = r"[ \t]{1,8}"
_SPACE_SO_FAR = r"[ \t]{0,8}"

_RUN = r"[^\s\"'`,;&<>(){}\[\]|\\]*+"
# A quote after a backslash does not end a value: looking back one character is enough.
_UNTIL_QUOTE = {quote: rf"(?:[^{quote}\n]|(?<=\\){quote})*+" for quote in "\"'`"}
_UNTIL_ESCAPED_QUOTE = r"[^\"'`\\\n]*+"
_PLACEHOLDER = r"[\s,;)(\[{<*%]|\$[a-z_{(]"
_CODE = (
    r"(?:[a-z_]++(?:\.[a-z_]++)+|str|string|int|bool|bytes|any|none|null|nil|true|false|undefined"
    r"|required|optional|password|token|secret)$"
)
_SHORTEST_VALUE = 3
_OPAQUE = r"(?=[^\d]*+\d).{16,}"


def _judge_pair(text: str, name_end: int, kind: str, *, final: bool) -> Verdict:
    if not final and _ascii(_SIGN_SO_FAR).fullmatch(text, name_end):
        return MORE
    sign = _any_case(_SIGN).match(text, name_end)
    if sign is None:
        return None
    if opening := _ascii(_QUOTE).match(text, sign.end()):
        start = opening.end()
        is_escaped = len(opening[0]) > 1
        until = _ascii(_UNTIL_ESCAPED_QUOTE if is_escaped else _UNTIL_QUOTE[opening[0]])
        content = until.match(text, start, start + LONGEST_QUOTED_VALUE)
        end = content.end() if content else start
        if end - start == LONGEST_QUOTED_VALUE:
            return Hit(kind, start, end, until)
        if end == len(text) and not final:
            return MORE
        return _value(kind, text, start, end)
    value = sign.end()
    if kind == "authorization":
        if not final and _ascii(_SCHEME_SO_FAR).fullmatch(text, value):
            return MORE
        scheme = _any_case(_SCHEME).match(text, value)
        value = scheme.end() if scheme else value
    return _judge_run(text, value, kind, final=final)


def _judge_run(text: str, start: int, kind: str, *, final: bool) -> Verdict:
    run = _ascii(_RUN).match(text, start, start + LONGEST_PAIR_VALUE)
    end = run.end() if run else start
    if end - start == LONGEST_PAIR_VALUE:
        return Hit(kind, start, end, _ascii(_RUN))
    if end == len(text):
        return _value(kind, text, start, end) if final else MORE
    if text[end] in "([":  # a call or an index: code, not a value
        return None
    return _value(kind, text, start, end)


def _value(kind: str, text: str, start: int, end: int) -> Hit | None:
    if end - start < _SHORTEST_VALUE or _any_case(_PLACEHOLDER).match(text, start, end):
        return None
    if kind != "authorization" and _any_case(_CODE).match(text, start, end):
        return None
    return Hit(kind, start, end)


# --- addresses ------------------------------------------------------------------------------

LONGEST_ADDRESS_PASSWORD = 2048
_LONGEST_OPEN_ADDRESS = LONGEST_ADDRESS_PASSWORD + 16  # with what follows a password
_ADDRESS_SIGN = r"[^\s\"'`\\<>]"
# The last `@` before the first slash ends a password. One with a slash in it ends at the first `@`.
_ADDRESS_PASSWORD = (
    rf"(?:(?![/?#]){_ADDRESS_SIGN}){{1,{LONGEST_ADDRESS_PASSWORD}}}(?=@)"
    rf"|(?!\d{{0,5}}[/?#])(?:(?!@|//){_ADDRESS_SIGN}){{1,{LONGEST_ADDRESS_PASSWORD}}}(?=@)"
)
_ADDRESS_SO_FAR = rf"(?!\d{{0,5}}[/?#])(?:(?!//){_ADDRESS_SIGN}){{0,{_LONGEST_OPEN_ADDRESS}}}+"
_NO_ADDRESS = r"@sha\d+:"  # the digest of an image: docker://alpine:3.20@sha256:…
_ADDRESS_PLACEHOLDER = r"\$|<|\{|%[sdv(]|%%|(?:\*+|\.{2,}|\u2026|x{3,})$|\[redacted:"
_DOCUMENTED_NAME = r"\[?(?:user|username|name|login)\]?"
_DOCUMENTED_VALUE = r"\[?(?:pass|passwd|password|pwd)\]?"


def _judge_address(text: str, start: int, *, final: bool) -> Verdict:
    """Find the password in `name:password@host`, or a name that is a token itself."""
    name = _ascii(_ADDRESS_NAME).match(text, start)
    end = name.end() if name else start
    if end == len(text):
        return None if final else MORE
    is_token = _ascii(_OPAQUE).match(text, start, end) is not None
    if text[end] == "@":
        return Hit("password", start, end) if is_token else None
    if text[end] != ":":
        return None
    start_of_password = end + 1
    password = _ascii(_ADDRESS_PASSWORD).match(text, start_of_password)
    # What follows may have another `@`.
    rest = _ascii(_ADDRESS_SO_FAR).match(text, start_of_password)
    is_open = rest is not None and rest.end() == len(text)
    if not final and is_open and len(text) - start_of_password < _LONGEST_OPEN_ADDRESS:
        return MORE
    if password is None or _ascii(_NO_ADDRESS).match(text, password.end()):
        return None
    if _is_documented(text, start, end, password.end()):
        return None
    return Hit("password", start if is_token else start_of_password, password.end())


def _is_documented(text: str, start: int, name_end: int, end: int) -> bool:
    """Return whether an address shows the place of a password instead of one."""
    if _any_case(_ADDRESS_PLACEHOLDER).match(text, name_end + 1, end):
        return True
    name = _any_case(_DOCUMENTED_NAME).fullmatch(text, start, name_end)
    return bool(name and _any_case(_DOCUMENTED_VALUE).fullmatch(text, name_end + 1, end))


# --- names ----------------------------------------------------------------------------------

_SECRET_NAME = re.compile(
    rf"(?:.*[_.-])?(?:{'|'.join(word for word in KEYWORDS if word != 'bearer')})"
    r"(?:[_-]?access)?(?:[_-]?key)?",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_LONGEST_NAME = 128


def kind_of_name(name: str) -> str | None:
    """Return the kind of secret in a field called `name`, or None: `db_password` → `password`."""
    if len(name) > _LONGEST_NAME or not _SECRET_NAME.fullmatch(name):
        return None
    lower = name.lower()
    return _kind(next(word for word in KEYWORDS if word in lower))


def _kind(keyword: str) -> str:
    if keyword.startswith("pass"):
        return "password"
    return "api_key" if "key" in keyword else keyword


# --- replacing ---

_SHORT_WAIT = 256


def marker(kind: str) -> str:
    """Return the text that replaces a secret."""
    return f"[redacted:{kind}]"


class ShapeFilter(Struct, eq=False):
    """Replaces token shapes in a text that arrives in pieces.

    One character that was already shown is kept, because rules look back that far. A long text
    that waits for a decision is examined again only after it has grown by a quarter, so the cost
    of a piece does not grow with the waiting text.

    Args:
        is_prose: leave pairs that may be an explanation: all but `password=…` without spaces.
    """

    is_prose: bool = False

    _text: str = ""
    _fresh: int = 0  # where the text begins that was not shown yet
    _rest_of_secret: re.Pattern[str] | None = None
    _due: int = 0  # the length at which the text is examined again

    def feed(self, text: str, *, final: bool = False) -> str:
        """Take the next piece and return what can be shown now."""
        self._text += text
        if len(self._text) < self._due and not final:
            return ""
        self._due = 0
        out: list[str] = []
        at = self._fresh
        if self._rest_of_secret is not None:
            at = self._skip_rest_of_secret(self._rest_of_secret, at)
        leads = LeadFinder(self._text, final=final)
        while found := leads.next(at):
            start, lead = found
            verdict = judge(self._text, start, lead, final=final)
            if self.is_prose and lead in KEYWORDS and isinstance(verdict, Hit):
                verdict = verdict if _is_assigned(self._text[start : verdict.start]) else None
            match verdict:
                case Hit():
                    out += self._text[at : verdict.start], marker(verdict.kind)
                    self._rest_of_secret, at = verdict.more, verdict.end
                    if verdict.more is not None:
                        at = self._skip_rest_of_secret(verdict.more, at)
                case More():
                    out.append(self._text[at:start])
                    self._keep_from(start)
                    self._due = len(self._text) + max(0, len(self._text) - _SHORT_WAIT) // 4
                    return "".join(out)
                case None:
                    out.append(self._text[at : start + 1])
                    at = start + 1
        end = len(self._text) if final else open_tail(self._text, at)
        out.append(self._text[at:end])
        self._keep_from(end)
        return "".join(out)

    def _skip_rest_of_secret(self, rest_of_secret: re.Pattern[str], start: int) -> int:
        rest = rest_of_secret.match(self._text, start)
        end = rest.end() if rest else start
        if end < len(self._text):
            self._rest_of_secret = None
        return end

    def _keep_from(self, start: int) -> None:
        self._fresh = min(start, 1)
        self._text = self._text[start - self._fresh :]


def _is_assigned(name: str) -> bool:
    """Return whether a name and its sign are as in a query or in a command, `password=`."""
    return "=" in name and not re.search(r"\s", name)


# `Path` makes one slash of two.
_FOLDED_ADDRESS = r"(?<=\w:/)(?P<name>[^\s/@:'\"]*:)[^\s/@'\"]+(?=@)"


def without_secrets(text: str, *, is_prose: bool = False) -> str:
    """Return a text with every secret that shows by its shape replaced.

    Args:
        text: any text, such as a value that a program has passed, also a path.
        is_prose: the text has sentences, in which `password: …` may be an explanation.
    """
    if "@" in text and ":/" in text:
        text = _ascii(_FOLDED_ADDRESS).sub(rf"\g<name>{marker('password')}", text)
    return ShapeFilter(is_prose).feed(text, final=True) if has_lead(text) else text

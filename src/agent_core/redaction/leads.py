"""Finds where a secret-like shape may begin, at next to no cost where none does.

This runs over every event and every live delta. A regular expression over all leads costs a
hundred microseconds a kilobyte; a few plain substring searches cost three. Only the leads that
occur are looked for by their own expressions, which pass over those that nothing follows.
"""

import re

TOKEN_LEADS = (
    "sk-", "sk_live_", "sk_test_", "rk_live_",
    "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "AKIA", "ASIA", "AIza", "eyJ", "hf_",
    "xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-",
)  # fmt: skip
"""Case matters, and none of them counts within a word."""

KEY_LEAD = "-----BEGIN "

KEYWORDS = (
    "password", "passwd", "passphrase", "secret", "token",
    "apikey", "api_key", "api-key", "access_key", "access-key", "accesskey",
    "authorization", "bearer",
)  # fmt: skip
"""Case does not matter; they count anywhere, as in `DB_PASSWORD`. No lead contains another."""

# What a group of leads has in common: if that is missing, none of the group has to be looked for.
_TOKENS_BY_PART = {
    "-": {"sk-": ("sk-",), "xox": TOKEN_LEADS[-5:], "glpat-": ("glpat-",), KEY_LEAD: (KEY_LEAD,)},
    "_": {
        "_live_": ("sk_live_", "rk_live_"),
        "_test_": ("sk_test_",),
        **{lead: (lead,) for lead in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")},
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

# What has to follow a lead before `shapes` has to judge it, unless the text ends too early. Each
# expression looks a bounded distance ahead.
_AFTER_TOKEN = {
    "sk-": r"(?:(?=[\w-]{0,64}?\d)[\w-]{8}|[\w-]{16}|[\w-]{0,15}\Z)",
    **dict.fromkeys(("sk_live_", "sk_test_", "rk_live_"), r"(?:\w{8}|\w{0,7}\Z)"),
    **dict.fromkeys(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), r"(?:\w{12}|\w{0,11}\Z)"
    ),
    "glpat-": r"(?:[\w-]{12}|[\w-]{0,11}\Z)",
    **dict.fromkeys(("AKIA", "ASIA"), r"(?:[A-Z0-9]{12}|[A-Z0-9]{0,11}\Z)"),
    "AIza": r"(?:[\w-]{30}|[\w-]{0,29}\Z)",
    "eyJ": r"(?:[\w-]{5,2048}+(?:\.(?:[\w-]{4}|[\w-]{0,3}\Z)|\Z)|[\w-]{0,4}\Z)",
    "hf_": r"(?:[A-Za-z0-9]{20}|[A-Za-z0-9]{0,19}\Z)",
    **dict.fromkeys(TOKEN_LEADS[-5:], r"(?:[\w-]{10}|[\w-]{0,9}\Z)"),
}
_AFTER_KEYWORD = r"[a-z_-]{0,11}+(?:\\{0,3}[\"'`]|\\{0,3}\Z)?\]?[ \t]{0,8}+(?:[:=]|\Z)"
_AFTER_BEARER = r"(?:[ \t]{1,8}+[^\s\"'`,;&<>(){}\[\]|\\]{16}|[ \t]{0,8}+[^\s]{0,15}\Z)"
_AFTER_KEY_LEAD = r"(?:[A-Z0-9 ]{0,40}?PRIVATE KEY|[A-Z0-9 -]{0,66}\Z)"

_WORTH_JUDGING = {
    # Not within a word. The literal comes first: a search for one is the fastest there is.
    **{
        lead: re.compile(rf"{lead}(?<![A-Za-z0-9_-]{lead}){after}", re.ASCII)
        for lead, after in _AFTER_TOKEN.items()
    },
    **{
        word: re.compile(word + (_AFTER_BEARER if word == "bearer" else _AFTER_KEYWORD), re.ASCII)
        for word in KEYWORDS
    },
    KEY_LEAD: re.compile(KEY_LEAD + _AFTER_KEY_LEAD, re.ASCII),
}

_ALL = [lead.lower() for lead in (*TOKEN_LEADS, KEY_LEAD, *KEYWORDS)]
_BEGINNINGS = frozenset(lead[:size] for lead in _ALL for size in range(1, len(lead)))
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))


class LeadFinder:
    """Goes through one text from lead to lead, each search starting where the last one ended."""

    def __init__(self, text: str, *, final: bool) -> None:
        self._text = text
        self._lower = _lowered(text)
        self._next: dict[str, int] = {}
        for lead in _present(text, self._lower, final=final):
            self._find(lead, 0)

    def next(self, at: int) -> tuple[int, str] | None:
        """The first lead worth judging at or after `at`: where it begins, and which it is."""
        while self._next:
            lead, start = min(self._next.items(), key=_position)
            if start >= at:
                return start, lead
            self._find(lead, at)
        return None

    def _find(self, lead: str, at: int) -> None:
        text = self._lower if lead in KEYWORDS else self._text
        found = _WORTH_JUDGING[lead].search(text, at)
        if found is None:
            self._next.pop(lead, None)
        else:
            self._next[lead] = found.start()


def open_tail(text: str, start: int) -> int:
    """Where the earliest unfinished lead could begin; the end of `text` if nowhere."""
    tail = _lowered(text[max(start, len(text) - _LONGEST_BEGINNING) :])
    for size in range(len(tail), 0, -1):
        if tail[-size:] in _BEGINNINGS:
            return len(text) - size
    return len(text)


def has_lead(text: str) -> bool:
    """Whether there is anything to judge in `text`."""
    return bool(_present(text, _lowered(text), final=True))


def _present(text: str, lower: str, *, final: bool) -> list[str]:
    """The leads that occur. One character rules out most of them in most texts."""
    found: list[str] = []
    for character, groups in _TOKENS_BY_PART.items():
        if character in text:
            for part, leads in groups.items():
                if part in text:
                    found += [lead for lead in leads if lead in text]
    # A pair needs its sign, which may be still to come if the text goes on.
    if not final or ":" in text or "=" in text or "bearer" in lower:
        for part, words in _KEYWORDS_BY_PART.items():
            if part in lower:
                found += [word for word in words if word in lower]
    return found


def _lowered(text: str) -> str:
    # U+0130 is the one character whose lower case has another length; positions must agree.
    return text.lower() if text.isascii() else text.replace("\u0130", "I").lower()


def _position(item: tuple[str, int]) -> int:
    return item[1]

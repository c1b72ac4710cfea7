"""Finds where a secret-like shape may begin, at next to no cost where none does.

This runs over every event and every live delta. A regular expression over all leads costs a
hundred microseconds a kilobyte; a few plain substring searches cost three.
"""

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
        """The first lead at or after `at`: where it begins, and which it is."""
        while self._next:
            lead, start = min(self._next.items(), key=_position)
            if start >= at and not (lead in TOKEN_LEADS and self._is_within_word(start)):
                return start, lead
            self._find(lead, max(at, start + 1))
        return None

    def _find(self, lead: str, at: int) -> None:
        start = (self._lower if lead in KEYWORDS else self._text).find(lead, at)
        if start < 0:
            self._next.pop(lead, None)
        else:
            self._next[lead] = start

    def _is_within_word(self, start: int) -> bool:
        before = self._text[start - 1 : start] if start else ""
        return before in {"_", "-"} or (before.isascii() and before.isalnum())


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

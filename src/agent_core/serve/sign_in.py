"""Signing in to `soong-agent serve`: the token, the one-time code, and the cookie."""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable

from agent_core.serve.problems import HttpProblem

LASTS_S = 30 * 24 * 3600
"""Seconds for which a cookie signs in."""

_CODE_S = 600.0
_MOST_WRONG, _WINDOW_S = 10, 60.0
_PAUSE_S = 0.1
_MOST_WAITING = 20
_MOST_COOKIES = 10
_VALUE = re.compile(r"([0-9]{1,12})\.([A-Za-z0-9_-]{22})\.([0-9a-f]{64})")


class SignIn:
    """Knows who is signed in.

    A cookie has an end and a random part, and their authentication code by the key of the home and
    the token: it outlives a restart, and ends with the token.

    Args:
        token: of the command line; None: there is none, only the code signs in.
        key: the secret of the home with which cookies are made.
        port: the port of the server, whose cookies these are.
    """

    def __init__(self, token: str | None, key: bytes, port: int) -> None:
        self._token = None if token is None else token.encode()
        self._key = hmac.digest(key, self._token or b"", "sha256")
        self.cookie = f"soong-agent-{port}"
        self.code = secrets.token_urlsafe(32)
        self._code_ends = time.monotonic() + _CODE_S
        self._is_code_used = False
        self._attempts = Attempts()

    async def take_token(self, given: bytes) -> bool:
        """Return whether this is the token.

        Raises:
            HttpProblem: 429: it is wrong, as too many were before.
        """
        return await self._attempts.check(lambda: self._is_token(given))

    def _is_token(self, given: bytes) -> bool:
        # Of digests, a comparison also says nothing about the length.
        return _is_same(given, self._token or b"") and self._token is not None

    async def take_code(self, given: bytes) -> bool:
        """Return whether this is the code, which signs in once.

        Raises:
            HttpProblem: 429: it is wrong, as too many were before.
        """
        return await self._attempts.check(lambda: self._use_code(given))

    def _use_code(self, given: bytes) -> bool:
        is_open = not self._is_code_used and time.monotonic() < self._code_ends
        if not _is_same(given, self.code.encode()) or not is_open:
            return False
        self._is_code_used = True
        return True

    @property
    def takes_token(self) -> bool:
        """True if there is a token that signs in."""
        return self._token is not None

    def make_cookie(self) -> str:
        """Return the value of a new cookie."""
        ends, nonce = int(time.time()) + LASTS_S, secrets.token_urlsafe(16)
        return f"{ends}.{nonce}.{self._sign(ends, nonce)}"

    def knows(self, cookies: Iterable[str]) -> bool:
        """Return whether one of these values of the cookie signs in.

        Another server of this machine may set cookies of this name, too.
        """
        return any(self._is_valid(each) for each in list(cookies)[:_MOST_COOKIES])

    def _is_valid(self, value: str) -> bool:
        if (found := _VALUE.fullmatch(value)) is None:
            return False
        ends, nonce, given = int(found[1]), found[2], found[3]
        return hmac.compare_digest(given, self._sign(ends, nonce)) and time.time() < ends

    def _sign(self, ends: int, nonce: str) -> str:
        text = f"{self.cookie} {ends} {nonce}".encode()
        return hmac.digest(self._key, text, "sha256").hex()


class Attempts:
    """Limits guesses: after ten wrong ones in a minute, further wrong ones are refused.

    Meanwhile attempts are checked one after the other, with pauses, so that further guesses do not
    pay; a right one still gets in, so that an attacker cannot lock the user out.
    """

    def __init__(self) -> None:
        self._wrong: deque[float] = deque(maxlen=_MOST_WRONG)
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def check(self, is_right: Callable[[], bool]) -> bool:
        """Return whether an attempt is right.

        Raises:
            HttpProblem: 429: it is wrong, as too many were before.
        """
        if not self._is_full():
            return self._note(is_right())
        if self._waiting >= _MOST_WAITING:
            raise self._refusal()
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(_PAUSE_S)
                if is_right():
                    return True
        finally:
            self._waiting -= 1
        if self._is_full():
            raise self._refusal()
        return self._note(is_right=False)

    def _is_full(self) -> bool:
        return len(self._wrong) == _MOST_WRONG and time.monotonic() - self._wrong[0] < _WINDOW_S

    def _note(self, is_right: bool) -> bool:
        if not is_right:
            self._wrong.append(time.monotonic())
        return is_right

    def _refusal(self) -> HttpProblem:
        left = self._wrong[0] + _WINDOW_S - time.monotonic()
        headers = {"Retry-After": str(max(1, round(left + 0.5)))}
        return HttpProblem(429, "too many wrong tokens or codes; wait", headers=headers)


def _is_same(one: bytes, other: bytes) -> bool:
    digests = (hashlib.sha256(each).digest() for each in (one, other))
    return hmac.compare_digest(*digests)

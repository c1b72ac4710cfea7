"""Keys that a command of the user prints, such as a token of a cloud's own tool."""

import asyncio
import json
import os
import re
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import cast

from agent_core.text import bounded_line

_KEPT_S = 300.0
"""Seconds that a key is kept if the command does not say when it expires."""
_END_S = 5.0
"""Seconds until the output of a command that was killed is closed."""
_HIDDEN = r"[^\s\"',:{}\[\]]{8,}"
_KEYS = ("accessToken", "access_token", "token")
_EXPIRIES = ("expires_on", "expiration", "expiry", "token_expiry", "expiresOn")


class KeyCommand:
    """Runs a command, and returns the key that it prints, with the time when the key expires.

    The output is the key, or a JSON object with the key and the time.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)

    async def __call__(self) -> tuple[str, float]:
        """Run the command.

        Raises:
            OSError: it cannot be run, or fails.
            ValueError: it prints something else.
        """
        name = self._argv[0]
        child = await asyncio.create_subprocess_exec(
            *self._argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        is_over = False
        try:
            printed, said = await child.communicate()
            is_over = True
        finally:
            if not is_over:
                with suppress(ProcessLookupError):  # its own children have its output open, too
                    os.killpg(child.pid, signal.SIGKILL)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_S):
                        await child.communicate()
        output = printed.decode(errors="replace")
        if child.returncode:
            words = said.decode(errors="replace")
            for secret in re.findall(_HIDDEN, output):
                words = words.replace(secret, "[redacted]")
            reason = bounded_line(words) or "no explanation"
            raise OSError(f"{name} ended with {child.returncode}: {reason}")
        return read_key(output)


def read_key(printed: str) -> tuple[str, float]:
    """Return the key in the output of a command, and the time when it is asked for again.

    Raises:
        ValueError: it is a JSON object without a key.
    """
    key, expires_at = printed.strip(), time.time() + _KEPT_S
    if not key.startswith("{"):
        return key, expires_at
    try:
        found = cast("dict[str, object]", json.loads(key))
    except ValueError:
        raise ValueError("the command printed broken JSON") from None
    inner = found.get("credential")
    if isinstance(inner, dict):
        found = cast("dict[str, object]", inner)
    keys = [value for name in _KEYS if isinstance(value := found.get(name), str)]
    if not keys:
        raise ValueError(f"the command printed JSON without {', '.join(_KEYS)}")
    times = (_seconds_in(found.get(name)) for name in _EXPIRIES)
    return keys[0], next((each for each in times if each is not None), expires_at)


def _seconds_in(value: object) -> float | None:
    """Return a time in seconds since 1970; one without a zone is local."""
    if isinstance(value, str):
        if value.isdecimal():
            return float(value)
        with suppress(ValueError):
            return datetime.fromisoformat(value).timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None

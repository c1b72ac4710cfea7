"""Keys: from a variable, or from a callable or a command that is asked again before they expire."""

import asyncio
import json
import os
import re
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from agent_core.callbacks import result_of
from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.failures import Called, CallError
from agent_core.text import bounded_line
from agent_core.text.json_text import JsonObject

KeySource = Callable[[], Any]
"""Returns a key, or a key and the time at which it expires; may be an async function."""

_RENEWED_BEFORE_S = 300.0
_LONGEST_S = 60.0
_SHARE = 0.1
_LEAST_PART = 4
"""A key that is valid for a short time is renewed in the last tenth of it."""
_KEPT_S = 300.0
"""Seconds that a key is kept if the command does not say when it expires."""
_END_S = 5.0
"""Seconds until the output of a command that was killed is closed."""
_HIDDEN = r"[^\s\"',:{}\[\]]{8,}"
_KEYS = ("accessToken", "access_token", "token")
_EXPIRIES = ("expires_on", "expiration", "expiry", "token_expiry", "expiresOn")


class _Held(Struct, frozen=True):
    """A key that was given, and the times of `time.time()` at which it expires and is renewed."""

    key: str
    expires_at: float
    renewed_at: float


class HeldKey:
    """The key of a callable, kept in memory until shortly before it expires.

    A key without an expiry is asked for again for every attempt. If a key cannot be renewed, the
    one at hand is used until it has expired.

    Args:
        source: the callable; if it is not async, it runs in a thread, because it may block.
        longest_s: seconds that it may take.
    """

    def __init__(self, source: KeySource, longest_s: float = _LONGEST_S) -> None:
        self._source = source
        self._longest_s = longest_s
        self._held: _Held | None = None
        self._asking: dict[asyncio.AbstractEventLoop, asyncio.Task[_Held]] = {}

    def forget(self, key: str) -> None:
        """Do not use this key again: the service has refused it."""
        if self._held is not None and self._held.key == key:
            self._held = None

    async def get(self, called: Called) -> str:
        """Return a key that is valid; calls at the same time share one question.

        Raises:
            CallError: the callable failed, or returned something else.
        """
        held, now = self._held, time.time()
        if held is not None and now < held.renewed_at:
            return held.key
        loop = asyncio.get_running_loop()
        task = self._asking.get(loop)
        if task is None:
            task = self._asking[loop] = loop.create_task(self._ask())
            task.add_done_callback(lambda _: self._asking.pop(loop, None))
        try:
            return (await asyncio.shield(task)).key
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if held is not None and now < held.expires_at:
                return held.key
            reason = bounded_line(f"{type(error).__name__}: {error}")
            raise CallError(
                ErrorCode.PROVIDER_AUTH_FAILED,
                f"no key for {called.provider}, model {called.model}: its source failed ({reason})",
                details=called.details,
            ) from error

    async def _ask(self) -> _Held:
        limit = asyncio.timeout(self._longest_s)
        try:
            async with limit:
                held = _held(await self._given())
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"it took longer than {self._longest_s:g} s") from None
            raise
        if held.expires_at:
            self._held = held
        return held

    async def _given(self) -> object:
        return await result_of(self._source)


def _held(given: object) -> _Held:
    """Return a given key with its times.

    Raises:
        TypeError: it is neither a key nor a key with a time.
        ValueError: it has characters that no key has.
    """
    expiry: object = None
    if isinstance(given, tuple):
        pair = cast("tuple[object, ...]", given)
        given, expiry = pair if len(pair) == 2 else (None, None)
    if not isinstance(given, str) or isinstance(expiry, bool):
        raise TypeError("it must return a string, or a string and the time when it expires")
    key = given.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError("it returned something that cannot be a key")
    if isinstance(expiry, datetime):
        expiry = expiry.timestamp()
    if expiry is None:
        return _Held(key, 0.0, 0.0)
    if not isinstance(expiry, int | float):
        raise TypeError("the time when the key expires must be a datetime or seconds since 1970")
    now = time.time()
    margin = min(_RENEWED_BEFORE_S, max(0.0, expiry - now) * _SHARE)
    return _Held(key, float(expiry), expiry - margin)


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
        found = cast("JsonObject", json.loads(key))
    except ValueError:
        raise ValueError("the command printed broken JSON") from None
    inner = found.get("credential")
    if isinstance(inner, dict):
        found = inner
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


def key_of(config: ModelConfig, called: Called) -> str:
    """Return the key from the environment; empty if the configuration names no variable."""
    name = config.api_key_env
    if not name:
        return ""
    key = os.environ.get(name, "").strip()
    whose = f"{called.provider}, model {called.model}"
    if not key:
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"the environment variable {name} is not set: export it, with the key of {whose}, or"
            " change [model] api_key_env",
            details={**called.details, "variable": name},
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"the value of {name} cannot be the key of {whose}: it has characters that no key has",
            details={**called.details, "variable": name},
        )
    return key


def hidden(key: str, said: str) -> str:
    """Return a service's words without the key: services repeat the key that they refuse.

    A part of the key is left out, too, where the words were cut. A key of a few characters, as for
    a server that takes any, is no secret: without it no word would be whole.
    """
    if len(key) < _LEAST_PART:
        return said
    said = said.replace(key, "[redacted]")
    if "…" in said:
        for size in range(len(key) - 1, _LEAST_PART - 1, -1):
            said = said.replace(f"{key[:size]}…", "[redacted]…")
    return said

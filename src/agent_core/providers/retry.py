"""When a failed attempt is followed by another one, and how long to wait before it."""

import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agent_core.config.models import RetryConfig
from agent_core.providers.failures import CallError

MAX_RETRY_AFTER_S = 60.0
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")
_random = random.SystemRandom()


def pause_before_retry_s(config: RetryConfig, attempt: int, failure: CallError) -> float | None:
    """How long to wait after attempt number `attempt` (from 1); None: give up.

    The pause is drawn evenly from between the initial backoff and a ceiling that doubles with
    every attempt, so that many clients do not come back at once; it is never shorter than what
    the service asked for.
    """
    if not failure.retryable or attempt >= config.max_attempts:
        return None
    asked = failure.retry_after_s or 0.0
    if asked > MAX_RETRY_AFTER_S:
        return None
    longest = min(config.max_backoff_ms, config.initial_backoff_ms * 2 ** min(attempt, 30))
    shortest = min(config.initial_backoff_ms, longest)
    return max(asked, _random.uniform(shortest, longest) / 1000)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What the `Retry-After` header says, in seconds from now; None if it says nothing usable.

    A date is measured against the service's own clock, if it sent one, not against ours.
    """
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until = _date(value)
    if until is None:
        return None
    now = _date(headers.get("Date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None

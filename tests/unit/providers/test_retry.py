from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from agent_core.config.models import RetryConfig
from agent_core.errors import ErrorCode
from agent_core.providers.error_answers import retry_after_s
from agent_core.providers.failures import CallError, pause_before_retry_s
from tables import together

CONFIG = RetryConfig(max_attempts=10, initial_backoff_ms=100, max_backoff_ms=800)
BUSY = CallError(ErrorCode.PROVIDER_ERROR, "busy", retryable=True)


@together(("attempt", "ceiling_s"), [(1, 0.2), (2, 0.4), (3, 0.8), (9, 0.8)])
def test_pauses_are_spread_between_the_first_and_a_doubling_ceiling(
    attempt: int, ceiling_s: float
) -> None:
    pauses = [pause_before_retry_s(CONFIG, attempt, BUSY) or 0.0 for _ in range(200)]

    assert 0.1 <= min(pauses) < max(pauses) <= ceiling_s
    assert len(set(pauses)) > 100


def test_the_service_is_left_alone_for_as_long_as_it_asks() -> None:
    failure = CallError(ErrorCode.PROVIDER_RATE_LIMITED, "slow down", True, retry_after_s=7.0)

    assert pause_before_retry_s(CONFIG, 1, failure) == 7.0


@together(
    ("attempt", "failure"),
    [
        (10, BUSY),
        (1, CallError(ErrorCode.PROVIDER_ERROR, "wrong")),
        (1, CallError(ErrorCode.PROVIDER_RATE_LIMITED, "", True, retry_after_s=60.1)),
    ],
    ids=["attempts", "permanent", "too long"],
)
def test_some_failures_are_not_tried_again(attempt: int, failure: CallError) -> None:
    assert pause_before_retry_s(CONFIG, attempt, failure) is None


def test_no_backoff_is_no_pause() -> None:
    none = RetryConfig(max_attempts=2, initial_backoff_ms=0, max_backoff_ms=0)

    assert pause_before_retry_s(none, 1, BUSY) == 0.0


@together(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        (" 10 ", 10.0),
        ("", None),
        ("-1", None),
        ("soon", None),
        ("nan", None),
        ("1e99", None),
        ("9" * 400, None),
        ("Wed, 99 Oct 2026 07:28:00 GMT", None),
        ("Wed, 21 Oct 1970 07:28:00 GMT", 0.0),
    ],
)
def test_only_a_sensible_retry_after_counts(value: str, seconds: float | None) -> None:
    assert retry_after_s({"Retry-After": value}) == seconds


def test_a_date_is_read_by_the_clock_of_the_service() -> None:
    theirs = datetime(2031, 1, 1, tzinfo=UTC)
    headers = {
        "Date": format_datetime(theirs, usegmt=True),
        "Retry-After": format_datetime(theirs + timedelta(seconds=30), usegmt=True),
    }

    assert retry_after_s(headers) == 30.0


def test_a_date_without_the_services_clock_is_read_by_ours() -> None:
    later = datetime.now(UTC) + timedelta(seconds=30)

    seconds = retry_after_s({"Retry-After": format_datetime(later, usegmt=True)})

    assert seconds is not None
    assert 27 < seconds <= 30

"""Numbers as people read them: counts, tokens, costs, times."""

from datetime import datetime

from agent_core.text import plural
from agent_core.types import Usage, utc_now


def format_tokens(count: int) -> str:
    """Tokens in few characters."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            unit = 1_000 if letter == "k" else size
            return f"{count / unit:.1f}{letter}"
    return f"{count:,}"


def format_bytes(count: int) -> str:
    """Format a number of bytes, in units of a thousand."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return plural(count, "byte")


def format_dollars(amount: float) -> str:
    """An amount; the smaller it is, the more digits it has."""
    if not amount:
        return "$0"
    return f"${amount:,.{2 if amount >= 1 else 4 if amount >= 0.01 else 6}f}"


def format_cost(usage: Usage) -> str:
    """Return the cost as text; an unknown cost is not 0."""
    if usage.cost is None:
        return "cost unknown" if usage.total_tokens or usage.is_estimated else "$0"
    return format_dollars(usage.cost)


def format_usage(usage: Usage) -> str:
    """The tokens of a run in words, and its cost if that is known."""
    cost = "" if usage.cost is None else f", {format_dollars(usage.cost)}"
    return f"{usage.input_tokens} in, {usage.output_tokens} out, {usage.total_tokens} in all{cost}"


def format_duration(milliseconds: float) -> str:
    """Return a duration as text."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else format_elapsed(seconds)


def format_elapsed(seconds: float) -> str:
    """For how long something has been under way, in whole seconds."""
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} m {whole % 60} s"


def format_age(moment: datetime) -> str:
    """Return the time since a moment as text."""
    minutes = int((utc_now() - moment).total_seconds() // 60)
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{minutes} min ago"
    if minutes < 48 * 60:
        return f"{minutes // 60} h ago"
    days = minutes // 1440
    return f"{days} d ago" if days < 30 else f"{moment.astimezone():%Y-%m-%d}"

"""What a user may set for one provider only: `provider_options.<provider>.<key>`."""

from collections.abc import Mapping, Set as AbstractSet
from typing import Any, cast

from agent_core.providers.failures import Called

EXTRA_BODY = "extra_body"
"""A table that goes into the request as it is: for what a compatible server knows beyond us."""
HEADERS = "headers"
"""A table of further HTTP headers; never the ones that carry a key."""

_RESERVED_BODY = frozenset({"messages", "model", "stream", "system", "tools"})
_RESERVED_HEADERS = frozenset({"authorization", "x-api-key", "host", "content-length", "cookie"})


def own_options(
    called: Called, known: AbstractSet[str], *sources: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of one provider, later sources over earlier ones; other providers' are skipped.

    Raises:
        ProviderError: `unsupported_capability`, naming a key that this provider does not know.
    """
    merged: dict[str, Any] = {}
    for source in sources:
        for provider, options in source.items():
            if not isinstance(options, dict):
                raise called.unsupported(
                    f"provider_options.{provider}",
                    f"provider_options is keyed by provider; write "
                    f"provider_options.{called.provider}.{provider} instead",
                )
            if provider == called.provider:
                merged.update(cast("dict[str, Any]", options))
    unknown = sorted(merged.keys() - known)
    if unknown:
        raise called.unsupported(
            f"provider_options.{called.provider}.{unknown[0]}",
            f"unknown provider_options: {', '.join(unknown)}; known: {', '.join(sorted(known))}",
        )
    _check_tables(called, merged)
    return merged


def _check_tables(called: Called, options: Mapping[str, Any]) -> None:
    for name, reserved in ((EXTRA_BODY, _RESERVED_BODY), (HEADERS, _RESERVED_HEADERS)):
        table = options.get(name, {})
        where = f"provider_options.{called.provider}.{name}"
        if not isinstance(table, dict):
            raise called.unsupported(where, f"{where} must be a table")
        taken = sorted(key for key in cast("dict[str, Any]", table) if key.lower() in reserved)
        if taken:
            raise called.unsupported(where, f"{where} must not set {', '.join(taken)}")

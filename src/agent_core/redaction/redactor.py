"""The redactor: the one object that knows the configured secrets and removes them."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson

from agent_core.redaction.leads import has_lead
from agent_core.redaction.shapes import kind_of_name
from agent_core.redaction.stream import LiveBytes, LiveSecrets, LiveText, ShapeFilter
from agent_core.redaction.values import SecretValues, marker

DEEPEST = 200
"""Levels of nesting that are searched; what lies deeper is replaced as a whole."""


class Redactor:
    """Removes secrets from texts, JSON-like values and bytes.

    Two strengths: `secrets_only` removes the values of configured secrets and is for what a model
    must be able to read back; `text` also removes what merely looks like a secret, and is for
    events, logs, artifacts and screens. What has no secret in it is returned as the same object.

    Args:
        secrets: `kind -> value`; the kind, usually the name of the environment variable, is what
            is shown: `[redacted:OPENAI_API_KEY]`. Values of fewer than four characters are
            ignored: they occur everywhere, and replacing them would destroy the text.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._kinds: dict[str, str] = {}  # by value: two secrets may be of one kind
        self.learn(secrets)

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Remove these values too, from now on; texts that are under way go on as they began.

        A value that was known before stays known, also if its kind has another value now.
        """
        unknown = {value: kind for kind, value in secrets.items() if value not in self._kinds}
        if not unknown and self._kinds:
            return
        self._kinds |= unknown
        self._values = SecretValues(self._kinds)
        self._values_in_bytes = SecretValues(self._kinds, encoding="utf-8")

    @property
    def known(self) -> int:
        """How many secrets are known; it grows when more are learnt."""
        return len(self._kinds)

    @property
    def has_secrets(self) -> bool:
        """Some secret value is configured."""
        return bool(self._kinds)

    def secrets_only(self, text: str) -> str:
        """`text` without the values of configured secrets."""
        return self._values.replaced(text)

    def text(self, text: str) -> str:
        """`text` without configured secrets and without token shapes."""
        text = self._values.replaced(text)
        return ShapeFilter().feed(text, final=True) if has_lead(text) else text

    def payload(self, value: Any) -> Any:
        """A JSON-like value with `text` applied to every string, keys included.

        A string under a name that promises a secret (`{"password": "…"}`) is replaced whole.
        """
        return value if self._is_plain(value) else _walked(value, self.text, named=True)

    def payload_secrets_only(self, value: Any) -> Any:
        """A JSON-like value with `secrets_only` applied to every string, keys included."""
        return _walked(value, self.secrets_only, named=False)

    def raw(self, data: bytes) -> bytes:
        """Bytes of any kind, in ASCII or UTF-8 where they are text, as `text` would leave them."""
        live = self.raw_stream()
        return live.feed(data) + live.finish()

    def stream(self) -> LiveText:
        """A redactor for one text that arrives in pieces; as strong as `text`."""
        return LiveText(self._values)

    def secrets_stream(self) -> LiveSecrets:
        """The same, only as strong as `secrets_only`."""
        return LiveSecrets(self._values)

    def raw_stream(self) -> LiveBytes:
        """A redactor for bytes that arrive in pieces, for files of any size."""
        return LiveBytes(self._values_in_bytes)

    def _is_plain(self, value: Any) -> bool:
        """One look at the whole as JSON: most payloads hold nothing that could be a secret."""
        try:
            text = orjson.dumps(value).decode()
        except (TypeError, ValueError):
            return False
        # Counts of tokens stand in many payloads, and none of these names a secret.
        counted = text.replace("tokens", "").replace("token_count", "")
        return not has_lead(counted) and self._values.replaced(text) is text


def _walked(value: Any, clean: Callable[[str], str], *, named: bool, depth: int = 0) -> Any:
    if isinstance(value, str):
        return clean(value)
    if depth > DEEPEST and isinstance(value, dict | list | tuple):
        return marker("nesting")
    if isinstance(value, dict):
        return _walked_dict(cast("dict[Any, Any]", value), clean, named=named, depth=depth)
    if isinstance(value, list | tuple):
        return _walked_list(cast("list[Any]", value), clean, named=named, depth=depth)
    return value


def _walked_list(
    items: list[Any], clean: Callable[[str], str], *, named: bool, depth: int
) -> list[Any]:
    walked = [_walked(item, clean, named=named, depth=depth + 1) for item in items]
    is_same = all(new is old for new, old in zip(walked, items, strict=True))
    return items if is_same else walked


def _walked_dict(
    table: dict[Any, Any], clean: Callable[[str], str], *, named: bool, depth: int
) -> dict[Any, Any]:
    walked: dict[Any, Any] = {}
    is_same = True
    for key, value in table.items():
        new_key = clean(key) if isinstance(key, str) else key
        kind = kind_of_name(key) if named and isinstance(key, str) else None
        if kind and isinstance(value, str) and value and not value.startswith("[redacted:"):
            new_value = marker(kind)
        else:
            new_value = _walked(value, clean, named=named, depth=depth + 1)
        is_same = is_same and new_key is key and new_value is value
        walked[new_key] = new_value
    return table if is_same else walked

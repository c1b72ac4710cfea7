"""Models named in one string: `provider:name`, with `@base_url` where the server is another."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

FORM = (
    "write provider:name, such as openai:gpt-5, ollama:qwen3 or local:/path/model.gguf; with the"
    " address of another server, openai:my-model@http://127.0.0.1:8000/v1"
)

_MODEL = re.compile(
    r"(?P<provider>[A-Za-z][\w.-]*):(?!//)(?P<name>[^\s@]\S*?)(?:@(?P<base_url>https?://\S+))?"
)
_AN_ADDRESS = re.compile(r"://|@(localhost|[\w.-]+:\d{1,5})(/|$)")
"""What is meant as an address, and must not be sent as a part of the name."""

_FILES = {"local", "scripted"}
"""Providers whose models are files."""

_KEYS = {
    "openai": ("OPENAI_API_KEY", "api.openai.com"),
    "anthropic": ("ANTHROPIC_API_KEY", "api.anthropic.com"),
    "gemini": ("GEMINI_API_KEY", "generativelanguage.googleapis.com"),
}
"""The variable with the key, as each service's own documents call it, and the service's host."""


def model_fields(text: str) -> dict[str, Any]:
    """What a model string says, as fields of a model; a `path` is as it was written.

    Raises:
        ValueError: it is no model string; says what one looks like.
    """
    found = _MODEL.fullmatch(text.strip())
    name = found["name"] if found else ""
    if found is None or name.endswith("@") or _AN_ADDRESS.search(name):
        shown = "it" if len(text) > 200 or "://" in text else repr(text)  # an address has passwords
        raise ValueError(f"cannot be used: {shown} is no model string; {FORM}")
    fields: dict[str, Any] = {"provider": found["provider"], "name": name}
    if found["base_url"]:
        fields["base_url"] = found["base_url"]
    if found["provider"] in _FILES:
        fields |= {"name": Path(name).stem or name, "path": name}
    return fields


def usual_key(provider: str, base_url: str | None) -> str | None:
    """The variable that holds the key of a provider's public service; None for other servers."""
    if provider not in _KEYS:
        return None
    variable, host = _KEYS[provider]
    if not base_url:
        return variable
    try:
        address = urlsplit(base_url.strip())
        is_public = address.scheme == "https" and address.hostname == host
        return variable if is_public and address.port in {None, 443} else None
    except ValueError:
        return None


def password_in(url: str) -> str | None:
    """What proves who is asking, if an address holds that."""
    try:
        return unquote(urlsplit(url.strip()).password or "") or None
    except ValueError:
        return None

"""Models named in one string: `provider:name`, with `@base_url` where the server is another."""

import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

FORM = (
    "write provider:name, such as openai:gpt-5, ollama:qwen3 or local:/path/model.gguf; with the"
    " address of another server, openai:my-model@http://127.0.0.1:8000/v1"
)

_MODEL = (
    r"(?P<provider>[A-Za-z][\w.-]*):(?!//|@https?://)(?P<name>\S+?)(?:@(?P<base_url>https?://\S+))?"
)
_AN_ADDRESS = r"://|@(localhost|\d+\.\d+\.\d+\.\d+|[\w.-]+:\d{1,5})(/|$)|@(//|\[)"
"""What is meant as an address, and must not be sent as a part of the name."""

_FILE = r"(?P<provider>local|scripted):(?!//)(?P<path>\S(?:.*\S)?)"
"""Of providers whose models are files."""


class PublicService(NamedTuple):
    """What goes without saying of a provider's own service.

    Attributes:
        host: where it is.
        key: the environment variable with the key, as the service's documents call it.
        window: what its current models take at least, in tokens.
    """

    host: str
    key: str
    window: int


_SERVICES = {
    "openai": PublicService("api.openai.com", "OPENAI_API_KEY", 128_000),
    "anthropic": PublicService("api.anthropic.com", "ANTHROPIC_API_KEY", 200_000),
    "gemini": PublicService("generativelanguage.googleapis.com", "GEMINI_API_KEY", 200_000),
}


def model_fields(text: str) -> dict[str, Any]:
    """What a model string says, as fields of a model; a `path` is as it was written.

    Raises:
        ValueError: it is no model string; says what one looks like.
    """
    if file := re.fullmatch(_FILE, text.strip()):
        path = file["path"]
        return {"provider": file["provider"], "name": Path(path).stem or path, "path": path}
    found = re.fullmatch(_MODEL, text.strip(), re.IGNORECASE)
    name = found["name"] if found else ""
    if found is None or name.endswith("@") or re.search(_AN_ADDRESS, name, re.IGNORECASE):
        shown = "it" if len(text) > 200 or "://" in text else repr(text)  # an address has passwords
        raise ValueError(f"cannot be used: {shown} is not a model string; {FORM}")
    fields: dict[str, Any] = {"provider": found["provider"], "name": name}
    if found["base_url"]:
        fields["base_url"] = found["base_url"]
    return fields


def public_service(provider: str, base_url: str | None) -> PublicService | None:
    """The provider's own service, if that is what is asked; None for every other server."""
    service = _SERVICES.get(provider)
    if service is None or not base_url:
        return service
    try:
        address = urlsplit(base_url.strip())
        is_its_own = (address.scheme, address.hostname) == ("https", service.host)
        is_its_own = is_its_own and "@" not in address.netloc  # read otherwise elsewhere
        return service if is_its_own and address.port in {None, 443} else None
    except ValueError:
        return None


def password_in(url: str) -> str | None:
    """What proves who is asking, if an address holds that."""
    try:
        return unquote(urlsplit(url.strip()).password or "") or None
    except ValueError:
        return None

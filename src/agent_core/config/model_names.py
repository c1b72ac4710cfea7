"""Models named in one string: `provider:name`, with `@base_url` for another server."""

import re
from pathlib import Path
from typing import Any

from agent_core.config.services import provider_named

FORM = (
    "write provider:name, such as openai:gpt-5\n"
    "also ollama:qwen3 and local:/path/model.gguf; with the address of another server,"
    " openai:my-model@http://127.0.0.1:8000/v1"
)

_MODEL = (
    r"(?P<provider>[A-Za-z][\w.-]*):(?!//|@https?://)(?P<name>\S+?)(?:@(?P<base_url>https?://\S+))?"
)
_AN_ADDRESS = r"://|@(localhost|\d+\.\d+\.\d+\.\d+|[\w.-]+:\d{1,5})(/|$)|@(//|\[)"
"""Matches text that looks like an address and must not be sent as part of the name."""

_FILE = r"(?P<provider>local|scripted):(?!//)(?P<path>\S(?:.*\S)?)"
"""Model strings of providers whose models are files."""


def model_fields(text: str) -> dict[str, Any]:
    """Parse a model string into fields of a model; a `path` is kept as written.

    Raises:
        ValueError: it is not a model string; the message shows the form.
    """
    if file := re.fullmatch(_FILE, text.strip()):
        path = file["path"]
        return {"provider": file["provider"], "name": Path(path).stem or path, "path": path}
    found = re.fullmatch(_MODEL, text.strip(), re.IGNORECASE)
    name = found["name"] if found else ""
    if found is None or name.endswith("@") or re.search(_AN_ADDRESS, name, re.IGNORECASE):
        shown = "it" if len(text) > 200 or "://" in text else repr(text)  # may hold a password
        raise ValueError(f"cannot be used: {shown} is not a model string; {FORM}")
    fields: dict[str, Any] = {"provider": provider_named(found["provider"]), "name": name}
    if found["base_url"]:
        fields["base_url"] = found["base_url"]
    return fields

"""Models named in one string: `provider:name`, with `@base_url` for another server."""

import re
from pathlib import Path
from typing import Any

from agent_core.config.services import provider_named

_FORM = "provider:name, such as openai:gpt-5"
_OTHER_FORMS = (
    "also ollama:qwen3 and local:/path/model.gguf; with the address of another server,"
    " openai:my-model@http://127.0.0.1:8000/v1"
)
_NAME_ALONE = (
    'a name with such an @ is given apart: provider = "…" and name = "…" in [model] (in code:'
    " ModelConfig(provider=…, name=…))"
)

_MODEL = (
    r"(?P<provider>[A-Za-z][\w.-]*):(?!//|@https?://)(?P<name>\S+?)(?:@(?P<base_url>https?://\S+))?"
)
_AN_ADDRESS = (
    r"://|//|\\"  # no name has these
    r"|@(h+t+p+s*|ttps?)([:;,./]|$)"  # http or https, misspelled or without its colon
    r"|@(localhost|\d+\.\d+\.\d+\.\d+|[\w.-]+:\d{1,5})(/|$)"
    r"|@\["
    r"|.@[\w-]+(\.[\w-]+)*\.[a-z]{2,}(/|$)"  # a host; a version ends in a digit
    r"|.@[\w.-]+/v\d+/?$"
)
"""Matches text that looks like an address and must not be sent as part of the name."""

_MOST_SHOWN = 200
_A_KEY = re.compile(r"(?i)(sk|rk|pk|gsk|xai|hf|key)[-_]|AIza")
"""Matches the beginning of a key that was given in place of a name."""

_OF_FILES = ("local:", "scripted:")
_FILE = r"(?P<provider>local|scripted):(?!//)(?P<path>\S(?:.*\S)?)"
"""Model strings of providers whose models are files."""


def model_fields(text: str) -> dict[str, Any]:
    """Parse a model string into fields of a model; a `path` is kept as written.

    Raises:
        ValueError: it is not a model string; the message shows the form, and continues the name
            of what has the string.
    """
    bare = text.strip()
    if bare.startswith(_OF_FILES) and (file := re.fullmatch(_FILE, bare)):
        path = file["path"]
        return {"provider": file["provider"], "name": Path(path).stem or path, "path": path}
    found = re.fullmatch(_MODEL, bare, re.IGNORECASE)
    name = found["name"] if found else ""
    if found is None or name.endswith("@") or _looks_like_address(name):
        if found is not None and "@" in name[1:-1]:
            message = f"must be {_FORM}, and after an @ an address http(s)://host"
            raise ValueError(f"{message}; {_NAME_ALONE}")
        instead = "" if may_hold_secret(text) else f", not {text!r}"
        raise ValueError(f"must be {_FORM}{instead}\n{_OTHER_FORMS}")
    fields: dict[str, Any] = {"provider": provider_named(found["provider"]), "name": name}
    if found["base_url"]:
        fields["base_url"] = found["base_url"]
    return fields


def may_hold_secret(text: str) -> bool:
    """Return whether a text that was given as a model may be a key, or an address with one."""
    is_key = _A_KEY.match(text.strip()) is not None
    return len(text) > _MOST_SHOWN or "//" in text or "@" in text or is_key


def _looks_like_address(name: str) -> bool:
    is_possible = "@" in name or "//" in name or "\\" in name
    return is_possible and re.search(_AN_ADDRESS, name, re.IGNORECASE) is not None

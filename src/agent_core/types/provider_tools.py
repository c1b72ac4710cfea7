"""The tools that a service runs itself, under one name for all services."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator

PROVIDER_TOOLS = ("web_search", "web_fetch", "code_execution")
_SPELLINGS: Mapping[str, str] = {
    "code_interpreter": "code_execution",
    "google_search": "web_search",
    "google_search_retrieval": "web_search",
    "url_context": "web_fetch",
}
"""Names in the interfaces of single services."""


def provider_tool_names(given: Sequence[str]) -> list[str]:
    """Return the names that hold for all services, each once.

    Raises:
        ValueError: there is no such tool.
    """
    names: list[str] = []
    for each in given:
        plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each).lower()  # googleSearch
        plain = re.sub(r"_(20\d{6}|20\d{2}_\d{2}_\d{2})$", "", plain)  # web_search_20250305
        name = _SPELLINGS.get(plain, plain)
        if name not in PROVIDER_TOOLS:
            known = ", ".join(PROVIDER_TOOLS)
            raise ValueError(f"names {each!r}, and there is no such tool of a service: {known}")
        if name not in names:
            names.append(name)
    return names


ProviderTools = Annotated[list[str], AfterValidator(provider_tool_names)]

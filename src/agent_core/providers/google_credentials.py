"""Access tokens of Google Cloud, through the optional package `google-auth`."""

import json
import os
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_core.config.models import expand_home
from agent_core.config.problems import read_text
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.text.json_text import table

_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


def is_installed() -> bool:
    """Return whether `google-auth` is installed, with the transport that it needs."""
    try:
        return find_spec("google.auth") is not None and find_spec("requests") is not None
    except ModuleNotFoundError:
        return False


class GoogleTokens:
    """Returns tokens of the application default credentials: a file, or the machine's own account.

    Raises:
        ConfigError: `google-auth` is not installed.
    """

    def __init__(self) -> None:
        if not is_installed():
            from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

            cure = extra_command("vertex")
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"a package that signs in to Google Cloud is missing: {cure}; or name a variable "
                "with an access token in [model] api_key_env",
            )
        self._credentials: Any = None

    def __call__(self) -> tuple[str, datetime | None]:
        """Return a new token and the time when it expires. Blocks: it is asked of a service."""
        if self._credentials is None:
            self._credentials, _ = import_module("google.auth").default(scopes=_SCOPES)
        request = import_module("google.auth.transport.requests").Request()
        self._credentials.refresh(request)
        expiry = self._credentials.expiry
        return self._credentials.token, expiry and expiry.replace(tzinfo=UTC)

    @property
    def billed_project(self) -> str:
        """The project that pays for the requests, if the credentials name one."""
        return getattr(self._credentials, "quota_project_id", None) or ""


def project_in_credentials() -> str:
    """Return the project that a file of credentials names; empty if there is none."""
    named = os.environ.get(_FILE_VARIABLE, "").strip()
    config = os.environ.get("CLOUDSDK_CONFIG", "").strip() or "~/.config/gcloud"
    path = named or str(Path(config) / "application_default_credentials.json")
    try:
        found: object = json.loads(read_text(expand_home(path)) or "null")
    except (OSError, ValueError, AgentCoreError):
        return ""
    known = table(found)
    project = known.get("project_id") or known.get("quota_project_id")
    return project if isinstance(project, str) else ""

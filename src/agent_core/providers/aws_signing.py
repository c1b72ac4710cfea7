"""Signatures of Amazon's services (SigV4), through the optional package `botocore`."""

import os
import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.failures import CallError
from agent_core.providers.http_provider import PreparedRequest
from agent_core.text import bounded_line

_REGION = re.compile(r"\bbedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")


def region_of(config: ModelConfig) -> str:
    """Return the region named by the service's address or by the environment.

    Raises:
        ConfigError: neither names a region.
    """
    named = _REGION.search(config.base_url or "")
    region = (
        named[1]
        if named
        else os.environ.get("AWS_REGION", "") or os.environ.get("AWS_DEFAULT_REGION", "")
    )
    if not re.fullmatch(r"[a-z0-9-]+", region):
        raise ConfigError(
            ErrorCode.CONFIG_ERROR,
            f"provider {config.provider} needs a region: set AWS_REGION, or [model] base_url to "
            "https://bedrock-runtime.<region>.amazonaws.com",
        )
    return region


class AwsSigner:
    """Signs requests with the credentials that the AWS tools would use, and renews them.

    Raises:
        ConfigError: `botocore` is not installed.
    """

    def __init__(self, service: str, region: str) -> None:
        if find_spec("botocore") is None:
            from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

            cure = extra_command("bedrock")
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"a package that signs requests to AWS is missing: {cure}; or name an API key "
                'with [model] api_key_env = "AWS_BEARER_TOKEN_BEDROCK"',
            )
        self._service = service
        self._region = region
        self._credentials: Any = None

    def signed(self, prepared: PreparedRequest) -> dict[str, str]:
        """Return the headers of a signed POST. Blocks: credentials may come from a service.

        Raises:
            CallError: there are no credentials, or they cannot be loaded.
        """
        try:
            if self._credentials is None:
                self._credentials = import_module("botocore.session").Session().get_credentials()
            frozen = self._credentials and self._credentials.get_frozen_credentials()
        except Exception as error:
            raise _without_credentials(
                prepared, bounded_line(f"{type(error).__name__}: {error}")
            ) from error
        if frozen is None:
            raise _without_credentials(prepared, "there are none")
        request = import_module("botocore.awsrequest").AWSRequest(
            "POST", prepared.url, dict(prepared.headers), prepared.body
        )
        signer = import_module("botocore.auth").SigV4Auth(frozen, self._service, self._region)
        signer.add_auth(request)
        return dict(request.headers.items())


def _without_credentials(prepared: PreparedRequest, why: str) -> CallError:
    called = prepared.called
    return CallError(
        ErrorCode.PROVIDER_AUTH_FAILED,
        f"{called.provider} found no AWS credentials for {called.model} ({why}); set "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or [model] api_key_env",
        details=called.details,
    )

"""The console: sessions in a browser and over HTTP.

The extra `serve` installs what it needs.
"""

from agent_core.errors import ConfigError, ErrorCode
from agent_core.installation import extra_command

try:
    from agent_core.serve.application import app
    from agent_core.serve.principals import Auth, Principal, Right
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn"}:
        raise
    what = f"the console needs the extra serve; to install it:\n{extra_command('serve')}"
    raise ConfigError(ErrorCode.CONFIG_ERROR, what) from None

__all__ = ["Auth", "Principal", "Right", "app"]

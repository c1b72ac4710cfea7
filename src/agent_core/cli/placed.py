"""Says at which server a model is, where it is not its provider's own service."""

import os

from agent_core.config.load import MODEL_VARIABLE, resolve_model
from agent_core.config.model_names import model_fields
from agent_core.config.models import Config, ModelConfig
from agent_core.config.servers import shown_address
from agent_core.config.services import public_service
from agent_core.text import visible


def placed_model(config: Config, name: str | None = None) -> str:
    """Return a name of a model in one line, and the server unless it is the provider's own.

    Args:
        config: the settings.
        name: a model string, or the name of a table of models; without one, the configured model.

    Raises:
        ConfigError: there is no such model.
    """
    model = resolve_model(config, name)
    return _placed(model, visible(name or model.full_name, one_line=True))


def _placed(model: ModelConfig, shown: str) -> str:
    address = model.address
    if address is None or public_service(model.provider, model.base_url) or "://" in shown:
        return shown
    return f"{shown} at {shown_address(address)}"


def unnamed_server(config: Config, named: str | None) -> str:
    """Return a line about the server of a named model; empty if it is where the name says.

    A configured address stays for another model of the same provider. This is said, because the
    name alone reads like one of the provider's own models.

    Args:
        config: has the resolved model.
        named: the model of `--model`; without one, the environment variable names it.
    """
    model = config.model
    named = named or os.environ.get(MODEL_VARIABLE)
    if not named or not model.base_url or public_service(model.provider, model.base_url):
        return ""
    try:
        is_named = "base_url" in model_fields(named)
    except ValueError:  # the name of a table of the settings
        return ""
    return "" if is_named else f"model {_placed(model, model.full_name)}, as [model] base_url says"

"""`soong-agent schema`: prints the published schemas of the output of other commands."""

import json
from typing import Any

from pydantic import RootModel

from agent_core.cli.events import RunSummary
from agent_core.cli.exit_codes import COMPLETED
from agent_core.cli.export.lines import SessionExportLine
from agent_core.cli.options import Options
from agent_core.text.json_text import JsonObject
from agent_core.types import RuntimeEvent


class EventsLine(RootModel[RuntimeEvent | RunSummary]):
    """A line of `run --events`: an event, or the result, which is the last one."""


_LINES: dict[str, type[RootModel[Any]]] = {"events": EventsLine, "session": SessionExportLine}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def print_schema(options: Options) -> int:
    """Print the schema, and return the exit code."""
    schema: JsonObject = _LINES[options.action].model_json_schema(mode="serialization")
    print(json.dumps({"$schema": _DIALECT, **schema}, indent=2))
    return COMPLETED

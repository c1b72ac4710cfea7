"""The base of every table in the user's files."""

from pydantic import ConfigDict

from agent_core.types.fields import Fields


class Section(Fields):
    """A table of the file. Unknown keys are errors; schemas are built when first used.

    Types are strict: `enabled = "no"` or `max_turns = true` is a mistake, not a value. Sections
    that are left out are made with `model_construct`, because making them in the ordinary way
    would build their validators while this module is imported.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

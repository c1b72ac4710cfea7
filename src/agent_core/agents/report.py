"""The report on a child for its parent: one structured result."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from agent_core.context.messages import artifact_ids
from agent_core.tools.results import parse_answer
from agent_core.types import Node


def build_report(
    text: str,
    path: Iterable[Node],
    *,
    status: str,
    step_id: str | None = None,
    output: Any = None,
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the result from the last answer of a child and the artifacts of its tools.

    The parent gets this result, and it is stored with the agent. An answer that is an object with a
    `summary` is split into its fields; any other answer becomes the summary. `metadata` holds ids
    and usage and, for an expected shape, the value of the answer as `output`.
    """
    value: Any = output
    if value is None:
        with suppress(ValueError):
            value = parse_answer(text)
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not isinstance(fields.get("summary"), str):
        fields = {"summary": text}
    named = [each for each in _as_list(fields.get("artifacts")) if isinstance(each, str)]
    kept = (each for node in path for result in node.results for each in artifact_ids(result))
    return {
        "status": status,
        "summary": fields["summary"],
        "findings": _as_list(fields.get("findings")),
        "artifacts": list(dict.fromkeys([*named, *kept])),
        **({"step_id": step_id} if step_id is not None else {}),
        "proposed_actions": _as_list(fields.get("proposed_actions")),
        "metadata": {**metadata} if output is None else {**metadata, "output": output},
    }


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]

"""What a parent gets of its child: one structured result, checked if the parent gave a shape."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from agent_core.errors import ErrorCode, ToolError
from agent_core.providers.jsontext import unfenced
from agent_core.tools.json_schema import BoundedValidator, SchemaUnusableError
from agent_core.tools.results import storable
from agent_core.tools.schema import json_path
from agent_core.tools.schema_rules import CheckTooSlowError
from agent_core.types import ArtifactRefBlock, JsonBlock, Node

_PARTS = ("findings", "artifacts", "proposed_actions")
_MAX_ERRORS = 5


class ExpectedOutput:
    """The shape that an answer has to have.

    Raises:
        ToolError: `validation_error`, it is no JSON Schema that can be used.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._validator = BoundedValidator(schema)
        except SchemaUnusableError as error:
            raise _unusable(error) from error
        self.schema = dict(schema)

    def faults(self, text: str) -> list[str]:
        """What is wrong with an answer; empty if it fits."""
        try:
            value = parsed(text)
        except ValueError as error:
            return [f"$: it is not JSON: {error}"]
        try:
            found = list(islice(self._validator.errors(value), _MAX_ERRORS))
        except (CheckTooSlowError, RecursionError):
            return ["$: it takes too long to check, or is nested too deeply"]
        return [f"{json_path(e.absolute_path)}: {str(e.message)[:300]}" for e in found]


def parsed(text: str) -> Any:
    """The JSON value that an answer is, with or without a fence around it.

    Raises:
        ValueError: it is none.
    """
    try:
        return storable(json.loads(unfenced(text)))
    except (RecursionError, TypeError) as error:
        raise ValueError("it is nested too deeply") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """The result of a child, as its parent sees it and as it is kept with the agent.

    Attributes:
        status: how the child's run ended.
        summary: its answer in words.
        findings, proposed_actions: what it listed, if it answered with an object that does.
        artifacts: ids of the artifacts it named or made.
        metadata: ids, usage and, for an expected shape, the answer itself as `output`.
    """

    status: str
    summary: str
    findings: Sequence[Any] = ()
    artifacts: Sequence[str] = ()
    proposed_actions: Sequence[Any] = ()
    step_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """The result's fixed form; `step_id` only where there is a step."""
        step = {"step_id": self.step_id} if self.step_id is not None else {}
        return {
            "status": self.status,
            "summary": self.summary,
            "findings": list(self.findings),
            "artifacts": list(self.artifacts),
            **step,
            "proposed_actions": list(self.proposed_actions),
            "metadata": dict(self.metadata),
        }


def report_of(
    text: str,
    path: Sequence[Node],
    *,
    status: str,
    step_id: str | None = None,
    has_shape: bool = False,
    metadata: Mapping[str, Any],
) -> ChildReport:
    """Make the result of what a child said last and what its tools kept.

    An object with the fields of a result is taken apart; any other answer is the summary.
    """
    fields = _object(text)
    more = dict(metadata)
    if has_shape and (value := _value(text)) is not None:
        more["output"] = value
    summary = fields.get("summary") if _is_result(fields) else None
    lists = {name: _listed(fields.get(name)) for name in _PARTS} if _is_result(fields) else {}
    named = [each for each in lists.get("artifacts", []) if isinstance(each, str)]
    return ChildReport(
        status=status,
        summary=summary if isinstance(summary, str) else text,
        findings=lists.get("findings", []),
        artifacts=list(dict.fromkeys([*named, *artifact_ids(path)])),
        proposed_actions=lists.get("proposed_actions", []),
        step_id=step_id,
        metadata=more,
    )


def artifact_ids(path: Iterable[Node]) -> list[str]:
    """The artifacts that the results on a path refer to."""
    found: list[str] = []
    for node in path:
        for result in node.results:
            for block in result.content:
                match block:
                    case ArtifactRefBlock(artifact_id=artifact_id):
                        found.append(artifact_id)
                    case JsonBlock():
                        found.extend(_ids_in(block))
                    case _:
                        pass
    return found


def _ids_in(block: JsonBlock) -> Iterable[str]:
    data: Any = block.data
    if block.artifact_id:
        yield block.artifact_id
    if isinstance(data, dict):
        for key, value in cast("dict[str, Any]", data).items():
            if key.endswith("artifact_id") and isinstance(value, str):
                yield value


def _is_result(fields: Mapping[str, Any]) -> bool:
    return isinstance(fields.get("summary"), str)


def _object(text: str) -> dict[str, Any]:
    value = _value(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _value(text: str) -> Any:
    try:
        return parsed(text)
    except ValueError:
        return None


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _unusable(error: Exception) -> ToolError:
    reason = str(error).partition("\n")[0][:300]
    message = f"expected_output_schema cannot be used: {reason}"
    details = {"path": "$.expected_output_schema"}
    return ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)

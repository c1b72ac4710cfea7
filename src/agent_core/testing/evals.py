"""Evaluate agents with `pydantic-evals`: the cases of a dataset with one or several models.

The extra `evals` installs the package. Answers can be cached as recordings, so that an evaluation
repeats without a model as long as its requests stay the same.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_core.api import AgentRuntime, RunError, RunResult
from agent_core.errors import ConfigError, ErrorCode
from agent_core.installation import extra_command
from agent_core.loop.options import AnyModel
from agent_core.testing.recording import record, replay
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import UserMessage, new_id

if TYPE_CHECKING:
    from pydantic_evals import Dataset
    from pydantic_evals.reporting import EvaluationReport

InputsT = TypeVar("InputsT")
MetadataT = TypeVar("MetadataT")

Message = Callable[[Any], str | UserMessage]
"""Returns the user's message for the inputs of a case."""

_NAME_CHARS = 40


async def evaluate(
    runtime: AgentRuntime,
    dataset: "Dataset[InputsT, Any, MetadataT]",
    models: "Mapping[str, AnyModel] | Sequence[str]" = (),
    *,
    cache: str | Path | None = None,
    project_dir: str | Path | None = None,
    message: Message = str,
    max_concurrency: int | None = 4,
    **options: Any,
) -> "dict[str, EvaluationReport[InputsT, Any, MetadataT]]":
    """Run every case of a dataset with every model, and return a report for each model.

    The output of a case is the output of its run. Each run is a session of its own; its id is the
    attribute `session_id` of the case, and its tokens, turns and cost are metrics.

    Args:
        runtime: runs the cases; usually with `persist=False`.
        dataset: the cases and their evaluators.
        models: model strings, or models by name; by default the model of the runtime.
        cache: a folder of recordings: a case that was recorded with a model is answered from there,
            and is run and recorded again if its requests have changed.
        project_dir: the project of the runtime, for recordings; by default the current folder.
        message: makes the user's message of a case's inputs.
        max_concurrency: the number of cases that run at the same time.
        options: the options of each run, by the names of `RunOptions`.

    Raises:
        ConfigError: the extra `evals` is not installed.
    """
    _require_package()
    named: Mapping[str, AnyModel | None] = (
        models if isinstance(models, Mapping) else {name: name for name in models}
    )
    reports: dict[str, EvaluationReport[InputsT, Any, MetadataT]] = {}
    for name, model in (named or {"default": None}).items():
        folder = None if cache is None else Path(cache) / _file_name(name)
        fields: JsonObject = {**options, "model": model}
        task = eval_task(runtime, message=message, cache=folder, project_dir=project_dir, **fields)
        reports[name] = await dataset.evaluate(
            task, name=name, task_name=name, progress=False, max_concurrency=max_concurrency
        )
    return reports


def eval_task(
    runtime: AgentRuntime,
    *,
    message: Message = str,
    cache: str | Path | None = None,
    project_dir: str | Path | None = None,
    **options: Any,
) -> Callable[[Any], Any]:
    """Return a function for `Dataset.evaluate`, which runs the inputs of a case and returns output.

    Args:
        runtime: runs the cases.
        message: makes the user's message of a case's inputs.
        cache: a folder of recordings, for one model.
        project_dir: as for `evaluate`.
        options: the options of each run.

    Raises:
        ConfigError: the extra `evals` is not installed.
    """
    _require_package()
    folder = None if cache is None else Path(cache)

    async def run(inputs: Any) -> Any:
        said = message(inputs)
        if folder is None:
            result = await runtime.run(said, **options)
        else:
            words = said if isinstance(said, str) else said.model_dump_json()
            file = folder / f"{_file_name(words)}.yaml"
            result = await _run_cached(runtime, said, file, options, project_dir)
        _count(result)
        return result.output

    return run


async def _run_cached(
    runtime: AgentRuntime,
    message: str | UserMessage,
    file: Path,
    options: Mapping[str, JsonValue],
    project_dir: str | Path | None,
) -> RunResult[Any]:
    """Run with the recorded replies, or with the model if a request was not recorded."""
    if await asyncio.to_thread(file.exists):
        recorded = replay(file, project_dir=project_dir)
        fields: JsonObject = {**options, "model": recorded}
        try:
            return await runtime.run(message, **fields)
        except RunError:
            with suppress(AssertionError):  # a request was not recorded
                recorded.assert_complete()
                raise
    session_id = new_id("sess")
    result = await runtime.run(message, session_id, **options)
    await record(runtime.session(session_id), file)
    return result


def _count(result: RunResult[Any]) -> None:
    """Add what a run has used to the metrics of its case."""
    from pydantic_evals import increment_eval_metric, set_eval_attribute  # noqa: PLC0415 - an extra

    usage = result.total_usage
    set_eval_attribute("session_id", result.session_id)
    increment_eval_metric("input_tokens", usage.input_tokens)
    increment_eval_metric("output_tokens", usage.output_tokens)
    if usage.cost is not None:
        increment_eval_metric("cost", usage.cost)


def _require_package() -> None:
    if find_spec("pydantic_evals") is None:
        what = f"evaluations need the extra evals; to install it:\n{extra_command('evals')}"
        raise ConfigError(ErrorCode.CONFIG_ERROR, what)


def _file_name(text: str) -> str:
    """Return a name that says what it is for, and that no other text has."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_NAME_CHARS].strip("-")
    return f"{words}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"

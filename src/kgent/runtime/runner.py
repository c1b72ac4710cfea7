"""One run, from a profile and a prompt to a finished run folder. Start reading at `run`."""

from contextlib import AsyncExitStack, closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from typing_extensions import Unpack

from agcore.memory import MemoryStore
from agent_core.aio import stop_if_cancelled
from agent_core.callbacks import callback_problem
from agent_core.errors import ErrorCode
from agent_core.keywords import lists_keywords
from agent_core.process import Launcher
from agent_core.redaction import Redactor
from agent_core.text import kind_of
from kgent.config.loader import (
    apply_cli_overrides,
    dump_config,
    fingerprint_config,
    load_config,
)
from kgent.config.models import KgentConfig
from kgent.config.parameters import fill_config, fill_text
from kgent.config.portable import relocated
from kgent.engine.base import AgentEngine, EngineWithSecrets, EventCallback
from kgent.engine.core import CoreAgentEngine
from kgent.engine.mock import MockAgentEngine
from kgent.errors import ErrorCategory, config_error, error_info, expand_home, require
from kgent.memory.client import open_memory
from kgent.memory.contract import MemoryClient
from kgent.records.context import RunRecords
from kgent.runtime.blocking import finish_in_thread, run_blocking
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.executor import FolderRun
from kgent.runtime.ids import RunIds
from kgent.runtime.options import RunOptions, RunResult
from kgent.runtime.preflight import refuse_obstacles
from kgent.runtime.questions import AttemptQuestions
from kgent.runtime.state import RUN_FILE, RunState, RunStatus, state_text
from kgent.runtime.task import FolderTask, Means, start_texts
from kgent.sandbox.inputs import find_inputs
from kgent.sandbox.workspace import CONFIG_FILE, create_workspace, resolve_run_folder
from kgent.tools.mcp import build_servers, mcp_secrets


class AttemptParts(TypedDict, total=False):
    """The objects that a program gives an attempt at a run; see `run_async`."""

    engine: AgentEngine | None
    memory: MemoryClient | MemoryStore | None
    cancellation: Cancellation | None
    event_callback: EventCallback | None


class RunParts(AttemptParts, total=False):
    """The objects that a program gives a run, besides its options."""

    prompt_is_final: bool


async def run_async(
    config_path: Path | str,
    prompt: str,
    options: RunOptions | None = None,
    *,
    engine: AgentEngine | None = None,
    memory: MemoryClient | MemoryStore | None = None,
    cancellation: Cancellation | None = None,
    event_callback: EventCallback | None = None,
    prompt_is_final: bool = False,
) -> RunResult:
    """Run a profile once, and return its errors instead of raising them.

    Args:
        config_path: the profile.
        prompt: the user's request.
        options: values that replace those of the profile.
        engine: used instead of the profile's engine.
        memory: a memory for this run: a `MemoryClient`, or a `MemoryStore` of the toolkit.
        cancellation: asks the run to stop; it then ends as `incomplete`.
        event_callback: receives the events of the engine.
        prompt_is_final: do not fill parameters into the prompt, because this has been done.

    Returns:
        The result of the run. If it was refused before it had a folder, `sandbox_root` is None.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the run ended as `incomplete`.
    """
    chosen, ids = RunOptions() if options is None else options, RunIds.new()
    async with AsyncExitStack() as stack:
        try:
            origin = expand_home(config_path, "config_path")
            require("prompt", prompt, str, "a text")
            require("options", chosen, RunOptions, "a RunOptions or None")
            require("prompt_is_final", prompt_is_final, bool, "True or False")
            require_parts(
                engine=engine,
                memory=memory,
                cancellation=cancellation,
                event_callback=event_callback,
            )
            ids = RunIds.choose(chosen)
            profile = apply_cli_overrides(load_config(config_path), chosen)
            config = fill_config(profile)
            if not prompt_is_final:
                prompt = fill_text(profile, prompt, "the prompt")
            if not prompt.strip():
                raise config_error("the prompt is empty")
            inputs = find_inputs(config, len(chosen.inputs or ()))
            means = await open_means(stack, config, engine=engine, memory=memory)
            root = resolve_run_folder(config, ids)
            context = RunContext(
                **ids._asdict(),
                profile_id=config.profile.id,
                config_fingerprint=fingerprint_config(profile),
                sandbox_root=root,
                config=config,
                records=RunRecords(root, ids, redactor=Redactor(means.secrets)),
                launcher=stack.enter_context(closing(Launcher())),
                cancellation=cancellation or Cancellation(),
                questions=AttemptQuestions(parks=config.runtime.unattended == "park"),
            )
            fields, when = context.core_fields(), context.records.now()
            state = RunState.of(fields, config, config_path=str(origin), when=when)
            task = FolderTask(
                state=state, profile=profile, prompt=prompt, inputs=inputs, options=chosen
            )
            texts = _first_texts(context, task)
            await finish_in_thread(partial(create_workspace, context, texts))
        except Exception as error:  # noqa: BLE001 - there is no run; the result has the reason
            info = error_info(error, ErrorCategory.INTERNAL)
            return RunResult(**ids._asdict(), status=RunStatus.failed, error=info)
        result = await FolderRun(context, task, means, event_callback).run()
        stop_if_cancelled()
        return result


@lists_keywords(run_async)
def run(
    config_path: Path | str,
    prompt: str,
    options: RunOptions | None = None,
    **parts: Unpack[RunParts],
) -> RunResult:
    """Run a profile once, and block until the run has ended; see `run_async`.

    Returns:
        The result of the run. If it was refused before it had a folder, `sandbox_root` is None.
    """
    return run_blocking(partial(run_async, config_path, prompt, options, **parts))


_DUCKS = (
    ("engine", [("run",)], "an engine, with a method run"),
    (
        "memory",
        [("recall_memory",), ("save", "get", "delete", "list")],
        "a MemoryClient or a MemoryStore",
    ),
)
"""Parts that are known by their methods: one of the groups, and what they are called."""


def require_parts(**parts: Unpack[AttemptParts]) -> None:
    """Check the types of the objects that a program gives a run.

    Raises:
        KgentError: `validation_error`, category `config`: one is of another type.
    """
    for name, methods, words in _DUCKS:
        given = parts.get(name)
        lacks = isinstance(given, type) or not any(
            all(callable(getattr(given, each, None)) for each in group) for group in methods
        )
        if given is not None and lacks:
            what = f"the class {given.__name__}" if isinstance(given, type) else kind_of(given)
            raise config_error(f"{name} must be {words}, not {what}", ErrorCode.VALIDATION_ERROR)
    if (cancellation := parts.get("cancellation")) is not None:
        require("cancellation", cancellation, Cancellation, "a Cancellation")
    if (callback := parts.get("event_callback")) is not None and (
        problem := callback_problem(callback, "event")
    ):
        raise config_error(f"event_callback {problem}", ErrorCode.VALIDATION_ERROR)


async def open_means(
    stack: AsyncExitStack,
    config: KgentConfig,
    *,
    engine: AgentEngine | None = None,
    memory: MemoryClient | MemoryStore | None = None,
) -> Means:
    """Select the engine of a profile and open its memory, and read the secrets of the run.

    Raises:
        KgentError: the profile cannot be run here.
    """
    chosen = engine or select_engine(config)
    await refuse_obstacles(config, chosen, is_given=engine is not None)
    client = await stack.enter_async_context(open_memory(config, memory))
    secrets = mcp_secrets(config)
    build_servers(config, secrets)
    if isinstance(chosen, EngineWithSecrets):
        secrets.update(chosen.secrets(config))
    return Means(chosen, client, secrets)


def _first_texts(context: RunContext, task: FolderTask) -> dict[str, str]:
    """Return the files from which a run that is killed before its first record can be continued."""
    clean, state = context.records.redactor.text, task.state
    texts = start_texts(state, task.prompt, options=task.options)
    profile = relocated(task.profile, context.sandbox_root)
    return {
        RUN_FILE: state_text(state.content(context.records.redactor)),
        CONFIG_FILE: dump_config(profile, origin=state.config_path, clean=clean),
        **{name: clean(text) for name, text in texts.items()},
    }


def select_engine(config: KgentConfig) -> AgentEngine:
    """Return the engine of `runtime.engine`, without connecting or reading a secret.

    Raises:
        KgentError: category `config`; the engine needs an extra that is not installed.
    """
    match config.runtime.engine:
        case "core":
            return CoreAgentEngine()
        case "mock":
            return MockAgentEngine()
        case "pydantic_ai":
            if find_spec("pydantic_ai") is None:
                from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

                cure = extra_command("pydantic-ai")
                raise config_error(
                    f"engine pydantic_ai needs the extra pydantic-ai; to install it:\n{cure}"
                )
            from kgent.engine.pydantic_ai import PydanticAIAgentEngine  # noqa: PLC0415 - an extra

            return PydanticAIAgentEngine()

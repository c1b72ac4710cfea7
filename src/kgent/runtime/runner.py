"""One run, from a profile and a prompt to a finished run folder. Read `run` first."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

from agcore.memory import MemoryStore
from agent_core.errors import ErrorCode
from agent_core.process import Launcher
from agent_core.redaction import Redactor
from kgent.config.loader import apply_cli_overrides, fingerprint_config, load_config
from kgent.config.models import KgentConfig
from kgent.engine.base import AgentEngine, EventCallback, HoldsSecrets
from kgent.engine.select import select_engine
from kgent.errors import ErrorCategory, KgentError, error_info
from kgent.memory.client import SQLITE, is_known, open_memory
from kgent.memory.contract import MemoryClient
from kgent.records.context import RunRecords
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.conduct import RunExecutor
from kgent.runtime.context import RunContext
from kgent.runtime.ids import RunIds, new_id
from kgent.runtime.options import RunOptions, RunResult
from kgent.runtime.state import RunStatus
from kgent.sandbox.workspace import create_workspace, sandbox_root


def run(
    config_path: Path | str,
    prompt: str,
    options: RunOptions | None = None,
    *,
    engine: AgentEngine | None = None,
    memory: MemoryClient | MemoryStore | None = None,
    cancellation: Cancellation | None = None,
    event_callback: EventCallback | None = None,
) -> RunResult:
    """Run a profile once. Blocks until the run is over; never raises for what went wrong in it.

    Args:
        config_path: the profile.
        prompt: what the user wants.
        options: what the caller says instead of the profile.
        engine: instead of the one the profile names.
        memory: a memory for this run: a `MemoryClient`, or a `MemoryStore` of the toolkit.
        cancellation: asks the run to stop; it ends `incomplete`.
        event_callback: is told what the engine does while it works.

    Returns:
        How it went. A run that was refused before it had a folder has no `sandbox_root`.
    """
    chosen = options or RunOptions()
    try:
        ids = RunIds.of(chosen)
    except KgentError as error:
        return _blocked(RunIds(new_id("sess"), new_id("task"), new_id("run")), error)
    with ExitStack() as stack:
        try:
            config = _checked(apply_cli_overrides(load_config(config_path), chosen), prompt, memory)
            client = stack.enter_context(_memory(config, memory))
            worker = engine or select_engine(config)
            launcher = stack.enter_context(closing(Launcher()))
            context = _context(config, ids, worker, launcher=launcher)
            create_workspace(context)
        except KgentError as error:
            return _blocked(ids, error)
        conductor = RunExecutor(
            context,
            prompt=prompt,
            engine=worker,
            memory=client,
            config_path=Path(config_path).expanduser().absolute(),
            cancellation=cancellation or Cancellation(),
            event_callback=event_callback,
        )
        return conductor.run()


def _context(
    config: KgentConfig, ids: RunIds, engine: AgentEngine, *, launcher: Launcher
) -> RunContext:
    root = sandbox_root(config, ids)
    secrets: Mapping[str, str] = {}
    if isinstance(engine, HoldsSecrets):
        secrets = engine.secrets(config)
    return RunContext(
        session_id=ids.session_id,
        task_id=ids.task_id,
        run_id=ids.run_id,
        profile_id=config.profile.id,
        config_fingerprint=fingerprint_config(config),
        sandbox_root=root,
        config=config,
        records=RunRecords.at(root, ids, redactor=Redactor(secrets)),
        launcher=launcher,
    )


def _checked(
    config: KgentConfig, prompt: str, memory: MemoryClient | MemoryStore | None
) -> KgentConfig:
    """What the file alone cannot tell.

    Raises:
        KgentError: category `config`.
    """
    wants = config.memory
    is_external = wants.enabled and wants.write_mode == "external"
    problem = None
    if not prompt.strip():
        problem = "the prompt is empty"
    elif is_external and memory is None and not is_known(wants.provider):
        problem = (
            "memory.write_mode external needs a memory: one given in code, or"
            f" memory.provider {SQLITE}<file>"
        )
    if problem is not None:
        raise KgentError(ErrorCode.CONFIG_ERROR, problem, category=ErrorCategory.CONFIG)
    return config


def _memory(
    config: KgentConfig, given: MemoryClient | MemoryStore | None
) -> AbstractContextManager[MemoryClient | None]:
    wants = config.memory
    if not wants.enabled:
        return open_memory(None, None)
    known = wants.provider is not None and is_known(wants.provider)
    file = config.place(str(wants.provider).removeprefix(SQLITE)) if known else None
    return open_memory(file, given)


def _blocked(ids: RunIds, error: KgentError) -> RunResult:
    return RunResult(
        session_id=ids.session_id,
        task_id=ids.task_id,
        run_id=ids.run_id,
        status=RunStatus.FAILED,
        error=error_info(error),
    )

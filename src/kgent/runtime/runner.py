"""One run, from a profile and a prompt to a finished run folder. Start reading at `run`."""

from contextlib import ExitStack, closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from agcore.memory import MemoryStore
from agent_core.process import Launcher
from agent_core.redaction import Redactor
from kgent.config.loader import apply_options, fingerprint_config, load_config
from kgent.config.models import KgentConfig
from kgent.config.parameters import fill_config, fill_text
from kgent.engine.base import AgentEngine, EngineWithSecrets, EventCallback
from kgent.engine.core import CoreAgentEngine
from kgent.engine.mock import MockAgentEngine
from kgent.errors import ErrorCategory, config_error, error_info, expand_home
from kgent.memory.client import open_memory
from kgent.memory.contract import MemoryClient
from kgent.records.context import RunRecords
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.executor import FolderRun, FolderTask
from kgent.runtime.ids import RunIds
from kgent.runtime.options import RunOptions, RunResult
from kgent.runtime.preflight import refuse_obstacles
from kgent.runtime.state import RunStatus
from kgent.sandbox.inputs import find_inputs
from kgent.sandbox.workspace import create_run_folder, resolve_run_folder
from kgent.tools.mcp import build_servers, mcp_secrets


def run(
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
    """Run a profile once. Block until the run has ended; return its errors instead of raising.

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
    """
    chosen, ids = options or RunOptions(), RunIds.new()
    with ExitStack() as stack:
        try:
            ids = RunIds.choose(chosen)
            profile = apply_options(load_config(config_path), chosen)
            config = fill_config(profile)
            if not prompt_is_final:
                prompt = fill_text(profile, prompt, "the prompt")
            if not prompt.strip():
                raise config_error("the prompt is empty")
            inputs = find_inputs(config)
            chosen_engine = engine or select_engine(config)
            refuse_obstacles(config, chosen_engine, is_given=engine is not None)
            client = stack.enter_context(open_memory(config, memory))
            root, secrets = resolve_run_folder(config, ids), mcp_secrets(config)
            build_servers(config, secrets)
            if isinstance(chosen_engine, EngineWithSecrets):
                secrets.update(chosen_engine.secrets(config))
            env = RunContext(
                ids=ids,
                config_fingerprint=fingerprint_config(profile),
                sandbox_root=root,
                config=config,
                records=RunRecords(root, ids, redactor=Redactor(secrets)),
                launcher=stack.enter_context(closing(Launcher())),
            )
            create_run_folder(env)
        except Exception as error:  # noqa: BLE001 - there is no run; the result has the reason
            status, category = RunStatus.FAILED, ErrorCategory.INTERNAL
            return RunResult(**asdict(ids), status=status, error=error_info(error, category))
        task = FolderTask(
            profile=profile, config_path=expand_home(config_path), prompt=prompt, inputs=inputs
        )
        executor = FolderRun(
            env,
            task,
            engine=chosen_engine,
            memory=client,
            cancellation=cancellation or Cancellation(),
            event_callback=event_callback,
        )
        return executor.run()


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
                raise config_error(f"engine pydantic_ai needs the extra pydantic-ai: {cure}")
            from kgent.engine.pydantic_ai import PydanticAIAgentEngine  # noqa: PLC0415 - an extra

            return PydanticAIAgentEngine()

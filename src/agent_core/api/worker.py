"""`Worker`, a process that executes runs queued by other processes."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace
from pydantic import ValidationError

from agent_core.aio import stop_task
from agent_core.aio.loops import HomeLoop
from agent_core.api.arguments import checks_arguments
from agent_core.config.databases import url_secrets
from agent_core.config.load import config_secrets, missing_keys
from agent_core.config.problems import problems_of
from agent_core.config.stores import RunWorkerConfig
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, validation_error
from agent_core.loading import installed_version
from agent_core.redaction import Redactor
from agent_core.runtime.options import RuntimeOptions, given_items
from agent_core.types.fields import misfit
from agent_core.types.lanes import PROTOCOL

if TYPE_CHECKING:
    from agent_core.api.monitor import WorkerFigures
    from agent_core.config.models import Config
    from agent_core.extensions import Extension
    from agent_core.loop.options import AnyModel
    from agent_core.mcp import ElicitationCallback
    from agent_core.permissions import PermissionCallback
    from agent_core.providers.base import ProviderRegistry
    from agent_core.runtime.projects import OpenProjects
    from agent_core.runtime.queue_worker import QueueWorker
    from agent_core.telemetry.spans import Telemetry
    from agent_core.tools.registry import ToolRegistry
    from agent_core.tools.toolsets import AnyTool, Toolset
    from agent_core.types import AgentDefinition

logger = logging.getLogger(__name__)

_NO_QUEUE = (
    "a worker needs the Postgres database of the queue: set [store] url_env in config.toml\n"
    "to the name of the variable that has its address, or give a database_url"
)


@checks_arguments(constructor=True)
class Worker:
    """Executes the runs that are queued in a Postgres database, for all their projects.

        worker = Worker(database_url="postgresql://…", tool_registry=tools)
        await worker.run()

    Missing arguments are read from the configuration in the home directory, as for `AgentRuntime`;
    the projects come from the runs. Tools, providers and definitions are not in the database: a
    program registers its own with its workers too.

    Args:
        config_path, config, model, home_dir, database_url: as for `AgentRuntime`.
        permission_callback, elicitation_callback: called in this process; questions can also be
            answered from another one.
        provider_registry, tool_registry, tools, toolsets, definitions: in addition to the
            built-in ones.
        extensions: added to every run.
        debug, default_snapshots, telemetry: as for `AgentRuntime`.
        tenant: the only tenant that it serves and sees. None: all.
        concurrency: the number of runs at once; default `[worker] concurrency`, and likewise below.
        places: `host:<id>` and `snapshot`, where the files of its runs are.
        queues: the queues it serves.
        drain_seconds: the seconds that runs may continue after `drain`.
        metrics_port: port of `/metrics`, `/healthz` and `/livez`; 0 is a free port. None: none.
        metrics_address: the address to listen on for these.

    Attributes:
        metrics_url: address of `/metrics`, while it is served.
    """

    def __init__(
        self,
        *,
        config_path: str | Path | None = None,
        config: "Config | Mapping[str, Any] | None" = None,
        model: "AnyModel | None" = None,
        home_dir: str | Path | None = None,
        database_url: str | None = None,
        permission_callback: "PermissionCallback | None" = None,
        elicitation_callback: "ElicitationCallback | None" = None,
        provider_registry: "ProviderRegistry | None" = None,
        tool_registry: "ToolRegistry | None" = None,
        tools: "Sequence[AnyTool]" = (),
        toolsets: "Sequence[Toolset]" = (),
        extensions: "Sequence[Extension]" = (),
        definitions: "Sequence[AgentDefinition]" = (),
        debug: bool = False,
        default_snapshots: Literal["off", "turn"] = "off",
        telemetry: "Telemetry | Literal[False] | None" = None,
        tenant: str | None = None,
        concurrency: int | None = None,
        places: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        drain_seconds: float | None = None,
        metrics_port: int | None = None,
        metrics_address: str = "127.0.0.1",
    ) -> None:
        self._options = RuntimeOptions(
            project_dir="/",  # its own is never used; each run has one
            config_path=config_path,
            config=config,
            model=model,
            home_dir=home_dir,
            database_url=database_url,
            tenant=tenant,
            permission_callback=permission_callback,
            elicitation_callback=elicitation_callback,
            provider_registry=provider_registry,
            tool_registry=tool_registry,
            toolsets=given_items("toolsets", toolsets),
            extensions=given_items("extensions", extensions),
            definitions=list(definitions),
            debug=debug,
            default_snapshots=default_snapshots,
            telemetry=telemetry,
        )
        if tools:
            self._options.give(tools)
        given = {
            "concurrency": concurrency,
            "places": None if places is None else list(places),
            "queues": None if queues is None else list(queues),
            "drain_seconds": drain_seconds,
        }
        self._given = {name: value for name, value in given.items() if value is not None}
        if self._given:
            try:
                RunWorkerConfig.model_validate(self._given)
            except ValidationError as error:
                raise misfit(error, RunWorkerConfig, self._given, owner="") from None
        self._metrics_port = metrics_port
        self._metrics_address = metrics_address
        self.metrics_url: str | None = None
        self._is_drained = False
        self._home: HomeLoop | None = None
        self._drain: Callable[[], object] = lambda: None

    def drain(self) -> None:
        """Accept no more runs; `run` returns when its runs have ended or were handed over.

        It may be called from any thread.
        """
        self._is_drained = True
        with suppress(RuntimeError):  # the event loop has just ended
            self._drain()

    async def run(self) -> bool:
        """Execute runs until `drain` is called.

        Cancelling this hands its runs over to other workers at once.

        Returns:
            Whether every run has ended, or was handed over.

        Raises:
            ConfigError: the configuration cannot be used, names no Postgres database, or the port
                is taken.
            StorageError: the database cannot be opened.
            AgentCoreError: `validation_error`: it is running already, or no event loop of asyncio
                is running here.
        """
        home = HomeLoop("this worker", kind="another Worker")
        if self._home is not None:
            self._home.require()
            message = "this worker is already running; create another Worker"
            raise validation_error(message)
        self._home = home
        try:
            return await self._work(home)
        finally:
            self._home = None
            self._drain = lambda: None

    async def _work(self, home: HomeLoop) -> bool:
        options = self._options
        setup = await asyncio.to_thread(options.read_setup)
        config = self._checked(setup.config.worker)
        redactor = Redactor(config_secrets(setup.config, environ=os.environ))
        if setup.database_url is not None:
            redactor.learn(url_secrets(setup.database_url, "database_url", os.environ))
        # Only a program with a worker loads the modules that execute runs.
        from agent_core.runtime.projects import OpenProjects  # noqa: PLC0415
        from agent_core.runtime.queue_worker import QueueWorker  # noqa: PLC0415
        from agent_core.runtime.stores import open_store  # noqa: PLC0415
        from agent_core.runtime.workspaces import Workspaces  # noqa: PLC0415
        from agent_core.telemetry.opening import open_telemetry  # noqa: PLC0415

        async with AsyncExitStack() as stack:
            telemetry = open_telemetry(options.telemetry, os.environ)
            if telemetry is not None and telemetry is not options.telemetry:
                stack.push_async_callback(telemetry.close)
            opened = await stack.enter_async_context(open_store(setup))
            if opened.queue is None or opened.workers is None:
                raise ConfigError(ErrorCode.CONFIG_ERROR, _NO_QUEUE)
            projects = OpenProjects(replace(options, store=opened, telemetry=telemetry or False))
            stack.push_async_callback(projects.close)
            worker = QueueWorker(
                opened,
                projects,
                Workspaces(setup, opened.store, opened.blobs, key=opened.key),
                config,
                queue=opened.queue,
                table=opened.workers,
                tenant=options.tenant,
                redactor=redactor,
            )
            if self._metrics_port is not None:
                await stack.enter_async_context(self._served_metrics(worker, self._metrics_port))
            for name, model in missing_keys(setup.config, os.environ).items():
                what = (
                    "the environment variable %s is not set: runs that use %s fail in this worker"
                )
                logger.warning(what, name, model)
            if setup.config.store.keep_days is not None:
                upkeep = asyncio.create_task(_delete_old(projects), name="old sessions")
                stack.push_async_callback(stop_task, upkeep)
            self._drain = partial(home.loop.call_soon_threadsafe, worker.drain)
            if self._is_drained:
                worker.drain()
            return await worker.work()

    @asynccontextmanager
    async def _served_metrics(self, worker: "QueueWorker", port: int) -> AsyncGenerator[None]:
        """Answer `/metrics`, `/healthz` and `/livez`.

        Raises:
            ConfigError: the port is taken.
        """
        from agent_core.api.monitor import serve_monitor  # noqa: PLC0415 - if asked for

        async with serve_monitor(partial(_figures, worker), self._metrics_address, port) as port:
            self.metrics_url = f"http://{self._metrics_address}:{port}/metrics"
            logger.info("the metrics are at %s", self.metrics_url)
            yield

    def _checked(self, config: RunWorkerConfig) -> RunWorkerConfig:
        """Return the settings, overridden by the given arguments.

        Raises:
            ConfigError: one of them is invalid.
        """
        try:
            return RunWorkerConfig.model_validate(config.model_dump() | self._given)
        except ValidationError as error:
            problem = problems_of(error, RunWorkerConfig)[0]
            raise ConfigError(
                ErrorCode.CONFIG_ERROR, f"the worker cannot be made: {problem}"
            ) from None


async def _delete_old(projects: "OpenProjects") -> None:
    """Delete the sessions that the settings no longer keep, as the start of any project does."""
    try:
        async with projects.use("/"):
            pass
    except AgentCoreError as error:
        logger.warning("old sessions could not be deleted: %s", error)


async def _figures(worker: "QueueWorker") -> "WorkerFigures":
    from agent_core.api.monitor import WorkerFigures  # noqa: PLC0415 - loaded by now

    return WorkerFigures(
        worker_id=worker.worker_id,
        version=installed_version() or "unknown",
        protocol=PROTOCOL,
        concurrency=worker.concurrency,
        running=worker.running,
        started=worker.started,
        ended=worker.ended,
        parked=worker.parked,
        takeovers=worker.takeovers,
        handed_over=worker.handed_over,
        is_draining=worker.is_draining,
        heartbeat_age_s=worker.heartbeat_age_s,
        is_alive=worker.is_alive,
        lanes=await worker.depths(),
    )

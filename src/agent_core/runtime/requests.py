"""Requests for runs: checked, and made into what is stored of them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from agent_core.agents.workers import WorkerPools
from agent_core.artifacts.images import sendable
from agent_core.artifacts.store import ArtifactStore
from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError
from agent_core.extensions import ExtensionContext
from agent_core.loop.option_checks import malformed_option
from agent_core.loop.options import NO_OPTIONS, RunOptions, stored_options, with_instructions
from agent_core.process.environment import HOOK
from agent_core.redaction.redactor import JournalRedactor
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.project import Project
from agent_core.runtime.run import (
    QUESTIONS_WAIT,
    ROLES,
    STARTED_BY_HOOK,
    Caller,
    Nesting,
    RunRequest,
)
from agent_core.text import first_words
from agent_core.types import (
    MODEL_KEY,
    WORDS,
    AgentDefinition,
    Draft,
    ImageBlock,
    NewRun,
    Node,
    RunIdentity,
    RunMode,
    RunPrompt,
    RunStatus,
    StoredOptions,
    TextBlock,
    new_id,
    words_of,
)
from agent_core.types.lanes import ANYWHERE, Placement
from agent_core.types.memory_scopes import MEMORY_SHARED

if TYPE_CHECKING:
    from agent_core.context.given_messages import GivenHistory
    from agent_core.telemetry.spans import RunTrace, Telemetry

_WITHHELD = "(withheld until the guards of the run have passed it)"
"""Stored in place of a message that a guard may replace."""


class RequestChecker:
    """Checks requests for runs, and builds the part that is stored.

    Args:
        project: the project the runs work on.
        process: the parts of this process.
        workers: the workers an orchestrator may dispatch.
    """

    def __init__(self, project: Project, process: ProcessParts, workers: WorkerPools) -> None:
        self._project = project
        self._models = process.models
        self._artifacts = process.artifacts
        self._owner = process.owner
        self._redactor = process.redactor
        self._journal_redactor = JournalRedactor(process.redactor)
        self._workers = workers
        self._dispatcher = process.dispatcher
        self._telemetry = process.telemetry

    async def prepare(
        self,
        prompt: Draft | None,
        *,
        session_id: str,
        mode: RunMode,
        move_session: bool,
        options: RunOptions,
        placement: Placement,
        nesting: Nesting | None,
    ) -> RunRequest:
        """Check a request.

        Raises:
            ConfigError, AgentCoreError: as for `Runs.start`.
            StorageError: `artifact_not_found`.
        """
        dispatcher, dispatch = self._dispatcher, None
        if dispatcher is None and placement is not ANYWHERE:
            placement.require_one_machine()
        is_here = dispatcher is None or placement.here or prompt is None
        begins = RunIdentity.of_checked(
            session_id=session_id,
            agent_id=new_id("agent"),
            run_id=new_id("run"),
            role=ROLES[mode][1],
            agent_definition_id=None,
            mode=mode,
            permission_mode="ask",
            parent_agent_id=None,
            parent_run_id=None,
            root_run_id=None,
            task=None,
            questions_wait=False,
        )
        given = options
        if options is not NO_OPTIONS or self._project.setup.memory_scope != MEMORY_SHARED:
            options = await self._settled(options, begins)
        model = self._models.resolve(instead=options.model, provider_tools=options.provider_tools)
        if is_here:
            await self._models.require_ready(model)
            with suppress(AgentCoreError):  # the run itself reports a broken toolset
                await self._project.open_toolsets()
            if options is not NO_OPTIONS:
                self._project.toolboxes.check_options(options)
            if mode is RunMode.NORMAL and prompt is not None:
                self._project.toolboxes.check_deps(options)
        stored, history = None, list[Node]()
        if options is not NO_OPTIONS:
            if options.history:
                artifacts = self._artifacts.of_tenant(placement.tenant)
                options, history = await self._take_history(options, begins, model, artifacts)
            stored = self._store_options(options, model, given)
        if dispatcher is not None:
            has_message = prompt is not None
            dispatch = await dispatcher.dispatch_of(placement, stored, has_message=has_message)
        clean_prompt = stored_prompt = title = None
        if prompt is not None:
            clean_prompt = await self.clean_prompt(prompt, model, placement.tenant)
            stored_prompt, title = self._stored_prompt(clean_prompt, options)
        if mode is RunMode.ORCHESTRATOR and is_here:
            self._workers.require_any(self._project.toolboxes.known_names())
        trace = None
        if self._telemetry is not None:
            trace, carrier = self._begin_trace(self._telemetry, begins, is_here=is_here)
            stored = (stored or StoredOptions()).model_copy(update={"trace": carrier})
        new_run = NewRun(
            session_id=session_id,
            cwd=str(self._project.setup.project),
            move_session=move_session,
            owner=self._owner.owner_id,
            agent_type=ROLES[mode][0],
            agent_id=begins.agent_id,
            run_id=begins.run_id,
            mode=mode,
            status=RunStatus.RUNNING,
            prompt=stored_prompt,
            title=title,
            options=stored,
            run_metadata=_run_metadata(model, placement),
            history=history,
            dispatch=dispatch,
        )
        caller = Caller(options=options, context=copy_context(), nesting=nesting, trace=trace)
        may_call = is_here and prompt is not None and mode is RunMode.NORMAL
        warnings = self._project.start_warnings(options, may_call=may_call)
        is_limited = is_here and (self._models.is_limited or options.budget is not None)
        unpriced = await self._models.price_warnings(model, options.budget) if is_limited else ()
        warnings = [*warnings, *unpriced]
        return RunRequest(new_run=new_run, prompt=clean_prompt, caller=caller, warnings=warnings)

    async def _settled(self, options: RunOptions, begins: RunIdentity) -> RunOptions:
        """Return the options with all that they name: a memory, instructions as a text, an agent.

        Raises:
            AgentCoreError: `validation_error`: there is no such agent, or a function that writes
                instructions failed.
            ConfigError: the model of the agent's definition cannot be used.
        """
        scope = self._project.setup.memory_scope
        if options.memory is None and scope != MEMORY_SHARED:
            options = replace(options, memory=scope)
        context = ExtensionContext(run=begins, deps=options.deps)
        options = await with_instructions(options, context)
        if options.agent is None:
            return options
        from agent_core.loop.agent import together, with_agent  # noqa: PLC0415 - few name one

        asked, given = options.agent, options
        agent = self._project.find_agent(asked, options) if isinstance(asked, str) else asked
        if isinstance(agent, AgentDefinition):
            theirs = NO_OPTIONS
            if agent.model_profile is not None:
                theirs = RunOptions(model=self._models.resolve(agent.model_profile))
            return with_agent(options, theirs, agent.body)
        own = agent.engine_agent
        asking = RunOptions(instructions=own.instructions)
        text = (await with_instructions(asking, context)).text
        return replace(
            with_agent(options, own.options, text),
            agents=together(given.agents, own.agents),
            handoffs=together(given.handoffs, own.handoffs),
        )

    async def _take_history(
        self,
        options: RunOptions,
        begins: RunIdentity,
        model: ModelConfig,
        artifacts: ArtifactStore,
    ) -> tuple[RunOptions, list[Node]]:
        """Take the conversation before a run out of its options, as nodes of its session.

        Its system messages become instructions.

        Raises:
            AgentCoreError: `validation_error`: an image cannot be shown to any model.
            StorageError: `artifact_not_found`: an image does not exist.
        """
        from agent_core.runtime.conversations import make_nodes  # noqa: PLC0415 - few runs have one

        given = cast("GivenHistory", options.history)
        nodes = await make_nodes(
            given.messages,
            session_id=begins.session_id,
            agent_id=begins.agent_id,
            redactor=self._journal_redactor,
            artifacts=artifacts,
            max_image_bytes=model.max_image_bytes,
        )
        text = "\n\n".join(part for part in (given.system, options.text) if part)
        return replace(options, history=(), instructions=text or None), nodes

    def _begin_trace(
        self, telemetry: "Telemetry", begins: RunIdentity, *, is_here: bool
    ) -> "tuple[RunTrace | None, Mapping[str, str]]":
        """Begin the span of a run that starts here; return it, and the carrier that names it (or
        its parent, for a run that starts elsewhere).
        """
        if not is_here:
            return None, telemetry.carrier()
        trace = telemetry.begin_run(begins, self._journal_redactor.payload)
        return trace, trace.carrier

    async def clean_prompt(
        self, prompt: Draft, model: ModelConfig, tenant: str | None
    ) -> RunPrompt:
        """Return the message without secrets, with its images as the model accepts them.

        Args:
            prompt: the message.
            model: is shown the images.
            tenant: the only tenant whose images may be named; None: those of the runtime's tenant.

        Raises:
            AgentCoreError: `validation_error`: an image of it cannot be shown to any model.
            StorageError: `artifact_not_found`: an image does not exist.
        """
        content = list(prompt.content)
        for place, block in enumerate(content):
            if isinstance(block, ImageBlock):
                artifacts = self._artifacts.of_tenant(tenant)
                content[place] = await sendable(block, artifacts, max_bytes=model.max_image_bytes)
        return RunPrompt.of_checked(
            content=self._journal_redactor.content(content),
            metadata=self._journal_redactor.metadata(prompt.metadata),
        )

    def _stored_prompt(
        self, prompt: RunPrompt, options: RunOptions
    ) -> tuple[RunPrompt, str | None]:
        """Return the message to store, without text that guards may replace, and its title."""
        if options.guards and any(guard.may_replace("message") for guard in options.guards):
            rest = [block for block in prompt.content if not isinstance(block, TextBlock)]
            withheld: dict[str, Any] = {"content": [TextBlock(text=_WITHHELD), *rest]}
            if WORDS in prompt.metadata:
                withheld["metadata"] = {**prompt.metadata, WORDS: ""}
            return prompt.model_copy(update=withheld), None
        words = words_of(prompt.content, prompt.metadata)
        return prompt, first_words(self._redactor.text(words))

    def _store_options(
        self, options: RunOptions, model: ModelConfig, given: RunOptions
    ) -> StoredOptions:
        """Return the options to store: without secrets, in the model too.

        Args:
            options: of the run.
            model: its model.
            given: the options, without the ones that come from the run's agent.

        Raises:
            AgentCoreError: `validation_error`: the memory scope cannot be stored.
        """
        if options.model is not None:
            self._project.learn_secrets(model)
        plain = stored_options(options).model_dump(mode="json", exclude_defaults=True)
        clean = self._journal_redactor.metadata(plain)
        if clean.get("model") != plain.get("model"):
            clean["needs_caller"] = [*plain.get("needs_caller", ()), "model"]
        if clean.get("memory") != plain.get("memory"):  # otherwise two users would share one memory
            reason = (
                "names a user by a secret of this runtime, which is never stored; use another id"
            )
            raise malformed_option("memory", reason)
        if options.agent is not None and (needed := clean.get("needs_caller")):
            from agent_core.loop.agent import given_by_agent  # noqa: PLC0415 - few runs name one

            clean["of_agent"] = [name for name in needed if given_by_agent(name, given)]
        return StoredOptions.model_validate(clean)


def _run_metadata(model: ModelConfig, placement: Placement) -> dict[str, Any]:
    metadata: dict[str, Any] = {MODEL_KEY: f"{model.provider}:{model.name}"}
    if event := os.environ.get(HOOK):
        metadata[STARTED_BY_HOOK] = event
    if placement.questions_wait:
        metadata[QUESTIONS_WAIT] = True
    return metadata

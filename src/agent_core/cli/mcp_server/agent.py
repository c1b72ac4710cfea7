"""The agent as an MCP server: answers the requests of clients with runs and stored sessions."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from agent_core.cli.mcp_server.projects import Approvals, ServedProjects
from agent_core.cli.mcp_server.questions import decision_of, decisions_of, form_of
from agent_core.cli.mcp_server.results import (
    Facts,
    approval_facts,
    run_facts,
    run_text,
    session_facts,
    session_story,
)
from agent_core.cli.mcp_server.runs import ActiveRuns, ClientQuestion, ServedRun
from agent_core.cli.mcp_server.tools import (
    AnswerApproval,
    CancelRun,
    ListApprovals,
    ListSessions,
    RunArguments,
    ShowSession,
    arguments_of,
    tools_of,
)
from agent_core.config.models import Config, ModelConfig
from agent_core.config.paths import Setup
from agent_core.errors import (
    AgentCoreError,
    ErrorCode,
    StorageError,
    describe_error,
    validation_error,
)
from agent_core.loading import installed_version
from agent_core.loop.options import RunOptions
from agent_core.permissions.answers import UnattendedError
from agent_core.redaction import Redactor, log_failure
from agent_core.text import quoted
from agent_core.text.json_text import JsonSchema, shown_json
from agent_core.tools.schema import read_arguments
from agent_core.types import (
    ApprovalRecord,
    Budget,
    Decision,
    PermissionDecision,
    PermissionMode,
    PermissionRequest,
    RunStatus,
    new_id,
)

logger = logging.getLogger(__name__)

GONE = "soong_agent.gone"
"""Key of a request's ASGI scope: an event that is set when its client has left."""
_ORIGIN = {"started_by": "mcp"}
"""Metadata of the runs that clients start: only their questions are shown to clients."""
_MODES: tuple[PermissionMode, ...] = ("plan", "ask", "accept-edits")
"""The modes, from the narrowest to the widest."""
_BEAT_S = 10.0
"""Seconds without news after which a client is sent a sign of life."""
_MOST_ROUNDS = 9
"""How often a client is sent away with questions: the official ones give up after ten times."""
_MOST_QUESTIONS = 1_000
_CLOSE_S = 10.0
_INSTRUCTIONS = (
    "This server is an agent that works in a project folder. Give it a whole task with the tool"
    " run; its result names a session_id, with which the next call continues the conversation."
)

Context = ServerRequestContext[Any, Any]
Answer = CallToolResult | InputRequiredResult


class AgentServer:
    """The tools of the server, and the runs that its clients have started.

    Args:
        setup: the settings of the first folder.
        folders: the folders that clients may work in, the first one first.
        model: model of runs that name none, as the command line names it.
        mode: the widest mode that a run may have, and the mode of runs that name none.
        approvals: who may answer questions.
        redactor: takes secrets out of what clients read.
    """

    def __init__(
        self,
        setup: Setup,
        folders: Sequence[Path],
        *,
        model: str | None,
        mode: PermissionMode,
        approvals: Approvals,
        redactor: Redactor,
    ) -> None:
        self._projects = ServedProjects(
            setup, folders, model=model, approvals=approvals, ask=self.ask
        )
        self._mode: PermissionMode = mode
        self._approvals: Approvals = approvals
        self._redactor = redactor
        self._models = _models_of(setup.config)
        self._runs = ActiveRuns()
        self._arguments = arguments_of(has_approvals=approvals == "tool")
        self._tools = tools_of(
            models=[*self._models],
            modes=_MODES[: _MODES.index(mode) + 1],
            projects=[str(each) for each in self._projects.folders],
            has_approvals=approvals == "tool",
        )
        self.server: Server[Any] = Server(
            "soong-agent",
            version=installed_version() or "",
            title="soong-agent",
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def _list_tools(
        self,
        context: Context,  # noqa: ARG002 - every client sees the same
        params: PaginatedRequestParams | None,  # noqa: ARG002 - one page
    ) -> ListToolsResult:
        return ListToolsResult(tools=self._tools)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> Answer:
        if params.request_state is not None:
            return await self._come_back(context, params)
        model = self._arguments.get(params.name)
        if model is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {quoted(params.name, 100)}")
        try:
            given = read_arguments(params.name, model, params.arguments or {})
            return await self._do(context, given)
        except AgentCoreError as error:
            return self._failed(error)
        except Exception as error:  # noqa: BLE001 - the client gets an answer
            log_failure(logger, f"{params.name} failed", error=error, clean=self._redactor.text)
            fault = f"internal error: {type(error).__name__}"
            return self._failed(AgentCoreError(ErrorCode.INTERNAL_ERROR, fault))

    async def _do(self, context: Context, given: BaseModel) -> Answer:
        match given:
            case RunArguments():
                return await self._run(context, given)
            case ListSessions():
                return await self._list_sessions(given)
            case ShowSession():
                runtime = await self._projects.home_of(given.session_id)
                story = await session_story(runtime, given.session_id, last=given.last)
                return self._made(story, shown_json(story))
            case CancelRun():
                return await self._cancel(given.session_id)
            case ListApprovals():
                found = await self._open_questions(given.session_id)
                facts = {"approvals": [approval_facts(each) for each in found]}
                return self._made(facts, shown_json(facts))
            case AnswerApproval():
                return await self._answer(context, given)
            case _:
                raise AssertionError(given)

    # ---- runs

    async def _run(self, context: Context, given: RunArguments) -> Answer:
        options = self._options(given)
        if given.session_id is None:
            session_id = new_id("sess")
            runtime = await self._projects.find(given.project)
        else:
            session_id = given.session_id
            runtime = await self._projects.home_of(session_id)
            if given.project is not None and runtime is not await self._projects.find(
                given.project
            ):
                message = f"session {session_id} works in another folder of this server"
                raise StorageError(ErrorCode.SESSION_ELSEWHERE, message)
            for question in await runtime.approvals(session_id, limit=_MOST_QUESTIONS):
                if question.keeps_run:  # otherwise the next start withdraws it
                    message = (
                        f"a run of session {session_id} waits for an answer to"
                        f" {question.request_id}; nothing was started"
                    )
                    raise StorageError(ErrorCode.SESSION_ACTIVE, message)
        run = ServedRun(session_id, runtime, can_ask=self._can_ask(context))
        message = given.message

        async def begin() -> Any:
            return await runtime.start(message, session_id, options=options, here=True)

        self._runs.begin(run, begin)
        return await self._follow(context, run)

    def _options(self, given: RunArguments) -> RunOptions[Any]:
        """Return the options of a run.

        Raises:
            AgentCoreError: `validation_error`: one is wider than what the server was started with.
        """
        mode = given.mode or self._mode
        if _MODES.index(mode) > _MODES.index(self._mode):
            message = f"mode: this server was started with {self._mode}, which is narrower"
            raise validation_error(message)
        if given.model is not None and given.model not in self._models:
            message = f"model: the settings know {', '.join(self._models)}"
            raise validation_error(message)
        return RunOptions(
            model=None if given.model is None else self._models[given.model],
            permission_mode=mode,
            max_turns=given.max_turns,
            budget=None if given.max_usd is None else Budget(usd=given.max_usd),
            metadata=_ORIGIN,
        )

    async def _follow(self, context: Context, run: ServedRun) -> Answer:
        """Report what a run does, ask what it asks, and return its result.

        A client that cancels the call, or leaves, cancels the run.
        """
        asking: dict[str, asyncio.Task[None]] = {}
        leaving = _when_gone(context, run)
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        try:
            while True:
                for line in map(self._redactor.text, run.take_lines()):
                    run.steps += 1
                    await context.session.report_progress(run.steps, message=line)
                if run.is_done:
                    return await self._result(run)
                for request_id in [each for each in asking if run.question(each) is None]:
                    asking.pop(request_id).cancel()  # answered in another place
                questions = run.unasked
                if questions and is_modern and run.rounds < _MOST_ROUNDS:
                    return self._send_away(run)
                for question in questions:
                    question.is_put = True
                    if is_modern:
                        question.give_up()
                        continue
                    work = self._put(context, question)
                    asking[question.request.request_id] = asyncio.create_task(work)
                if not await run.changed(_BEAT_S):
                    run.steps += 1
                    await context.session.report_progress(run.steps, message="still at work")
        except asyncio.CancelledError:
            run.cancel()
            raise
        finally:
            for task in (*asking.values(), *leaving):
                task.cancel()

    async def _put(self, context: Context, question: ClientQuestion) -> None:
        """Ask the client's user, while the call is open."""
        message, schema = self._form(question)
        try:
            answer = await context.session.elicit_form(message, schema, context.request_id)
        except (MCPError, NoBackChannelError, ValidationError):
            question.give_up()
        else:
            question.decide(decision_of(question.request, answer.action, answer.content))

    def _form(self, question: ClientQuestion) -> tuple[str, JsonSchema]:
        message, schema = form_of(question.request)
        return self._redactor.text(message), schema

    def _send_away(self, run: ServedRun) -> InputRequiredResult:
        """Return the open questions; the call is repeated with their answers."""
        asked: dict[str, InputRequest] = {}
        for question in run.unasked:
            message, schema = self._form(question)
            params = ElicitRequestFormParams(message=message, requested_schema=schema)
            asked[question.request.request_id] = ElicitRequest(params=params)
        return InputRequiredResult(input_requests=asked, request_state=self._runs.send_away(run))

    async def _come_back(self, context: Context, params: CallToolRequestParams) -> Answer:
        """Take the answers of a repeated call, and follow its run again."""
        run = self._runs.take_back(params.request_state or "")
        if run is None:
            message = "the request state is unknown, used or too old"
            raise MCPError(INVALID_PARAMS, message)
        for request_id, answer in (params.input_responses or {}).items():
            question = run.question(request_id)
            if question is not None and isinstance(answer, ElicitResult):
                question.is_put = True
                question.decide(decision_of(question.request, answer.action, answer.content))
        return await self._follow(context, run)

    async def _result(self, run: ServedRun) -> CallToolResult:
        if run.error is not None or run.handle is None:
            message = "the run could not be started"
            return self._failed(run.error or AgentCoreError(ErrorCode.INTERNAL_ERROR, message))
        approvals: list[ApprovalRecord] = []
        if run.handle.status is RunStatus.WAITING:
            pending = run.handle.pending_requests
            every = await run.runtime.approvals(run.session_id, limit=_MOST_QUESTIONS)
            approvals = [each for each in every if each.request_id in pending]
        facts = run_facts(run, run.handle, approvals)
        text = run_text(facts, has_tool=self._approvals == "tool")
        is_error = facts["status"] not in {"completed", "waiting_permission"}
        return self._made(facts, *text, is_error=is_error)

    async def _cancel(self, session_id: str) -> CallToolResult:
        runtime = await self._projects.home_of(session_id)
        if (run := self._runs.get(session_id)) is not None:
            await asyncio.shield(run.cancel())
            handle = run.handle
        else:
            waiting = await self._open_questions(session_id)
            handle = await runtime.attach(waiting[0].root_run_id) if waiting else None
            if handle is not None:
                await handle.cancel()
        if handle is None:
            message = f"no run of session {session_id} is active through this server"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message)
        facts = {"session_id": session_id, "run_id": handle.run_id, "status": str(handle.status)}
        return self._made(facts, f"run {handle.run_id} of session {session_id}: {handle.status}")

    # ---- questions

    async def ask(self, request: PermissionRequest) -> PermissionDecision:
        """Put a question to the client whose run asks it.

        Raises:
            UnattendedError: it cannot ask its user.
        """
        run = self._runs.get(request.session_id)
        if run is None:
            raise UnattendedError
        return await run.ask(request)

    def _can_ask(self, context: Context) -> bool:
        """Return whether the client can show a form to its user."""
        can = context.session.client_capabilities
        asks = can.elicitation if can is not None else None
        return asks is not None and (asks.form is not None or asks.url is None)

    async def _open_questions(self, session_id: str | None) -> list[ApprovalRecord]:
        """Return the open questions of runs that clients have started in these folders."""
        if session_id is not None:
            runtime = await self._projects.home_of(session_id)
        else:
            runtime = await self._projects.find(None)
        found = await runtime.approvals(session_id, limit=_MOST_QUESTIONS)
        return [each for each in found if await self._is_ours(each)]

    async def _is_ours(self, question: ApprovalRecord) -> bool:
        try:
            runtime = await self._projects.home_of(question.session_id)
            (run,) = (await runtime.replay_run(question.root_run_id)).runs
        except (AgentCoreError, ValueError):
            return False
        return run.options is not None and run.options.metadata == _ORIGIN

    async def _answer(self, context: Context, given: AnswerApproval) -> Answer:
        found = [
            each
            for each in await self._open_questions(None)
            if each.request_id == given.approval_id
        ]
        if not found:
            message = f"there is no open question {given.approval_id} of a run of this server"
            raise StorageError(ErrorCode.APPROVAL_NOT_FOUND, message)
        (question,) = found
        decision = Decision(given.decision)
        if decision not in decisions_of(question.request):
            takes = ", ".join(decisions_of(question.request))
            message = f"{decision} is not an answer to {given.approval_id}, which takes {takes}"
            raise validation_error(message)
        runtime = await self._projects.home_of(question.session_id)

        async def answer() -> Any:
            return await runtime.answer(
                question.request_id, decision, given.reason, decided_by="mcp"
            )

        if (run := self._runs.get(question.session_id)) is not None:  # another call follows it
            await answer()
            await run.wait()
            return await self._result(run)
        run = ServedRun(question.session_id, runtime, can_ask=self._can_ask(context))
        self._runs.begin(run, answer)
        return await self._follow(context, run)

    # ---- sessions

    async def _list_sessions(self, given: ListSessions) -> CallToolResult:
        folder = await self._projects.folder(given.project)
        runtime = await self._projects.find(str(folder))
        found = await runtime.session_summaries(
            given.limit + 1, given.offset, project=folder, query=given.query
        )
        facts = {
            "sessions": [session_facts(each) for each in found[: given.limit]],
            "has_more": len(found) > given.limit,
        }
        return self._made(facts, shown_json(facts))

    # ---- results

    def _made(
        self, facts: Mapping[str, Any], *texts: str, is_error: bool = False
    ) -> CallToolResult:
        return CallToolResult(
            content=[TextContent(text=self._redactor.text(each)) for each in texts],
            structured_content=cast("Facts", self._redactor.payload(dict(facts))),
            is_error=is_error,
        )

    def _failed(self, error: AgentCoreError) -> CallToolResult:
        facts = {"error": {"code": str(error.code), "message": error.message}}
        return self._made(
            facts, f"error: {describe_error(error.message, error.code)}", is_error=True
        )

    async def close(self) -> None:
        """Cancel what runs, and close the runtimes."""
        await self._runs.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._projects.close()


def _when_gone(context: Context, run: ServedRun) -> "Sequence[asyncio.Task[None]]":
    """Begin to cancel a run as soon as the client of its HTTP request has left."""
    gone = context.request.scope.get(GONE) if context.request is not None else None
    if gone is None:
        return ()

    async def watch() -> None:
        await gone.wait()
        run.cancel()

    return (asyncio.create_task(watch()),)


def _models_of(config: Config) -> "dict[str, str | ModelConfig | None]":
    """Return the models of the settings by name, the default first."""
    main = config.model

    def name_of(model: ModelConfig) -> str:
        return f"{model.provider}:{model.name or model.path}"

    return {
        name_of(main): None,
        **{name: name for name in config.model_overrides},
        **{
            name_of(each): each for each in config.model_fallbacks if name_of(each) != name_of(main)
        },
    }

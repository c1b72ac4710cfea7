"""Answers to questions about tool calls, and the options a waiting run needs to continue here.

An answer is stored only if it can take effect: if the run would have to continue in this process
and cannot, the question stays open.
"""

import asyncio
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from agent_core.errors import (
    AgentCoreError,
    ArgumentError,
    ErrorCode,
    StorageError,
    ToolError,
    reworded,
    validation_error,
)
from agent_core.loop.option_checks import tool_name
from agent_core.loop.options import NO_OPTIONS, Agent, AnyAgent, RunOptions
from agent_core.loop.restored import missing_options, restored_options
from agent_core.permissions.answers import current_decider, denied_by_user, describe_answer
from agent_core.permissions.request import WIDE_DECISIONS, rule_of, wide_of
from agent_core.runtime.pipeline import Pipeline
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.project import Project, is_server
from agent_core.runtime.reading import RunReader
from agent_core.runtime.table import RunTable
from agent_core.storage.store import SessionStore
from agent_core.text import kind_of
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.tools.base import Action, Tool, ToolContext, concurrency_of
from agent_core.tools.toolsets import Toolset, opened
from agent_core.types import Decision, RunRecord, RunStatus, StoredOptions, ToolDefinition

if TYPE_CHECKING:
    from agent_core.types import ApprovalRecord

_SHOWN_CHARS = 80
_MOST_OPEN = 1_000
_NO_LONGER_HERE = "(no longer available: the process that continues this run does not have it)"


class Answers:
    """Stores answers and continues the runs that wait for them.

    Args:
        project: the project the runs work on.
        process: the parts of this process.
        reader, table, pipeline: of its runs.
        tell: tells the process that executes a run that one of its questions was answered.
    """

    def __init__(
        self,
        project: Project,
        *,
        process: ProcessParts,
        reader: RunReader,
        table: RunTable,
        pipeline: Pipeline,
        tell: Callable[[str], None],
    ) -> None:
        self._project = project
        self._gate = project.gate
        self._questions = project.gate.questions
        self._cwd = str(project.setup.project)
        self._store = process.store
        self._owner = process.owner
        self._models = process.models
        self._reader = reader
        self._table = table
        self._pipeline = pipeline
        self._tell = tell

    async def answer(
        self,
        request_id: str,
        decision: Decision,
        *,
        arguments: Mapping[str, JsonValue] | None = None,
        always: bool = False,
        reason: str | None,
        by: str,
        decider: str | None = None,
        given: RunOptions[Any] = NO_OPTIONS,
        run_id: str | None = None,
        session_id: str | None = None,
    ) -> str:
        """Answer a question, have its run continue here if it waits, and return the run's id.

        Args:
            request_id: id of the question.
            decision: the answer.
            arguments: used for the call instead of the model's arguments.
            always: also save the rule that the question offers for this decision.
            reason: for the model, if the call is denied.
            by: where the answer was given.
            decider: who gave it; by default the user of this process.
            given: the parts of the run's start options that the program hands over again.
            run_id: accept only questions of this run.
            session_id: accept only questions of this session.

        Raises:
            StorageError: `approval_not_found`, or the answer cannot be stored.
            AgentCoreError: `already_answered`: the question is closed; `validation_error`: the
                question does not accept this answer, or the run needs something this process does
                not have. Nothing is stored then.
            ConfigError: the model of the run cannot be asked here; nothing is stored.
        """
        from agent_core.types import ApprovalState  # noqa: PLC0415 - few runs need it

        question = await self._find(request_id, run_id, session_id)
        async with AsyncExitStack() as stack:
            options = None
            if question.state is not ApprovalState.OPEN:
                await self._continue_late(question, given, stack)
                raise _closed(question)
            _require_offered(question, decision)
            if always:
                self._require_rule(question, decision)
            if arguments is not None:
                arguments = await self._checked(arguments, question, decision, given, stack)
            if not self._questions.is_open_here(request_id):
                options = await self._options_to_continue(question, decision, reason, given, stack)
                if options is not None and arguments is None and decision is not Decision.DENY:
                    await self._require_fit(question, given, stack)
            found, is_first = await self._store.answer(
                request_id,
                decision,
                reason=self._questions.clean_reason(reason),
                by=by,
                decider=decider or current_decider(),
                arguments=arguments,
            )
            if found is None:
                raise _not_found(request_id)
            if not is_first:
                raise _closed(found)
            if always:
                await self._gate.save_rule(question.request, decision)
            for covered in await self._questions.settle_covered(question.request, decision):
                self._tell(covered.request_id)
            if not self._questions.take(request_id):
                self._tell(request_id)
                with suppress(AgentCoreError):  # the answer is stored; it counts later
                    if await self._store.is_answered(found.root_run_id):
                        await self._pipeline.resume(found.root_run_id, options)
        return found.root_run_id

    async def _find(
        self, request_id: str, run_id: str | None, session_id: str | None
    ) -> "ApprovalRecord":
        question = await find_question(self._store, request_id)
        is_of_run = run_id in {None, question.root_run_id}
        if not is_of_run or session_id not in {None, question.session_id}:
            raise _not_found(request_id)
        return question

    def _require_rule(self, question: "ApprovalRecord", decision: Decision) -> None:
        """Refuse an answer "always" that saves nothing.

        Raises:
            AgentCoreError: `validation_error`: the question offers no rule, or none is saved here.
        """
        why = None
        if not self._gate.saves_rules:
            why = (
                "no rules are saved here: set [permissions] save_rules = true"
                " (in code: config={'permissions': {'save_rules': True}})"
            )
        elif rule_of(question.request, decision) is None:
            why = f"{question.request_id} offers no rule for {decision.value}"
        if why is not None:
            message = f"{why}; nothing was answered"
            raise validation_error(message)

    async def _checked(
        self,
        arguments: object,
        question: "ApprovalRecord",
        decision: Decision,
        given: RunOptions[Any],
        stack: AsyncExitStack,
    ) -> JsonObject:
        """Return the changed arguments if the call can be made with them.

        Raises:
            AgentCoreError: `validation_error`: the call cannot be made with them; `details.path`
                says where they do not fit the tool.
        """
        name = question.tool_name
        if decision is not Decision.ALLOW_ONCE:
            raise _unfit("go with allow_once: another answer is about the call as it was asked")
        try:
            changed = json.loads(json.dumps(arguments, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise _unfit(f"are stored as JSON, which cannot express them: {error}") from None
        if not isinstance(changed, dict):
            raise _unfit(f"are a dict, not {kind_of(arguments)}")
        changed = cast("JsonObject", changed)
        if self._questions.holds_secret(changed):
            raise _unfit(
                "hold a secret, or stand for one that was removed: no secret is stored. It can stay"
                " in the environment or in a file"
            )
        tool = await self._find_tool(question, given, stack)
        if tool is None:
            raise _unfit(
                f"of {name} can be changed where the tool is known: hand it over with tools=, or"
                " answer without arguments"
            )
        try:
            tool.parse(changed)
        except ToolError as error:
            raise _unfit(f"do not fit {name}: {error.message}", **error.details) from error
        except Exception as error:
            raise _unfit(f"do not fit {name}: {type(error).__name__}: {error}") from error
        return changed

    async def _require_fit(
        self, question: "ApprovalRecord", given: RunOptions[Any], stack: AsyncExitStack
    ) -> None:
        """Refuse a tool of the same name in this process that is a different tool.

        Raises:
            AgentCoreError: `validation_error`: the tool does not accept the arguments of the call.
        """
        name, asked = question.tool_name, question.arguments
        if asked is None or self._questions.holds_secret(asked):
            return  # the arguments of the call itself are not stored
        tool = await self._find_tool(question, given, stack)
        if tool is None:
            return
        try:
            tool.parse(asked)
        except Exception as error:
            message = (
                f"nothing was answered: {name} does not take the arguments of the call here, so it"
                f" is not the tool that the run was started with: {error}"
            )
            raise ArgumentError(message, "tools", {"tools": [name]}) from error

    async def _find_tool(
        self, question: "ApprovalRecord", given: RunOptions[Any], stack: AsyncExitStack
    ) -> Tool | None:
        """Return the tool of a question: of the run, of an agent, or of the runtime."""
        name = question.tool_name
        for each in self._tools_of(question, given):
            served = [each] if isinstance(each, Tool) else []
            if isinstance(each, Toolset) and not is_server(each):
                served = await stack.enter_async_context(opened(each))
            for tool in served:
                if tool.name == name:
                    return tool
        with suppress(ToolError):
            return await self._project.toolboxes.find(name)
        return None

    def _tools_of(self, question: "ApprovalRecord", given: RunOptions[Any]) -> Iterator[object]:
        """Yield the tools of a run and of its agents, as far as this process has them."""
        every = [given, self._table.options_of(question.root_run_id) or NO_OPTIONS]
        for options in every:
            yield from options.tools or ()
        for options in every:
            for agent in self._agents_of(options):
                yield from agent.options.tools or ()

    def _agents_of(self, options: RunOptions[Any]) -> list[Agent[Any]]:
        """Return the agents that a run may start, ask or hand its conversation to, at any level."""
        project = self._project
        tools = [*(options.tools or ()), *project.toolboxes.programs_own]
        return _agents_below([*project.agents_of(options), *project.handoffs_of(options)], tools)

    async def _continue_late(
        self, question: "ApprovalRecord", given: RunOptions[Any], stack: AsyncExitStack
    ) -> None:
        """Continue a run whose answer is stored, if its process died right after storing it."""
        decision = question.decision
        if decision is None or not await self._store.is_answered(question.root_run_id):
            return
        with suppress(AgentCoreError):  # a late answer reports only that it is late
            options = await self._options_to_continue(
                question, decision, question.reason, given, stack
            )
            await self._pipeline.resume(question.root_run_id, options)

    async def _options_to_continue(
        self,
        question: "ApprovalRecord",
        decision: Decision,
        reason: str | None,
        given: RunOptions[Any],
        stack: AsyncExitStack,
    ) -> RunOptions[Any] | None:
        """Return the options with which the run continues here; None if it does not continue here.

        `stack` keeps toolsets open while their tools are looked up.

        Raises:
            AgentCoreError: the run should continue here, and cannot.
        """
        run = await self._run_of(question)
        if run.status is not RunStatus.WAITING or run.is_for_workers:
            return None  # its own process, or a worker, has what it needs
        stored = run.options or StoredOptions()
        known = self._table.options_of(run.run_id)
        if not await self._is_of_this_project(run):
            if stored.needs_caller or given is not NO_OPTIONS:
                raise await self._of_another_project(run)
            return None  # it continues with the next start of its session, there
        if known is not None:
            if given is NO_OPTIONS:
                return known
            given = _merged(known, given)
        try:
            await self._project.open_toolsets()
            given = self._with_agent(stored, given)
            if decision is Decision.DENY:
                given = await self._without_denied(question, reason, given)
            return await self._options_of(run, stored, question, decision, given, stack)
        except AgentCoreError as error:
            if error.details.get("run_id") == run.run_id:
                raise
            message = f"nothing was answered, because run {run.run_id} cannot continue here: "
            raise reworded(error, f"{message}{error.message}") from error

    async def _run_of(self, question: "ApprovalRecord") -> RunRecord:
        """Return the user's run that asked, after lost runs are closed."""
        run = await self._reader.record(question.root_run_id)
        if run.status in {RunStatus.PENDING, RunStatus.RUNNING} and not run.is_for_workers:
            await self._store.close_lost_runs()
            run = await self._reader.record(question.root_run_id)
        return run

    async def _is_of_this_project(self, run: RunRecord) -> bool:
        session = await self._store.session(run.session_id)
        if session is None or session.cwd == self._cwd:
            return True
        return await asyncio.to_thread(os.path.realpath, session.cwd) == self._cwd

    async def _options_of(
        self,
        run: RunRecord,
        stored: StoredOptions,
        question: "ApprovalRecord",
        decision: Decision,
        given: RunOptions[Any],
        stack: AsyncExitStack,
    ) -> RunOptions[Any]:
        """Return the options of a run as this process can provide them.

        Raises:
            AgentCoreError: this process cannot provide them.
        """
        project = self._project
        here = replace(given, agents=project.agents_of(given), handoffs=project.handoffs_of(given))
        missing = missing_options(stored, here, project.toolboxes.is_known)
        if stored.agent is not None and not self._knows(stored.agent, given):
            missing.setdefault("agents", ())
        names = await _names_of(given.tools or (), stack)
        agents = self._agents_of(given)
        names |= {tool_name(each) for agent in agents for each in agent.options.tools or ()}
        asked = await self._lacking_tools(run, names)
        if tools := list(dict.fromkeys([*missing.get("tools", ()), *asked])):
            missing["tools"] = tools
        if missing:
            raise _missing(run, question, decision, missing)
        known = {agent.name for agent in agents}
        for child in await self._store.waiting_children(run.run_id):
            name = str(child.metadata.get("agent_definition_id"))
            if name not in known:
                project.definitions.get(name, known)
        options = restored_options(stored, given)
        _check_output(stored, options)
        model = self._models.resolve(instead=options.model, provider_tools=options.provider_tools)
        if options.model is not None:
            project.learn_secrets(model)
        await self._models.require_ready(model)
        project.toolboxes.check_options(options)
        project.toolboxes.check_deps(options)
        return options

    def _with_agent(self, stored: StoredOptions, given: RunOptions[Any]) -> RunOptions[Any]:
        """Return handed-over options with what the run has from its agent, if it is known here."""
        agent = self._project.agent_of(stored, given)
        if agent is None:
            return given
        from agent_core.loop.agent import with_parts_of  # noqa: PLC0415 - few runs have one

        return with_parts_of(agent, given, stored)

    def _knows(self, agent: str, given: RunOptions[Any]) -> bool:
        with suppress(AgentCoreError):
            self._project.find_agent(agent, given)
            return True
        return False

    async def _without_denied(
        self, question: "ApprovalRecord", reason: str | None, given: RunOptions[Any]
    ) -> RunOptions[Any]:
        """Add a substitute for the tool of a denied call to the handed-over options.

        The denied call needs no tool; other questions about the same tool do.
        """
        name = question.tool_name
        is_here = any(tool_name(each) == name for each in given.tools or ())
        others = [each for each in await self._open_questions(question) if each.tool_name == name]
        if is_here or len(others) > 1 or await self._project.toolboxes.has(name):
            return given
        stand_in = _denied_tool(question, self._questions.clean_reason(reason))
        return replace(given, tools=[*(given.tools or ()), stand_in])

    async def _lacking_tools(self, run: RunRecord, brought: Collection[str]) -> list[str]:
        """Return the names of tools that a run's open questions need and this process lacks."""
        lacking: list[str] = []
        for question in await self._open_questions(run):
            name = question.tool_name
            server = name.split(".")[1] if name.startswith("mcp.") else ""
            is_brought = name in brought or server in brought
            if not is_brought and not await self._project.toolboxes.has(name):
                lacking.append(name)
        return lacking

    async def _open_questions(self, of: "RunRecord | ApprovalRecord") -> "list[ApprovalRecord]":
        run_id = of.run_id if isinstance(of, RunRecord) else of.root_run_id
        every = await self._store.approvals(session_id=of.session_id, limit=_MOST_OPEN)
        return [each for each in every if each.root_run_id == run_id]

    async def _of_another_project(self, run: RunRecord) -> AgentCoreError:
        session = await self._store.session(run.session_id)
        cwd = session.cwd if session is not None else ""
        message = (
            f"nothing was answered: run {run.run_id} works in {cwd}, and only a program has what it"
            " was started with; answer in a runtime of that project"
        )
        details = {"run_id": run.run_id, "cwd": cwd}
        return StorageError(ErrorCode.SESSION_ELSEWHERE, message, details=details)


async def find_question(store: SessionStore, request_id: str) -> "ApprovalRecord":
    """Return a question.

    Raises:
        StorageError: `approval_not_found`.
    """
    is_id = isinstance(request_id, str) and request_id.isascii() and request_id.isprintable()  # pyright: ignore[reportUnnecessaryIsInstance] - from a request, perhaps
    question = await store.approval(request_id) if is_id else None
    if question is None:
        raise _not_found(request_id)
    return question


def _agents_below(agents: Sequence[AnyAgent[Any]], tools: Iterable[object]) -> list[Agent[Any]]:
    """Return agents and those that tools ask, with all that they may start, ask or hand over to."""
    waiting: list[AnyAgent[Any]] = [*agents, *_asked_by(tools)]
    if not waiting:
        return []
    from agent_core.loop.agent import all_agents  # noqa: PLC0415 - few programs have any

    found: dict[int, Agent[Any]] = {}
    while waiting:
        new = [agent for agent in all_agents(waiting) if id(agent) not in found]
        found |= {id(agent): agent for agent in new}
        waiting = [asked for agent in new for asked in _asked_by(agent.tools or ())]
    return [*found.values()]


def _asked_by(tools: Iterable[object]) -> list[AnyAgent[Any]]:
    """Return the agents that tools are made of."""
    return [tool.asks for tool in tools if isinstance(tool, Tool) and tool.asks is not None]


def _merged(known: RunOptions[Any], given: RunOptions[Any]) -> RunOptions[Any]:
    """Return the options a program hands over, completed by those this process already has."""
    return replace(
        given,
        tools=[*(known.tools or ()), *(given.tools or ())] or None,
        deps=known.deps if given.deps is None else given.deps,
        guards=given.guards or known.guards,
        extensions=given.extensions or known.extensions,
        output_validators=given.output_validators or known.output_validators,
        agents=given.agents or known.agents,
        handoffs=given.handoffs or known.handoffs,
        model=known.model if given.model is None else given.model,
        budget=known.budget if given.budget is None else given.budget,
        output_type=known.output_type if given.output_type is None else given.output_type,
    )


async def _names_of(tools: Sequence[object], stack: AsyncExitStack) -> set[str]:
    """Return the names of tools and servers; a toolset is opened to list its tools.

    Raises:
        ToolError: `tool_not_available`: a toolset cannot be opened.
    """
    names = set[str]()
    for each in tools:
        if isinstance(each, Toolset) and not is_server(each):
            names |= {tool.name for tool in await stack.enter_async_context(opened(each))}
        if isinstance(each, Tool | Toolset):
            names.add(tool_name(each))
    return names


def _require_offered(question: "ApprovalRecord", decision: Decision) -> None:
    """Refuse a wide answer that the question does not offer.

    Raises:
        AgentCoreError: `validation_error`.
    """
    if decision not in WIDE_DECISIONS:
        return
    wide = wide_of(question.request)
    if wide is None or wide[0] is not decision:
        offered = f", {wide[0].value}" if wide else ""
        message = (
            f"{decision.value} is not an answer to {question.request_id}, which takes allow_once,"
            f" allow_for_session{offered} or deny; nothing was answered"
        )
        raise validation_error(message)


def _denied_tool(question: "ApprovalRecord", reason: str | None) -> Tool:
    """Return a substitute for the tool of a denied call, where the tool itself is not needed."""
    request = question.request
    definition = ToolDefinition(
        name=question.tool_name,
        description=_NO_LONGER_HERE,
        input_schema={"type": "object"},
        permission=request.permission,
        tags=request.tags,
    )

    async def prepare(_: object, context: ToolContext) -> Action:
        if context.tool_call_id == question.tool_call_id:
            raise denied_by_user(question.tool_name, reason)
        message = f"{question.tool_name} is {_NO_LONGER_HERE[1:-1]}"
        raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, message)

    return Tool(
        definition=definition,
        parse=dict,
        prepare=prepare,
        concurrency=concurrency_of(definition),
    )


def _check_output(stored: StoredOptions, options: RunOptions[Any]) -> None:
    """Refuse an output type other than the one the run was started with.

    Raises:
        AgentCoreError: `validation_error`.
    """
    expected = options.expected()
    if (expected.schema if expected is not None else None) != stored.output_schema:
        message = "output_type is not the one with which the run was started"
        raise ArgumentError(message, "output_type")


def _missing(
    run: RunRecord,
    question: "ApprovalRecord",
    decision: Decision,
    missing: "dict[str, Sequence[str]]",
) -> AgentCoreError:
    """Return the error for an answer whose run lacks options here; it says how to supply them."""
    tools = list(missing.get("tools", ()))
    what = [f"the {'tool' if len(tools) == 1 else 'tools'} {', '.join(tools)}"] if tools else []
    what += [{"model": "its model"}.get(name, name) for name in missing if name != "tools"]
    handed = [f"tools=[{', '.join(tools)}]"] if tools else []
    handed += [f"{name}=…" for name in missing if name != "tools"]
    after = "a run continues after a denial, too; " if decision is Decision.DENY else ""
    message = (
        f"nothing was answered: {after}run {run.run_id} was started with {_listed(what)}, and this"
        f" process does not have {'it' if len(what) == 1 and len(tools) < 2 else 'them'}. Answer in"
        f" the program that has (in code: answer({question.request_id!r}, …, {', '.join(handed)}));"
        f" or cancel the run: soong-agent cancel {run.run_id} (in code: handle.cancel())"
    )
    details = {
        "request_id": question.request_id,
        "run_id": run.run_id,
        "options": list(missing),
        "tools": tools,
    }
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, message, details=details)


def _unfit(reason: str, **details: Any) -> ArgumentError:
    """Return the error for arguments with which a call cannot be made."""
    message = f"nothing was answered: arguments {reason}"
    return ArgumentError(message, "arguments", details)


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _not_found(request_id: object) -> StorageError:
    shown = f"{request_id}"[:_SHOWN_CHARS].encode("ascii", "backslashreplace").decode()
    message = f"there is no request {shown!r}; approvals() lists the open ones"
    return StorageError(ErrorCode.APPROVAL_NOT_FOUND, message, details={"request_id": shown})


def _closed(question: "ApprovalRecord") -> AgentCoreError:
    """Return the error for an answer that comes too late."""
    details = {"request_id": question.request_id, "state": question.state.value}
    if question.decided_by is not None:
        details["decided_by"] = question.decided_by
    return AgentCoreError(ErrorCode.ALREADY_ANSWERED, _closed_because(question), details=details)


def _closed_because(question: "ApprovalRecord") -> str:
    from agent_core.types import ApprovalState  # noqa: PLC0415 - few runs need it

    match question.state:
        case ApprovalState.ANSWERED:
            when = f"{question.decided_at:%Y-%m-%d %H:%M:%S} UTC"
            decision = question.decision or Decision.DENY
            said = describe_answer(decision, question.decided_by, question.decider, None)
            return f"already answered: {said}, {when}"
        case ApprovalState.SUPERSEDED:
            return "the effect of the call has changed; it was asked again"
        case _:
            return "the run has ended without an answer"

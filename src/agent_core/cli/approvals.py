"""`soong-agent approvals`: the questions of runs, and the answers to them."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.exit_codes import COMPLETED
from agent_core.cli.nearby import resolve_session
from agent_core.cli.options import Options
from agent_core.cli.question import fact_lines
from agent_core.cli.run import CONTINUES_LATER, carry_out
from agent_core.cli.setup import open_runtime, run_on_terminal
from agent_core.cli.terminal import Style, Terminal
from agent_core.cli.view import answer_hint, answers_of
from agent_core.cli.workers import without_worker
from agent_core.config.paths import Setup
from agent_core.errors import ErrorCode, StorageError, validation_error
from agent_core.permissions.answers import describe_answer
from agent_core.permissions.request import coverage_of_rule, rule_of, wide_of
from agent_core.text import Clean, lines_of_diff, listed, visible
from agent_core.types import ApprovalRecord, Decision, PermissionRequest, RunStatus

_DECISIONS = {
    "allow": Decision.ALLOW_ONCE,
    "session": Decision.ALLOW_FOR_SESSION,
    "reads": Decision.ALLOW_READS,
    "edits": Decision.ALLOW_EDITS,
    "deny": Decision.DENY,
}
_MOST = 1_000
_MOST_QUEUED = 1_000


def manage_approvals(options: Options) -> int:
    """List questions or answer one, and return the exit code."""
    if options.action == "list":
        return run_on_terminal(options, options.path, partial(_list, options), asks_model=False)
    where: list[Path] = []

    async def prepare(setup: Setup, terminal: Terminal, _: Clean) -> int:
        if (project := await _prepare(options, setup, terminal)) is not None:
            where.append(project)
        return COMPLETED

    code = run_on_terminal(options, options.path, prepare, asks_model=False)
    if not where:
        return code
    options.path = str(where[0])

    async def begin(runtime: AgentRuntime) -> RunHandle:
        return await _answer(runtime, options)

    return carry_out(options, lambda _: begin)


async def _list(options: Options, setup: Setup, terminal: Terminal, clean: Clean) -> int:
    async with open_runtime(setup, read_only=True) as runtime:
        session_id = options.session_id and await resolve_session(runtime, options.session_id)
        found = await runtime.approvals(session_id, is_open=not options.all, limit=options.limit)
    for question in found:
        if options.json:
            fields = question.model_dump(mode="json")
            fields["request"]["tags"] = sorted(question.request.tags)
            terminal.text(f"{json.dumps(fields)}\n")
        else:
            _show(question, terminal, clean)
    if not found:
        terminal.line("there is no question" if options.all else "there is no open question")
    return COMPLETED


def _show(question: ApprovalRecord, terminal: Terminal, clean: Clean) -> None:
    def line(text: str) -> None:
        terminal.entry(visible(clean(text), one_line=True))

    request = question.request
    asked = f"{question.asked_at.astimezone():%Y-%m-%d %H:%M}"
    line(f"{question.request_id}  {asked}  {question.tool_name}  {question.state}")
    line(f"  session: {question.session_id}")
    for fact in fact_lines(request):
        line(fact)
    if len(question.agent_path) > 1:
        line(f"  agents: {' > '.join(question.agent_path)}")
    if question.state == "open":
        for each in _coverage(request):
            line(each)
    for each in lines_of_diff(str(request.metadata.get("diff") or "")):
        line(f"    {each}")
    if question.decision is not None:
        who = question.decided_by, question.decider, question.reason
        line(f"  answer: {describe_answer(question.decision, *who)}")
    elif question.state == "open":
        line(f"  {answer_hint(question)}")


def _coverage(request: PermissionRequest) -> Iterator[str]:
    """Yield what each answer would cover, and the rules that would be added."""
    yield f"  for the session it would cover: {request.target_scope}"
    if wide := wide_of(request):
        yield f"  {wide[0].removeprefix('allow_')} would cover: {wide[1]}"
    for name, decision in _DECISIONS.items():
        if decision is not Decision.ALLOW_FOR_SESSION and (rule := rule_of(request, decision)):
            where = "" if wide and decision is wide[0] else f", {coverage_of_rule(rule)}"
            yield f"  {name} --always would add this rule{where}:"
            yield from (f"    {each}" for each in rule.splitlines())


async def _prepare(options: Options, setup: Setup, terminal: Terminal) -> Path | None:
    """Find the question and the project in which its run continues; None if it is answered here.

    Raises:
        StorageError: `approval_not_found`: there is no such question.
        AgentCoreError: `validation_error`: there are several, or it does not take the answer.
    """
    async with open_runtime(setup, saves_rules=options.always) as runtime:
        question = await _find(runtime, options.id)
        options.id = question.request_id
        answers = answers_of(question.request)
        if question.state == "open" and options.decision not in answers:
            takes = f"{', '.join(answers[:-1])} or {answers[-1]}"
            message = f"{options.decision} is not an answer to {options.id}, which takes {takes}"
            text = f"{message}; nothing was answered"
            raise validation_error(text)
        if options.always and (rule := rule_of(question.request, _DECISIONS[options.decision])):
            terminal.line("+++ rules.toml")
            for each in rule.splitlines():
                terminal.line(f"+{visible(each, one_line=True)}", Style.GOOD)
        handle = await runtime.attach(question.root_run_id)
        page = await runtime.replay_session(question.session_id, from_seq=1, to_seq=1)
        project = Path(page.session.cwd)
        can_show_waiting = not handle.is_for_workers and await asyncio.to_thread(project.is_dir)
        if handle.status is RunStatus.WAITING and can_show_waiting and question.state == "open":
            return project
        handle = await _answer(runtime, options)
        said = "answered; the run continues in its own process"
        if handle.is_for_workers:
            said = f"answered; a worker continues it: soong-agent attach {handle.run_id}"
            queued = await runtime.queue(_MOST_QUEUED)
            for lane in without_worker([each for each in queued if each.run_id == handle.run_id]):
                terminal.line("answered", Style.GOOD)
                terminal.line(f"the run waits: {lane.say_no_worker()}", Style.WARN)
                return None
        elif handle.status is RunStatus.WAITING:
            said = CONTINUES_LATER % handle.session_id
        terminal.line(said, Style.GOOD)
        return None


async def _find(runtime: AgentRuntime, prefix: str) -> ApprovalRecord:
    if not prefix.removeprefix("req_"):  # it would fit whatever is asked
        message = "the id of a request, or its beginning with more than req_, is required"
        raise validation_error(message)
    for is_open in (True, False):
        every = await runtime.approvals(is_open=is_open, prefix=prefix, limit=_MOST)
        if len(every) == 1:
            return every[0]
        if every:
            ids = listed([each.request_id for each in every])
            message = (
                f"several questions have ids that begin with {prefix}: {ids}; nothing was answered"
            )
            raise validation_error(message)
    message = f"there is no request {prefix}; soong-agent approvals list lists the open ones"
    raise StorageError(ErrorCode.APPROVAL_NOT_FOUND, message)


async def _answer(runtime: AgentRuntime, options: Options) -> RunHandle:
    decision = _DECISIONS[options.decision]
    return await runtime.answer(
        options.id, decision, options.reason, always=options.always, decided_by="cli"
    )

"""The profile's own checks, which are programs that run at the end of a run."""

import os
import shlex
from collections.abc import Sequence

from agent_core.errors import AgentCoreError
from agent_core.process import Command, environment, find_program, run
from agent_core.text.json_text import JsonObject
from kgent.config.models import CheckSpec
from kgent.governance.results import CheckResult
from kgent.records.lines import summary_line
from kgent.runtime.context import RunContext

CHECKS = "checks"
"""The folder of the archive for the output of the checks."""
COMMAND_VARIABLES = ("PATH", "TMPDIR")
"""Environment variables for the programs of a run, in addition to those for every command."""
_OUTPUT_BYTES = 65_536
_SHOWN_OUTPUT = 2000


def command_environment(context: RunContext) -> dict[str, str]:
    """Return the environment for the programs of a run, with `workspace/` as home folder."""
    known = environment.command_environment(COMMAND_VARIABLES, os.environ)
    return {**known, "HOME": str(context.sandbox_root / "workspace")}


async def run_checks(context: RunContext, checks: Sequence[CheckSpec]) -> list[CheckResult]:
    """Run the checks in the run folder, one after another, and record each in the events.

    Raises:
        asyncio.CancelledError: the run was cancelled; the running program has been stopped.
    """
    return [await _run_check(context, number, check) for number, check in enumerate(checks, 1)]


async def _run_check(context: RunContext, number: int, check: CheckSpec) -> CheckResult:
    emit, root = context.records.events.emit, context.sandbox_root
    variables = command_environment(context)
    shown, call_id = shlex.join(check.argv), f"check_{number}"
    data: JsonObject = {"argv": check.argv}
    begun = emit(
        "deliverable.check.started",
        shown,
        data,
        actor="governance",
        correlation_id=call_id,
    )
    result = CheckResult(argv=check.argv, is_passed=False)
    try:
        program = find_program(check.argv[0], cwd=root, env=variables)
        done = await run(
            Command(argv=[str(program), *check.argv[1:]], cwd=str(root), env=variables),
            launcher=context.launcher,
            timeout_s=check.timeout_seconds,
            stdout_limit_bytes=_OUTPUT_BYTES,
            stderr_limit_bytes=_OUTPUT_BYTES,
        )
        done.discard()
        printed = f"{done.stdout.text}{done.stderr.text}"
        reason = None
        if done.timed_out:
            reason = f"it took longer than {check.timeout_seconds:g} s"
        elif done.exit_code != 0:
            reason = f"it ended with exit code {done.exit_code}"
        output = context.records.archive.keep_raw(
            CHECKS, call_id, printed.encode("utf-8", "replace"), ending=".txt"
        )
        result = CheckResult(
            argv=check.argv,
            is_passed=reason is None,
            exit_code=None if done.timed_out else done.exit_code,
            reason=reason and f"{reason}: {printed.strip()[-_SHOWN_OUTPUT:]}".rstrip(": "),
            output=output,
        )
    except (OSError, AgentCoreError) as error:
        result = result.model_copy(update={"reason": f"it could not be run: {error}"})
    emit(
        "deliverable.check.completed",
        f"{shown}: {result.reason or 'passed'}",
        {
            **result.model_dump(mode="json", exclude_none=True),
            "reason": result.reason and summary_line(result.reason),
        },
        actor="governance",
        severity="info" if result.is_passed else "warning",
        correlation_id=call_id,
        parent_event_id=begun.event_id,
    )
    return result

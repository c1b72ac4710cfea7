"""Repeat a run from the content of its run folder."""

import shlex
from pathlib import Path

from typing_extensions import Unpack

from agent_core.errors import ErrorCode
from kgent.errors import Record, expand_home, require, sandbox_error
from kgent.review.report import MAX_TEXT_BYTES, read_report
from kgent.runtime.ids import RunIds
from kgent.runtime.options import RunOptions, RunResult
from kgent.runtime.runner import RunParts, run
from kgent.runtime.state import program_version
from kgent.sandbox.workspace import CONFIG_FILE, PROMPT_FILE

_FIRST_WITH_SOURCES = 2


class Rerun(Record):
    """A repeated run: its result, and the reason if its profile differs from the first."""

    result: RunResult
    reasons: list[str] = []


def rerun(
    root: Path | str,
    options: RunOptions | None = None,
    **parts: Unpack[RunParts],
) -> Rerun:
    """Run the profile and the prompt of a run folder again, into a new folder.

    The run joins the session and the task of the first one. If the options name no folder, it is
    made next to the first one, with its id as the name.

    Raises:
        KgentError: category `sandbox`; it is not a run folder, or its prompt cannot be read
          completely.
    """
    chosen = RunOptions() if options is None else options
    require("options", chosen, RunOptions, "a RunOptions or None")
    report = read_report(expand_home(root, "root"))
    if report.state.schema_version < _FIRST_WITH_SOURCES:
        message = (
            f"the first release of kgent made {report.root}, and did not keep what its profile"
            f" names; run the profile again: kgent run --config {report.state.config_path}"
        )
        raise sandbox_error(message, ErrorCode.CONFIG_ERROR)
    if not report.task or len(report.task.encode()) >= MAX_TEXT_BYTES:
        message = f"{report.root / PROMPT_FILE} cannot be read whole, and a rerun needs all of it"
        raise sandbox_error(message, ErrorCode.FILE_NOT_FOUND)
    ids = RunIds.choose(chosen)
    joined = {
        "sandbox": chosen.sandbox or report.root.parent / ids.run_id,
        "session_id": chosen.session_id or report.state.session_id,
        "task_id": chosen.task_id or report.state.task_id,
        "run_id": ids.run_id,
    }
    result = run(
        report.root / CONFIG_FILE,
        report.task,
        chosen.model_copy(update=joined),
        **{**parts, "prompt_is_final": True},
    )
    now, then = result.config_fingerprint, report.state.config_fingerprint
    if now is None or now == then:
        return Rerun(result=result)
    reasons = [f"the fingerprint is {now[:16]}…, and was {then[:16]}…"]
    if report.state.program != program_version():
        reasons.append(f"{report.state.program or 'an older kgent'} made the first run")
    folders = shlex.join(map(str, (report.root, result.sandbox_root)))
    reasons.append(f"the profile, or something that it names, has changed: kgent diff {folders}")
    return Rerun(result=result, reasons=reasons)

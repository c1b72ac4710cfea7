"""The command line of kgent: its arguments, its output and its exit codes.

Modules that only one command needs are imported in its function, so that help and usage errors
appear at once.
"""

import argparse
import contextlib
import gc
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from agent_core.cli.layout import window_size
from agent_core.cli.options import HelpLayout, PlainParser
from agent_core.cli.signals import catch_signals
from agent_core.cli.streams import flush_output, open_missing_streams, report_output_error
from agent_core.loading import require_platform
from agent_core.opening import write_text
from agent_core.text import quoted, visible

if TYPE_CHECKING:
    from kgent.engine.base import EngineEvent
    from kgent.runtime.options import CliOverrides, RunOptions, RunResult

COMPLETED, FAILED, USAGE, INCOMPLETE = 0, 1, 2, 3
INTERRUPTED = 130
MAX_PROMPT_BYTES = 1_000_000
_EXIT_CODES = {
    "completed": COMPLETED,
    **dict.fromkeys(
        ("incomplete", "waiting_for_user", "review_required", "revision_required", "cancelled"),
        INCOMPLETE,
    ),
}
"""Exit codes by the status of a run; any other status is a failure."""

_SHOWN_REMARKS = 5
_EXAMPLES = """examples:
  kgent validate --config kgent.yaml
  kgent run --config kgent.yaml --prompt "Write the report."
  kgent show runs/run_20260101T120000000000Z_ab12cd34
  kgent verify --seal SEAL RUN_DIR
"""
_RUN_EXAMPLES = """examples:
  kgent run --config kgent.yaml --prompt-file prompt.md --input ../repo=code
  kgent run --config letter.yaml --prompt "Write it." --param name=Ada
  kgent run --config kgent.yaml --prompt "Do it." --output-format json

The answer goes to standard output, or one JSON result with --output-format
json; everything else goes to standard error. Without --sandbox, the profile
determines the folder. Exit codes: 0 completed; 1 failed; 2 wrong usage or an
invalid profile; 3 a deliverable is missing, the run was stopped, or it waits
for an answer or a review.
"""
_RESUME_EXAMPLES = """examples:
  kgent resume report-run

The conversation continues where it ended: after Ctrl-C, a limit, a failure, or
the death of the process. A call that had begun is not made again; the model
is told so. A run that waits for an answer stays as it is. Exit codes: as for run.
"""
_REVISE_EXAMPLES = """examples:
  kgent revise report-run --prompt "Add a chapter about snow."

Makes a new attempt in the same conversation and on the same files. The model
also reads the reason of a review that asked for the revision. The records and
deliverables of earlier attempts stay in attempts/. Exit codes: as for run.
"""
_ANSWER_EXAMPLES = """examples:
  kgent answer report-run req_18ecaf13714a694180bf7662f4a4 allow
  kgent answer report-run req_18ecaf13714a694180bf7662f4a4 deny --reason "Not here."

The run continues with the answer, which counts for this one call. Exit codes:
as for run.
"""
_REVIEW_EXAMPLES = """examples:
  kgent review report-run accept
  kgent review report-run revise --reason "The table is wrong."
  kgent review report-run cancel

accept completes a run that is review_required; revise makes it
revision_required; cancel ends an uncompleted run for good. Exit codes: 0
recorded; 2 the run's state does not allow this.
"""
_VALIDATE_EXAMPLES = """examples:
  kgent validate --config kgent.yaml
  kgent validate --config kgent.yaml --output-format json

Reports everything that run would refuse, and where. Unset variables for keys
are only listed, and the run folder is not checked. Starts no server, and calls
no model. Exit codes: 0 valid; 2 not valid.
"""
_STDOUT = Path("-")
_SHOW_EXAMPLES = """examples:
  kgent show report-run
  kgent show report-run --html report.html

Shows outcome, prompt, answer, tool calls and files. The page has everything
that the folder records, and the result of verify. Exit codes: 0 shown; 2 not a
run folder, or the page cannot be written.
"""
_VERIFY_EXAMPLES = """examples:
  kgent verify report-run
  kgent verify report-run --seal 30bb77f0e8da…
  kgent verify report-run --allowed-signers signers --signer ada@example.org

Compares each file with the run's records. Modes and empty folders, which git,
archives and artifact stores do not keep, are remarks; an added or removed
execute bit is a change. Without --seal or a signer, rewriting all records goes
unnoticed. Exit codes: 0 sound; 1 the folder was changed; 2 wrong usage.
"""
_RERUN_EXAMPLES = """examples:
  kgent rerun report-run
  kgent rerun report-run --sandbox second-run

Profile, prompt, inputs and parameters come from the folder. Exit codes: as for
run.
"""
_DIFF_EXAMPLES = """examples:
  kgent diff report-run second-run
  kgent diff report-run second-run --output-format json

Compares outcome, profile, prompts, answer, conversation, calls with their
results, and files; not paths, ids and times. Exit codes: 0 they are the same; 1
they differ; 2 wrong usage.
"""


class UsageError(Exception):
    """The command line cannot be used; the message gives the reason."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `kgent` with these arguments (default: the process's) and return its exit code.

    0: the run completed; 1: it failed, or a folder is not sound; 2: wrong usage, an invalid
    profile, or a run that was blocked; 3: the run is incomplete. If standard output cannot be
    written, 0 becomes 1, or 141 if it is closed or its reader has gone.
    """
    try:
        require_platform("kgent")
    except ImportError as error:
        print(error, file=sys.stderr)
        return USAGE
    open_missing_streams()
    code = flush_output(_execute(argv), "kgent")
    if argv is None:
        gc.freeze()  # the process is about to end; collecting garbage would only delay that
    return code


def _execute(argv: Sequence[str] | None) -> int:
    is_json = _wants_json(sys.argv[1:] if argv is None else argv)
    try:
        arguments = build_parser().parse_args(argv)
        return _perform(arguments)
    except SystemExit as leaving:  # raised by argparse after it has printed help
        return leaving.code if isinstance(leaving.code, int) else USAGE
    except UsageError as error:
        _complain(f"kgent: {error}")
        return _print_json(_describe_error(error), USAGE) if is_json else USAGE
    except OSError as error:
        if error.filename is None:  # standard output cannot be written
            return report_output_error("kgent", error)
        _complain(f"kgent: {error.filename}: {error.strerror}")
        return FAILED
    except KeyboardInterrupt:  # runs handle signals themselves
        _complain("kgent: interrupted")
        return INTERRUPTED


def _wants_json(argv: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON, even if the rest of it is invalid."""
    words = [part for word in argv for part in word.split("=", 1)]
    option = "--output-format"
    return any(
        len(word) > len("--") and option.startswith(word) and value == "json"
        for word, value in pairwise(words)
    )


def _describe_error(error: UsageError) -> dict[str, Any]:
    """Return an error that prevented a run, in the form of a result."""
    from kgent.errors import KgentError, error_info  # noqa: PLC0415 - errors only

    cause = error.__cause__
    if isinstance(cause, KgentError):
        return {"status": "failed", "error": error_info(cause).model_dump(mode="json")}
    return {"status": "failed", "error": {"code": "usage_error", "message": str(error)}}


def _print_json(content: dict[str, Any], code: int) -> int:
    """Print the result as JSON on standard output, together with the exit code; return the code."""
    print(json.dumps({**content, "exit_code": code}, indent=2), flush=True)
    return code


def _perform(arguments: argparse.Namespace) -> int:
    from kgent.errors import KgentError  # noqa: PLC0415

    try:
        return _COMMANDS[arguments.command](arguments)
    except KgentError as error:
        raise UsageError(str(error)) from error


def build_parser() -> argparse.ArgumentParser:
    """Build the parser for all commands."""
    root = _Parser(
        prog="kgent",
        description="Run a YAML profile and keep an auditable run folder.",
        epilog=_EXAMPLES,
        formatter_class=HelpLayout,
    )
    root.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    given: list[tuple[Callable[..., argparse.Action], dict[str, bool]]] = []

    def add(
        name: str,
        what: str,
        examples: str,
        *,
        has_folder: bool = True,
        asks_model: bool = False,
        is_signed: bool = False,
        has_result: bool = True,
    ) -> Callable[..., argparse.Action]:
        command = commands.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.",
            epilog=examples,
            formatter_class=HelpLayout,
        )
        command.set_defaults(stream=None)
        option = command.add_argument
        if has_folder:
            option("run_dir", type=Path, metavar="RUN_DIR", help="the run folder")
        common = {"stream": asks_model, "sign": is_signed, "output_format": has_result}
        given.append((option, common))
        return option

    by_help = "who decides, for the record; by default the user of this machine"
    option = add(
        "run", "run a profile", _RUN_EXAMPLES, has_folder=False, asks_model=True, is_signed=True
    )
    option("--config", type=Path, required=True, metavar="FILE", help="the profile")
    prompt = commands.choices["run"].add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the task")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="the same, in a file")
    several: dict[str, Any] = {"action": "append", "metavar": "PATH[=NAME]", "dest": "inputs"}
    input_help = "copy a file or folder into inputs/; may be repeated"
    option("--input", type=_parse_input, help=input_help, **several)
    several |= {"metavar": "NAME=VALUE", "dest": "parameters"}
    parameter_help = "a value for a parameter of the profile; may be repeated"
    option("--param", type=_parse_parameter, help=parameter_help, **several)
    option("--sandbox", type=Path, metavar="DIR", help="the run folder to make")
    for name in ("session", "task", "run"):
        option(f"--{name}-id", metavar="ID", help=f"the id of the {name} (default: a new one)")
    option("--max-steps", type=int, metavar="N", help="the maximum number of model calls")
    seconds = {"dest": "timeout_seconds", "metavar": "SECONDS"}
    option("--timeout", type=float, help="the time limit of the run", **seconds)

    what = "check a profile without running it"
    option = add("validate", what, _VALIDATE_EXAMPLES, has_folder=False)
    option("--config", type=Path, required=True, metavar="FILE", help="the profile")

    option = add("show", "show what happened in a run", _SHOW_EXAMPLES, has_result=False)
    html_help = "write it as one page instead; - or no file: standard output"
    option("--html", type=Path, nargs="?", const=_STDOUT, metavar="FILE", help=html_help)

    option = add("verify", "check a run folder against its manifests", _VERIFY_EXAMPLES)
    seal_help = "the seal that the run printed: also detects changed manifests"
    option("--seal", metavar="SEAL", help=seal_help)
    signers_help = "a signer in this file of ssh-keygen must have signed the seal"
    option("--allowed-signers", type=Path, metavar="FILE", help=signers_help)
    option("--signer", metavar="NAME", help="which of them must have signed")

    what = "run again from the contents of a run folder"
    option = add("rerun", what, _RERUN_EXAMPLES, asks_model=True, is_signed=True)
    option("--sandbox", type=Path, metavar="DIR", help="the new run folder")

    what = "continue a run that was interrupted or killed"
    add("resume", what, _RESUME_EXAMPLES, asks_model=True, is_signed=True)

    what = "ask a run for changes, in a new attempt"
    option = add("revise", what, _REVISE_EXAMPLES, asks_model=True, is_signed=True)
    changes = "what is to be changed; by default the reason of the review that asks for it"
    option("--prompt", metavar="TEXT", help=changes)

    what = "answer a question of a waiting run"
    option = add("answer", what, _ANSWER_EXAMPLES, asks_model=True, is_signed=True)
    option("request", metavar="REQUEST", help="the id that the run printed")
    option("answer", choices=("allow", "deny"), help="whether the call may be made")
    option("--reason", metavar="TEXT", help="why; the model reads it")
    option("--by", metavar="NAME", help=by_help)

    option = add("review", "decide about the result of a run", _REVIEW_EXAMPLES, is_signed=True)
    option("verdict", choices=("accept", "revise", "cancel"), help="the decision")
    option("--reason", metavar="TEXT", help="why, for the record")
    option("--by", metavar="NAME", help=by_help)

    option = add("diff", "show the differences between two run folders", _DIFF_EXAMPLES)
    option("other_dir", type=Path, metavar="OTHER_DIR", help="the folder of the other run")

    for option, common in given:  # after the command's own
        if common["stream"]:
            option("--stream", action="store_true", help="show text as it arrives")
        if common["sign"]:
            sign_help = "sign the seal with this SSH key (ssh-keygen -Y)"
            option("--sign", type=Path, metavar="KEY", help=sign_help)
        if common["output_format"]:
            forms: dict[str, Any] = {"choices": ("text", "json"), "default": "text"}
            format_help = "json: one result on standard output (default: text)"
            option("--output-format", help=format_help, **forms)
    return root


def _parse_input(text: str) -> dict[str, str]:
    """Split an input into its path and the name after the last `=`, unless that path exists."""
    try:
        text.encode()
    except UnicodeEncodeError:
        reason = "the path is not UTF-8; give a folder above it"
        raise argparse.ArgumentTypeError(reason) from None
    path, _, name = text.rpartition("=")
    return {"path": path, "as": name} if path and not os.path.lexists(text) else {"path": text}


def _parse_parameter(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not of the form NAME=VALUE")
    return name.strip(), value


def build_overrides(arguments: argparse.Namespace) -> "CliOverrides":
    """Build the overrides of a command line: what to run, and where."""
    from kgent.runtime.options import CliOverrides  # noqa: PLC0415 - one command

    given = {name: getattr(arguments, name) for name in CliOverrides.model_fields}
    return CliOverrides.model_validate(given)


def build_options(arguments: argparse.Namespace) -> "RunOptions":
    """Build the options that replace values of the profile."""
    from pydantic import ValidationError  # noqa: PLC0415 - one command

    from agent_core.types.fields import fault_in_words  # noqa: PLC0415 - likewise
    from kgent.runtime.options import RunOptions  # noqa: PLC0415

    given = {name: getattr(arguments, name) for name in RunOptions.model_fields}
    if pairs := given["parameters"]:
        given["parameters"] = dict(pairs)
        if len(given["parameters"]) < len(pairs):
            raise UsageError("--param: a name is given twice")
    try:
        return RunOptions.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        reason = fault_in_words(".".join(map(str, problem["loc"])), problem)
        raise UsageError(f"the options cannot be used: {reason}") from None


def _read_prompt(overrides: "CliOverrides") -> str:
    from agent_core.opening import read_text_file  # noqa: PLC0415

    file = overrides.prompt_file
    if file is None:
        return overrides.prompt or ""
    try:
        raw = read_text_file(file, MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--prompt-file {file}: {error.strerror or error}") from None
    if len(raw) > MAX_PROMPT_BYTES:
        raise UsageError(f"--prompt-file {file}: over {MAX_PROMPT_BYTES} bytes")
    return raw.decode("utf-8-sig", "replace")


def _run(arguments: argparse.Namespace) -> int:
    from kgent.runtime.runner import run  # noqa: PLC0415 - brings the engine

    prompt, options = _read_prompt(build_overrides(arguments)), build_options(arguments)

    def start(**more: Any) -> "RunResult":
        return run(arguments.config, prompt, options, **more)

    return _conduct(arguments, start)


def _code_of(result: "RunResult") -> int:
    return USAGE if result.is_blocked else _EXIT_CODES.get(result.status, FAILED)


def _rerun(arguments: argparse.Namespace) -> int:
    from kgent.runtime.options import RunOptions  # noqa: PLC0415
    from kgent.runtime.rerun import rerun  # noqa: PLC0415 - brings the engine

    def start(**more: Any) -> "RunResult":
        again = rerun(arguments.run_dir, RunOptions(sandbox=arguments.sandbox), **more)
        for reason in again.reasons:
            _complain(f"differs  {reason}")
        return again.result

    return _conduct(arguments, start)


def _attempt(arguments: argparse.Namespace) -> int:
    """Begin another attempt at a run."""
    from kgent.runtime.attempts import answer, resume, review, revise  # noqa: PLC0415

    folder, given = arguments.run_dir, arguments

    def start(**parts: Any) -> "RunResult":
        match given.command:
            case "resume":
                return resume(folder, **parts)
            case "revise":
                return revise(folder, given.prompt, **parts)
            case "answer":
                said = {"by": given.by, "reason": given.reason}
                return answer(folder, given.request, given.answer, **said, **parts)
            case _:
                return review(folder, given.verdict, by=given.by, reason=given.reason)

    code = _conduct(arguments, start)
    return COMPLETED if arguments.command == "review" and code == INCOMPLETE else code


def _conduct(arguments: argparse.Namespace, start: "Callable[..., RunResult]") -> int:
    """Start a run, let signals stop it, and print its result."""
    from kgent.runtime.cancellation import Cancellation  # noqa: PLC0415

    if arguments.sign is not None:
        from kgent.review.signing import sign_text  # noqa: PLC0415 - few runs are signed

        sign_text("", arguments.sign)  # finds a key that cannot sign before the run starts
    cancellation, is_json = Cancellation(), arguments.output_format == "json"
    live = _LiveText(is_shown=bool(arguments.stream), is_aside=is_json)
    with catch_signals(lambda number: cancellation.cancel(f"the run was stopped by {number.name}")):
        result = start(cancellation=cancellation, event_callback=live)
    code = _code_of(result)
    if arguments.sign is not None and not _sign(result, arguments.sign) and code == COMPLETED:
        code = FAILED
    try:
        live.end()
        if is_json:
            return _print_json(result.model_dump(mode="json"), code)
        _print_result(result, with_text=not live.has_shown)
    except OSError:
        if code == COMPLETED:
            raise
    return code


def _sign(result: "RunResult", key: Path) -> bool:
    """Sign a finished run; print the reason and return False if it cannot be signed."""
    from kgent.errors import KgentError  # noqa: PLC0415
    from kgent.review.signing import write_signature  # noqa: PLC0415

    if result.sandbox_root is None or result.seal is None:
        _complain("kgent: the run has no seal, and is not signed")
        return False
    try:
        write_signature(result.sandbox_root, result.seal, key)
    except KgentError as error:
        _complain(f"kgent: the run is not signed: {error.message}")
        return False
    return True


def _validate(arguments: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415 - slow to import

    from kgent.config.loader import fingerprint_config, load_config  # noqa: PLC0415
    from kgent.errors import KgentError  # noqa: PLC0415 - one command
    from kgent.runtime.preflight import validate_profile  # noqa: PLC0415
    from kgent.runtime.runner import select_engine  # noqa: PLC0415

    file = arguments.config
    config = load_config(file)
    try:
        usable = asyncio.run(validate_profile(config, select_engine(config)))
    except KgentError as error:
        lines = "\n".join(f"{file}: {line}" for line in error.message.splitlines())
        raise UsageError(lines) from error
    fingerprint = fingerprint_config(config)
    if arguments.output_format == "json":
        facts = {
            "status": "valid",
            "profile_id": config.profile.id,
            "config_fingerprint": fingerprint,
            **usable.model_dump(mode="json"),
            "parameters": list(config.parameters),
        }
        return _print_json(facts, COMPLETED)
    _print(f"{file} is a valid profile: {config.profile.id}")
    _print(f"fingerprint {fingerprint}")
    _print(f"skills      {', '.join(usable.skills) or '-'}")
    if usable.inputs:
        _print_line(f"inputs      {', '.join(usable.inputs)}")
    if usable.unset_variables:
        _print_line(f"not set     {', '.join(usable.unset_variables)} (a run needs this)")
    return COMPLETED


def _show(arguments: argparse.Namespace) -> int:
    from rich.console import Console  # noqa: PLC0415 - only this command draws tables

    from kgent.review.page import render_page  # noqa: PLC0415
    from kgent.review.report import read_report  # noqa: PLC0415
    from kgent.review.terminal import print_report  # noqa: PLC0415
    from kgent.review.verification import verify  # noqa: PLC0415

    report = read_report(arguments.run_dir)
    if arguments.html is None:
        print_report(report, Console(width=window_size(sys.stdout).columns))
        return COMPLETED
    try:
        page = render_page(report, verify(report.root), beside=arguments.html.absolute().parent)
        if arguments.html == _STDOUT:
            sys.stdout.buffer.write(page.encode("utf-8", "replace"))
            return COMPLETED
        write_text(arguments.html, page, errors="replace")
    except OSError as error:
        raise UsageError(f"{arguments.html} cannot be written: {error.strerror}") from None
    _print(f"wrote {arguments.html}")
    return COMPLETED


def _verify(arguments: argparse.Namespace) -> int:
    from kgent.review.verification import has_signature, verify  # noqa: PLC0415 - one command

    if arguments.signer is not None and arguments.allowed_signers is None:
        raise UsageError("--signer needs --allowed-signers, which says whose key is whose")
    check = verify(
        arguments.run_dir,
        seal=arguments.seal,
        allowed_signers=arguments.allowed_signers,
        signer=arguments.signer,
    )
    if arguments.output_format == "json":
        found = {"sound": check.is_sound, **check.model_dump(mode="json")}
        print(json.dumps(found, indent=2), flush=True)
        return COMPLETED if check.is_sound else FAILED
    for problem in check.problems:
        _print_line(f"! {problem}")
    if check.is_sound:
        _print(f"sound: {check.checked} files are as the run left them")
    for remark in check.remarks[:_SHOWN_REMARKS]:
        _print_line(f"remark   {remark}")
    if (more := len(check.remarks) - _SHOWN_REMARKS) > 0:
        _print(f"remark   and {more} more, which --output-format json lists")
    if check.is_sound:
        _print(f"seal     {check.seal}")
        if check.signer is not None:
            _print_line(f"signed   {check.signer}")
        elif has_signature(arguments.run_dir.resolve()):
            _print("There is a signature; pass --allowed-signers to check whose it is.")
        elif arguments.seal is None:
            _print("Compare the seal with the one that the run printed, or pass it with --seal.")
    return COMPLETED if check.is_sound else FAILED


def _diff(arguments: argparse.Namespace) -> int:
    from kgent.review.comparison import compare_runs, text_of  # noqa: PLC0415 - one command

    found = compare_runs(arguments.run_dir, arguments.other_dir)
    if arguments.output_format == "json":
        differences = [one.model_dump(mode="json") for one in found]
        print(json.dumps({"same": not found, "differences": differences}, indent=2), flush=True)
    else:
        for line in text_of(found):
            _print_line(line)
        if not found:
            _print("no difference")
    return FAILED if found else COMPLETED


_COMMANDS = {
    "run": _run,
    "validate": _validate,
    "show": _show,
    "verify": _verify,
    "rerun": _rerun,
    "diff": _diff,
    **dict.fromkeys(("resume", "revise", "answer", "review"), _attempt),
}


class _Parser(PlainParser):
    """A parser that raises errors instead of ending the process; `main` sets the exit code."""

    texts = frozenset({"prompt", "reason"})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Version(argparse.Action):
    """Prints the version and ends the process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from kgent.runtime.state import program_version  # noqa: PLC0415 - one option

        _print(program_version())
        parser.exit()


class _LiveText:
    """Prints text as it arrives, if that is wanted; to standard error if `is_aside`."""

    def __init__(self, *, is_shown: bool, is_aside: bool = False) -> None:
        self.has_shown = False
        self._is_shown = is_shown
        self._print = _complain if is_aside else _print
        self._is_mid_line = False

    def __call__(self, event: "EngineEvent") -> None:
        if not self._is_shown:
            return
        if event.kind == "step":
            self.end()
        elif event.kind == "text" and event.text:
            self.has_shown = True
            self._is_mid_line = not event.text.endswith("\n")
            self._print(event.text, end="")

    def end(self) -> None:
        """End the current line if it has text."""
        if self._is_mid_line:
            self._print("")
        self._is_mid_line = False


def _print_result(result: "RunResult", *, with_text: bool) -> None:
    if with_text and result.final_text:
        _print(result.final_text)
    _print(f"status   {result.status}")
    _print_line(f"folder   {result.sandbox_root or '- (none was made)'}")
    for path in result.edited:
        _complain(f"edited   {visible(path, one_line=True)} (by hand, since the last attempt)")
    for path in result.found:
        _print_line(f"found    {path}")
    is_waiting = bool(result.requests)
    for path in () if is_waiting else result.missing:
        _print_line(f"missing  {path}")
    for path, reason in result.invalid.items():
        _print_line(f"invalid  {path}: {reason}")
    for check in result.checks:
        _print_line(f"check    {shlex.join(check.argv)}: {check.reason or 'passed'}")
    if is_waiting:
        from kgent.review.report import describe_request  # noqa: PLC0415 - of a waiting run

        for request in result.requests:
            _print_line(f"request  {request.request_id}: may it run {describe_request(request)}")
    if result.error is not None and not is_waiting:  # the lines above and below say it
        from agent_core.errors import describe_error  # noqa: PLC0415 - of a failed run

        reason = describe_error(result.error.message, result.error.code)
        _complain("reason   " + reason.replace("\n", f"\n{'':<9}"))
    _print_next(result)
    if result.seal is not None:
        _print(f"seal     {result.seal}")


def _print_next(result: "RunResult") -> None:
    """Print the commands with which a person decides how the run continues."""
    folder = shlex.quote(str(result.sandbox_root))
    for request in result.requests:
        _complain(f"next     kgent answer {folder} {request.request_id} allow|deny")
    if result.status == "review_required":
        _complain(f"next     kgent review {folder} accept|revise|cancel")


def _print(text: str, *, end: str = "\n") -> None:
    print(visible(text, zero_width=False), end=end, flush=True)


def _print_line(text: str) -> None:
    """Print one line, with line breaks in it escaped, so that a file name cannot fake a line."""
    _print(text.replace("\n", "\\n"))


def _complain(text: str, *, end: str = "\n") -> None:
    with contextlib.suppress(OSError, ValueError):
        print(visible(text, zero_width=False), end=end, file=sys.stderr, flush=True)

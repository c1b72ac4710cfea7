"""Run many profiles side by side: a folder of profiles, a matrix of parameters, or both.

Every run has its own folder. The folder is named after everything the run depends on: profile,
parameters, prompt and the content of its inputs. A run that is completed and sound is not repeated.
"""

import hashlib
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.opening import write_text
from agent_core.text import plural, visible
from kgent.config.loader import apply_options, fingerprint_config, load_config, load_yaml
from kgent.config.models import ParameterValue
from kgent.config.parameters import fill_config, fill_text
from kgent.errors import ErrorCategory, KgentError, Record, config_error
from kgent.review.report import MAX_MANIFEST_BYTES, read_bytes, read_report
from kgent.review.verification import REDACTED, verify
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.ids import RunIds
from kgent.runtime.options import RunOptions, RunResult
from kgent.runtime.preflight import refuse_obstacles
from kgent.runtime.runner import run, select_engine
from kgent.runtime.state import RunStatus
from kgent.sandbox.files import describe_file
from kgent.sandbox.inputs import INPUTS, MAX_INPUT_BYTES, RunInput, find_inputs
from kgent.sandbox.workspace import PROMPT_FILE

MAX_RUNS = 1000


INDEX_JSON, INDEX_PAGE = "index.json", "index.html"


_PROFILES = ("*.yaml", "*.yml", "*/kgent.yaml")


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")


_WORST = (
    RunStatus.COMPLETED,
    RunStatus.INCOMPLETE,
    RunStatus.FAILED,
)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One planned run of a batch.

    Attributes:
        name: the name of its folder.
        config_path: its profile.
        parameters: the values of its parameters.
        fingerprint: the fingerprint of the profile.
        prompt: the prompt, with its parameters filled in.
        inputs: a hash of each input, by the name of the input.
    """

    name: str
    config_path: Path
    parameters: Mapping[str, ParameterValue]
    fingerprint: str
    prompt: str
    inputs: Mapping[str, str]


class BatchRun(Record):
    """The result of one run of a batch.

    Attributes:
        name: the name of the job.
        profile: the path of the profile.
        parameters: the values of its parameters.
        is_kept: the run was completed earlier, and was not repeated.
        result: the result of the run.
    """

    name: str
    profile: str
    parameters: dict[str, ParameterValue]
    is_kept: bool
    result: RunResult


def read_matrix(path: Path) -> list[dict[str, ParameterValue]]:
    """Read the sets of parameters from a matrix file.

    A mapping of names to lists gives every combination, the last name changing fastest; a list of
    mappings gives these sets.

    Raises:
        KgentError: category `config`; it is neither, or has more than `MAX_RUNS` sets.
    """
    value = load_yaml(path)
    if isinstance(value, dict):
        axes = cast("dict[str, object]", value)
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                raise config_error(f"{path}: {name} must be a list of values")
        lists = [cast("list[object]", values) for values in axes.values()]
        count = 1
        for values in lists:
            count *= len(values)
        if count > MAX_RUNS:
            raise config_error(f"{path}: {count} combinations; a matrix has at most {MAX_RUNS}")
        sets = [dict(zip(axes, values, strict=True)) for values in itertools.product(*lists)]
    elif isinstance(value, list) and all(isinstance(one, dict) for one in cast("list[Any]", value)):
        sets = cast("list[dict[str, object]]", value)
    else:
        raise config_error(
            f"{path}: it must map names to lists, or list mappings of names to values"
        )
    for one in sets:
        for name, found in one.items():
            if not isinstance(found, str | int | float | bool):
                raise config_error(f"{path}: a value of {name} is no text, number or truth value")
    if not sets or len(sets) > MAX_RUNS:
        raise config_error(f"{path}: a matrix has 1 to {MAX_RUNS} sets of parameters")
    return cast("list[dict[str, ParameterValue]]", sets)


def plan_batch(
    config: Path, prompt: str, options: RunOptions, *, matrix: Path | None = None
) -> list[BatchJob]:
    """Plan and check the runs of a profile or a folder of profiles, without starting any.

    Raises:
        KgentError: a profile, its parameters or the prompt cannot be used.
    """
    sets = read_matrix(matrix) if matrix else [dict[str, ParameterValue]()]
    profiles = [config]
    if config.is_dir():
        found = (path for pattern in _PROFILES for path in config.glob(pattern))
        taken = matrix.resolve() if matrix else None
        profiles = sorted(path for path in found if path.resolve() != taken)
    if not profiles:
        raise config_error(f"there is no profile in {config}: {', '.join(_PROFILES)}")
    if len(profiles) * len(sets) > MAX_RUNS:
        raise config_error(f"{len(profiles) * len(sets)} runs; a batch has at most {MAX_RUNS}")
    hashes = dict[RunInput, str]()
    return [
        _plan_job(path, values, prompt, options, hashes=hashes)
        for path in profiles
        for values in sets
    ]


def _plan_job(
    path: Path,
    values: Mapping[str, ParameterValue],
    prompt: str,
    options: RunOptions,
    *,
    hashes: dict[RunInput, str],
) -> BatchJob:
    parameters = {**(options.parameters or {}), **values}
    try:
        chosen = options.model_copy(update={"parameters": parameters})
        profile = apply_options(load_config(path), chosen)
        config = fill_config(profile)
        refuse_obstacles(config, select_engine(config))
        filled = fill_text(profile, prompt, "the prompt")
        given = find_inputs(profile)
    except KgentError as error:
        if str(path) in error.message:
            raise
        raise KgentError(error.code, f"{path}: {error.message}", category=error.category) from None
    for one in given:
        if one not in hashes:
            hashes[one] = _hash_input(one)
    fingerprint = fingerprint_config(profile)
    contents = {one.name: hashes[one] for one in given}
    facts = [fingerprint, filled, [list(pair) for pair in contents.items()]]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
    stem = path.parent.name if path.name == "kgent.yaml" and path.parent.name else path.stem
    words = [stem, *(str(value) for value in values.values())]
    name = "-".join(filter(None, (_NOT_PLAIN.sub("_", word).strip("_.-")[:40] for word in words)))
    return BatchJob(f"{name[:80]}-{key}", path, parameters, fingerprint, filled, contents)


def _hash_input(one: RunInput) -> str:
    """Return a hash of the names and the content of a file or a folder."""
    digest = hashlib.sha256()
    for path in _walk(one.source):
        digest.update(os.fsencode(path.relative_to(one.source)) + b"\0")
        try:
            if path.is_symlink():
                digest.update(os.fsencode(path.readlink()))
            elif path.is_file():
                digest.update(
                    describe_file(path.parent, path.name, limit=MAX_INPUT_BYTES).sha256.encode()
                )
        except (OSError, AgentCoreError) as error:
            raise config_error(f"the input {path} cannot be read: {error}") from error
        digest.update(b"\0")
    return digest.hexdigest()


def _walk(place: Path) -> Iterator[Path]:
    yield place
    for parent, folders, files in os.walk(place):
        folders.sort()
        yield from (Path(parent, name) for name in sorted([*folders, *files]))


def run_batch(
    jobs: Sequence[BatchJob],
    prompt: str,
    folder: Path,
    options: RunOptions,
    *,
    at_once: int = 4,
    cancellation: Cancellation | None = None,
    on_end: Callable[[BatchRun], object] = lambda _: None,
) -> list[BatchRun]:
    """Run all jobs that are not completed yet, some at the same time, and write their index.

    A cancellation stops every run. Runs that have not started yet are not started, and get no
    folder.

    Raises:
        KgentError: category `sandbox`; the folder or the index in it cannot be written.
    """
    token, lock = cancellation or Cancellation(), threading.Lock()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unwritable(folder, error) from error
    done, each = dict[str, BatchRun](), {job.name: job for job in jobs}

    def conduct(job: BatchJob) -> None:
        outcome = _conduct(job, prompt, folder, options, token)
        with lock:
            done[job.name] = outcome
            try:
                _write_index(folder, [done[name] for name in each if name in done])
            finally:
                on_end(outcome)

    with ThreadPoolExecutor(max_workers=max(at_once, 1), thread_name_prefix="kgent") as pool:
        for future in [pool.submit(conduct, job) for job in each.values()]:
            future.result()
    return [done[name] for name in each]


def _conduct(
    job: BatchJob, prompt: str, folder: Path, options: RunOptions, token: Cancellation
) -> BatchRun:
    def outcome(result: RunResult, *, is_kept: bool = False) -> BatchRun:
        return BatchRun(
            name=job.name,
            profile=str(job.config_path),
            parameters=dict(job.parameters),
            is_kept=is_kept,
            result=result,
        )

    place, number = folder / job.name, 1
    while os.path.lexists(place):
        if kept := _find_kept(place, job):
            return outcome(kept, is_kept=True)
        number += 1
        place = folder / f"{job.name}-{number}"
    if reason := token.reason:
        ids = RunIds.choose(options)
        status = RunStatus.INCOMPLETE
        return outcome(
            RunResult(
                session_id=ids.session_id,
                task_id=ids.task_id,
                run_id=ids.run_id,
                status=status,
                error=reason,
            )
        )
    chosen = options.model_copy(update={"sandbox": place, "parameters": dict(job.parameters)})
    return outcome(run(job.config_path, prompt, chosen, cancellation=token))


def _find_kept(place: Path, job: BatchJob) -> RunResult | None:
    """Return the result of an earlier run if it completed this job and its folder is sound."""
    try:
        check = verify(place)
        if not check.is_sound or check.outcome != RunStatus.COMPLETED:
            return None
        state = read_report(place).state
        prompt = read_bytes(place / PROMPT_FILE, MAX_MANIFEST_BYTES).decode("utf-8", "replace")
        is_same = all(
            _hash_input(RunInput(name, place / INPUTS / name)) == content
            for name, content in job.inputs.items()
        )
    except (AgentCoreError, OSError):
        return None
    # A prompt from which a secret was removed cannot be compared.
    if REDACTED not in prompt and prompt != job.prompt:
        return None
    if not is_same or state.config_fingerprint != job.fingerprint:
        return None
    return RunResult(
        session_id=state.session_id,
        task_id=state.task_id,
        run_id=state.run_id,
        status=state.status,
        sandbox_root=place,
        found=state.found,
        missing=state.missing,
        checks=state.checks,
        seal=check.seal,
        usage=state.usage,
        cost=state.cost,
        config_fingerprint=state.config_fingerprint,
    )


def worst_status(runs: Sequence[BatchRun]) -> RunStatus:
    """Return the worst status among the runs."""
    return max((run.result.status for run in runs), key=_WORST.index)


# --- the index ----------------------------------------------------------------------------------

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{border:1px solid #8884;padding:.3rem .5rem;text-align:left;vertical-align:top;
overflow-wrap:anywhere}
@media(max-width:600px){thead{display:none}tr,td{display:block}tr{margin:1rem 0}}
.completed{color:#1d6b2d}.incomplete{color:#8a5600}.failed{color:#b3261e}
@media(prefers-color-scheme:dark){
.completed{color:#7fd38f}.incomplete{color:#f0b458}.failed{color:#ff8a80}}
"""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _write_index(folder: Path, runs: Sequence[BatchRun]) -> None:
    """Write both index files into the folder, each in one step."""
    listed = [one.model_dump(mode="json") for one in runs]
    for name, text in (
        (INDEX_JSON, json.dumps({"runs": listed}, indent=1) + "\n"),
        (INDEX_PAGE, _render_index(folder, runs)),
    ):
        draft = folder / f".{name}.{os.getpid()}.new"  # another batch may write to this folder
        try:
            write_text(draft, text, errors="replace")
            draft.replace(folder / name)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise _unwritable(folder / name, error) from error


def _unwritable(place: Path, error: OSError) -> KgentError:
    reason = f"{place} cannot be written: {error.strerror or error}"
    return KgentError(ErrorCode.CONFIG_ERROR, reason, category=ErrorCategory.SANDBOX)


def _render_index(folder: Path, runs: Sequence[BatchRun]) -> str:
    rows = list[str]()
    for one in runs:
        result = one.result
        place = result.sandbox_root
        base = (
            quote(os.fsencode(place.relative_to(folder.resolve())))
            if place and place.is_relative_to(folder.resolve())
            else ""
        )
        link = f'<a href="{base}/transcript.md">{_text(one.name)}</a>' if base else _text(one.name)
        files = [
            f'<a href="{base}/{quote(path)}">{_text(path)}</a>' for path in result.found if base
        ]
        files += [f"{_text(path)} is missing" for path in result.missing]
        files += [f"{_text(path)} is invalid" for path in result.invalid]
        values = ", ".join(f"{name}={value}" for name, value in one.parameters.items())
        status = f"{result.status}{' (kept)' if one.is_kept else ''}"
        cells = [
            f'<strong class="{result.status}">{_text(status)}</strong>',
            link,
            _text(values or "-"),
            "<br>".join(files) or "-",
            _text(result.error or "-"),
        ]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("Status", "Run", "Parameters", "Deliverables", "Reason")
    )
    count = plural(len(runs), "run")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>kgent: {count}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        f"<h1>{count}</h1>\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table>\n</main></body></html>\n"
    )


def _text(value: object) -> str:
    return escape(visible(str(value), zero_width=False))

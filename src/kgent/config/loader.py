"""Reads a profile: all of it is right, or nothing is started.

An error names the file, the line, the key, what was expected and, for a name that is not known,
the nearest one that is.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import yaml
from pydantic import ValidationError

from agent_core.config.problems import problems_of
from agent_core.disk.reading import read_text_file
from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig, WorkspaceConfig
from kgent.config.yaml_source import MAX_NODES, YamlFaultError, YamlSource, read_yaml
from kgent.errors import ErrorCategory, KgentError

MAX_CONFIG_BYTES = 1_000_000
_GROWTH = 20
"""How many times as large a profile may be once its defaults are filled in."""
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SHOWN_PROBLEMS = 5

Fault = tuple[int | None, str, str]
"""Line, dotted key (empty for the file as a whole), and what is wrong."""


class Overrides(Protocol):
    """What a caller may say instead of the file: `CliOverrides` and `RunOptions` both do."""

    @property
    def sandbox(self) -> Path | None: ...


def load_config(path: Path | str, *, is_resolved: bool = False) -> KgentConfig:
    """Read and check a profile.

    Args:
        path: the file.
        is_resolved: a run has written it, with all defaults filled in; it may be larger.

    Raises:
        KgentError: category `config`; the file cannot be read, or does not fit the schema.
    """
    file = Path(path).expanduser().absolute()
    try:
        growth = _GROWTH if is_resolved else 1
        source = read_yaml(_text(file, MAX_CONFIG_BYTES * growth), max_nodes=MAX_NODES * growth)
    except YamlFaultError as fault:
        raise _unusable(file, [(fault.line, "", fault.reason)]) from None
    value: object = source.value
    if not isinstance(value, dict):
        raise _unusable(file, [(1, "", "it must be a mapping of sections, such as kgent: …")])
    try:
        config = KgentConfig.model_validate(cast("dict[str, Any]", value))
    except ValidationError as error:
        raise _unusable(file, _problems(error, source)) from None
    return config.based_at(file.parent)


def apply_cli_overrides(config: KgentConfig, overrides: Overrides) -> KgentConfig:
    """The profile with what the caller said instead: the run folder, the limits, streaming.

    A relative `sandbox` starts at the current folder, as every path on a command line does.
    """
    changes: dict[str, Any] = {}
    if overrides.sandbox is not None:
        placed = str(overrides.sandbox.expanduser().absolute())
        changes["workspace"] = config.workspace.model_copy(update={"sandbox": placed})
    given = {
        name: value
        for name in ("stream", "max_steps", "timeout_seconds")
        if (value := getattr(overrides, name, None)) is not None
    }
    if given:
        runtime = {**config.runtime.model_dump(), **given}
        try:
            changes["runtime"] = type(config.runtime).model_validate(runtime)
        except ValidationError as error:
            said = "; ".join(f"{item['loc'][0]}: {item['msg']}" for item in error.errors())
            message = f"the options cannot be used: {said}"
            raise KgentError(
                ErrorCode.VALIDATION_ERROR, message, category=ErrorCategory.CONFIG
            ) from None
    return config.model_copy(update=changes)


def fingerprint_config(config: KgentConfig) -> str:
    """SHA-256 (hex) of what the profile says: equal profiles have equal fingerprints.

    Defaults are filled in and keys sorted; where the run folder lies is left out, and paths count
    as they are written, so that a profile means the same wherever it is checked out.
    """
    resolved = config.model_dump(mode="json", exclude={"workspace": {"sandbox"}})
    canonical = json.dumps(resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def dump_config(config: KgentConfig, *, origin: Path, clean: Callable[[str], str]) -> str:
    """The resolved profile as YAML, with a line that says where relative paths start.

    Args:
        config: the profile.
        origin: the file it was read from.
        clean: applied to every text: a profile is no place for secrets, but people make mistakes.
    """
    resolved = _cleaned(config.model_dump(mode="json"), clean)
    try:
        WorkspaceConfig.model_validate(config.workspace.model_dump())
    except ValidationError:  # given on the command line, which takes any path; `run.json` has it
        del resolved["workspace"]["sandbox"]
    body = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True, width=100)
    return f"# Resolved from {json.dumps(str(origin))}; relative paths start at its folder.\n{body}"


def _cleaned(value: Any, clean: Callable[[str], str]) -> Any:
    match value:
        case str():
            return clean(value)
        case list():
            return [_cleaned(item, clean) for item in cast("list[Any]", value)]
        case dict():
            table = cast("dict[str, Any]", value)
            return {key: _cleaned(item, clean) for key, item in table.items()}
        case _:
            return value


def _text(file: Path, limit: int) -> str:
    try:
        raw = read_text_file(file, limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unusable(file, [(None, "", f"it cannot be read: {reason}")]) from error
    if len(raw) > limit:
        raise _unusable(file, [(None, "", f"it is larger than {limit:,} bytes")])
    if raw.startswith(_BYTE_ORDER_MARKS):
        raise _unusable(file, [(1, "", "it is not UTF-8; save it as plain UTF-8")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unusable(file, [(line, "", "it is not UTF-8; save it as plain UTF-8")]) from None


def _problems(error: ValidationError, source: YamlSource) -> list[Fault]:
    found: list[Fault] = [
        (source.line_of(problem.key), problem.key, _in_yaml_words(problem.message))
        for problem in problems_of(error, KgentConfig)
    ]
    return sorted(found, key=lambda fault: fault[0] or 0)


def _in_yaml_words(message: str) -> str:
    return message.replace("a table", "a mapping").replace("an array", "a list")


def _unusable(file: Path, problems: list[Fault]) -> KgentError:
    lines = [
        f"{file}{f':{line}' if line else ''}: {f'{key} {text}' if key else text}"
        for line, key, text in problems[:_SHOWN_PROBLEMS]
    ]
    if (more := len(problems) - _SHOWN_PROBLEMS) > 0:
        lines.append(f"and {more} more")
    return KgentError(
        ErrorCode.CONFIG_ERROR,
        "\n".join(lines),
        category=ErrorCategory.CONFIG,
        details={
            "path": str(file),
            "problems": [
                {"line": line, "key": key, "message": text} for line, key, text in problems
            ],
        },
    )

"""Profile files: read, check, override, fingerprint and write them.

A run only starts if the whole profile is valid. An error contains the file, the line, the key, the
expected value and, for an unknown name, the nearest known one.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Self, cast

import yaml
from pydantic import ValidationError
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from agent_core.config.positions import dotted_key, find_line
from agent_core.config.problems import problems_of
from agent_core.errors import ErrorCode
from agent_core.opening import read_text_file
from agent_core.redaction.redactor import walk
from agent_core.text import quoted
from agent_core.text.json_text import JsonObject
from agent_core.tools.json_schema import BoundedValidator, SchemaUnusableError
from agent_core.types.fields import fault_in_words
from kgent.config.models import (
    DeliverableSpec,
    InputSpec,
    KgentConfig,
    RuntimeConfig,
    WorkspaceConfig,
)
from kgent.config.parameters import set_parameters, unknown_names
from kgent.config.portable import portable_fields
from kgent.errors import ErrorCategory, KgentError, config_error, expand_home, require
from kgent.governance.schemas import content_format
from kgent.runtime.options import CliOverrides, RunOptions

MAX_CONFIG_BYTES = 1_000_000
_MAX_NODES = 20_000
_GROWTH = 20
"""The largest ratio between a profile with its defaults filled in and the file."""
_RESOLVED = "# Resolved from "
"""The beginning of a profile in a run folder."""
_MAX_DEPTH = 50
_MAX_DIGITS = 40
_TAG = "tag:yaml.org,2002:"
_NUMBERS = {f"{_TAG}{kind}" for kind in ("int", "float", "timestamp")}
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SHOWN_PROBLEMS = 5
Fault = tuple[int | None, str, str]
"""Line, dotted key (empty for the file as a whole), and the problem."""


def load_config(path: Path | str) -> KgentConfig:
    """Read and check a profile, or the copy in a run folder.

    Raises:
        KgentError: category `config`; the file cannot be read, or does not fit the schema.
    """
    file = expand_home(path)
    try:
        text = _read_text(file, MAX_CONFIG_BYTES * _GROWTH)
        growth = _GROWTH if text.startswith(_RESOLVED) else 1
        if len(text.encode("utf-8", "replace")) > MAX_CONFIG_BYTES * growth:
            raise _YamlFaultError(None, f"it is larger than {MAX_CONFIG_BYTES * growth:,} bytes")
        is_own = growth > 1 and "\\u" not in text  # libyaml reads no half characters
        source = _YamlSource(text, max_nodes=_MAX_NODES * growth, is_own=is_own)
        value: object = source.value
        if not isinstance(value, dict):
            raise _YamlFaultError(1, "it must be a mapping of sections, such as kgent: …")
    except _YamlFaultError as fault:
        raise _unusable(file, [(fault.line, "", fault.reason)]) from None
    try:
        config = KgentConfig.model_validate(cast("JsonObject", value))
    except ValidationError as error:
        faults: list[Fault] = []
        for problem in problems_of(error, KgentConfig):
            text = problem.message.replace("a table", "a mapping").replace("an array", "a list")
            faults.append((source.line_of(problem.key), problem.key, text))
        raise _unusable(file, sorted(faults, key=lambda fault: fault[0] or 0)) from None
    config = config.based_at(file.parent)
    wrong = unknown_names(config)
    required: list[DeliverableSpec] = []
    for number, spec in enumerate(config.deliverables.required):
        try:
            required.append(_with_schema(config, spec))
        except ValueError as error:
            wrong.append((f"deliverables.required[{number}].schema", str(error)))
    if wrong:
        raise _unusable(file, [(source.line_of(key), f"{key}:", text) for key, text in wrong])
    deliverables = config.deliverables.model_copy(update={"required": required})
    return config.model_copy(update={"deliverables": deliverables})


def load_yaml(path: Path) -> object:
    """Read a YAML file as strictly as a profile, and return its value.

    Raises:
        KgentError: category `config`; it cannot be read. The message contains the line.
    """
    try:
        return _YamlSource(_read_text(path, MAX_CONFIG_BYTES), max_nodes=_MAX_NODES).value
    except _YamlFaultError as fault:
        raise _unusable(path, [(fault.line, "", fault.reason)]) from None


def _with_schema(config: KgentConfig, spec: DeliverableSpec) -> DeliverableSpec:
    """Return the deliverable with the content of its schema file instead of the path.

    Raises:
        ValueError: it cannot be used, for the reason in the message.
    """
    schema: object = spec.content_schema
    if schema is None:
        return spec
    if isinstance(schema, str):
        try:
            file = config.place(schema)
            schema = load_yaml(file)
        except KgentError as error:
            raise ValueError(error.message) from None
        if not isinstance(schema, dict):
            raise ValueError(f"{file} has no object in it")
    if "{{" not in spec.path and content_format(spec) is None:
        raise ValueError("is for JSON, YAML and CSV; name the format with content_type")
    table = cast("JsonObject", schema)
    try:
        BoundedValidator(table)
    except SchemaUnusableError as error:
        raise ValueError(f"cannot be used: {error}") from None
    return spec.model_copy(update={"content_schema": table})


def apply_cli_overrides(config: KgentConfig, overrides: CliOverrides | RunOptions) -> KgentConfig:
    """Return the profile with the overrides that concern it; ids and prompts do not.

    Relative paths in them start at the current folder, like every path on a command line.

    Raises:
        KgentError: category `config`; a value cannot be used.
    """
    changes: dict[str, Any] = {}
    if overrides.sandbox is not None:
        placed = str(expand_home(overrides.sandbox))
        changes["workspace"] = config.workspace.model_copy(update={"sandbox": placed})
    if isinstance(overrides, RunOptions):
        config = set_parameters(config, overrides.parameters or {})
        changes["inputs"] = _merge_inputs(config.inputs, overrides.inputs or [])
        changes["runtime"] = _change_limits(config.runtime, overrides)
    return config.model_copy(update=changes)


def _merge_inputs(inputs: list[InputSpec], given: list[InputSpec]) -> list[InputSpec]:
    placed = [one.model_copy(update={"path": str(expand_home(one.path))}) for one in given]
    names = {_input_name(one) for one in placed}
    return [*(one for one in inputs if _input_name(one) not in names), *placed]


def _change_limits(runtime: RuntimeConfig, options: RunOptions) -> RuntimeConfig:
    names = {"stream", "max_steps", "timeout_seconds"}
    given = options.model_dump(include=names, exclude_none=True)
    try:
        return RuntimeConfig.model_validate({**runtime.model_dump(), **given}) if given else runtime
    except ValidationError as error:
        said = "; ".join(fault_in_words(str(item["loc"][0]), item) for item in error.errors())
        message = f"the options cannot be used: {said}"
        raise config_error(message, ErrorCode.VALIDATION_ERROR) from None


def _input_name(spec: InputSpec) -> str:
    return spec.name or Path(os.path.normpath(spec.path)).name


def fingerprint_config(config: KgentConfig) -> str:
    """Hash the content of a profile (SHA-256, hex): equal profiles have equal fingerprints.

    Defaults are filled in and keys sorted; the place of the run folder is left out. Skills and the
    script of a mock count by their content, other paths by their last name, so that a profile has
    the same fingerprint in every checkout.

    Raises:
        KgentError: `validation_error`, category `config`: it is not a profile.
    """
    require("config", config, KgentConfig, "a KgentConfig, as load_config returns it")
    resolved = portable_fields(config)
    canonical = json.dumps(resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def dump_config(config: KgentConfig, *, origin: Path | str, clean: Callable[[str], str]) -> str:
    """Return the resolved profile as YAML, with a comment that names its source file.

    Args:
        config: the profile.
        origin: the file it was read from.
        clean: removes secrets from a text; applied to every text, in case there are any.
    """
    resolved = walk(config.model_dump(mode="json"), clean)
    try:
        WorkspaceConfig.model_validate(config.workspace.model_dump())
    except ValidationError:  # from the command line, which accepts any path; `run.json` has it
        del resolved["workspace"]["sandbox"]
    return f"{_RESOLVED}{json.dumps(str(origin))}.\n{dump_yaml(resolved)}"


def dump_yaml(value: object) -> str:
    """Return a value as YAML, with its keys in their order."""
    dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper  # ten times as fast
    try:
        return yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)
    except UnicodeEncodeError:  # libyaml writes no path that is not UTF-8
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def _read_text(file: Path, limit: int) -> str:
    try:
        raw = read_text_file(file, limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _YamlFaultError(None, f"it cannot be read: {reason}") from error
    if len(raw) > limit:
        raise _YamlFaultError(None, f"it is larger than {limit:,} bytes")
    line = 1
    try:
        if not raw.startswith(_BYTE_ORDER_MARKS):
            return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
    raise _YamlFaultError(line, "it is not UTF-8; save it as plain UTF-8")


def _unusable(file: Path, faults: list[Fault]) -> KgentError:
    lines = [
        f"{file}{f':{line}' if line else ''}: {f'{key} {text}' if key else text}"
        for line, key, text in faults[:_SHOWN_PROBLEMS]
    ]
    if (more := len(faults) - _SHOWN_PROBLEMS) > 0:
        lines.append(f"and {more} more")
    listed = [{"line": line, "key": key, "message": text} for line, key, text in faults]
    return KgentError(
        ErrorCode.CONFIG_ERROR,
        "\n".join(lines),
        category=ErrorCategory.CONFIG,
        details={"path": str(file), "problems": listed},
    )


# --- YAML whose values know their lines ----------------------------------------------------------


class _YamlFaultError(Exception):
    """The text cannot be used; `line` starts at 1."""

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(slots=True)
class _YamlSource:
    """A document: its value, and the line of each dotted key (`deliverables.required[0].path`).

    It is stricter than the parser: it refuses a key that is given twice, a document that contains
    itself or becomes huge through aliases, and a tag that changes the type of a value (`!!bool x`).

    Args:
        text: the document.
        max_nodes: how many values it may have.
        is_own: whether `dump_config` has written it, so that any parser reads it alike.
    """

    text: str
    max_nodes: int
    is_own: bool = False
    value: Any = None
    lines: dict[str, int] = field(default_factory=dict[str, int])
    _count: int = 0

    def __post_init__(self) -> None:
        try:
            self._read()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            reason = error.problem or error.context or "it cannot be read"
            line = mark.line + 1 if mark else 1
            raise _YamlFaultError(line, f"not valid YAML: {reason}") from None
        except RecursionError:
            raise _YamlFaultError(1, "it is nested too deeply") from None
        except (yaml.YAMLError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise _YamlFaultError(1, f"not valid YAML: {reason}") from None

    def line_of(self, key: str) -> int:
        """Return the line of a key, or of the nearest enclosing key that exists."""
        return find_line(self.lines, key) or 1

    def _read(self) -> None:
        loader = _own_loader()(self.text) if self.is_own else yaml.SafeLoader(self.text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise _YamlFaultError(1, "the file is empty")
            self._visit(node, "", 0, cast("_Resolve", loader.resolve))  # pyright: ignore[reportUnknownMemberType] - untyped
            construct = cast("Callable[[yaml.Node], Any]", loader.construct_document)  # pyright: ignore[reportUnknownMemberType] - untyped
            self.value = construct(node)
        finally:
            loader.dispose()

    def _visit(self, node: yaml.Node, key: str, depth: int, resolve: "_Resolve") -> None:
        """Check a node at each of its places, and store its line."""
        line = node.start_mark.line + 1
        self.lines.setdefault(key, line)
        self._count += 1
        if self._count > self.max_nodes or depth > _MAX_DEPTH:
            raise _YamlFaultError(line, "it is nested too deeply, or far too large")
        match node:
            case yaml.ScalarNode():
                _check_scalar(node, resolve)
            case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                for index, item in enumerate(node.value):
                    self._visit(item, f"{key}[{index}]", depth + 1, resolve)
            case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                self._visit_mapping(node, key, depth, resolve)
            case _:
                raise _tagged(node)

    def _visit_mapping(
        self, node: yaml.MappingNode, key: str, depth: int, resolve: "_Resolve"
    ) -> None:
        seen: set[str] = set()
        for number, (name_node, value_node) in enumerate(node.value):
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode):
                raise _YamlFaultError(line, "a key must be a word, not a list or a mapping")
            _check_scalar(name_node, resolve)
            name = str(name_node.value)
            if name in seen:
                raise _YamlFaultError(line, f"the key {quoted(name)} is given twice")
            seen.add(name)
            inner = f"{key}.{dotted_key([name])}" if key else dotted_key([name])
            self.lines[inner] = line
            self._visit(value_node, inner, depth + 1, resolve)
            if inner == "kgent.version" and value_node.tag in _NUMBERS:  # 1.10 is not 1.1
                text = yaml.ScalarNode(f"{_TAG}str", value_node.value)
                node.value[number] = (name_node, text)


@cache
def _own_loader() -> type[yaml.SafeLoader]:
    """Return a loader that parses with libyaml but composes in Python, with a limit to nesting."""
    if not yaml.__with_libyaml__:
        return yaml.SafeLoader
    parser: Any = import_module("yaml.cyaml").CParser

    class Fast(Composer, parser, SafeConstructor, Resolver):
        def __init__(self, text: str) -> None:
            parser.__init__(self, text)
            for base in (Composer, SafeConstructor, Resolver):
                cast("Callable[[Self], None]", base.__init__)(self)

    return cast("type[yaml.SafeLoader]", Fast)


_Resolve = Callable[[type[yaml.Node], str, tuple[bool, bool]], str]
"""Returns the tag of a value from its text; the flags say whether it is plain or quoted."""


def _check_scalar(node: yaml.ScalarNode, resolve: _Resolve) -> None:
    is_plain = not node.style
    if node.tag != resolve(yaml.ScalarNode, node.value, (is_plain, not is_plain)):
        raise _tagged(node)
    if node.tag == f"{_TAG}int" and len(node.value) > _MAX_DIGITS:
        reason = f"a number has at most {_MAX_DIGITS} digits"
        raise _YamlFaultError(node.start_mark.line + 1, reason)


def _tagged(node: yaml.Node) -> _YamlFaultError:
    shown = str(node.tag).replace(_TAG, "!!")[:80]
    reason = f"the tag {shown} is not known here; write the value without a tag"
    return _YamlFaultError(node.start_mark.line + 1, reason)

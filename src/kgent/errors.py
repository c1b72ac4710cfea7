"""Errors: `ErrorInfo` is stored and shown, `KgentError` is raised."""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.redaction import Redactor
from agent_core.text import kind_of, shortened
from agent_core.types.fields import Fields

MAX_MESSAGE_CHARS = 1000


class ErrorCategory(StrEnum):
    """The part of a run that an error belongs to."""

    CONFIG = "config"
    SANDBOX = "sandbox"
    SKILL = "skill"
    TOOL = "tool"
    MEMORY = "memory"
    ENGINE = "engine"
    GOVERNANCE = "governance"
    INTERNAL = "internal"
    UNKNOWN = "unknown"


class Record(Fields):
    """Base class of immutable records and results."""

    model_config = ConfigDict(frozen=True)


class ErrorInfo(Record):
    """An error as data: a code for programs and a sentence for people, without a traceback."""

    code: str
    message: str
    category: ErrorCategory = ErrorCategory.UNKNOWN
    retryable: bool = False
    details: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def redacted(self, redactor: Redactor) -> "ErrorInfo":
        """Return the error without secrets."""
        return ErrorInfo.model_validate(redactor.payload(self.model_dump(mode="json")))


class KgentError(AgentCoreError):
    """An error that kgent raises deliberately."""

    def __init__(
        self,
        code: ErrorCode | str,
        message: str,
        *,
        category: ErrorCategory,
        retryable: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, message, retryable, details)
        self.category = category


LONGEST_NAME = 255
"""The longest name of a file or a folder, in bytes."""

BLOCKING = frozenset({ErrorCategory.CONFIG, ErrorCategory.SANDBOX, ErrorCategory.SKILL})
"""Categories of errors that stop a run before its engine starts."""


def config_error(message: str, code: ErrorCode = ErrorCode.CONFIG_ERROR) -> KgentError:
    """Build the error of a profile, an option or an engine that cannot be used."""
    return KgentError(code, message, category=ErrorCategory.CONFIG)


def require(name: str, value: object, kinds: type | tuple[type, ...], words: str) -> None:
    """Check the type of an argument that a program has given.

    Args:
        name: of the argument.
        value: what was given.
        kinds: the classes of which it may be.
        words: these, for people.

    Raises:
        KgentError: `validation_error`, category `config`: it is of another type.
    """
    is_wrong_flag = isinstance(value, bool) and kinds is not bool
    if is_wrong_flag or not isinstance(value, kinds):
        message = f"{name} must be {words}, not {kind_of(value)}"
        raise config_error(message, ErrorCode.VALIDATION_ERROR)


def sandbox_error(
    message: str, code: ErrorCode = ErrorCode.PATH_CONFLICT, *, path: str | None = None
) -> KgentError:
    """Build the error of a run folder that cannot be used, or of a `path` that must not be."""
    details = None if path is None else {"path": path}
    return KgentError(code, message, category=ErrorCategory.SANDBOX, details=details)


def denial(message: str) -> KgentError:
    """Build the error of what a rule, a person or a missing proof does not allow."""
    return KgentError(ErrorCode.PERMISSION_DENIED, message, category=ErrorCategory.GOVERNANCE)


def expand_home(path: Path | str, name: str = "path") -> Path:
    """Return an absolute path, with a `~` at its beginning replaced by the home it names.

    Args:
        path: the path.
        name: of the argument that it is.

    Raises:
        KgentError: category `config`; the home does not exist, no file system accepts the path, or
            it is no path.
    """
    require(name, path, (str, os.PathLike), "a path")
    parts = Path(path).parts
    if any("\0" in part or len(part.encode("utf-8", "replace")) > LONGEST_NAME for part in parts):
        reason = f"a name in a path has no NUL, and at most {LONGEST_NAME} bytes"
        raise config_error(f"{shortened(str(path), 200)}: {reason}")
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        home = parts[0]
        raise config_error(f"{shortened(str(path), 200)}: there is no home for {home}") from error


def engine_error(
    code: ErrorCode | str,
    message: str,
    *,
    retryable: bool = False,
    details: dict[str, Any] | None = None,
) -> ErrorInfo:
    """Build the error of an engine's part of a run."""
    category = ErrorCategory.ENGINE
    known = code.value if isinstance(code, ErrorCode) else code
    return ErrorInfo(
        code=known, message=message, category=category, retryable=retryable, details=details
    )


def error_info(error: BaseException, category: ErrorCategory = ErrorCategory.UNKNOWN) -> ErrorInfo:
    """Convert any exception to data.

    Args:
        error: the exception; a `KgentError` has its own category.
        category: the category of any other exception.
    """
    if isinstance(error, AgentCoreError):
        return ErrorInfo(
            code=error.code.value,
            message=error.message,
            category=error.category if isinstance(error, KgentError) else category,
            retryable=error.retryable,
            details=error.details or None,
        )
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    code = ErrorCode.INTERNAL_ERROR.value
    return ErrorInfo(code=code, message=text[:MAX_MESSAGE_CHARS], category=category)

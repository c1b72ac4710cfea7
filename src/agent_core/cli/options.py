"""What the user wants, and what the process answers with."""

from dataclasses import dataclass

COMPLETED = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 130  # 128 + SIGINT; other signals likewise
OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as if the signal had ended the process


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The arguments of `tasks show`; `svg` is the file to write instead of printing."""

    task_id: str
    path: str | None = None
    session_id: str | None = None
    svg: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The arguments of `memory`; `action` is `list`, `show` or `forget`."""

    action: str
    memory_id: str = ""
    is_sure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The arguments of `sessions`; `action` is `list`, `show` or `compact`."""

    action: str
    session_id: str = ""
    path: str | None = None
    limit: int = 20
    moves_session: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The arguments of `run`."""

    message: str
    path: str | None = None
    session_id: str | None = None
    is_orchestrated: bool = False
    moves_session: bool = False

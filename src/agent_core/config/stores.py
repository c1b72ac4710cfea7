"""The settings of what is stored: sessions, the runs that workers execute, and snapshots."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from agent_core.config.section import Section
from agent_core.types.lanes import NAME_PATTERN, PLACE_PATTERN, QUEUE_PATTERN

LONGEST_MS = 30 * 24 * 3_600_000
"""The longest time in a configuration."""

_MOST = 1_000_000


def _run_place(value: str) -> str:
    if not re.fullmatch(PLACE_PATTERN, value):
        raise ValueError('must be "snapshot", or "host:" with the host_id of a machine')
    return value


RunPlace = Annotated[str, AfterValidator(_run_place)]
"""Place of a run's files: `snapshot`, or `host:` with the id of a machine."""

QueueName = Annotated[str, Field(pattern=f"^{QUEUE_PATTERN}$")]


def _url_variable(value: str) -> str:
    if not (value.isascii() and value.isidentifier()):  # a URL that was pasted here is not repeated
        raise ValueError("must be the name of an environment variable, never the URL itself")
    return value


_BLOBS = r"(?:(?:s3|gs|az)://[^\s/@?#]+(?:/[^\s@?#]*)?|file:///[^\s?#]*)"


def _blob_store(value: str) -> str:
    if not re.fullmatch(_BLOBS, value):
        raise ValueError(
            "must be s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or"
            " file:///folder, without credentials"
        )
    return value


class StoreConfig(Section):
    """The place where sessions are stored, and the time they are kept.

    With `url_env`, the variable that has its address, they are in a Postgres database for several
    machines. With `keep_days`, sessions that were not used for so many days are deleted.
    """

    url_env: Annotated[str, AfterValidator(_url_variable)] | None = None
    blobs: Annotated[str, AfterValidator(_blob_store)] | None = None
    queue_timeout_s: Annotated[float, Field(ge=0, le=LONGEST_MS / 1000, allow_inf_nan=False)] = 60
    keep_days: Annotated[int, Field(gt=0, le=36_500)] | None = None


_DAY_S = 86_400
_DEFAULT_HEARTBEAT_S, _DEFAULT_LEASE_S = 5, 15


class RunWorkerConfig(Section):
    """Settings of `soong-agent worker`, which executes the runs of a Postgres database."""

    heartbeat_s: Annotated[float, Field(gt=0, le=_DAY_S, allow_inf_nan=False)] = (
        _DEFAULT_HEARTBEAT_S
    )
    lease_s: Annotated[float, Field(gt=0, le=3 * _DAY_S, allow_inf_nan=False)] = _DEFAULT_LEASE_S
    max_takeovers: Annotated[int, Field(ge=0, le=_MOST)] = 3
    concurrency: Annotated[int, Field(gt=0, le=4096)] = 4
    drain_seconds: Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)] = 30
    host_id: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")] | None = None
    places: Annotated[list[RunPlace], Field(min_length=1)] | None = None
    queues: Annotated[list[QueueName], Field(min_length=1)] = ["default"]
    tenant_concurrency: Annotated[int, Field(ge=0, le=_MOST)] = 0

    @model_validator(mode="before")
    @classmethod
    def _lease_fits_heartbeat(cls, table: Any) -> Any:
        """Adapt the lease to a heartbeat given alone, or the reverse; leave two given values."""
        match table:
            case {"heartbeat_s": _, "lease_s": _}:
                return table
            case {"heartbeat_s": int() | float() as beat} if _DEFAULT_LEASE_S <= beat <= _DAY_S:
                return {**table, "lease_s": 3 * beat}
            case {"lease_s": int() | float() as lease} if 0 < lease <= _DEFAULT_HEARTBEAT_S:
                return {**table, "heartbeat_s": lease / 3}
            case _:
                return table


DEFAULT_EXCLUDE = [
    "node_modules",
    ".venv",
    "venv",
    "target",
    "dist",
    "build",
    "__pycache__",
    ".cache",
]
"""Folders that a command can rebuild; no snapshot holds them."""


class WorkspaceConfig(Section):
    """Snapshots of a project's files, from which they can be restored.

    If `snapshots` is None the entry point decides: the command line takes snapshots, a program does
    not.
    """

    snapshots: Literal["off", "turn"] | None = None
    exclude: list[str] = DEFAULT_EXCLUDE
    max_files: Annotated[int, Field(gt=0, le=10_000_000)] = 200_000
    max_file_bytes: Annotated[int, Field(gt=0, le=2**40)] = 104_857_600
    keep_days: Annotated[int, Field(gt=0, le=36_500)] = 30

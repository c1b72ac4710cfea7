"""What lies in a run folder, with size and SHA-256: enough to rebuild it, or to notice a change."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agent_core.tools.files import open_file
from kgent.config.models import DeliverableConfig
from kgent.records.context import ARCHIVE
from kgent.records.files import put_file
from kgent.records.logs import ToolLogger
from kgent.runtime.state import now
from kgent.sandbox.paths import WRITABLE
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, RECORDS, SANDBOX_MANIFEST

MAX_ARTIFACTS = 10_000
_CHUNK = 2**18


class FileRecord(BaseModel):
    """A file as it was: path relative to the run folder, size, SHA-256 in hex."""

    model_config = ConfigDict(frozen=True)

    path: str
    bytes: int
    sha256: str


class SandboxManifest(BaseModel):
    """The run folder's boundaries, and the records it vouches for once the run is over."""

    model_config = ConfigDict(frozen=True)

    root: Path
    writable: list[str]
    readonly: list[str]
    forbidden: list[str]
    created_at: str
    files: list[FileRecord] = []


class ArtifactRecord(BaseModel):
    """A file that the run produced. What is required and missing has no size and no hash."""

    model_config = ConfigDict(frozen=True)

    path: str
    kind: str
    created_by: str
    required: bool = False
    content_type: str | None = None
    bytes: int | None = None
    sha256: str | None = None
    status: Literal["present", "missing"] = "present"


class ArtifactManifest(BaseModel):
    """Everything below `deliverables/`, `workspace/` and `archive/`, in the order of paths."""

    model_config = ConfigDict(frozen=True)

    artifacts: list[ArtifactRecord] = []
    updated_at: str
    truncated: bool = False


def new_sandbox_manifest(root: Path, *, read_roots: Iterable[Path] = ()) -> SandboxManifest:
    """The boundaries of a run folder, as they are enforced."""
    return SandboxManifest(
        root=root,
        writable=[f"{name}/" for name in WRITABLE],
        readonly=["./", *(str(folder) for folder in read_roots)],
        forbidden=["everything else"],
        created_at=now(),
    )


def write_sandbox_manifest(root: Path, manifest: SandboxManifest, *, final: bool = False) -> str:
    """Write `sandbox-manifest.json`; `final` adds the records, which must be closed.

    Returns:
        The SHA-256 of the manifest.

    Raises:
        OSError: something cannot be read or written.
    """
    if final:
        records = [described(root, name) for name in RECORDS]
        manifest = manifest.model_copy(update={"files": records})
    return _write(root / SANDBOX_MANIFEST, manifest)


def write_artifact_manifest(
    root: Path, required: Iterable[DeliverableConfig], tools: ToolLogger
) -> str:
    """Write `artifact-manifest.json` from what lies in the run folder now.

    Returns:
        The SHA-256 of the manifest.

    Raises:
        OSError: something cannot be read or written.
    """
    owed = {deliverable.path: deliverable for deliverable in required}
    found: list[ArtifactRecord] = []
    truncated = False
    for path in sorted(_files(root)):
        if len(found) == MAX_ARTIFACTS:
            truncated = True
            break
        found.append(_artifact(root, path, owed.get(path), tools.maker_of(path)))
    present = {artifact.path for artifact in found}
    gone = [
        ArtifactRecord(
            path=path,
            kind=deliverable.kind,
            created_by="nobody",
            required=True,
            content_type=deliverable.content_type,
            status="missing",
        )
        for path, deliverable in owed.items()
        if path not in present and not (root / path).is_dir()
    ]
    artifacts = sorted([*found, *gone], key=lambda artifact: artifact.path)
    manifest = ArtifactManifest(artifacts=artifacts, updated_at=now(), truncated=truncated)
    return _write(root / ARTIFACT_MANIFEST, manifest)


def described(root: Path, name: str) -> FileRecord:
    """A file of the run folder as it is now. Links are not followed.

    Raises:
        OSError: it cannot be read.
        ToolError: it is no ordinary file.
    """
    size, digest = 0, hashlib.sha256()
    with open_file(root.resolve() / name) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            digest.update(chunk)
    return FileRecord(path=name, bytes=size, sha256=digest.hexdigest())


def _files(root: Path) -> Iterator[str]:
    for name in (*WRITABLE, ARCHIVE):
        for folder, _, names in os.walk(root / name):
            for file in names:
                path = Path(folder, file)
                if path.is_file() and not path.is_symlink():
                    yield path.relative_to(root).as_posix()


def _artifact(
    root: Path, path: str, owed: DeliverableConfig | None, maker: str | None
) -> ArtifactRecord:
    record = described(root, path)
    return ArtifactRecord(
        path=path,
        kind=owed.kind if owed else _kind(path),
        created_by=f"tool:{maker}" if maker else _origin(path),
        required=owed is not None,
        content_type=owed.content_type if owed else None,
        bytes=record.bytes,
        sha256=record.sha256,
    )


def _kind(path: str) -> str:
    return {"deliverables": "deliverable", "workspace": "working_file"}.get(
        path.partition("/")[0], "archive"
    )


def _origin(path: str) -> str:
    return "runtime" if path.startswith(f"{ARCHIVE}/") else "agent"


def _write(path: Path, manifest: BaseModel) -> str:
    raw = manifest.model_dump_json(indent=2).encode() + b"\n"
    put_file(path, raw)
    return hashlib.sha256(raw).hexdigest()

"""Is a run folder still what its run left behind? Hashes, sizes, order, and the profile's print."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_core.context.texts import read_text_file
from agent_core.errors import AgentCoreError
from kgent.config.loader import fingerprint_config, load_config
from kgent.errors import KgentError
from kgent.review.story import Story, read_story
from kgent.sandbox.manifest import ArtifactManifest, FileRecord, SandboxManifest, described
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    FOLDERS,
    SANDBOX_MANIFEST,
)

_MAX_MANIFEST = 64 * 2**20
_REDACTED = "[redacted:"


class Verdict(BaseModel):
    """What a check of a run folder found; no problems means that it is as it was left."""

    model_config = ConfigDict(frozen=True)

    checked: int
    problems: list[str]

    @property
    def is_sound(self) -> bool:
        """Everything is as it was left."""
        return not self.problems


def verify(root: Path) -> Verdict:
    """Check a run folder against its manifests, and those against `run.json`.

    Raises:
        KgentError: category `sandbox`; it is no run folder.
    """
    story = read_story(root)
    problems = [*story.problems, *_layout(root)]
    if not story.state.status.is_terminal:
        if not story.is_lost:
            problems.append("the run is still under way; its manifests are not final")
        return Verdict(checked=0, problems=problems)
    records = [*_vouched(root, story, problems)]
    for record in records:
        problems.extend(_differences(root, record))
    problems.extend(_order(story))
    problems.extend(_fingerprint(root, story))
    return Verdict(checked=len(records), problems=problems)


def _layout(root: Path) -> Iterator[str]:
    yield from (f"{name} is missing" for name in FILES if not (root / name).is_file())
    yield from (f"{name}/ is missing" for name in FOLDERS if not (root / name).is_dir())


def _vouched(root: Path, story: Story, problems: list[str]) -> Iterator[FileRecord]:
    """Every file that a sound manifest vouches for."""
    for name in (SANDBOX_MANIFEST, ARTIFACT_MANIFEST):
        try:
            raw = read_text_file(root / name, _MAX_MANIFEST)
        except OSError:
            continue  # reported as missing
        expected = story.state.manifests.get(name)
        if expected is None:
            problems.append(f"run.json does not vouch for {name}")
        elif hashlib.sha256(raw).hexdigest() != expected:
            problems.append(f"{name} was changed after the run")
        try:
            yield from _records(name, raw)
        except ValidationError:
            problems.append(f"{name} is damaged")


def _records(name: str, raw: bytes) -> Iterable[FileRecord]:
    if name == SANDBOX_MANIFEST:
        return SandboxManifest.model_validate_json(raw).files
    return [
        FileRecord(path=artifact.path, bytes=artifact.bytes or 0, sha256=artifact.sha256)
        for artifact in ArtifactManifest.model_validate_json(raw).artifacts
        if artifact.sha256 is not None
    ]


def _differences(root: Path, record: FileRecord) -> Iterator[str]:
    path = Path(record.path)
    if path.is_absolute() or ".." in path.parts:
        yield f"{record.path}: a manifest names a place outside the run folder"
        return
    try:
        now = described(root, record.path)
    except (OSError, AgentCoreError):
        yield f"{record.path} is missing, or is no ordinary file any more"
        return
    if now.bytes != record.bytes:
        yield f"{record.path} was changed: {record.bytes} bytes then, {now.bytes} now"
    elif now.sha256 != record.sha256:
        yield f"{record.path} was changed: its SHA-256 differs"


def _order(story: Story) -> Iterator[str]:
    for position, event in enumerate(story.events, 1):
        if event.sequence != position:
            yield f"events.jsonl: event {position} has the sequence {event.sequence}"
            return
        if event.run_id != story.state.run_id:
            yield f"events.jsonl: event {position} belongs to {event.run_id}"
            return


def _fingerprint(root: Path, story: Story) -> Iterator[str]:
    try:
        written = (root / CONFIG_FILE).read_text(encoding="utf-8")
        if _REDACTED in written:
            return  # what was taken out is part of the fingerprint
        fingerprint = fingerprint_config(load_config(root / CONFIG_FILE))
    except (OSError, ValueError, KgentError):
        yield f"{CONFIG_FILE} cannot be read as a profile"
        return
    if fingerprint != story.state.config_fingerprint:
        yield f"{CONFIG_FILE} does not have the fingerprint that run.json names"

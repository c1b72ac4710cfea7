"""Whatever breaks, and wherever: a run ends with a terminal `run.json`, and returns its result."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kgent.cli import main
from kgent.runtime.state import RunStatus
from kgent_runs import a_run, calls, profile, skill, state
from sweeps import paired, sampled

PLACES = (
    "kgent.runtime.executor.dump_config",
    "kgent.runtime.executor.relocated",
    "kgent.runtime.executor.list_skill_files",
    "kgent.runtime.executor.render_sandbox_rules",
    "kgent.runtime.executor.render_system_prompt",
    "kgent.runtime.executor.build_toolsets",
    "kgent.engine.mock.run_limited",
    "kgent.runtime.executor.validate_required_deliverables",
    "kgent.runtime.executor.write_artifact_manifest",
    "kgent.runtime.executor.state_hash",
    "kgent.skills.registry.SkillRegistry.copied",
    "kgent.records.context.RunRecords.hold",
    "kgent.records.transcript.TranscriptWriter.finalize",
    "kgent.sandbox.files.RunFiles.find_changed",
    "kgent.sandbox.files.RunFiles.restore",
    "kgent.sandbox.manifest.SandboxManifest.write",
)
FAULTS = (RuntimeError, MemoryError, RecursionError, OSError)


def broken(fault: type[BaseException], *, after: int = 0, real: Any = None) -> Callable[..., Any]:
    """Something that breaks from its n-th call on."""
    made = count()

    def call(*arguments: Any, **options: Any) -> Any:
        if next(made) >= after:
            raise fault("it broke")
        return real(*arguments, **options)

    return call


def run_and_check(tmp_path: Path) -> None:
    skill(tmp_path / "skills")
    result = a_run(
        tmp_path,
        calls("write_file", path="workspace/a.md", content="x"),
        "Done.",
        skills={"paths": ["skills"]},
    )
    assert result.status is RunStatus.failed
    assert result.error is not None
    assert "it broke" in result.error.message
    written = state(tmp_path / "run")
    assert written["status"] == "failed"
    assert written["error"]["category"] == result.error.category == "internal"
    assert main(["show", str(tmp_path / "run")]) == 0
    assert main(["verify", str(tmp_path / "run")]) in {0, 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "fault"),
    [(place, SystemExit) for place in sampled(PLACES, keep=2)]
    + sampled([(place, FAULTS[number % len(FAULTS)]) for number, place in enumerate(PLACES)], 4),
)
def test_a_fault_ends_the_run_as_failed_and_internal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, fault: type[BaseException]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(place, broken(fault))
        run_and_check(tmp_path)


@pytest.mark.parametrize(
    ("writes", "name"), sampled(paired(range(1, 14, 2), ["put", "append"]), keep=3)
)
def test_records_that_break_at_any_moment_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, writes: int
) -> None:
    from kgent.sandbox.files import RunFiles  # noqa: PLC0415 - patched below

    with monkeypatch.context() as patched:
        fails = broken(OSError, after=writes, real=getattr(RunFiles, name))

        def write(*arguments: Any, **options: Any) -> Any:
            return fails(*arguments, **options)

        patched.setattr(RunFiles, name, write)
        run_and_check(tmp_path)


def test_a_fault_before_there_is_a_folder_is_a_result_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgent.runtime.runner.fingerprint_config", broken(RuntimeError))
    result = a_run(tmp_path)
    assert (result.status, result.sandbox_root) == (RunStatus.failed, None)
    assert result.error is not None
    assert result.error.category == "internal"


def test_a_run_that_broke_is_exit_code_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgent.runtime.executor.render_system_prompt", broken(SystemExit))
    arguments = ["run", "--config", str(profile(tmp_path)), "--prompt", "x"]
    assert main([*arguments, "--sandbox", str(tmp_path / "run")]) == 1
    assert state(tmp_path / "run")["status"] == "failed"

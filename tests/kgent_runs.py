"""Profiles, run folders and readings of them, for tests of kgent."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from kgent import RunOptions, RunResult
from kgent.config.loader import fingerprint_config, load_config
from kgent.engine.base import AgentEngine
from kgent.engine.mock import MockAgentEngine, MockCall, MockStep
from kgent.memory.client import NoMemory
from kgent.memory.contract import MemoryClient
from kgent.records.context import RunRecords
from kgent.runtime.blocking import run_blocking
from kgent.runtime.context import RunContext
from kgent.runtime.ids import RunIds
from kgent.runtime.runner import run
from kgent.sandbox.workspace import create_workspace
from kgent.skills.registry import SkillRegistry
from kgent.tools.registry import ToolDefinition, build_toolsets
from kgent.tools.results import ToolResult

IDS = RunIds("sess_1", "task_1", "run_1")
SKILL = """---
id: {id}
name: {id} skill
description: How to do {id}.
tags: [writing, review]
permissions:
  tools: [run_command]
---
Follow these steps.
"""


def profile(folder: Path, name: str = "kgent.yaml", **sections: Any) -> Path:
    """Write a profile with the required parts and these sections."""
    content: dict[str, Any] = {
        "kgent": {"schema_version": 1},
        "profile": {"id": "writer", "role": "You write reports."},
        "runtime": {"engine": "mock"},
    }
    for section, value in sections.items():
        known = content.get(section)
        content[section] = {**known, **value} if isinstance(known, dict) else value
    path = folder / name
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def skill(folder: Path, skill_id: str = "reporting", text: str | None = None) -> Path:
    """Write a skill and return its folder."""
    place = folder / skill_id
    place.mkdir(parents=True)
    body = SKILL.format(id=skill_id) if text is None else text
    (place / "SKILL.md").write_text(body, encoding="utf-8")
    return place


def a_run(
    tmp_path: Path, *script: MockStep, engine: AgentEngine | None = None, **sections: Any
) -> RunResult:
    """Run a profile of these sections with a script."""
    return run(
        profile(tmp_path, **sections),
        "Write the report.",
        RunOptions(sandbox=tmp_path / "run"),
        engine=engine or MockAgentEngine(script or None),
    )


def keep(root: Path) -> Callable[[], None]:
    """Copy a run folder, and return what puts it back as it was: cheaper than the run again."""
    kept = root.with_name(f"{root.name}.kept")
    shutil.copytree(root, kept, symlinks=True)

    def restore() -> None:
        shutil.rmtree(root)
        shutil.copytree(kept, root, symlinks=True)

    return restore


def a_context(tmp_path: Path, **sections: Any) -> RunContext:
    """A run context whose run folder has been made."""
    config = load_config(profile(tmp_path, **sections))
    root = (tmp_path / "run").resolve()
    context = RunContext(
        **IDS._asdict(),
        profile_id=config.profile.id,
        config_fingerprint=fingerprint_config(config),
        sandbox_root=root,
        config=config,
        records=RunRecords(root, IDS),
    )
    create_workspace(context)
    return context


def toolset(
    context: RunContext,
    *,
    skills: SkillRegistry | None = None,
    memory: MemoryClient | None = None,
    denied: Sequence[str] = (),
) -> dict[str, ToolDefinition]:
    """The tools of a run, by name."""
    found = build_toolsets(
        context, skills or SkillRegistry([]), memory or NoMemory(), denied=denied
    )
    return {tool.name: tool for tool in found}


def answer(
    tool: ToolDefinition, context: RunContext, /, *, call_id: str = "call_1", **args: Any
) -> ToolResult:
    """Call a tool as an engine does, and return what the model reads."""

    async def call() -> ToolResult:
        with context.cancellation.stopping_task():
            return await tool.invoke(args, context, call_id=call_id)

    return run_blocking(call)


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def events(root: Path | None) -> list[dict[str, Any]]:
    """The events of a run folder."""
    assert root is not None
    return lines(root / "events.jsonl")


def types(root: Path | None) -> list[str]:
    """The types of the events of a run folder, in order."""
    return [event["type"] for event in events(root)]


def state(root: Path | None) -> dict[str, Any]:
    """What `run.json` says."""
    assert root is not None
    return json.loads((root / "run.json").read_text(encoding="utf-8"))


def calls(tool: str, /, **args: Any) -> MockCall:
    """A step that calls a tool."""
    return MockCall(tool=tool, args=args)

"""A run finds the skills of its home, and the model loads the one that fits.

    python examples/skills/use_skill.py

The model's replies come from `home/replies.json`; everything else is real.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

from agent_core import AgentRuntime, ReplayResult
from agent_core.context.skills import find_skills

HOME = Path(__file__).with_name("home")


def show_catalog(home: Path) -> None:
    catalog = find_skills(home)
    for skill in catalog.skills:
        print(f"- {skill.name}: {skill.description}")
    for problem in catalog.problems:
        print("skipped:", problem.removeprefix(f"{home}/"))


def show(history: ReplayResult) -> None:
    for node in history.nodes:
        for call in node.calls:
            print(f"{node.role}: {call.name} {call.arguments}")
        for result in node.results:
            (answer,) = result.content
            print(f"{node.role}: {answer.model_dump(include={'data': {'already_loaded'}})}")
        if node.text:
            print(f"{node.role} ({node.node_type}): {node.text.splitlines()[0]}")


async def use(home: Path, project: Path) -> None:
    async with AgentRuntime(project, home_dir=home) as runtime:
        handle = await runtime.start("Write the release notes of 1.4.")
        await handle.wait()
        show(await runtime.replay_session(handle.session_id))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, project = Path(folder, "home").resolve(), Path(folder, "project")
        shutil.copytree(HOME, home)
        project.mkdir()
        show_catalog(home)
        asyncio.run(use(home, project))


main()

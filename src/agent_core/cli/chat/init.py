"""`/init`: a run that writes the project's AGENTS.md, or improves it."""

import asyncio
from pathlib import Path
from string import Template

from agent_core.assets.load import load_asset
from agent_core.cli.chat.conversation import Chat
from agent_core.types import WORDS, UserMessage

_KNOWN = (
    *("AGENTS.md", "CLAUDE.md", "GEMINI.md", ".github/copilot-instructions.md", ".cursorrules"),
    *(".cursor/rules", "README.md", "README.rst", "CONTRIBUTING.md", "docs/README.md"),
)


async def start_init(chat: Chat) -> None:
    """Start the run. It writes as every run does: what has to be asked is asked.

    Raises:
        AgentCoreError: it cannot be started.
    """
    found = await asyncio.to_thread(_describe, chat.setup.project)
    text = Template(load_asset("chat.init").text).substitute(found=found)
    message = UserMessage(content=text, metadata={WORDS: "/init: write or improve AGENTS.md"})
    await chat.watch("/init", chat.starting(message), is_on_screen=True)


def _describe(project: Path) -> str:
    names = [name for name in _KNOWN if (project / name).exists()]
    if not names:
        return "There is no AGENTS.md yet, and no README and no rules for other agents."
    has_own = "AGENTS.md" in names
    state = "It has an AGENTS.md: improve it." if has_own else "There is no AGENTS.md yet."
    return f"{state} Files that describe the project: {', '.join(names)}."

"""agent_core: AgentRuntime.start and the event stream, everything stored as it is by default.

The built-in tools are switched off, because every framework here gets one tool; memory too,
because no other asks the model anything after a run. The window is large enough for 200 turns, and
the limit of runs for the 1,000 sessions of `memory`.
"""

import shutil
import tempfile
from pathlib import Path

from agent_core import AgentRuntime, EventType, tool
from tool import add

REQUIRES = ["soong-agent", "httptools", "orjson"]
STORE = "SqliteStore"
CONFIG = """
[runtime]
max_turns = 10000
max_concurrent_runs = 1000
[model]
provider = "openai"
name = "{model}"
base_url = "{base_url}"
context_window = 10000000
[memory]
enabled = false
[tools]
disabled = {disabled}
"""
BUILT_IN = [
    "agent.create_sub_agent",
    "agent.fork_agent",
    "agent.list_agent_definitions",
    "agent.plan_template",
    "code.edit_file",
    "code.list_dir",
    "code.read_file",
    "code.run_command",
    "code.search",
    "code.write_file",
    "internal.load_skill",
    "internal.recall_memory",
]
ADD = tool(permission="readonly")(add)


class Context:
    def __init__(self, base_url, model, db):
        # Outside this repository: a new session is told of the changes in its project's.
        self.folder = Path(tempfile.mkdtemp(prefix="bench-home-"))
        self.home, self.project = self.folder / "home", self.folder / "project"
        self.home.mkdir()
        self.project.mkdir()
        config = CONFIG.format(model=model, base_url=base_url, disabled=BUILT_IN)
        (self.home / "config.toml").write_text(config)
        self.db = db


async def setup(base_url, model, db=None):
    ctx = Context(base_url, model, db)
    ctx.runtime = make_agent(ctx)
    await ctx.runtime.__aenter__()
    return ctx


def make_agent(ctx):
    runtime = AgentRuntime(ctx.project, home_dir=ctx.home, session_db_path=ctx.db)
    runtime.register_tool(ADD)
    return runtime


async def run(ctx, agent, prompt, sid, on_text):
    handle = await ctx.runtime.start(prompt, session_id=sid)
    async for event in handle.events():
        if event.event_type == EventType.MODEL_TEXT_DELTA:
            on_text(event.payload["text"])
    return handle.result_text


async def close(ctx):
    await ctx.runtime.close()
    shutil.rmtree(ctx.folder)

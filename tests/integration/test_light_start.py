"""A plain run from the command line loads, compiles and builds only what it uses.

Time and instructions depend on the machine; these counts do not.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isolation import Home

MOST_PATTERNS = 30
"""Regular expressions of ours that are compiled; a start without a question needs few of them."""
OF_OTHER_RUNS = {
    *("agent_core.agents.worker_assignments", "agent_core.cli.elicitation"),
    *("agent_core.cli.first_start", "agent_core.mcp", "agent_core.tasks"),
    *("agent_core.tools.decorator", "agent_core.tools.signatures", "agent_core.types.approvals"),
    *("agent_core.api.session", "agent_core.process.child", "agent_core.types.answers"),
    *("agent_core.types.questions", "agent_core.types.workspace"),
    *("importlib.metadata", "zipfile"),
    *("aiohttp", "html", "jsonschema", "rich", "yaml"),
    *("bz2", "email.utils", "mimetypes", "shutil", "tempfile"),
    *("agent_core.snapshots.restorer", "agent_core.tools.json_schema"),
    *("agent_core.agents.assignments", "agent_core.tools.code.command"),
    *("agent_core.tools.code.read", "agent_core.tools.code.search", "agent_core.tools.code.write"),
}
"""Modules of questions, people, workers, undone messages, functions as tools and services, what
plugins would be looked for with, what calls do, and modules that are slow to import and rarely
used."""
OF_THE_SCRIPT = {"ModelStarted", "RetryConfig", "Says"}
"""Types whose validators only the scripted model needs."""
MAY_BE_BUILT = {"Fields", "SessionRecord", "TextBlock", "Usage", *OF_THE_SCRIPT}
"""Types whose validators a run with one answer builds. Those of the other parts of messages, and of
a model that is named in one string, would take a fiftieth of its start."""
PROGRAM = """
import json, os, re._compiler, sys
patterns, compiled = [], re._compiler.compile

def compile(pattern, flags=0):
    frame = sys._getframe(1)
    while frame.f_globals["__name__"].startswith("re"):
        frame = frame.f_back
    patterns.extend([str(pattern)] * frame.f_globals["__name__"].startswith("agent_core"))
    return compiled(pattern, flags)

re._compiler.compile = compile
from agent_core.cli import main
code = main()
from typing import TypedDict, is_typeddict
from pydantic_core.core_schema import CoreConfig
from agent_core.tools.schema import Arguments
from agent_core.types.fields import Fields

def complete(*types):
    for kind in types:
        yield from [kind.__name__] * kind.__pydantic_complete__
        yield from complete(*kind.__subclasses__())

types = Arguments.__subclasses__()
built = [*complete(*types)]
plugins = os.environ["PYDANTIC_DISABLE_PLUGINS"]
found = {"code": code, "patterns": patterns, "built": built, "plugins": plugins}
found["validators"] = [*complete(Fields)]
found["has_types_of_schemas"] = is_typeddict(CoreConfig)
assert CoreConfig(strict=True) == {"strict": True}
assert is_typeddict(TypedDict("Own", {}))
print(json.dumps(found | {"types": len(types), "modules": [*sys.modules]}))
"""


def start(home: Home, project: Path, **environ: str) -> dict[str, Any]:
    """Run the command line in a process of its own, and return what it has loaded."""
    (home.path / "replies.json").write_text('["Hello."]', encoding="utf-8")
    home.write_config(f'model = "scripted:{home.path}/replies.json"\n')
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", PROGRAM, "run", "hi"],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "SOONG_AGENT_HOME": str(home.path), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    answer, found = done.stdout.splitlines()
    assert answer == "Hello."
    return json.loads(found)


@pytest.mark.cold
def test_a_plain_run_loads_and_builds_only_what_it_uses(home: Home, project: Path) -> None:
    found = start(home, project)
    assert found["code"] == 0
    assert OF_OTHER_RUNS & {*found["modules"]} == set()
    assert len(found["patterns"]) <= MOST_PATTERNS, found["patterns"]
    assert found["types"] != 0
    assert {*found["validators"]} <= MAY_BE_BUILT
    assert found["built"] == []  # the schemas of the tools are read, and no tool was called
    assert not found["has_types_of_schemas"]


@pytest.mark.sweep
@pytest.mark.cold
def test_a_command_line_loads_no_plugins_unless_its_user_wants_them(
    home: Home, project: Path
) -> None:
    assert start(home, project)["plugins"] == "__all__"
    found = start(home, project, PYDANTIC_DISABLE_PLUGINS="other")
    assert found["plugins"] == "other"
    assert found["has_types_of_schemas"]
    assert "importlib.metadata" in found["modules"]  # they are looked for

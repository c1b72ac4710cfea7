"""Clients of front ends, which are not installed with the package.

Their tests look for the folder of an npm installation, which `FRONTENDS_TEST_NPM` names, and are
skipped without it:

    npm install --prefix /tmp/frontends ai@6 @ag-ui/client@1
"""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

_CLIENTS = Path(__file__).parent / "frontends"
_NPM = "FRONTENDS_TEST_NPM"


async def play(script: str, *arguments: str) -> dict[str, Any]:
    """What a client has seen, as it says itself."""
    node, folder = shutil.which("node"), os.environ.get(_NPM)
    if node is None or not folder or not (Path(folder) / "node_modules" / "ai").is_dir():
        pytest.skip(f"{_NPM} names no npm folder, or there is no Node: see {__name__}.py")
    program = shutil.copy(_CLIENTS / script, Path(folder) / script)  # beside what it imports
    process = await asyncio.create_subprocess_exec(
        node, program, *arguments, stdout=asyncio.subprocess.PIPE
    )
    stdout, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(stdout)

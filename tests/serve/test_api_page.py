"""The page about the API: its requests are sent as they are written."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from apis import api
from isolation import Home
from runtimes import CONFIG, runtime

PAGE = Path(__file__).parents[2] / "docs" / "console-api.md"
PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'


def _examples() -> tuple[str, list[str]]:
    """Return the block that prepares the requests, and the requests."""
    found = re.findall(r"^```sh\n(.+?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
    assert "CONSOLE_TOKEN" in found[0]
    lines = [line for block in found[1:] for line in block.replace("\\\n", "").splitlines()]
    return found[0], [line for line in lines if line.strip()]


async def _output(command: str, folder: Path, **environ: str) -> str:
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=folder,
        env={**os.environ, "CONSOLE_TOKEN": "token", **environ},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, command
    return output.decode()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_every_request_of_the_page_does_what_it_says(
    home: Home, project: Path, tmp_path: Path
) -> None:
    asking = calls("code.write_file", path="a.txt", content="b")
    made = runtime(home, project, [asking, "It is a test.", "done"], config=PARK)
    prepares, (first, *others) = _examples()
    await _output(prepares, tmp_path)
    assert (tmp_path / "auth").stat().st_mode & 0o777 == 0o600
    async with made, api(made) as client:
        question = await client.post("/api/runs", {"message": "write"})
        waiting = await client.ended(question.body["run_id"], "waiting")
        begun = json.loads(await _output(first, tmp_path, CONSOLE=client.address))
        run = await client.ended(begun["run_id"])
        for line in others:
            output = await _output(
                line,
                tmp_path,
                CONSOLE=client.address,
                RUN=run["run_id"],
                REQUEST=waiting["pending_requests"][0],
            )
            if "/events" in line:
                assert "event: run_completed" in output
            else:
                answer = json.loads(output)
                assert not isinstance(answer.get("status"), int), (line, answer)
        assert (await client.ended(question.body["run_id"]))["status"] == "completed"
    assert run["text"] == "It is a test."

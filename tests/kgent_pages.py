"""A run whose page has something of everything, for tests of how the page looks."""

import base64
import struct
import zlib
from pathlib import Path

from agent_core.providers.scripted import Calls, Says, ScriptedCall, calls
from kgent import RunOptions
from kgent.runtime.runner import run
from kgent_runs import profile, skill
from model_server import ModelServer, Reply

REPORT = """# Rain in spring

It rained on **three of five** days; see [the station](https://example.org/station).

| day | rain |
|---|---:|
| Monday | 3 mm |
| Tuesday | none |

1. Measure again in autumn.
2. Mend the gauge.

```
gauge --read --all --and-a-very-long-option-that-does-not-fit-on-a-small-screen=yes
```

![a picture](https://example.org/tracker.png) [click](javascript:alert(1)) <script>alert(2)</script>
"""


def picture(width: int = 240, height: int = 60) -> bytes:
    """A PNG with stripes."""
    row = b"\0" + b"".join(bytes((40, 90 + x % 120, 200)) for x in range(width))

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checked

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(row * height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")


def a_full_run(folder: Path) -> Path:
    """Make it; returns its run folder. One of its deliverables is missing."""
    skill(folder / "skills")
    encoded = base64.b64encode(picture()).decode()
    draw = f"echo {encoded} | base64 -d > ../deliverables/chart.png"
    script: list[Reply] = [
        calls("load_skill", skill_id="reporting"),
        Calls(
            calls=[ScriptedCall(name="write_file", arguments={"path": path, "content": content})
                   for path, content in (
                       ("deliverables/report.md", REPORT),
                       ("deliverables/days.csv", "day,rain in mm\nMonday,3\nTuesday,0\n"),
                       ("deliverables/facts.json", '{"days": 5, "rainy": ["Mon", "Wed"]}'),
                       ("deliverables/notes.txt", "<b>plain</b> text\n"),
                   )]
        ),
        calls("run_command", argv=["sh", "-c", draw]),
        calls("read_file", path="/etc/passwd"),
        calls("fly", to="the moon"),
        Says(text="The report is written.\n\n- It rained on **three** days.\n- No summary."),
    ]  # fmt: skip
    with ModelServer.in_thread(script) as server:
        path = profile(
            folder,
            profile={"id": "rain-reporter", "role": "You write reports about rain."},
            model={"provider": "openai", "name": "small", "base_url": server.base_url("openai")},
            runtime={"engine": "core"},
            skills={"paths": ["skills"]},
            tools={"shell": {"enabled": True, "allowed_commands": ["sh"]}},
            deliverables={"required": ["deliverables/report.md", "deliverables/summary.md"]},
        )
        prompt = "Write a report about the rain of this spring, with a table and a chart."
        run(path, prompt, RunOptions(sandbox=folder / "run"))
    return folder / "run"

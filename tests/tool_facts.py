"""What a tool's context gives away, kept in memory for a test to look at."""

import asyncio
from pathlib import Path


class Kept:
    """Artifacts and progress lines, kept in memory."""

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.lines: list[str] = []

    async def __call__(
        self,
        data: bytes | Path,
        *,
        filename: str,
        kind: str = "tool_output",
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> str:
        if isinstance(data, Path):
            content = await asyncio.to_thread(data.read_bytes)
            await asyncio.to_thread(data.unlink)
        else:
            content = data
        artifact_id = f"art_{len(self.artifacts)}"
        self.artifacts[artifact_id] = content
        return artifact_id

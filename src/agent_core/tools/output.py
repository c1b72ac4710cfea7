"""What a tool answers for a program: long output beside the answer, and the end of its time."""

from collections.abc import Sequence

from agent_core.errors import ErrorCode
from agent_core.process import Output
from agent_core.tools.base import ArtifactWriter
from agent_core.types import ContentBlock, ErrorPayload, ToolResult


async def keep_output(output: Output, name: str, artifact: ArtifactWriter) -> str | None:
    """Make an artifact of output that was cut; its id, or None if all of it is in the text.

    Args:
        output: what a program wrote to one stream; its spool file is read.
        name: the stream, for people.
        artifact: the writer of the call's context.
    """
    if output.spool is None:
        return None
    return await artifact(
        output.spool,
        filename=f"{name}.txt",
        mime_type="text/plain",
        summary=f"{name} of a command, {output.size_bytes} bytes",
    )


def stopped(program: str, timeout_ms: int, said: Sequence[ContentBlock]) -> ToolResult:
    """The answer for a program whose time was up, with what it had `said` until then."""
    return ToolResult(
        content=list(said),
        is_error=True,
        error=ErrorPayload(
            type="ToolError",
            code=ErrorCode.TIMEOUT,
            message=f"{program} was stopped after {timeout_ms} ms",
            details={"timed_out": True, "timeout_ms": timeout_ms},
        ),
    )

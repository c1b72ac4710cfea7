"""Where the whole of a program's output goes when only its head and tail fit the answer."""

from agent_core.process import Output
from agent_core.tools.base import ArtifactWriter


async def keep_output(output: Output, name: str, artifact: ArtifactWriter) -> str | None:
    """Make an artifact of output that was cut; its id, or None if all of it is in the text.

    Args:
        output: what a program wrote to one stream; its spool file is moved.
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

"""Pictures and documents named on the command line."""

from pathlib import Path

from agent_core.artifacts.images import UnusableImageError, encode_base64, require_whole
from agent_core.errors import validation_error
from agent_core.opening import read_text_file
from agent_core.text import visible
from agent_core.types import ImageBlock

MAX_FILE_BYTES = 64 * 2**20
"""A larger file is not even read, to be made smaller."""


def read_image(path: str) -> ImageBlock:
    """The file as a part of a message.

    Raises:
        AgentCoreError: `validation_error`: it cannot be read, or is nothing that models are shown.
    """
    try:
        content = read_text_file(Path(path), MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise UnusableImageError(f"it has more than {MAX_FILE_BYTES} bytes")
        return ImageBlock(mime_type=require_whole(content), data=encode_base64(content))
    except (OSError, UnusableImageError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        message = f"--image {visible(path)} cannot be sent: {why}"
        raise validation_error(message) from error

"""Images that a message names by artifact: the model needs their bytes."""

from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace

from agent_core.types import ContentBlock, Draft, ImageBlock

Read = Callable[[str], Awaitable[bytes]]
"""Reads an artifact by its id."""


async def resolve_image_artifacts(draft: Draft, read: Read) -> Draft:
    """The draft with the data of every image in it.

    Raises:
        StorageError: `artifact_not_found`, or the file cannot be read.
    """
    if not any(_needs_data(block) for block in draft.content):
        return draft
    return replace(draft, content=[await _filled(block, read) for block in draft.content])


async def _filled(block: ContentBlock, read: Read) -> ContentBlock:
    if not (isinstance(block, ImageBlock) and block.artifact_id and block.data is None):
        return block
    data = b64encode(await read(block.artifact_id)).decode()
    return ImageBlock(mime_type=block.mime_type, data=data)


def _needs_data(block: ContentBlock) -> bool:
    return isinstance(block, ImageBlock) and block.data is None

"""`/paste-image`: attaches the image in the clipboard of the machine that the chat runs on."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

from agent_core.artifacts.images import UnusableImageError, encode_base64, require_whole
from agent_core.cli.chat.conversation import Chat
from agent_core.cli.chat.drops import MOST_IMAGE_BYTES, shown_size
from agent_core.types import ImageBlock

_READ_S = 5.0
_CURE = "save the image as a file, and drop it here or name it with @"


async def paste_image(chat: Chat) -> None:
    """Attach the image in the clipboard, or say why that cannot be done."""
    if not chat.terminal.can_draw:
        chat.fail(f"--plain has no line to attach an image to; {_CURE}")
        return
    readers = list(_readers())
    if not readers:
        chat.fail(f"no clipboard can be read here (over ssh, yours cannot); {_CURE}")
        return
    for reader in readers:
        content = await _read(reader)
        try:
            kind = require_whole(content) if len(content) <= MOST_IMAGE_BYTES else None
        except UnusableImageError:
            continue
        if kind is not None:
            image = ImageBlock(mime_type=kind, data=encode_base64(content))
            chat.line.attach("clipboard", shown_size(len(content)), image)
            return
    chat.fail("the clipboard holds no image of up to 20 MB")


def _readers() -> Iterator[Sequence[str]]:
    """Yield the commands that may read the clipboard here."""
    commands: list[Sequence[str]] = []
    if os.environ.get("WAYLAND_DISPLAY"):
        commands.append(("wl-paste", "--type", "image/png"))
    if os.environ.get("DISPLAY"):
        commands.append(("xclip", "-selection", "clipboard", "-t", "image/png", "-o"))
    if sys.platform == "darwin":
        commands.append(("pngpaste", "-"))
    for command in commands:
        if (program := shutil.which(command[0])) is not None:
            yield (program, *command[1:])


async def _read(command: Sequence[str]) -> bytes:
    """Return what a command prints, at most a byte more than an image may have."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return b""
    content = b""
    try:
        async with asyncio.timeout(_READ_S):
            while child.stdout and len(content) <= MOST_IMAGE_BYTES:
                piece = await child.stdout.read(2**18)
                if not piece:
                    break
                content += piece
    except TimeoutError:
        return b""
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    return content

"""File names in records: JSON holds Unicode text, a file name is any bytes but NUL and slash."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


def readable_name(path: str) -> str:
    """A path as JSON can hold it: bytes that are not UTF-8 stand as backslash, x and two digits."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def name_bytes(path: str) -> str | None:
    """The path's bytes in hex where `readable_name` had to replace some; None where it did not."""
    raw = os.fsencode(path)
    return None if is_utf8(raw) else raw.hex()


class NamedRecord(BaseModel):
    """Something in a run folder, by its path there.

    `path_hex` has the bytes of a path that is not UTF-8; `path` then is its `readable_name`.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    path_hex: str | None = None

    @property
    def name(self) -> str:
        """The path as the file system takes it.

        Raises:
            ValueError: `path_hex` is not hex.
        """
        return self.path if self.path_hex is None else os.fsdecode(bytes.fromhex(self.path_hex))

    @model_serializer(mode="wrap")
    def _without_absent_bytes(self, serialize: SerializerFunctionWrapHandler) -> Mapping[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return fields if self.path_hex else {k: v for k, v in fields.items() if k != "path_hex"}


def is_utf8(raw: bytes) -> bool:
    """The bytes are UTF-8 text."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True

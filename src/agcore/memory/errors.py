"""What can go wrong with memory, by what the caller can do about it.

* MemoryError                    any of them; `MemoryError.NotFound` and so on name the kinds
  + MemoryNotFoundError          what was to be changed is not there; recoverable
  + MemoryStorageError           the store cannot be read or written
  + InvalidMemoryError           a name or a value that a store must not be given
"""

from typing import ClassVar

from agent_core.errors import ErrorCode, StorageError


class MemoryError(StorageError):  # noqa: A001 - the toolkit's own, never imported without its package
    """Memory failed."""

    NotFound: ClassVar[type["MemoryNotFoundError"]]
    Storage: ClassVar[type["MemoryStorageError"]]
    Invalid: ClassVar[type["InvalidMemoryError"]]

    default_code: ClassVar[ErrorCode] = ErrorCode.STORAGE_ERROR
    recoverable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(self.default_code, message, self.recoverable)

    def is_recoverable(self) -> bool:
        """Whether whoever assembled the agent may simply go on."""
        return self.recoverable


class MemoryNotFoundError(MemoryError):
    """There is nothing of that id."""

    default_code = ErrorCode.MEMORY_RECALL_FAILED
    recoverable = True


class MemoryStorageError(MemoryError):
    """The store cannot be read or written."""


class InvalidMemoryError(MemoryError):
    """A name or a value cannot be stored as it is."""

    default_code = ErrorCode.VALIDATION_ERROR


MemoryError.NotFound = MemoryNotFoundError
MemoryError.Storage = MemoryStorageError
MemoryError.Invalid = InvalidMemoryError

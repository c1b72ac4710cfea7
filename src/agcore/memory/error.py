"""The errors of memory stores, by kind."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

from agcore.errors import FamilyError
from agent_core.errors import AgentCoreError, ErrorCode, StorageError


class MemoryError(FamilyError, StorageError, code=ErrorCode.STORAGE_ERROR):  # noqa: A001 - the toolkit's own
    """Memory failed."""

    NotFound: ClassVar[type["MemoryNotFoundError"]]
    Storage: ClassVar[type["MemoryStorageError"]]
    Invalid: ClassVar[type["InvalidMemoryError"]]

    def __init__(self, message: str) -> None:
        super().__init__(self.default_code, message, self.recoverable)


class MemoryNotFoundError(
    MemoryError, kind="NotFound", code=ErrorCode.MEMORY_RECALL_FAILED, recoverable=True
):
    """There is nothing with that id."""


class MemoryStorageError(MemoryError, kind="Storage"):
    """The store cannot be read or written."""


class InvalidMemoryError(MemoryError, kind="Invalid", code=ErrorCode.VALIDATION_ERROR):
    """A name or a value cannot be stored as it is."""


@contextmanager
def raise_as_memory_error() -> Generator[None]:
    """Turn whatever a store of the application's own raises into a `MemoryError`.

    Raises:
        MemoryError: `Storage`; chained.
    """
    try:
        yield
    except AgentCoreError:
        raise
    except Exception as error:
        message = f"the memory store failed: {type(error).__name__}: {error}"
        raise MemoryStorageError(message) from error

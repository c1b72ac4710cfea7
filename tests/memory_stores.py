"""Kinds of memory stores, and the types of the fixtures that open them."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from agcore.memory import EvictionConfig, MemoryStore

IN_MEMORY, IN_FILE, IN_POSTGRES = "in memory", "in a file", "in Postgres"

OpenKind = Callable[[str, EvictionConfig | None], AbstractAsyncContextManager[MemoryStore]]
OpenStore = Callable[[EvictionConfig | None], AbstractAsyncContextManager[MemoryStore]]

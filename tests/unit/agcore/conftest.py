"""Memory stores of each kind, opened as programs open them."""

import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from agcore.memory import (
    EvictionConfig,
    InMemoryStore,
    MemoryStore,
    PostgresStore,
    SqliteStore,
)
from memory_stores import IN_FILE, IN_MEMORY, IN_POSTGRES, OpenKind, OpenStore
from postgres import Server


@pytest.fixture(scope="session")
def memory_database(shared_postgres: Server) -> Iterator[str]:
    """The address of a database in which each test has a table of its own."""
    name = shared_postgres.create_database()
    yield shared_postgres.url(name)
    shared_postgres.drop_database(name)


@pytest.fixture
def memory_table() -> str:
    """The name of a table that does not exist yet."""
    return f"m_{secrets.token_hex(6)}"


@pytest.fixture
def open_kind(request: pytest.FixtureRequest, tmp_path: Path, memory_table: str) -> OpenKind:
    """Opens a store of the named kind: that of a file or a table again with each call."""

    @asynccontextmanager
    async def opened(kind: str, eviction: EvictionConfig | None) -> AsyncGenerator[MemoryStore]:
        if kind == IN_MEMORY:
            yield InMemoryStore(eviction)
        elif kind == IN_FILE:
            async with await SqliteStore.open(tmp_path / "m.sqlite", eviction) as store:
                yield store
        else:
            url: str = request.getfixturevalue("memory_database")
            async with await PostgresStore.open(url, eviction, table=memory_table) as store:
                yield store

    return opened


@pytest.fixture(params=[IN_MEMORY, IN_FILE, IN_POSTGRES])
def open_store(request: pytest.FixtureRequest, open_kind: OpenKind) -> OpenStore:
    """Opens a store of each kind."""
    return partial(open_kind, request.param)


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncGenerator[MemoryStore]:
    """A store of each kind that evicts nothing."""
    async with open_store(None) as opened:
        yield opened

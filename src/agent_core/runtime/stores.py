"""Storage of a process' sessions: a file, or a Postgres database for many machines."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.config.databases import find_database_url
from agent_core.config.paths import Setup, database_key
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.runtime.start_clock import StartClock
from agent_core.storage.owners import Owner
from agent_core.storage.sql import needing_postgres
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.storage.store import SessionStore

if TYPE_CHECKING:
    from agent_core.storage.postgres.blobs import PostgresBlobs
    from agent_core.storage.postgres.notices import Notices
    from agent_core.storage.postgres.queue import RunQueue
    from agent_core.storage.postgres.workers import WorkerTable


class OpenedStore(Struct, frozen=True, kw_only=True):
    """The opened store of a process, and the process' identity in it.

    Attributes:
        store: sessions and their history.
        owner: this process, as an owner of sessions.
        key: part of the names of everything in a home that belongs to this database.
        clock: the time by which this process judges how old things are.
        notices: messages between processes, if the store can carry them.
        blobs: contents too large for rows, if the store serves many machines.
        queue: runs that wait for a process; `workers` are the processes that take them.
    """

    store: SessionStore
    owner: Owner
    key: str
    clock: StartClock
    notices: "Notices | None" = None
    blobs: "PostgresBlobs | None" = None
    queue: "RunQueue | None" = None
    workers: "WorkerTable | None" = None


@asynccontextmanager
async def open_store(setup: Setup) -> AsyncGenerator[OpenedStore]:
    """Open the database that the settings name, until the end of the block.

    Raises:
        ConfigError: the database is named by a variable that is not set, its address is invalid, or
            the packages for it are missing.
        StorageError: the database cannot be opened.
    """
    url = find_database_url(setup, os.environ)
    with Owner.open(setup.home, heeds_leases=url is not None) as owner:
        await asyncio.to_thread(UnfinishedWrites.at(setup.home).clear)
        if url is None:
            async with SqliteSessionStore.open(setup.session_db) as store:
                key = database_key(setup.session_db)
                clock = _clock_of(setup, store, key)
                yield OpenedStore(store=store.judged_by(owner), owner=owner, key=key, clock=clock)
            return
        async with _open_postgres(url, setup, owner) as opened:
            yield opened


@asynccontextmanager
async def open_read_only(setup: Setup) -> AsyncGenerator[OpenedStore]:
    """Open the database of the settings read-only, until the end of the block.

    Nothing is created in the home or in the database.

    Raises:
        ConfigError: as for `open_store`.
        StorageError: the database cannot be read, or is of another schema.
    """
    url = find_database_url(setup, os.environ)
    owner = await asyncio.to_thread(Owner.watching, setup.home)
    if url is None:
        from agent_core.storage.reading import open_unlocked  # noqa: PLC0415 - for few programs

        key = database_key(setup.session_db)
        async with open_unlocked(setup.session_db, owner) as store:
            yield OpenedStore(
                store=store.judged_by(owner), owner=owner, key=key, clock=StartClock()
            )
        return
    with needing_postgres():
        from agent_core.storage.postgres import PostgresSessionStore  # noqa: PLC0415
    async with PostgresSessionStore.open(url, tenant=setup.tenant, read_only=True) as opened:
        store = opened.judged_by(owner)
        with closing(open_blobs(url, setup.config.store.blobs)) as blobs:
            yield OpenedStore(
                store=store,
                owner=owner,
                key=database_key(await store.identity()),
                clock=StartClock(),
                blobs=blobs,
                queue=store.queue(setup.config.worker.lease_s),
                workers=store.workers(setup.tenant),
            )


@asynccontextmanager
async def _open_postgres(url: str, setup: Setup, owner: Owner) -> AsyncGenerator[OpenedStore]:
    with needing_postgres():  # only now are the packages for it loaded
        from agent_core.storage.postgres import PostgresSessionStore  # noqa: PLC0415
        from agent_core.storage.postgres.notices import Notices  # noqa: PLC0415
    async with (
        PostgresSessionStore.open(
            url, tenant=setup.tenant, lease_s=setup.config.worker.lease_s
        ) as opened,
        Notices.open(url) as notices,
    ):
        store = opened.judged_by(owner)
        key = database_key(await store.identity())
        with closing(open_blobs(url, setup.config.store.blobs)) as blobs:
            yield OpenedStore(
                store=store,
                owner=owner,
                key=key,
                clock=_clock_of(setup, store, key),
                notices=notices,
                blobs=blobs,
                queue=store.queue(setup.config.worker.lease_s),
                workers=store.workers(setup.tenant),
            )


def rows_key(setup: Setup, key: str) -> str:
    """Return a key for the rows this process sees: a tenant cannot judge what belongs to others."""
    return key if setup.tenant is None else f"{key}-{database_key(setup.tenant)}"


def _clock_of(setup: Setup, store: SessionStore, key: str) -> StartClock:
    return StartClock(store, setup.sessions_dir / f".ahead-{rows_key(setup, key)}")


def open_blobs(url: str, objects: str | None) -> "PostgresBlobs":
    """Open the blobs of a database; their contents are in it, or in an object store.

    Raises:
        ConfigError: the object store cannot be used.
    """
    from agent_core.storage.postgres.blobs import PostgresBlobs  # noqa: PLC0415

    contents = None
    if objects is not None:
        from agent_core.blobs.objects import ObjectBlobs  # noqa: PLC0415

        contents = ObjectBlobs.at(objects)
    return PostgresBlobs(url, contents)

"""A connection that breaks is made again, and what was under way is done again, in silence."""

import pytest

from agent_core.storage.postgres import PostgresSessionStore
from postgres import Server
from rows import a_batch, a_node, an_opening
from tcp_proxy import Proxy


async def test_a_write_whose_connection_breaks_is_no_warning(
    shared_postgres: Server, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = database_url.rpartition("/")[2]
    with Proxy.in_thread(shared_postgres.port) as proxy:
        url = shared_postgres.url(database, port=proxy.port)
        async with PostgresSessionStore.open(url) as store:
            await store.open_run(an_opening())
            for number in range(5):
                proxy.cut()
                opening = an_opening(f"s{number + 2}", f"run_{number + 2}")
                await store.open_run(opening)
                await store.append(a_batch(a_node(f"n{number}")))
            proxy.cut()
            assert [node.node_id for node in await store.path("n4")] == ["n4"]
    assert [record.getMessage() for record in caplog.records if record.name == "psycopg"] == []

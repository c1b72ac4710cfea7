"""The server of the tests holds what its users count on."""

import psycopg
import pytest

from postgres import Server


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_test_has_a_database_of_its_own(database_url: str, number: int) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE mine (number int)")
        connection.execute("INSERT INTO mine VALUES (%s)", (number,))
        assert connection.execute("SELECT number FROM mine").fetchall() == [(number,)]


def test_a_killed_server_comes_back_with_what_it_acknowledged(postgres_server: Server) -> None:
    with psycopg.connect(postgres_server.url()) as connection:
        connection.execute("CREATE TABLE kept (number int)")
        connection.commit()
        postgres_server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert not postgres_server.is_running()
    postgres_server.start()
    assert postgres_server.sql("SELECT count(*) FROM kept") == "0\n"
    postgres_server.restart()
    assert postgres_server.is_running()

"""Orders of the shop."""

import sqlite3


def find_orders(database: sqlite3.Connection, customer: str) -> list[tuple[int, float]]:
    rows = database.execute(f"SELECT id, total FROM orders WHERE customer = '{customer}'")
    return rows.fetchall()

"""Storage of sessions: `sqlite.SqliteSessionStore`, in a file or in memory.

`store.SessionStore` lists the operations. Nothing outside this package knows SQL.
"""

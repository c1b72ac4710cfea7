"""The words of knowledge pages: an FTS5 index in the database that holds the pages.

A page is indexed in parts: its title, its summary, its tags, each sentence. Triggers take a page
out of the index when it is deleted or its text changes. Pages that are not in
the index have an index of their own, so that a search finds and adds them first.
"""

import sqlite3
from collections.abc import Collection, Sequence

from agcore.memory.items import ItemTable
from agent_core.providers.jsontext import dump_text

KNOWLEDGE_PREFIX = "_knowledge:"
"""Prefix of the item ids of pages."""

Words = Collection[str]

_IS_PAGE = "id >= '_knowledge:' AND id < '_knowledge;'"
_PAGE, _PLACE, _MOST_WORDS, _MOST_PARTS = 2**32, 2**12, 2**12 - 1, 2**20
"""A part's row number encodes its page, its place in the page, and its number of words."""

UNINDEXED = (
    "ALTER TABLE item ADD COLUMN is_indexed INTEGER",
    f"CREATE INDEX item_unindexed ON item (id) WHERE is_indexed IS NULL AND {_IS_PAGE}",
)
"""Statements that migrate a file to the version that can have an index."""

_INDEX = (
    """CREATE TABLE page (
        page INTEGER PRIMARY KEY,
        item_id TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL
    )""",
    # Not in `page`, which every search reads: rows of many kilobytes would slow it down.
    """CREATE TABLE page_parts (
        page INTEGER PRIMARY KEY,
        parts TEXT NOT NULL  -- JSON: the number of each part, and its words
    )""",
    """CREATE VIRTUAL TABLE part USING fts5 (
        words, content = '', detail = none, columnsize = 0, tokenize = "ascii tokenchars '#'"
    )""",
    "CREATE VIRTUAL TABLE word USING fts5vocab (part, instance)",
    """CREATE TRIGGER item_deleted AFTER DELETE ON item WHEN old.is_indexed BEGIN
        DELETE FROM page WHERE item_id = old.id;
    END""",
    """CREATE TRIGGER item_changed AFTER UPDATE OF content, created_at ON item
        WHEN old.is_indexed AND (old.content, old.created_at) <> (new.content, new.created_at) BEGIN
        DELETE FROM page WHERE item_id = old.id;
        UPDATE item SET is_indexed = NULL WHERE id = old.id;
    END""",
    """CREATE TRIGGER page_deleted AFTER DELETE ON page BEGIN
        INSERT INTO part (part, rowid, words)
        SELECT 'delete', json_extract(value, '$[0]'), json_extract(value, '$[1]')
        FROM page_parts CROSS JOIN json_each(parts) WHERE page = old.page;
        DELETE FROM page_parts WHERE page = old.page;
    END""",
)
_HAS_FTS5 = "SELECT 1 FROM pragma_module_list WHERE name = 'fts5'"
_HAS_INDEX = "SELECT 1 FROM sqlite_master WHERE name = 'page_deleted'"
_LIST_UNINDEXED = f"""
SELECT id, content FROM item WHERE is_indexed IS NULL AND {_IS_PAGE} LIMIT ?
"""  # noqa: S608 - constants only
_CLAIM = "UPDATE item SET is_indexed = 1 WHERE id = ? AND content = ? AND is_indexed IS NULL"
_ADD = """
INSERT INTO page (item_id, created_at) SELECT id, created_at FROM item WHERE id = ?
"""
_BEST = f"""
WITH found AS MATERIALIZED (
    SELECT number / {_PAGE} AS page, max(score) AS best FROM (
        SELECT doc AS number, 2.0 * count(*) / (:count + doc % {_PLACE}) AS score
        FROM json_each(:words) AS wanted CROSS JOIN word ON term = wanted.value GROUP BY doc
    ) GROUP BY page HAVING best >= :least
)
SELECT id, content, metadata, created_at, best FROM (
    SELECT item_id, best FROM found JOIN page USING (page)
    WHERE created_at >= :since ORDER BY best DESC, created_at, item_id LIMIT :limit
) JOIN item ON id = item_id ORDER BY best DESC, created_at, id
"""  # noqa: S608 - constants only
_WITH_ALL = f"""
WITH found AS MATERIALIZED (
    SELECT page FROM (
        SELECT DISTINCT term, doc / {_PAGE} AS page
        FROM json_each(:words) AS wanted CROSS JOIN word ON term = wanted.value
    ) GROUP BY page HAVING count(*) = :count
)
SELECT id, content, metadata, item.created_at
FROM found JOIN page USING (page) JOIN item ON id = item_id
WHERE item.created_at >= :since ORDER BY item.created_at, id
"""  # noqa: S608 - constants only


class SqliteItems(ItemTable):
    """A memory store in an SQLite database."""

    _unindexed, _best, _with_all = _LIST_UNINDEXED, _BEST, _WITH_ALL

    def _prepare_index(self, connection: sqlite3.Connection) -> bool:
        if not connection.execute(_HAS_FTS5).fetchone():
            return False
        if not connection.execute(_HAS_INDEX).fetchone():
            for statement in _INDEX:
                connection.execute(statement)
        return True

    def _add_page(
        self, connection: sqlite3.Connection, item_id: str, content: str, parts: Sequence[Words]
    ) -> None:
        if not connection.execute(_CLAIM, [item_id, content]).rowcount:
            return
        page = connection.execute(_ADD, [item_id]).lastrowid or 0
        rows = [
            (page * _PAGE + place * _PLACE + min(len(part), _MOST_WORDS), " ".join(sorted(part)))
            for place, part in enumerate(parts[:_MOST_PARTS])
        ]
        connection.execute("INSERT INTO page_parts VALUES (?, ?)", [page, dump_text(rows)])
        connection.executemany("INSERT INTO part (rowid, words) VALUES (?, ?)", rows)

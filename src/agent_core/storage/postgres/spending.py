"""The table `spending` in PostgreSQL: see `storage.spending`."""

from agent_core.storage.spending import (
    COLUMNS,
    COUNTING,
    COUNTS,
    MOST_DOLLARS,
    MOST_TOKENS,
    TURNS,
)

_FIGURES = ", ".join((*COUNTS, "cost", "is_estimated"))
_INSERT = f"INSERT INTO spending ({', '.join(COLUMNS)})"
_RENEWED = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[2:])
_REPLACE = f"ON CONFLICT (session_id, source) DO UPDATE SET {_RENEWED}"

# A session that is being deleted is waited for, and then has no spending.
_OF_RUNS = f"""SELECT r.session_id, r.run_id, s.tenant, text_in(r.metadata_json, 'model'),
        r.created_at, {TURNS}, {", ".join(f"f.{name}" for name in COUNTS)}, f.cost, f.is_estimated
    FROM runs AS r JOIN sessions AS s USING (session_id),
        LATERAL usage_figures(r.usage_json) AS f
    WHERE {COUNTING}"""  # noqa: S608 - our own names
_OF_BACKGROUND = f"""SELECT s.session_id, b.purpose, s.tenant, NULL, NULL, 0,
        {", ".join(f"f.{name}" for name in COUNTS)}, f.cost, f.is_estimated
    FROM sessions AS s, LATERAL background_usage(s.metadata_json) AS b,
        LATERAL usage_figures(b.usage) AS f
    WHERE s.metadata_json LIKE '%"background_usage"%'"""  # noqa: S608 - our own names


def _count(name: str) -> str:
    found = f"trunc(coalesce(number_in(usage, '{name}'), 0))"
    return f"{name} := least(greatest({found}, -{MOST_TOKENS}), {MOST_TOKENS})"


SCHEMA = f"""
LOCK TABLE sessions, runs IN SHARE ROW EXCLUSIVE MODE;  -- in the order in which runs use them
CREATE TABLE spending (
    session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions ON DELETE CASCADE,
    source TEXT COLLATE "C" NOT NULL,
    tenant TEXT COLLATE "C",
    model TEXT COLLATE "C",
    begun_at TEXT COLLATE "C",
    turns BIGINT NOT NULL,
    {", ".join(f"{name} BIGINT NOT NULL" for name in COUNTS)},
    cost DOUBLE PRECISION,
    is_estimated BOOLEAN NOT NULL,
    PRIMARY KEY (session_id, source)
);
CREATE INDEX spending_by_time ON spending (begun_at);
CREATE INDEX spending_by_tenant ON spending (tenant, begun_at) WHERE tenant IS NOT NULL;

-- What cannot be read counts as nothing: it must not keep a run from being stored.
CREATE FUNCTION object_of(given TEXT) RETURNS JSONB
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CAST(json_plain(given) AS JSONB);
EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN '{{}}';
END $$;
CREATE FUNCTION number_in(given JSONB, name TEXT) RETURNS NUMERIC
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE jsonb_typeof(given -> name) WHEN 'number' THEN CAST(given ->> name AS NUMERIC) END
$$;
CREATE FUNCTION text_in(given TEXT, name TEXT) RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN object_of(given) ->> name;
END $$;
CREATE FUNCTION usage_figures(given TEXT, {", ".join(f"OUT {name} BIGINT" for name in COUNTS)},
    OUT cost DOUBLE PRECISION, OUT is_estimated BOOLEAN)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    usage JSONB := object_of(given);
BEGIN
    {"; ".join(map(_count, COUNTS))};
    IF number_in(usage, 'cost') IS NOT NULL THEN
        cost := least(greatest(number_in(usage, 'cost'), -{MOST_DOLLARS}), {MOST_DOLLARS});
    END IF;
    is_estimated := coalesce(usage -> 'is_estimated' = 'true', FALSE);
END $$;
CREATE FUNCTION background_usage(metadata TEXT) RETURNS TABLE (purpose TEXT, usage TEXT)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    found JSONB := object_of(metadata) -> 'background_usage';
BEGIN
    IF jsonb_typeof(found) = 'object' THEN
        RETURN QUERY SELECT each.key, CAST(each.value AS TEXT) FROM jsonb_each(found) AS each
            WHERE each.key <> 'compact';
    END IF;
END $$;

-- A user with rights to the tables of sessions alone stores their spending, too.
CREATE FUNCTION keep_spending_of_run() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    {_INSERT} {_OF_RUNS} AND r.run_id = NEW.run_id {_REPLACE};
    RETURN NULL;
END $$;
CREATE TRIGGER add_spending_of_run AFTER INSERT ON runs FOR EACH ROW
    WHEN ({COUNTING.replace("r.", "NEW.")}) EXECUTE FUNCTION keep_spending_of_run();
CREATE TRIGGER change_spending_of_run
    AFTER UPDATE OF turn_count, usage_json, metadata_json ON runs FOR EACH ROW
    WHEN ({COUNTING.replace("r.", "NEW.")}) EXECUTE FUNCTION keep_spending_of_run();
CREATE FUNCTION keep_spending_of_session() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    {_INSERT} {_OF_BACKGROUND} AND s.session_id = NEW.session_id {_REPLACE};
    RETURN NULL;
END $$;
CREATE TRIGGER add_spending_of_session AFTER INSERT ON sessions FOR EACH ROW
    WHEN (NEW.metadata_json LIKE '%"background_usage"%')
    EXECUTE FUNCTION keep_spending_of_session();
CREATE TRIGGER change_spending_of_session AFTER UPDATE OF metadata_json ON sessions FOR EACH ROW
    WHEN (NEW.metadata_json LIKE '%"background_usage"%'
        AND NEW.metadata_json IS DISTINCT FROM OLD.metadata_json)
    EXECUTE FUNCTION keep_spending_of_session();
"""  # noqa: S608 - our own names
"""The table and what keeps it up to date."""

FILL: tuple[tuple[str, str, str], ...] = tuple(
    (
        table,
        f"{key}_id",
        f"""{_INSERT} {rows} AND {table[0]}.{key}_id > :after AND {table[0]}.{key}_id <= :last
        FOR KEY SHARE OF s ON CONFLICT DO NOTHING""",
    )
    for table, key, rows in (("runs", "run", _OF_RUNS), ("sessions", "session", _OF_BACKGROUND))
)
"""Table, id, and the statement that adds the spending of its rows between two ids."""

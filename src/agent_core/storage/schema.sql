-- version 20; make reference writes this file

CREATE TABLE schema_migrations (
    version INTEGER PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL
)

CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY NOT NULL,
        cwd TEXT NOT NULL,
        root_agent_id TEXT,
        active_node_id TEXT,
        parent_session_id TEXT,
        status TEXT NOT NULL,
        owner TEXT,
        lease_expires_at TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    , epoch INTEGER NOT NULL DEFAULT 0, title TEXT, tenant TEXT, place TEXT, use_number INTEGER NOT NULL DEFAULT 0)

CREATE TABLE agents (
        agent_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        parent_agent_id TEXT,
        agent_type TEXT NOT NULL,
        agent_definition_id TEXT,
        created_by_run_id TEXT,
        fork_from_node_id TEXT,
        status TEXT NOT NULL,
        result_json TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    )

CREATE TABLE runs (
        run_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        agent_id TEXT NOT NULL,
        parent_run_id TEXT,
        mode TEXT NOT NULL,
        status TEXT NOT NULL,
        start_node_id TEXT,
        end_node_id TEXT,
        end_reason TEXT,
        turn_count INTEGER NOT NULL,
        usage_json TEXT NOT NULL,
        error_json TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    , prompt_json TEXT, cancel_requested_at TEXT, options_json TEXT, lane TEXT, takeovers INTEGER NOT NULL DEFAULT 0)

CREATE TABLE nodes (
        node_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        node_seq INTEGER NOT NULL,
        parent_id TEXT,
        agent_id TEXT NOT NULL,
        run_id TEXT,
        role TEXT NOT NULL,
        node_type TEXT NOT NULL,
        content_json TEXT NOT NULL,
        metadata_json TEXT NOT NULL,
        token_count INTEGER NOT NULL,
        created_at TEXT NOT NULL
    )

CREATE TABLE artifacts (
        artifact_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        agent_id TEXT,
        run_id TEXT,
        node_id TEXT,
        tool_call_id TEXT,
        kind TEXT NOT NULL,
        path TEXT NOT NULL,
        filename TEXT NOT NULL,
        mime_type TEXT,
        size_bytes INTEGER NOT NULL,
        summary TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL
    )

CREATE TABLE budgets (
        scope_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        kind TEXT NOT NULL,
        limits_json TEXT NOT NULL,
        spent_json TEXT NOT NULL,
        held_json TEXT NOT NULL
    )

CREATE TABLE budget_agents (
        scope_id TEXT NOT NULL REFERENCES budgets ON DELETE CASCADE,
        agent_id TEXT NOT NULL,
        spent_json TEXT NOT NULL,
        PRIMARY KEY (scope_id, agent_id)
    )

CREATE TABLE budget_holds (
        hold_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        scopes_json TEXT NOT NULL,
        amounts_json TEXT NOT NULL
    )

CREATE TABLE node_snapshots (
        node_id TEXT NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT,
        folder TEXT NOT NULL,
        snapshot_id TEXT NOT NULL,
        previous_id TEXT NOT NULL,
        is_begin INTEGER NOT NULL
    )

CREATE TABLE workspaces (
        session_id TEXT PRIMARY KEY NOT NULL REFERENCES sessions ON DELETE CASCADE,
        folder TEXT NOT NULL,
        snapshot_id TEXT,
        open_run_id TEXT,
        undone_json TEXT NOT NULL,
        pending_json TEXT
    )

CREATE TABLE approvals (
        request_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        root_run_id TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        agent_path_json TEXT NOT NULL,
        tool_call_id TEXT NOT NULL,
        tool_name TEXT NOT NULL,
        access_hash TEXT NOT NULL,
        keeps_run INTEGER NOT NULL,
        request_json TEXT NOT NULL,
        state TEXT NOT NULL,
        decision TEXT,
        reason TEXT,
        decided_by TEXT,
        decider TEXT,
        asked_at TEXT NOT NULL,
        decided_at TEXT
    , arguments_json TEXT, changed_arguments_json TEXT)

CREATE TABLE grants (
        grant_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        tool_name TEXT NOT NULL,
        covers TEXT NOT NULL,
        key TEXT NOT NULL,
        created_at TEXT NOT NULL,
        UNIQUE (session_id, key)
    )

CREATE TABLE memory_backlog (
        session_id TEXT PRIMARY KEY NOT NULL REFERENCES sessions ON DELETE CASCADE
    )

CREATE TABLE spending (
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    source TEXT NOT NULL,
    tenant TEXT,
    model TEXT,
    begun_at INTEGER,
    turns INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL, total_tokens INTEGER NOT NULL, cache_read_tokens INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL, cache_write_1h_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
    cost DOUBLE PRECISION,
    is_estimated INTEGER NOT NULL,
    PRIMARY KEY (session_id, source)
)

CREATE TABLE waiting_messages (
        message_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        prompt_json TEXT NOT NULL,
        is_taken INTEGER NOT NULL,
        created_at TEXT NOT NULL
    )

CREATE TABLE repeats (
        request_key TEXT PRIMARY KEY NOT NULL,
        tenant TEXT,
        digest TEXT NOT NULL,
        holder TEXT NOT NULL,
        answer TEXT,
        about_session TEXT REFERENCES sessions ON DELETE CASCADE,
        expires_at TEXT NOT NULL
    )

CREATE TABLE "events" (
        event_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        run_seq INTEGER,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        agent_id TEXT,
        run_id TEXT,
        level TEXT NOT NULL,
        event_type TEXT NOT NULL,
        node_id TEXT,
        tool_call_id TEXT,
        payload_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        PRIMARY KEY (session_id, seq)
    )

CREATE INDEX sessions_by_owner ON sessions (owner) WHERE owner IS NOT NULL

CREATE INDEX runs_by_session ON runs (session_id)

CREATE UNIQUE INDEX nodes_by_session ON nodes (session_id, node_seq)

CREATE INDEX artifacts_by_session ON artifacts (session_id)

CREATE INDEX artifacts_by_run ON artifacts (run_id)

CREATE INDEX budgets_by_session ON budgets (session_id)

CREATE INDEX budget_holds_by_session ON budget_holds (session_id)

CREATE INDEX budget_holds_by_run ON budget_holds (run_id)

CREATE INDEX node_snapshots_by_node ON node_snapshots (node_id)

CREATE INDEX node_snapshots_by_session ON node_snapshots (session_id)

CREATE INDEX node_snapshots_by_run ON node_snapshots (run_id)

CREATE INDEX workspaces_pending ON workspaces (folder) WHERE pending_json IS NOT NULL

CREATE INDEX approvals_by_session ON approvals (session_id, request_id)

CREATE INDEX approvals_by_call ON approvals (root_run_id, run_id, tool_call_id)

CREATE INDEX sessions_untitled ON sessions (session_id) WHERE title IS NULL

CREATE INDEX sessions_in_order ON sessions (use_number)

CREATE INDEX sessions_by_project ON sessions (cwd, use_number)

CREATE INDEX sessions_by_origin ON sessions (parent_session_id, use_number)
        WHERE parent_session_id IS NOT NULL

CREATE INDEX artifacts_by_kind ON artifacts (kind, created_at)

CREATE INDEX node_snapshots_by_folder ON node_snapshots (folder)

CREATE INDEX approvals_open ON approvals (state) WHERE state = 'open'

CREATE INDEX spending_by_time ON spending (begun_at)

CREATE INDEX waiting_messages_by_session ON waiting_messages (session_id)

CREATE INDEX waiting_messages_by_run ON waiting_messages (run_id)

CREATE INDEX repeats_by_end ON repeats (expires_at)

CREATE INDEX repeats_by_session ON repeats (about_session) WHERE about_session IS NOT NULL

CREATE UNIQUE INDEX events_by_run ON events (run_id, run_seq)

CREATE INDEX runs_open ON runs (session_id, status, lane)
        WHERE status IN ('queued', 'pending', 'running', 'waiting')

CREATE UNIQUE INDEX agents_by_session ON agents
        (session_id, agent_type, CASE WHEN parent_agent_id IS NULL THEN '' ELSE agent_id END)

CREATE TRIGGER number_session AFTER INSERT ON sessions BEGIN
        UPDATE sessions SET use_number = (SELECT max(use_number) + 1 FROM sessions)
            WHERE session_id = new.session_id;
    END

CREATE TRIGGER add_spending_of_run AFTER INSERT ON runs
        WHEN (new.parent_run_id IS NOT NULL OR new.turn_count > 0) BEGIN
        REPLACE INTO spending (session_id, source, tenant, model, begun_at, turns, input_tokens, output_tokens, total_tokens, cache_read_tokens, cache_write_tokens, cache_write_1h_tokens, reasoning_tokens, cost, is_estimated)
    SELECT r.session_id, r.run_id, s.tenant, json_extract(CASE WHEN json_valid(r.metadata_json) THEN r.metadata_json ELSE '{}' END, '$.model'),
        CAST(strftime('%s', r.created_at) AS INTEGER) * 1000000
        + CAST(substr(r.created_at, 21, 6) AS INTEGER), CASE WHEN r.parent_run_id IS NULL THEN r.turn_count ELSE 0 END, max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.input_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.output_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.total_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_read_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_1h_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.reasoning_tokens') AS INTEGER), 0))),
    max(-1000000000000.0, min(1000000000000.0, CAST(json_extract(usage, '$.cost') AS REAL))),
    coalesce(CAST(json_extract(usage, '$.is_estimated') AS INTEGER), 0) > 0
    FROM (SELECT *, CASE WHEN json_valid(usage_json) THEN usage_json ELSE '{}' END AS usage FROM runs) AS r
        JOIN sessions s USING (session_id)
    WHERE (r.parent_run_id IS NOT NULL OR r.turn_count > 0) AND r.run_id = new.run_id;
    END

CREATE TRIGGER change_spending_of_run
        AFTER UPDATE OF turn_count, usage_json, metadata_json ON runs
        WHEN (new.parent_run_id IS NOT NULL OR new.turn_count > 0) BEGIN
        REPLACE INTO spending (session_id, source, tenant, model, begun_at, turns, input_tokens, output_tokens, total_tokens, cache_read_tokens, cache_write_tokens, cache_write_1h_tokens, reasoning_tokens, cost, is_estimated)
    SELECT r.session_id, r.run_id, s.tenant, json_extract(CASE WHEN json_valid(r.metadata_json) THEN r.metadata_json ELSE '{}' END, '$.model'),
        CAST(strftime('%s', r.created_at) AS INTEGER) * 1000000
        + CAST(substr(r.created_at, 21, 6) AS INTEGER), CASE WHEN r.parent_run_id IS NULL THEN r.turn_count ELSE 0 END, max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.input_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.output_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.total_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_read_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_1h_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.reasoning_tokens') AS INTEGER), 0))),
    max(-1000000000000.0, min(1000000000000.0, CAST(json_extract(usage, '$.cost') AS REAL))),
    coalesce(CAST(json_extract(usage, '$.is_estimated') AS INTEGER), 0) > 0
    FROM (SELECT *, CASE WHEN json_valid(usage_json) THEN usage_json ELSE '{}' END AS usage FROM runs) AS r
        JOIN sessions s USING (session_id)
    WHERE (r.parent_run_id IS NOT NULL OR r.turn_count > 0) AND r.run_id = new.run_id;
    END

CREATE TRIGGER add_spending_of_session AFTER INSERT ON sessions
        WHEN new.metadata_json LIKE '%"background_usage"%' BEGIN
        REPLACE INTO spending (session_id, source, tenant, model, begun_at, turns, input_tokens, output_tokens, total_tokens, cache_read_tokens, cache_write_tokens, cache_write_1h_tokens, reasoning_tokens, cost, is_estimated)
    SELECT session_id, purpose, tenant, NULL, NULL, 0, max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.input_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.output_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.total_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_read_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_1h_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.reasoning_tokens') AS INTEGER), 0))),
    max(-1000000000000.0, min(1000000000000.0, CAST(json_extract(usage, '$.cost') AS REAL))),
    coalesce(CAST(json_extract(usage, '$.is_estimated') AS INTEGER), 0) > 0
    FROM (SELECT s.*, each.key AS purpose,
            CASE WHEN each.type = 'object' THEN each.value ELSE '{}' END AS usage
        FROM sessions s, json_each(CASE WHEN json_valid(s.metadata_json) THEN s.metadata_json ELSE '{}' END, '$.background_usage') AS each
        WHERE each.key <> 'compact')
    WHERE session_id = new.session_id;
    END

CREATE TRIGGER change_spending_of_session AFTER UPDATE OF metadata_json ON sessions
        WHEN new.metadata_json IS NOT old.metadata_json
            AND (new.metadata_json LIKE '%"background_usage"%' OR old.metadata_json LIKE '%"background_usage"%') BEGIN
        DELETE FROM spending WHERE session_id = new.session_id AND begun_at IS NULL;
        REPLACE INTO spending (session_id, source, tenant, model, begun_at, turns, input_tokens, output_tokens, total_tokens, cache_read_tokens, cache_write_tokens, cache_write_1h_tokens, reasoning_tokens, cost, is_estimated)
    SELECT session_id, purpose, tenant, NULL, NULL, 0, max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.input_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.output_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.total_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_read_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.cache_write_1h_tokens') AS INTEGER), 0))), max(-1000000000000, min(1000000000000, coalesce(CAST(json_extract(usage, '$.reasoning_tokens') AS INTEGER), 0))),
    max(-1000000000000.0, min(1000000000000.0, CAST(json_extract(usage, '$.cost') AS REAL))),
    coalesce(CAST(json_extract(usage, '$.is_estimated') AS INTEGER), 0) > 0
    FROM (SELECT s.*, each.key AS purpose,
            CASE WHEN each.type = 'object' THEN each.value ELSE '{}' END AS usage
        FROM sessions s, json_each(CASE WHEN json_valid(s.metadata_json) THEN s.metadata_json ELSE '{}' END, '$.background_usage') AS each
        WHERE each.key <> 'compact')
    WHERE session_id = new.session_id;
    END

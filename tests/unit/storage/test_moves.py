"""What a database keeps of a move whose files were being restored."""

from pathlib import Path

import pytest

from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import FilesMove, NodeMove
from judging import judged, owners_are_dead
from rows import an_opening


@pytest.mark.parametrize("is_made", [False, True])
async def test_what_files_were_before_a_move_is_kept(tmp_path: Path, *, is_made: bool) -> None:
    """They may be half restored, and hold the only copy of what others had changed."""
    files = FilesMove(target="snap_target", before="snap_before", git="snap_target")
    move = NodeMove(node_id=None, folder=str(tmp_path), files=files)
    async with SqliteSessionStore.open(tmp_path / "sessions.sqlite") as store:
        await judged(store, owners_are_dead).open_run(an_opening("s1", "run_1"))
        await judged(store, owners_are_dead).begin_move("s1", move)
        assert {"snap_target", "snap_before"} <= await store.snapshots_in_use()
        if is_made:
            await judged(store, owners_are_dead).move_node("s1", move)
        else:
            await store.drop_move("s1")
        assert await store.snapshots_in_use() == {"snap_before"}
        await judged(store, owners_are_dead).delete_session("s1")
        assert not await store.snapshots_in_use()

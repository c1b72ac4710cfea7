"""What a crash can do to the end of a log, at every byte; and what nobody may do to the rest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import SchemaError
from agent_core.tasks.lines import is_stillborn, read_log
from task_boards import created, desk_in, step

LogOf = Callable[[], bytes]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real log of nine lines."""
    import asyncio  # noqa: PLC0415

    async def made(project: Path) -> bytes:
        async with desk_in(project) as desk:
            await created(desk, step("s1"), step("s2", "s1"))
            worker = desk.worker("run_a")
            await worker.call("claim_step", task_id="t1", step_id="s1")
            done = {"status": "completed", "result_summary": 'Ünïcode\0 {} "}'}
            await worker.call("update_step", task_id="t1", step_id="s1", **done)
            add = {"op": "add_step", "step": step("s3", "s2")}
            await desk.orchestrator().call("update", task_id="t1", operations=[add])
            return (desk.folder / "work.wal.jsonl").read_bytes()

    return asyncio.run(made(tmp_path_factory.mktemp("project")))


def ends_of_lines(log: bytes) -> list[int]:
    return [at + 1 for at, byte in enumerate(log) if byte == ord("\n")]


def good_before(log: bytes, cut: int) -> int:
    return max([end for end in ends_of_lines(log) if end <= cut], default=0)


def test_r2_a_log_torn_at_any_byte_loads_its_whole_lines(log: bytes) -> None:
    for cut in range(len(log) + 1):
        replayed = read_log(log[:cut])
        assert replayed.end == good_before(log, cut)
        assert replayed.lines == log[: replayed.end].count(b"\n")


def test_r2_a_log_filled_with_zeros_from_any_byte_loads_its_whole_lines(log: bytes) -> None:
    for cut in range(len(log) + 1):
        for tail in (b"\0" * (len(log) - cut + 512), b"\0" * 17 + b"\n"):
            assert read_log(log[:cut] + tail).end == good_before(log, cut)


def test_r2_a_log_whose_end_is_there_twice_loads_once(log: bytes) -> None:
    whole = read_log(log)
    for length in range(1, len(log) + 1):
        for torn in {log[-length:], log[-length:][: length // 2]}:
            replayed = read_log(log + torn)
            assert (replayed.end, replayed.lines) == (len(log), whole.lines)


def test_r2_zeros_in_the_middle_are_damage_and_are_named(log: bytes) -> None:
    second, third = ends_of_lines(log)[1:3]
    with pytest.raises(SchemaError) as found:
        read_log(log[:second] + b"\0" * (third - second) + log[third:])
    assert found.value.details["line"] == 3


@pytest.mark.parametrize("number", range(1, 6))
def test_r2_any_broken_byte_before_the_last_line_is_found(log: bytes, number: int) -> None:
    ends = [0, *ends_of_lines(log)]
    start = ends[number - 1]
    broken = log[:start] + b"!" + log[start + 1 :]
    with pytest.raises(SchemaError, match=f"line {number}: not JSON") as found:
        read_log(broken)
    assert found.value.details["line"] == number


def changed(log: bytes, number: int, **fields: Any) -> bytes:
    """The log with other values in one line; None takes a field away."""
    lines = log.splitlines(keepends=True)
    record = json.loads(lines[number - 1]) | fields
    record = {key: value for key, value in record.items() if value is not None}
    lines[number - 1] = json.dumps(record).encode() + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (2, {"wal_seq": 7}),
        (4, {"event_type": "run_failed"}),
        (4, {"event_type": "no_such_event"}),
        (3, {"payload": {}}),
        (5, {"payload": {"previous_status": "claimed", "surprise": 1}}),
        (5, {"step_id": "s9"}),
        (5, {"step_id": None}),
        (3, {"step_id": "s1"}),
        (4, {"comment": "mine"}),
        (4, {"actor_run_id": None}),
        (1, {"event_type": "task_running", "payload": {"previous_status": "pending"}}),
        (8, {"wal_seq": 9}),
    ],
)
def test_r2_well_formed_nonsense_is_damage_even_at_the_end(
    log: bytes, number: int, fields: dict[str, Any]
) -> None:
    with pytest.raises(SchemaError) as found:
        read_log(changed(log, min(number, log.count(b"\n")), **fields))
    assert found.value.details["line"] == min(number, log.count(b"\n"))


def test_lines_are_plain_json_that_may_be_edited(log: bytes) -> None:
    before = read_log(log).dag
    after = read_log(
        changed(
            log, 4, event_id="evt_mine", actor_run_id="run_me", created_at="2020-01-01T00:00:00Z"
        )
    ).dag
    assert before is not None
    assert after is not None
    assert [s.model_dump(exclude={"updated_at"}) for s in after.steps()] == [
        s.model_dump(exclude={"updated_at"}) for s in before.steps()
    ]


def test_two_creations_are_damage(log: bytes) -> None:
    first = json.loads(log.splitlines()[0]) | {"wal_seq": log.count(b"\n") + 1}
    with pytest.raises(SchemaError, match="created once"):
        read_log(log + json.dumps(first).encode() + b"\n")


def test_only_a_first_line_that_never_was_is_stillborn(log: bytes) -> None:
    first = ends_of_lines(log)[0]
    assert all(is_stillborn(log[:cut]) for cut in range(first - 1))
    assert is_stillborn(b"\0" * 4096)
    assert not is_stillborn(log[: first - 1])
    assert not is_stillborn(log[:first])
    assert not is_stillborn(b"notes of mine")

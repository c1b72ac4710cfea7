"""What a crash can do to the end of a log, at every byte; and what no edit may do to the rest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agent_core.errors import SchemaError
from agent_core.tasks.log_format import ReplayedLog, read_log, was_never_created
from sweeps import examples, sampled
from tables import together
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


def places(log: bytes) -> list[int]:
    """Places to damage: the ends of lines, what is beside them, and a sample of all others."""
    near = {at + by for at in (0, *ends_of_lines(log)) for by in (-2, -1, 0, 1, 2)}
    found = near.union(sampled(range(len(log) + 1), keep=len(log) // 7))
    return sorted(at for at in found if 0 <= at <= len(log))


def whole_lines(log: bytes, cut: int) -> int:
    """How many lines are complete JSON up to here, with or without their newline."""
    return sum(end - 1 <= cut for end in ends_of_lines(log))


@pytest.mark.long
def test_r2_a_log_torn_at_any_byte_loads_its_whole_lines(log: bytes) -> None:
    for cut in places(log):
        replayed = read_log(log[:cut])
        assert replayed.lines == whole_lines(log, cut)
        assert replayed.is_terminated is (cut + 1 not in ends_of_lines(log))
        assert read_log(log[: replayed.end]).lines == replayed.lines


@pytest.mark.long
def test_r2_a_log_filled_with_zeros_from_any_byte_loads_its_whole_lines(log: bytes) -> None:
    for cut in places(log):
        for tail in (b"\0" * (len(log) - cut + 512), b"\0" * 17 + b"\n", b"\0\0\n\0\0\n"):
            assert read_log(log[:cut] + tail).lines == whole_lines(log, cut)


def skeleton(replayed: ReplayedLog) -> Any:
    """Everything but words and ids, in which a wrong letter cannot be noticed."""
    dag = replayed.dag
    assert dag is not None
    steps = [(step.status, len(step.depends_on_step_ids), step.required) for step in dag.steps()]
    return replayed.lines, dag.task.status, steps, [each.step_id for each in dag.claims.values()]


def is_noticed(whole: ReplayedLog, damaged: bytes, number: int) -> bool:
    """The damage is refused and named, or the Task is as it was; True if it is refused."""
    found = outcome(damaged)
    if isinstance(found, ReplayedLog):
        assert skeleton(found) == skeleton(whole)
        return False
    assert number <= found <= whole.lines + 2
    return True


def outcome(log: bytes) -> ReplayedLog | int:
    """What the log holds, or the line that is named as damaged."""
    try:
        return read_log(log)
    except SchemaError as error:
        return error.details["line"]


def line_at(log: bytes, place: int) -> int:
    return log.count(b"\n", 0, place) + 1


@pytest.mark.long
@together("mask", [0x01, 0x04, 0x20, 0x80])
def test_a_flipped_bit_anywhere_never_makes_a_task_shorter(log: bytes, mask: int) -> None:
    whole = read_log(log)
    last = log[:-1].rfind(b"\n") + 1
    refused = 0
    for place in places(log)[:-1]:
        damaged = log[:place] + bytes([log[place] ^ mask]) + log[place + 1 :]
        refused += is_noticed(whole, damaged, line_at(log, place)) and place >= last
    assert refused > 20, "the last line is no exception"


@pytest.mark.long
@pytest.mark.parametrize("byte", [b"\0", b"\n", b'"', b"1"])
def test_a_byte_too_much_or_too_little_never_makes_a_task_shorter(log: bytes, byte: bytes) -> None:
    whole = read_log(log)
    for place in places(log):
        is_noticed(whole, log[:place] + byte + log[place:], line_at(log, place))
        if place < len(log) and byte == b"\0":
            is_noticed(whole, log[:place] + byte + log[place + 1 :], line_at(log, place))
        if place < len(log) and byte == b"1":
            is_noticed(whole, log[:place] + log[place + 1 :], line_at(log, place))


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_a_run_of_wrong_bytes_in_whole_lines_never_makes_a_task_shorter(
    log: bytes, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(log) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=6).filter(lambda b: b"\0\0" not in b))
    damaged = log[:first] + junk + log[first + len(junk) :]
    if damaged.endswith(b"\n"):
        is_noticed(read_log(log), damaged, line_at(log, first))


@pytest.mark.long
def test_a_wrong_byte_in_a_last_line_without_its_newline_is_found_too(log: bytes) -> None:
    whole = read_log(log)
    last = log[:-1].rfind(b"\n") + 1
    for place in range(last, len(log) - 2):
        for byte in (log[place] ^ 1, ord(","), ord('"'), ord("x")):
            found = outcome(log[:place] + bytes([byte]) + log[place + 1 : -1])
            assert (found.lines if isinstance(found, ReplayedLog) else found) == whole.lines


def test_a_key_that_stands_in_a_line_twice_is_damage(log: bytes) -> None:
    lines = log.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        twice = line.replace(b'"payload":{', b'"payload":{},"payload":{', 1)
        with pytest.raises(
            SchemaError, match=f'line {number}: not JSON: "payload" is given twice in one object'
        ):
            read_log(b"".join([*lines[: number - 1], twice, *lines[number:]]))


@together("end", [b"", b"\r\n", b"\n\n\n", b"  \n", b" ", b"\n \n\t\r\n"])
def test_what_an_editor_does_to_the_end_of_a_log_changes_nothing(log: bytes, end: bytes) -> None:
    assert skeleton(read_log(log[:-1] + end)) == skeleton(read_log(log))


def test_a_log_with_windows_line_ends_and_a_mark_at_its_start_is_the_same(log: bytes) -> None:
    windows = b"\xef\xbb\xbf" + log.replace(b"\n", b"\r\n")
    replayed = read_log(windows)
    assert skeleton(replayed) == skeleton(read_log(log))
    assert replayed.end == len(windows)


def test_an_empty_line_between_others_is_damage(log: bytes) -> None:
    first = ends_of_lines(log)[0]
    with pytest.raises(SchemaError, match="line 2"):
        read_log(log[:first] + b"\n" + log[first:])


@pytest.mark.long
def test_r2_a_log_whose_end_is_there_twice_loads_once(log: bytes) -> None:
    whole = read_log(log)
    for length in places(log)[1:]:
        for torn in {log[-length:], log[-length:][: length // 2]}:
            replayed = read_log(log + torn)
            assert (replayed.end, replayed.lines) == (len(log), whole.lines)


def test_r2_zeros_in_the_middle_are_damage_and_are_named(log: bytes) -> None:
    second, third = ends_of_lines(log)[1:3]
    with pytest.raises(SchemaError) as found:
        read_log(log[:second] + b"\0" * (third - second) + log[third:])
    assert found.value.details["line"] == 3


@together("number", range(1, 6))
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


CLAIM = {
    "previous_status": "ready",
    "claimed_by_agent_id": "agent_a",
    "claimed_by_run_id": "run_a",
    "lease_expires_at": "2026-03-01T12:05:00Z",
    "fencing_token": 1,
}


def test_a_claim_of_the_first_release_has_no_fencing_token_and_counts(log: bytes) -> None:
    old = {key: value for key, value in CLAIM.items() if key != "fencing_token"}
    assert skeleton(read_log(changed(log, 4, payload=old))) == skeleton(read_log(log))


@together(
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
        (4, {"session_id": "sess_2"}),
        (4, {"task_id": "t2"}),
        (1, {"task_id": "t2"}),
        (2, {"step_id": "s2"}),
        (4, {"payload": {**CLAIM, "previous_status": "pending"}}),
        (4, {"payload": {**CLAIM, "fencing_token": 0}}),
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


def test_only_a_first_line_that_never_was_was_never_created(log: bytes) -> None:
    first = ends_of_lines(log)[0]
    assert all(was_never_created(log[:cut]) for cut in range(first - 1))
    assert was_never_created(b"\0" * 4096)
    assert not was_never_created(log[: first - 1])
    assert not any(
        was_never_created(log[:place] + b"~" + log[place + 1 : first - 1])
        for place in range(first - 2)
    ), "a whole line with a wrong byte is not thrown away"
    assert not was_never_created(log[:first])
    assert not was_never_created(b"notes of mine")

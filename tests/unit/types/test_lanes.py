import pytest

from agent_core.types.lanes import Lane, lane_of_process, own_place
from tables import together


@together(
    ("lane", "text"),
    [
        (Lane(queue="default", place="snapshot"), "default/snapshot//1"),
        (Lane(queue="q_1-", place="host:a.b-c", tenant="t.1"), "q_1-/host:a.b-c/t.1/1"),
        (Lane(queue="q", place="snapshot", tenant="t", protocol=27), "q/snapshot/t/27"),
        (
            Lane(queue="q" * 24, place="host:" + "h" * 40, tenant="t" * 40),
            f"{'q' * 24}/host:{'h' * 40}/{'t' * 40}/1",
        ),
    ],
    ids=["least", "host", "protocol", "longest"],
)
def test_a_lane_is_a_text_that_reads_back(lane: Lane, text: str) -> None:
    assert str(lane) == text
    assert Lane.parse(text) == lane
    assert len(text) <= 128


@together(
    "text",
    [
        lane_of_process("run_1"),
        "",
        "default",
        "default/snapshot/1",
        "default/elsewhere//1",
        "default/snapshot//",
        "default/snapshot//1/2",
        "default/snapshot//1\n",
        "de fault/snapshot//1",
    ],
)
def test_what_is_no_lane_of_workers_is_none(text: str) -> None:
    assert Lane.parse(text) is None


@together(
    ("node", "place"),
    [
        ("build-7.example.org", "host:build-7.example.org"),
        ("Jörgs Rechner/2", "host:J-rgs-Rechner-2"),
        ("h" * 60, "host:" + "h" * 40),
        ("", "host:localhost"),
    ],
    ids=["plain", "odd", "long", "none"],
)
def test_a_machine_without_an_id_is_named_as_its_host(
    node: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: node)
    assert own_place() == place
    assert own_place("a.b") == "host:a.b"
    lane = Lane(queue="q", place=own_place())
    assert Lane.parse(str(lane)) == lane

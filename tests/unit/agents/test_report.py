"""Reports: an answer split into fields without losing any of it, and never an exception."""

import json
from pathlib import Path
from random import Random
from typing import Any

from agent_core.agents.report import ChildReport, build_report
from agent_core.storage.sqlite import SqliteSessionStore
from tables import together


async def as_report(folder: Path, text: str, **more: Any) -> ChildReport:
    async with SqliteSessionStore.open(folder / "s.sqlite") as store:
        return await build_report(
            store, "s1", [], answer=text, status="completed", metadata={}, **more
        )


@together(
    "text",
    ["plain words", "", "[1, 2]", '{"summary": ""}', '{"n": 1.50}', '{"a": 1, "a": 2}', "{" * 2000],
)
async def test_an_answer_without_a_summary_is_the_summary(tmp_path: Path, text: str) -> None:
    assert await as_report(tmp_path, text) == {
        "status": "completed",
        "summary": text,
        "findings": [],
        "artifacts": [],
        "proposed_actions": [],
        "metadata": {},
    }


async def test_fields_that_are_no_lists_become_lists_of_one(tmp_path: Path) -> None:
    found = await as_report(tmp_path, '{"summary": "s", "findings": {"a": 1}}')
    assert (found["summary"], found["findings"]) == ("s", [{"a": 1}])


async def test_values_that_no_field_takes_stay_in_the_summary(tmp_path: Path) -> None:
    text = '{"summary": "s", "status": "stuck", "artifacts": [1, "art_1"], "bugs": ["b"]}'
    found = await as_report(tmp_path, text)
    assert found["artifacts"] == []
    assert found["summary"].startswith("s\n\n{")
    for kept in ("stuck", "art_1", '"b"'):
        assert kept in found["summary"]


async def test_a_step_is_named_only_if_one_was_claimed(tmp_path: Path) -> None:
    assert "step_id" not in await as_report(tmp_path, "x")
    assert (await as_report(tmp_path, "x", step_id="s1")).get("step_id") == "s1"


async def test_the_value_of_an_expected_shape_is_kept(tmp_path: Path) -> None:
    found = await as_report(tmp_path, '{"n": 1}', output={"n": 1})
    assert found["metadata"] == {"output": {"n": 1}}
    assert (await as_report(tmp_path, '{"n": 1}'))["metadata"] == {}


async def test_artifacts_that_are_no_ids_stay_in_the_summary(tmp_path: Path) -> None:
    found = await as_report(tmp_path, '{"summary": "s", "artifacts": [{"path": "x.txt"}, ["y"]]}')
    assert found["artifacts"] == []
    assert "x.txt" in found["summary"]
    assert '"y"' in found["summary"]


ODD: list[Any] = [
    *(None, True, 0, -1.5, 10**400, "", "art_1", "\0", "\ud800", "art_\udfff\0", "x" * 5000),
    *([], {}, [[]], {"": None}, {"path": "x"}, [{"a": [1, {}]}], {"\ud800": "\0"}),
]
FIELDS = ("status", "summary", "findings", "artifacts", "proposed_actions", "step_id", "metadata")


async def test_no_answer_keeps_a_report_from_being_built(tmp_path: Path) -> None:
    chance = Random(39)  # noqa: S311
    answers: list[dict[str, Any]] = [
        {name: value} for name in (*FIELDS, "\0\ud800") for value in ODD
    ]
    for _ in range(200):
        names = chance.sample(FIELDS, chance.randint(1, len(FIELDS)))
        answers.append({name: chance.sample(ODD, chance.randint(0, 4)) for name in names})
    texts = [json.dumps(answer) for answer in answers]
    deep = "[" * 5000 + "]" * 5000
    texts += [
        '{"artifacts": NaN}',
        f'{{"artifacts": {deep}}}',
        '{"artifacts": ["a"',
        "\0",
        "\ud800",
    ]
    async with SqliteSessionStore.open(tmp_path / "s.sqlite") as store:
        for text in texts:
            report = await build_report(
                store, "s1", [], answer=text, status="completed", metadata={}
            )
            assert isinstance(report["summary"], str)
            assert report["artifacts"] == []

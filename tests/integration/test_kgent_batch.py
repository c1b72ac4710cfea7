"""Many runs side by side: planned together, resumed, indexed, and stopped together."""

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kgent import RunOptions
from kgent.cli import main
from kgent.errors import KgentError
from kgent.review.verification import verify
from kgent.runtime.batch import plan_batch, read_matrix, run_batch
from kgent.runtime.cancellation import Cancellation
from kgent_runs import profile, state

STEPS = '[{"tool": "write_file", "args": {"path": "deliverables/a.md", "content": "x"}}, "Done."]'


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    (tmp_path / "steps.json").write_text(STEPS)
    return profile(
        tmp_path,
        name="letter.yaml",
        model={"path": "steps.json"},
        parameters={"to": {}, "pages": {"type": "integer", "default": 1}},
        deliverables={"required": ["deliverables/a.md"]},
    )


def batch(letter: Path, matrix: str, *more: str) -> int:
    (letter.parent / "params.yml").write_text(matrix)
    arguments = ["run", "--config", str(letter), "--prompt", "For {{ to }}."]
    place = ["--matrix", str(letter.parent / "params.yml"), "--sandbox", str(letter.parent / "out")]
    return main([*arguments, *place, *more])


def index(letter: Path) -> list[dict[str, Any]]:
    return json.loads((letter.parent / "out" / "index.json").read_text())["runs"]


def test_a_matrix_gives_one_run_for_each_combination(
    letter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(letter, "to: [Ada, Bob]\npages: [1, 2]\n", "--jobs", "2") == 0
    runs = index(letter)
    assert [tuple(one["parameters"].values()) for one in runs] == [
        *(("Ada", 1), ("Ada", 2), ("Bob", 1), ("Bob", 2))
    ]
    roots = [Path(one["result"]["sandbox_root"]) for one in runs]
    assert [(root / "prompt.md").read_text() for root in roots[1:3]] == ["For Ada.", "For Bob."]
    assert all(verify(root).is_sound for root in roots)
    out = capsys.readouterr().out
    assert "completed        4" in out
    page = (letter.parent / "out" / "index.html").read_text()
    assert page.count("deliverables/a.md</a>") == 4
    assert "to=Ada, pages=2" in page


def test_runs_that_are_done_are_not_repeated(letter: Path) -> None:
    assert batch(letter, "- {to: Ada}\n- {to: Bob}\n") == 0
    first = {one["name"]: one["result"]["run_id"] for one in index(letter)}
    (broken,) = (Path(one["result"]["sandbox_root"]) for one in index(letter)[1:])
    (broken / "deliverables" / "a.md").write_text("forged")
    assert batch(letter, "- {to: Ada}\n- {to: Bob}\n- {to: Cy}\n") == 0
    ada, bob, cy = index(letter)
    assert [one["is_kept"] for one in (ada, bob, cy)] == [True, False, False]
    assert ada["result"]["run_id"] == first[ada["name"]]
    assert ada["result"]["found"] == ["deliverables/a.md"]
    assert bob["result"]["run_id"] != first[bob["name"]]
    assert (broken / "deliverables" / "a.md").read_text() == "forged"


def test_what_a_run_depends_on_decides_whether_it_is_done_again(letter: Path) -> None:
    data = letter.parent / "data.csv"
    data.write_text("1")
    given = ["--input", str(data)]
    assert batch(letter, "to: [Ada]", *given) == 0
    assert batch(letter, "to: [Ada]", *given) == 0
    assert index(letter)[0]["is_kept"]
    data.write_text("2")
    assert batch(letter, "to: [Ada]", *given) == 0
    assert not index(letter)[0]["is_kept"]
    text = letter.read_text("utf-8")
    letter.write_text(text.replace("You write reports.", "You write letters."), "utf-8")
    assert batch(letter, "to: [Ada]", *given) == 0
    assert not index(letter)[0]["is_kept"]


def test_the_folder_of_another_run_is_not_kept_in_the_place_of_one(letter: Path) -> None:
    (letter.parent / "data").mkdir()
    (letter.parent / "data" / "a.csv").write_text("1\n")
    given = ["--input", str(letter.parent / "data")]
    assert batch(letter, "to: [Ada]\n", *given) == 0
    (before,) = index(letter)
    (letter.parent / "data" / "a.csv").write_text("2\n")
    assert batch(letter, "to: [Ada]\n", *given) == 0
    (after,) = index(letter)
    first, second = (Path(one["result"]["sandbox_root"]) for one in (before, after))
    shutil.rmtree(second)
    first.rename(second)
    assert verify(second).is_sound
    assert batch(letter, "to: [Ada]\n", *given) == 0
    (again,) = index(letter)
    assert not again["is_kept"]
    root = Path(again["result"]["sandbox_root"])
    assert (root / "inputs" / "data" / "a.csv").read_text() == "2\n"
    assert batch(letter, "to: [Ada]\n", *given) == 0
    assert index(letter)[0]["is_kept"]


def test_the_prompt_of_a_kept_run_is_compared(letter: Path) -> None:
    config, options = letter, RunOptions(parameters={"to": "Ada"})
    out = letter.parent / "out"
    (one,) = plan_batch(config, "One.", options)
    (two,) = plan_batch(config, "Two.", options)
    run_batch([one], "One.", out, options)
    (out / one.name).rename(out / two.name)
    (done,) = run_batch([two], "Two.", out, options)
    assert not done.is_kept


@pytest.mark.parametrize("place", ["file", "~no-such-user/x", "index"])
def test_a_place_that_cannot_be_written_is_named(
    letter: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (letter.parent / "file").write_text("x")
    (letter.parent / "index" / "index.json").mkdir(parents=True)
    where = place if place.startswith("~") else str(letter.parent / place)
    assert batch(letter, "to: [Ada]\n", "--sandbox", where) == 2
    said = capsys.readouterr().err
    assert "standard output" not in said
    assert where in said


def test_a_folder_of_profiles_is_run_as_a_whole_and_the_worst_code_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile(tmp_path, name="good.yaml")
    (tmp_path / "late").mkdir()
    profile(tmp_path / "late", deliverables={"required": ["deliverables/none.md"]})
    arguments = ["run", "--config", str(tmp_path), "--prompt", "x", "--output-format", "json"]
    assert main(arguments) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 3
    assert [one["exit_code"] for one in found["runs"]] == [0, 3]
    assert [one["name"].rpartition("-")[0] for one in found["runs"]] == ["good", "late"]
    assert Path(found["index"]) == tmp_path / "runs" / "batch" / "index.html"
    failing = tmp_path / "fails.json"
    failing.write_text('[{"fail": "broken"}]')
    profile(tmp_path, name="bad.yaml", model={"path": "fails.json"})
    assert main(arguments) == 1


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        ("to: Ada\n", "to must be a list"),
        ("- Ada\n", "it must map names to lists"),
        ("to: []\n", "to must be a list"),
        ("[]\n", "1 to 1000 sets"),
        ("to: [[1]]\n", "no text, number or truth value"),
        (f"to: {['a'] * 101}\npages: {[1] * 10}\n", "1010 combinations"),
        ("to: [Ada]\nyears: [1]\n", "'years' is not in the profile"),
        ("pages: [1]\n", "'to' is required"),
        ("to: [\n", "not valid YAML"),
    ],
)
def test_a_matrix_that_cannot_be_used_starts_nothing(
    letter: Path, capsys: pytest.CaptureFixture[str], matrix: str, reason: str
) -> None:
    assert batch(letter, matrix) == 2
    assert reason in capsys.readouterr().err
    assert not (letter.parent / "out").exists()


def test_one_invalid_profile_of_a_folder_starts_nothing(tmp_path: Path) -> None:
    profile(tmp_path, name="good.yaml")
    (tmp_path / "bad.yaml").write_text("kgent: {}\n")
    with pytest.raises(KgentError, match=r"bad\.yaml"):
        plan_batch(tmp_path, "x", RunOptions())
    assert main(["run", "--config", str(tmp_path), "--prompt", "x"]) == 2
    assert not (tmp_path / "runs").exists()


def test_a_cancellation_ends_every_run_with_a_terminal_state(letter: Path) -> None:
    (letter.parent / "steps.json").write_text('[{"sleep": 60}, "Done."]')
    (letter.parent / "params.yml").write_text("to: [a, b, c]")
    options, folder = RunOptions(), letter.parent / "out"
    jobs = plan_batch(letter, "x", options, matrix=letter.parent / "params.yml")
    token = Cancellation()

    def cancel_when_two_run() -> None:
        while sum(_is_running(place) for place in folder.glob("letter-*")) < 2:
            time.sleep(0.02)
        token.cancel("enough")

    watcher = threading.Thread(target=cancel_when_two_run)
    watcher.start()
    runs = run_batch(jobs, "x", folder, options, at_once=2, cancellation=token)
    watcher.join()
    assert [one.result.status for one in runs] == ["incomplete"] * 3
    assert all("enough" in str(one.result.error) for one in runs)
    roots = [one.result.sandbox_root for one in runs if one.result.sandbox_root]
    assert [state(root)["status"] for root in roots] == ["incomplete"] * 2
    assert len(json.loads((folder / "index.json").read_text())["runs"]) == 3


def _is_running(place: Path) -> bool:
    try:
        return state(place)["status"] == "running"
    except (OSError, ValueError):
        return False


def test_a_matrix_is_read_as_sets_of_parameters(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("a: [1, 2]\nb: [x]\n")
    assert read_matrix(path) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]


# --- the command line ---------------------------------------------------------------------------


def test_json_is_the_only_thing_on_standard_output(
    letter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--config", str(letter), "--prompt", "x", "--output-format", "json"]
    place = ["--sandbox", str(letter.parent / "one")]
    assert main([*arguments, *place, "--param", "to=Ada", "--stream"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["status"], found["exit_code"]) == ("completed", 0)
    assert found["found"] == ["deliverables/a.md"]
    assert found["seal"]
    assert "Done." in said.err
    for more in ([], ["--param", "to=Ada", "--max-steps", "many"], ["--no-such-option"]):
        assert main([*arguments, *place, *more]) == 2
        failed = json.loads(capsys.readouterr().out)
        assert (failed["status"], failed["exit_code"]) == ("failed", 2)
        assert failed["error"]["message"]


def test_validate_prints_json(letter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["validate", "--output-format=json", "--config"]
    assert main([*arguments, str(letter)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["parameters"]) == ("valid", ["pages", "to"])
    letter.write_text("kgent: {}\n", "utf-8")
    assert main([*arguments, str(letter)]) == 2
    failed = json.loads(capsys.readouterr().out)
    assert failed["error"]["category"] == "config"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kgent ")


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"runtime": {"engine": "core"}}, "needs model.provider"),
        ({"runtime": {"engine": "pydantic_ai"}}, "needs model.provider"),
        ({"model": {"path": "none.json"}}, "there is no file"),
        ({"checks": [["no-such-program-x"]]}, "there is no program"),
        ({"inputs": ["none"]}, "does not exist"),
        ({"skills": {"paths": [], "enabled": ["none"]}}, "enabled, but not found"),
        (
            {
                "tools": {"filesystem": {"write": False}},
                "deliverables": {"required": ["deliverables/a.md"]},
            },
            "no tool that is enabled can write them",
        ),
    ],
)
def test_validate_refuses_what_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sections: Any, reason: str
) -> None:
    config = profile(tmp_path, **sections)
    assert main(["validate", "--config", str(config)]) == 2
    assert reason in capsys.readouterr().err

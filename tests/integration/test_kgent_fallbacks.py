"""Models that are tried, in order, when a model fails before it has answered."""

from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Fails, Says, calls
from kgent.cli import main
from kgent.config.loader import fingerprint_config, load_config
from kgent.errors import KgentError
from kgent.review.verification import verify
from kgent_runs import events, lines, profile, state
from model_server import ModelServer, Reply, Status
from sweeps import kept

ENGINES = pytest.mark.parametrize("engine", kept(["core", "pydantic_ai"], "core"))
UNREACHABLE = "http://127.0.0.1:9/v1"


def model(name: str, address: str, **more: Any) -> dict[str, Any]:
    return {"provider": "openai", "name": name, "base_url": address, **more}


def conduct(folder: Path, engine: str, first: str, *others: str) -> Path:
    names = [model(f"spare-{n}", address) for n, address in enumerate(others, 1)]
    path = profile(folder, model=model("first", first, fallbacks=names), runtime={"engine": engine})
    words = ["run", "--config", str(path), "--prompt", "Write.", "--sandbox", str(folder / "run")]
    main(words)
    return folder / "run"


@pytest.mark.long
@ENGINES
@pytest.mark.parametrize("failure", [Status(401), Status(404)], ids=["refused", "unknown"])
def test_the_next_model_answers_when_one_fails_before_it_answered(
    tmp_path: Path, engine: str, failure: Reply
) -> None:
    with ModelServer.in_thread([failure] * 3) as first, ModelServer.in_thread() as spare:
        spare.add(calls("list_files"), Says(text="Done."))
        root = conduct(tmp_path, engine, first.base_url("openai"), spare.base_url("openai"))
        assert [one.body["model"] for one in spare.requests] == ["spare-1", "spare-1"]
    assert state(root)["status"] == "completed"
    assert "spare-1" in state(root)["model"]["answered_by"]
    (error,) = lines(root / "logs" / "errors.jsonl")
    assert "spare-1" in error["details"]["fallback"]
    (event,) = [one for one in events(root) if one["type"] == "error"]
    assert "is asked instead" in event["summary"]
    assert verify(root).problems == []


@ENGINES
def test_fallbacks_are_tried_in_order_and_the_last_failure_ends_the_run(
    tmp_path: Path, engine: str
) -> None:
    with ModelServer.in_thread([Status(401)] * 3) as one, ModelServer.in_thread() as other:
        other.add(Status(403))
        addresses = [one.base_url("openai"), one.base_url("openai"), other.base_url("openai")]
        root = conduct(tmp_path, engine, *addresses)
        assert [asked.body["model"] for asked in one.requests] == ["first", "spare-1"]
        assert [asked.body["model"] for asked in other.requests] == ["spare-2"]
    assert state(root)["status"] == "failed"
    told = [one["summary"] for one in events(root) if one["type"] == "error"]
    assert [summary.count("is asked instead") for summary in told] == [1, 1, 0]
    assert verify(root).problems == []


@ENGINES
def test_a_model_that_fails_after_its_first_words_is_not_replaced(
    tmp_path: Path, engine: str
) -> None:
    broken = Fails(text="I begin", message="the service broke")
    with ModelServer.in_thread([broken]) as first, ModelServer.in_thread() as spare:
        root = conduct(tmp_path, engine, first.base_url("openai"), spare.base_url("openai"))
        assert spare.requests == []
    assert state(root)["status"] == "failed"


def test_fallbacks_are_part_of_the_fingerprint_and_their_absence_is_not(tmp_path: Path) -> None:
    def fingerprint(**more: Any) -> str:
        path = profile(tmp_path, model=model("first", UNREACHABLE, **more))
        return fingerprint_config(load_config(path))

    assert fingerprint() == fingerprint(fallbacks=[])
    assert fingerprint() != fingerprint(fallbacks=[model("spare", UNREACHABLE)])
    assert fingerprint(fallbacks=["ollama:small"]) == fingerprint(
        fallbacks=[{"provider": "ollama", "name": "small"}]
    )


@pytest.mark.parametrize(
    ("fallback", "said"),
    [
        ({"name": "small"}, "must name provider and model"),
        ({**model("a", UNREACHABLE), "fallbacks": ["ollama:b"]}, "no fallbacks of its own"),
    ],
)
def test_a_fallback_that_cannot_be_one_is_refused(
    tmp_path: Path, fallback: dict[str, Any], said: str
) -> None:
    path = profile(tmp_path, model=model("first", UNREACHABLE, fallbacks=[fallback]))
    with pytest.raises(KgentError, match=said):
        load_config(path)


def test_the_keys_of_all_models_are_needed_and_kept_out_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "sk-spare-4242424242"
    with ModelServer.in_thread([Status(401)]) as first, ModelServer.in_thread() as spare:
        spare.add(Says(text=f"Your key is {key}."))
        fallback = model("spare", spare.base_url("openai"), api_key_env="SPARE_KEY")
        chosen = model("first", first.base_url("openai"), fallbacks=[fallback])
        path = profile(tmp_path, model=chosen, runtime={"engine": "core"})
        words = ["run", "--config", str(path), "--prompt", "Write.", "--sandbox"]
        assert main(["validate", "--config", str(path)]) == 0
        assert "SPARE_KEY" in capsys.readouterr().out
        assert main([*words, str(tmp_path / "none")]) == 2
        monkeypatch.setenv("SPARE_KEY", key)
        assert main([*words, str(tmp_path / "run")]) == 0
        assert spare.requests[0].headers["authorization"] == f"Bearer {key}"
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or key not in file.read_text(), file

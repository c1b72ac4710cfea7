"""`validate` and `run` refuse the same profiles, before anything is sent, started or written."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.base import ProviderRegistry
from agent_core.providers.scripted import ScriptedProvider
from kgent import RunOptions
from kgent.cli import main
from kgent.config.loader import fingerprint_config, load_config
from kgent.config.models import KgentConfig
from kgent.engine.core import CoreAgentEngine
from kgent.runtime.runner import run
from kgent_runs import profile, skill, state
from model_server import ModelServer
from sweeps import sampled
from tables import together

LOCAL = {"base_url": "http://127.0.0.1:9/v1"}
LONG = "ä" * 128
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a provider that there is not": (
        {"model": {"provider": "opnai", "name": "m"}, "runtime": {"engine": "core"}},
        "opnai",
    ),
    "a provider that there is not, as a string": (
        {"model": "opnai:m", "runtime": {"engine": "core"}},
        "opnai",
    ),
    "a provider that Pydantic AI does not have": (
        {"model": {"provider": "bedrock", "name": "m"}, "runtime": {"engine": "pydantic_ai"}},
        "with this engine there are anthropic, cerebras",
    ),
    "an address that is none": (
        {
            "model": {"provider": "openai", "name": "m", "base_url": "127.0.0.1"},
            "runtime": {"engine": "core"},
        },
        "base_url must be",
    ),
    "a script that is missing": (
        {"model": {"provider": "scripted", "name": "m"}, "runtime": {"engine": "core"}},
        "the script to play",
    ),
    "a script that cannot be read": (
        {
            "model": {"provider": "scripted", "name": "m", "path": "broken.json"},
            "runtime": {"engine": "core"},
        },
        "broken.json",
    ),
    "a script of the mock that is none": ({"model": {"path": "broken.json"}}, "mock steps"),
    "no model": ({"runtime": {"engine": "core"}}, "needs model.provider"),
    "a price that is not known, and asked for": (
        {
            "model": {"provider": "openai", "name": "m", **LOCAL},
            "runtime": {"engine": "core", "budget": {"usd": 1, "on_unknown_price": "refuse"}},
        },
        "the price of openai:m is not known",
    ),
    "a price that is not known": (
        {
            "model": {"provider": "openai", "name": "m", **LOCAL},
            "runtime": {"engine": "core", "budget": {"usd": 1}},
        },
        "the price of openai:m is not known",
    ),
    "a budget that the engine cannot keep": (
        {"runtime": {"budget": {"usd": 1}}},
        "only the engine core can enforce it",
    ),
    "an external memory that there is not": (
        {"memory": {"write_mode": "external"}},
        "needs a memory",
    ),
    "a memory that is no database": (
        {"memory": {"provider": "sqlite:broken.json"}},
        "cannot be opened",
    ),
    "a memory that is a folder": ({"memory": {"provider": "sqlite:folder"}}, "cannot be opened"),
    "a memory below a file": (
        {"memory": {"provider": "sqlite:broken.json/memory.db"}},
        "broken.json",
    ),
    "a check program that there is not": ({"checks": [["no-such-program-x"]]}, "no program"),
    "a server program that there is not": (
        {"tools": {"mcp": {"one": {"command": "no-such-program-x", "tools": ["a"]}}}},
        "no program",
    ),
    "a tool with a name that is too long": (
        {"tools": {"mcp": {"one": {"command": "cat", "tools": ["a" * 80]}}}},
        "is too long",
    ),
    "two tools with one name": (
        {"tools": {"mcp": {"one": {"command": "cat", "tools": ["a.b", "a_b"]}}}},
        "is taken by another tool",
    ),
    "deliverables that nothing can write": (
        {
            "tools": {"filesystem": {"write": False}},
            "deliverables": {"required": ["deliverables/a.md"]},
        },
        "no enabled tool can write them",
    ),
    **{
        f"{where}, which no file system takes": (sections, "at most 255 bytes")
        for where, sections in {
            "a NUL in the path of a skill": {"skills": {"paths": ["a\0b"]}},
            "a NUL in the path of a memory": {"memory": {"provider": "sqlite:a\0b"}},
            "a long path of a skill": {"skills": {"paths": [LONG]}},
            "a long path of a memory": {"memory": {"provider": f"sqlite:{LONG}"}},
            "a long path of a script": {"model": {"path": LONG}},
            "a long path of a run": {"workspace": {"sandbox": f"{LONG}/{{run_id}}"}},
        }.items()
    },
    "a long name of an input": (
        {"inputs": [{"path": "folder", "as": LONG}]},
        "more than 255 bytes",
    ),
    "an input that is missing": ({"inputs": ["none"]}, "does not exist"),
    "a link in an input that leads out": ({"inputs": ["leads-out"]}, "leads out of the input"),
    "a pipe in an input": ({"inputs": ["has-pipe"]}, "neither a file nor a folder nor a link"),
    "an input around the run folder": ({"inputs": ["."]}, "it contains the run folder"),
    "a skill that is missing": (
        {"skills": {"paths": [], "enabled": ["none"]}},
        "enabled, but not found",
    ),
    "a skill that is too large": ({"skills": {"paths": ["skills"]}}, "a run keeps a copy of it"),
    "a home that there is not": ({"workspace": {"sandbox": "~no-such-user/x"}}, "no home for"),
    "a skill in a home that there is not": (
        {"skills": {"paths": ["~no-such-user/x"]}},
        "no home for",
    ),
    "the root folder": ({"workspace": {"sandbox": "/"}}, "each run gets its own folder"),
    "a default that leads out of its folder": (
        {
            "parameters": {"name": {"default": "../x"}},
            "deliverables": {"required": ["deliverables/{{ name }}"]},
        },
        "must be a path below deliverables/",
    ),
}


def prepared(folder: Path, **sections: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "broken.json").write_text('{"no": "list"}', encoding="utf-8")
    (folder / "folder").mkdir()
    for name in ("leads-out", "has-pipe"):
        (folder / name / "deep").mkdir(parents=True)
    (folder / "leads-out" / "deep" / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "has-pipe" / "deep" / "pipe")
    (skill(folder / "skills") / "big").write_bytes(b"x" * 1000)
    return profile(folder, **sections)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@together("name", sampled(REFUSED, keep=8))
def test_validate_and_run_refuse(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgent.skills.loader.MAX_SKILL_BYTES", 500)
    sections, reason = REFUSED[name]
    config = prepared(tmp_path / "profile", **sections)
    before = listing(tmp_path / "profile")
    assert main(["validate", "--config", str(config)]) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.err.startswith(f"kgent: {config}")
    assert listing(tmp_path / "profile") == before
    assert main(["validate", "--config", str(config), "--output-format", "json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["exit_code"]) == ("failed", 2)
    assert reason in found["error"]["message"]
    assert main(["run", "--config", str(config), "--prompt", "x"]) == 2
    assert reason in capsys.readouterr().err
    for root in (tmp_path / "profile").glob("runs/*"):
        assert state(root)["error"]["category"] in {"skill", "sandbox"}


def test_a_profile_that_is_refused_for_several_reasons_names_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = profile(
        tmp_path,
        checks=[["no-such-program-x"], ["no-such-program-y"]],
        tools={"filesystem": {"write": False}},
        deliverables={"required": ["deliverables/a.md"]},
    )
    assert main(["validate", "--config", str(config)]) == 2
    lines = capsys.readouterr().err.removeprefix("kgent: ").splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{config}: ") for line in lines)


ACCEPTED: dict[str, dict[str, Any]] = {
    "a memory that is made by the first run": {"memory": {"provider": "sqlite:new/memory.db"}},
    "a folder as an input": {"inputs": ["skills"]},
    "a parameter that has to be given": {
        "parameters": {"name": {}},
        "deliverables": {"required": ["deliverables/{{ name }}.md"]},
        "checks": [["{{ name }}"]],
    },
    "a server that can write": {
        "tools": {
            "filesystem": {"write": False},
            "mcp": {"one": {"command": "cat", "tools": ["a"]}},
        },
        "deliverables": {"required": ["deliverables/a.md"]},
    },
    "a price that is ignored": {
        "model": {"provider": "openai", "name": "m", **LOCAL},
        "runtime": {"engine": "core", "budget": {"usd": 1, "on_unknown_price": "ignore_usd"}},
    },
    "a model of Pydantic AI": {
        "model": {"provider": "openai", "name": "m", **LOCAL},
        "runtime": {"engine": "pydantic_ai"},
    },
}


@together("name", ACCEPTED)
def test_validate_accepts(tmp_path: Path, name: str) -> None:
    config = prepared(tmp_path, **ACCEPTED[name])
    before = listing(tmp_path)
    assert main(["validate", "--config", str(config)]) == 0
    assert listing(tmp_path) == before


@pytest.mark.parametrize("engine", ["core", "pydantic_ai"])
def test_validate_lists_the_variables_that_a_run_needs_and_needs_none(
    tmp_path: Path,
    engine: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KGENT_TEST_KEY", raising=False)
    model = {"provider": "openai", "name": "m", "api_key_env": "KGENT_TEST_KEY", **LOCAL}
    server = {"one": {"command": "cat", "tools": ["a"], "env": ["KGENT_TEST_TOKEN"]}}
    config = profile(tmp_path, model=model, runtime={"engine": engine}, tools={"mcp": server})
    assert main(["validate", "--config", str(config)]) == 0
    assert "not set     KGENT_TEST_KEY, KGENT_TEST_TOKEN" in capsys.readouterr().out
    monkeypatch.setenv("KGENT_TEST_KEY", "sk-1234567890")
    assert main(["validate", "--config", str(config), "--output-format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unset_variables"] == ["KGENT_TEST_TOKEN"]


def test_validate_sends_nothing(tmp_path: Path) -> None:
    with ModelServer.in_thread([]) as server:
        model = {"provider": "openai", "name": "m", "base_url": server.base_url("openai")}
        config = profile(tmp_path, model=model, runtime={"engine": "core"})
        assert main(["validate", "--config", str(config)]) == 0
        assert server.requests == []


def test_a_provider_that_is_given_in_code_is_known(tmp_path: Path) -> None:
    registry, made = ProviderRegistry(), ScriptedProvider(["Done."])
    registry.register("mine", lambda _: made)
    config = profile(tmp_path, model={"provider": "mine", "name": "m"}, runtime={"engine": "core"})
    options = RunOptions(sandbox=tmp_path / "run")
    result = run(config, "x", options, engine=CoreAgentEngine(registry))
    assert (result.status, result.final_text) == ("completed", "Done.")
    assert main(["validate", "--config", str(config)]) == 2


# --- the version of a profile ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "version"),
    sampled(
        [
            ("1", "1"),
            ("1.0", "1.0"),
            ("1.10", "1.10"),
            ("0x10", "0x10"),
            ("2026-01-15", "2026-01-15"),
            ('"1"', "1"),
            ("1.2.3", "1.2.3"),
            ("null", None),
        ],
        keep=2,
    ),
)
def test_a_version_is_taken_as_it_is_written(
    tmp_path: Path, written: str, version: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kgent.yaml"
    path.write_text(
        f"kgent: {{schema_version: 1, version: {written}}}\n"
        "profile: {id: a, role: You write.}\nruntime: {engine: mock}\n",
        encoding="utf-8",
    )
    assert load_config(path).kgent.version == version
    assert main(["validate", "--config", str(path)]) == 0
    root = tmp_path / "run"
    assert main(["run", "--config", str(path), "--prompt", "x", "--sandbox", str(root)]) == 0
    again = load_config(root / "config.yaml")
    assert again.kgent.version == version
    assert fingerprint_config(again) == fingerprint_config(load_config(path))
    assert main(["verify", str(root)]) == 0
    assert main(["rerun", str(root), "--sandbox", str(tmp_path / "again")]) == 0
    assert "differs" not in capsys.readouterr().err


@together("written", ["true", "[1]", "{a: 1}"])
def test_a_version_that_is_none_is_refused(
    tmp_path: Path, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kgent.yaml"
    text = f"kgent:\n  schema_version: 1\n  version: {written}\nprofile: {{id: a, role: x}}\n"
    path.write_text(text, encoding="utf-8")
    assert main(["validate", "--config", str(path)]) == 2
    assert f"{path}:3: kgent.version" in capsys.readouterr().err


def test_a_version_in_code_may_be_a_number() -> None:
    fields = {"kgent": {"schema_version": 1, "version": 2}, "profile": {"id": "a", "role": "x"}}
    assert KgentConfig.model_validate(fields).kgent.version == "2"

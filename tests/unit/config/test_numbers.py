"""Every number of the configuration has a range: what no machine could honour is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from agent_core.config.load import load_config
from agent_core.config.models import Config
from agent_core.config.section import Section
from agent_core.errors import ConfigError, ErrorCode
from sweeps import sampled
from tables import together

MODEL = 'model.provider = "ollama"\nmodel.name = "gemma4"\n'
TABLES = {"model_overrides": "x", "tools.overrides": "x", "tools.mcp.tool_overrides": "x"}


def numeric_keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Each key of the schema that takes a number, with a name where the user chooses one."""
    for name, field in section.model_fields.items():
        if name == "model_fallbacks":
            continue  # each is a whole [model]
        key = f"{prefix}{name}"
        key = f"{key}.{TABLES[key]}" if key in TABLES else key
        if inner := next(sections_in(field.annotation), None):
            yield from numeric_keys(inner, f"{key}.")
        elif takes_number(field.annotation):
            yield key


def takes_number(annotation: Any) -> bool:
    schema = TypeAdapter[Any](annotation).json_schema()
    shapes = [schema, *schema.get("anyOf", [])]
    return any(shape.get("type") in {"integer", "number"} for shape in shapes)


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


KEYS = sorted(set(numeric_keys(Config)))
HOSTILE = [
    "inf", "-inf", "nan", "-1", "-0.5", "1e308", "9223372036854775808", "true", '"5"', "[]",
    "{}", "1979-05-27", f"1{'0' * 400}",
]  # fmt: skip


def load(home: Path, text: str) -> Config:
    (home / "config.toml").write_text(MODEL + text, encoding="utf-8")
    return load_config(home)


def refusal(home: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(home, text)
    assert caught.value.code is ErrorCode.CONFIG_ERROR
    assert len(caught.value.message) < 2000
    return caught.value


def test_the_walk_finds_every_kind_of_section() -> None:
    found = set(KEYS)
    assert len(found) > 60
    assert {
        "runtime.max_turns",
        "model.retry.max_backoff_ms",
        "model_overrides.x.threads",
        "model_overrides.x.retry.max_attempts",
        "compact.model_profile.temperature",
        "memory.recall_model_profile.timeout_ms",
        "tools.mcp.discovery_cache_ttl_ms",
        "hooks.default_timeout_ms",
    } <= found


@pytest.mark.long
@together("key", sampled(KEYS, keep=len(KEYS) // 3))
def test_a_number_out_of_range_is_refused_by_its_key(tmp_path: Path, key: str) -> None:
    is_float = key.endswith((".temperature", ".usd", "_s", "drain_seconds")) or ".price." in key
    for value in [*HOSTILE, *([] if is_float else ["1.5", "3.0", "1e3"])]:
        error = refusal(tmp_path, f"{key} = {value}\n")
        assert key in error.message, value
        assert str(error.details["key"]).startswith(key)


@together(
    "key", [key for key in KEYS if key.endswith(("timeout_ms", "max_turns", "bytes", "threads"))]
)
def test_what_must_be_something_is_not_zero(tmp_path: Path, key: str) -> None:
    assert key in refusal(tmp_path, f"{key} = 0\n").message


@together("key", KEYS)
def test_an_ordinary_number_is_taken(tmp_path: Path, key: str) -> None:
    load(tmp_path, f"{key} = 1\n")


@together(
    "value",
    [
        "inf",
        "nan",
        "-inf",
        "99999999999999999999",
        "2026-01-01",
        "[1, [inf]]",
        "{ a = { b = nan } }",
    ],
)
@together("place", ["model", "model_overrides.x", "compact.model_profile"])
def test_provider_options_hold_only_what_a_request_can_carry(
    tmp_path: Path, place: str, value: str
) -> None:
    key = f"{place}.provider_options"
    assert key in refusal(tmp_path, f"{key} = {{ ollama = {{ x = {value} }} }}\n").message
    good = "{ ollama = { think = false, top_p = 0.5, stop = ['a'], n = 18446744073709551615 } }"
    load(tmp_path, f"{key} = {good}\n")


def test_a_default_timeout_above_the_maximum_names_both_keys(tmp_path: Path) -> None:
    for text in (
        "[tools]\ndefault_timeout_ms = 700000\n",
        "[tools]\ndefault_timeout_ms = 2000\nmax_timeout_ms = 1000\n",
        "[hooks]\ndefault_timeout_ms = 600001\n",
        "[hooks]\ndefault_timeout_ms = 2000\n[tools]\nmax_timeout_ms = 1000\n",
    ):
        message = refusal(tmp_path, text).message
        assert ".default_timeout_ms is" in message
        assert "tools.max_timeout_ms" in message


def test_a_maximum_below_the_default_lowers_the_default(tmp_path: Path) -> None:
    config = load(tmp_path, "[tools]\nmax_timeout_ms = 1000\n")
    assert config.tools.default_timeout_ms == 1000
    assert load(tmp_path, "[tools]\nmax_timeout_ms = 700000\n").tools.default_timeout_ms == 120_000


def test_a_lease_outlives_the_heartbeats_that_extend_it(tmp_path: Path) -> None:
    error = refusal(tmp_path, "[worker]\nheartbeat_s = 5\nlease_s = 5.0\n")
    assert error.details["key"] == "worker.lease_s"
    assert "worker.heartbeat_s" in error.message
    for text, heartbeat, lease in (
        ("", 5, 15),
        ("lease_s = 3\n", 1, 3),
        ("heartbeat_s = 20\n", 20, 60),
        ("heartbeat_s = 1\n", 1, 15),
        ("heartbeat_s = 2\nlease_s = 2.5\n", 2, 2.5),
    ):
        worker = load(tmp_path, f"[worker]\n{text}").worker
        assert (worker.heartbeat_s, worker.lease_s) == (heartbeat, lease)

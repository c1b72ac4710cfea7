"""Home and project are found and resolved once, and never created."""

from pathlib import Path

import pytest

from agent_core.config.paths import expand_path, resolve_home, resolve_project
from agent_core.errors import ConfigError, ErrorCode
from tables import together


def test_b4_the_argument_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path / "environment"))
    assert resolve_home() == tmp_path / "environment"
    assert resolve_home(tmp_path / "argument") == tmp_path / "argument"


@pytest.mark.parametrize("value", [None, ""])
def test_b5_without_either_the_home_is_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if value is None:
        monkeypatch.delenv("SOONG_AGENT_HOME", raising=False)
    else:
        monkeypatch.setenv("SOONG_AGENT_HOME", value)
    assert resolve_home() == tmp_path / ".soong-agent"
    assert not list(tmp_path.iterdir())


def test_b6_the_project_is_the_current_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path / "link")
    assert resolve_project() == tmp_path / "real"


def test_b7_a_file_means_its_folder_and_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "src" / "a.py"
    file.parent.mkdir()
    file.touch(mode=0o000)
    assert resolve_project(file) == tmp_path / "src"


@together("name", ["missing", "missing/deeper", "nul\0", "x" * 5000, "loop"])
def test_b8_a_project_that_is_not_there_is_named_and_not_created(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError) as caught:
        resolve_project(tmp_path / name)
    assert caught.value.code is ErrorCode.CONFIG_ERROR
    assert str(tmp_path / name) in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_an_empty_project_path_does_not_mean_the_current_folder() -> None:
    with pytest.raises(ConfigError, match="empty"):
        resolve_project("")


def test_a_path_value_knows_two_placeholders_and_the_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home, project = tmp_path / "h", tmp_path / "p"

    def expand(value: str) -> Path:
        return expand_path(value, project, home=home, project=project)

    assert expand("${SOONG_AGENT_HOME}/a") == home / "a"
    assert expand("<project>/a") == project / "a"
    assert expand("~/a") == tmp_path / "a"
    assert expand("a/../b") == project / "b"
    assert expand("$HOME/a") == project / "$HOME" / "a"
    for unknown in ("${HOME}", "${SOONG_AGENT_HOME", "${}"):
        with pytest.raises(ConfigError, match="unknown placeholder"):
            expand(unknown + "/a")

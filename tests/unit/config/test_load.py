"""The configuration file: accepted whole, or refused with its name, the key and the cure."""

import cProfile
import os
from datetime import date
from pathlib import Path
from typing import Literal

import pytest
from pydantic import ValidationError

from agent_core.config.load import build_config, load_config, read_setup
from agent_core.config.models import Config, ModelProfile
from agent_core.config.paths import Setup, resolve_home
from agent_core.config.problems import MAX_FILE_BYTES, problems_of
from agent_core.config.section import Section
from agent_core.errors import ConfigError, ErrorCode
from tables import together

MINIMAL = '[model]\nprovider = "ollama"\nname = "gemma4"\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


def write(home: Path, text: str | bytes) -> Path:
    path = home / "config.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(home: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(home)
    assert caught.value.code is ErrorCode.CONFIG_ERROR
    assert str(home / "config.toml") in caught.value.message
    return caught.value


def test_b1_a_missing_file_is_named_and_nothing_is_created(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(home))
    with pytest.raises(ConfigError, match="does not exist") as caught:
        read_setup(project)
    assert caught.value.code is ErrorCode.CONFIG_ERROR
    assert str(home / "config.toml") in caught.value.message
    assert not list(home.iterdir())
    assert not list(project.iterdir())


def test_b2_broken_toml_names_the_file_and_the_line(home: Path) -> None:
    write(home, "[model]\nprovider = \n")
    assert "line 2" in refusal(home).message


def test_b1_a_model_named_in_a_string_is_a_cure_where_no_file_is_asked_for(home: Path) -> None:
    assert "--model" in refusal(home).message
    with pytest.raises(ConfigError, match="does not exist") as caught:
        load_config(home, home / "other.toml")
    assert "--model" not in caught.value.message
    assert load_config(home, model="ollama:gemma4").model.name == "gemma4"


def test_b3_a_missing_provider_is_named_by_its_dotted_key(home: Path) -> None:
    write(home, '[model]\nname = "gemma4"\n')
    error = refusal(home)
    assert "model.provider is missing" in error.message
    assert error.details["key"] == "model.provider"
    assert not list(home.glob("*.sqlite"))


def test_b3_an_empty_provider_is_refused(home: Path) -> None:
    write(home, '[model]\nprovider = ""\nname = "x"\n')
    assert "model.provider" in refusal(home).message


def test_b4_only_the_home_of_the_environment_is_read(
    home: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "user" / ".soong-agent"
    real.mkdir(parents=True)
    write(real, "this is not TOML")
    write(home, MINIMAL)
    monkeypatch.setenv("HOME", str(real.parent))
    monkeypatch.setenv("SOONG_AGENT_HOME", str(home))
    setup = read_setup(project)
    assert setup.home == home
    assert setup.config.model.name == "gemma4"


def test_b9_a_configuration_in_the_project_is_ignored(home: Path, project: Path) -> None:
    write(home, MINIMAL)
    (project / ".soong-agent").mkdir()
    write(project / ".soong-agent", '[model]\nprovider = "evil"\nname = "evil"\n')
    assert read_setup(project, home_dir=home).config.model.provider == "ollama"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MINIMAL + 'nme = "x"', "model.nme is not a known key (did you mean model.name?)"),
        (MINIMAL + "[modell]", "modell is not a known key (did you mean model?)"),
        ("max_turns = 3\n" + MINIMAL, "(did you mean runtime.max_turns?)"),
        (MINIMAL + "[runtime]\nmax_turns = 0", "runtime.max_turns must be greater than 0"),
        (MINIMAL + '[runtime]\nmax_turns = "9"', "runtime.max_turns must be a valid integer"),
        (
            MINIMAL + "[runtime]\nmax_turns = true",
            "runtime.max_turns must be a valid integer, not true",
        ),
        (MINIMAL + "[compact]\nmodel_profile = 3", "compact.model_profile must be a valid string"),
        (
            MINIMAL + '[compact]\nmodel_profile = { nme = "x" }',
            "compact.model_profile.nme is not a known key (did you mean compact.model_profile.name",
        ),
        (
            MINIMAL + "[model_overrides.fast]\ntemprature = 1",
            "(did you mean model_overrides.fast.temperature?)",
        ),
        (
            MINIMAL + '[tools.overrides."code.x"]\npermissions = "write"',
            'tools.overrides."code.x".permissions is not a known key (did you mean tools.overrides',
        ),
        (
            MINIMAL + '[[agents.worker_pools]]\npool_id = "a"\n'
            '[[agents.worker_pools.workers]]\nagent_id = "x"',
            "agents.worker_pools[0].workers[0].agent_definition_id is missing",
        ),
        (
            MINIMAL + "[context]\nbranch_summary = true",
            "context.branch_summary must be False, not true",
        ),
        ("model = 3", "model must be a table, not an integer (3)"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_was_expected(
    home: Path, text: str, expected: str
) -> None:
    write(home, text)
    assert expected in refusal(home).message


def test_a_wrong_word_is_not_refused_for_being_a_string(home: Path) -> None:
    write(home, MINIMAL + 'api = "x"')
    assert refusal(home).message.endswith("model.api must be 'auto', 'responses' or 'chat'")


def test_j3_a_worker_id_used_twice_is_refused(home: Path) -> None:
    worker = '[[agents.worker_pools.workers]]\nworker_id = "w"\nagent_definition_id = "x"\n'
    write(home, MINIMAL + '[[agents.worker_pools]]\npool_id = "a"\n' + worker * 2)
    assert "used twice" in refusal(home).message


def test_every_problem_is_reported_at_once(home: Path) -> None:
    write(home, "[model]\nprovidr = 1\n[hooks]\nenable = true\n")
    error = refusal(home)
    keys = {problem["key"] for problem in error.details["problems"]}
    assert keys == {"model.provider", "model.name", "model.providr", "hooks.enable"}


@pytest.mark.parametrize("key", ["api_key_env", "api_key"])
def test_a_key_pasted_into_the_file_is_never_repeated(home: Path, key: str) -> None:
    write(home, MINIMAL + f'{key} = "sk-live-0123456789"\n')
    error = refusal(home)
    assert key in error.message
    assert "sk-live" not in f"{error.message}{error.details}{error.__cause__}"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (MINIMAL.encode("utf-16"), "it is UTF-16; save it as UTF-8"),
        (MINIMAL.encode() + b"# caf\xe9\n", "line 4 is not UTF-8"),
        (b"\xef\xbb\xbf\n\n\xe9", "line 3 is not UTF-8"),
        (b"#" * (MAX_FILE_BYTES + 1), "larger than 1,000,000 bytes"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"9" * 5_000, "not valid TOML"),
        (b"a = 1\na = 2\n", "line 2"),
        (b"", "model is missing"),
        (b"\0", "not valid TOML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_by_name(
    home: Path, content: bytes, expected: str
) -> None:
    write(home, content)
    assert expected in refusal(home).message


def test_a_fifo_or_a_folder_in_place_of_the_file_is_refused_without_waiting(home: Path) -> None:
    os.mkfifo(home / "config.toml")
    assert "not a regular file" in refusal(home).message
    (home / "config.toml").unlink()
    (home / "config.toml").mkdir()
    assert "not a regular file" in refusal(home).message


def test_a_profile_that_is_not_defined_is_refused_with_the_nearest_one(home: Path) -> None:
    write(home, MINIMAL + '[compact]\nmodel_profile = "fst"\n[model_overrides.fast]\n')
    assert "compact.model_profile names 'fst'" in refusal(home).message
    assert "did you mean fast?" in refusal(home).message


def test_an_unknown_placeholder_is_named(home: Path) -> None:
    write(home, MINIMAL + '[tools]\nallowed_write_roots = ["${HOME}/x"]\n')
    assert "tools.allowed_write_roots has an unknown placeholder ${HOME}" in refusal(home).message


@pytest.mark.parametrize("value", ["/tmp/elsewhere", "<project>/memory", "../memory"])  # noqa: S108
def test_a_memory_folder_outside_the_home_is_refused(home: Path, project: Path, value: str) -> None:
    write(home, MINIMAL + f'[memory]\nmemory_dir = "{value}"\n')
    with pytest.raises(ConfigError, match=r"memory\.memory_dir must be below the home"):
        read_setup(project, home_dir=home)


def test_a_link_out_of_the_home_is_no_memory_folder(home: Path, project: Path) -> None:
    write(home, MINIMAL)
    (home / "memory").symlink_to(project)
    with pytest.raises(ConfigError, match=r"memory\.memory_dir"):
        read_setup(project, home_dir=home)


def test_paths_are_placed_and_resolved_but_not_created(home: Path, project: Path) -> None:
    write(home, MINIMAL + '[tools]\nallowed_write_roots = ["../shared", "${SOONG_AGENT_HOME}/x"]')
    setup = read_setup(project, home_dir=home)
    assert setup.session_db == home / "sessions.sqlite"
    assert setup.memory_dir == home / "memory"
    assert setup.plans_dir == project / ".soong-agent" / "plans"
    assert setup.tasks_dir == project / ".soong-agent" / "tasks"
    assert setup.write_roots == (project.parent / "shared", home / "x")
    assert [path.name for path in home.iterdir()] == ["config.toml"]
    assert not list(project.iterdir())


def test_the_path_of_a_local_model_is_placed_wherever_it_stands(home: Path, project: Path) -> None:
    write(
        home,
        '[model]\nprovider = "local"\nname = "a"\npath = "models/a.gguf"\n'
        '[model_overrides.b]\npath = "<project>/b.gguf"\n'
        '[compact]\nmodel_profile = { path = "${SOONG_AGENT_HOME}/c.gguf" }\n'
        '[memory]\nrecall_model_profile = "b"\n',
    )
    config = read_setup(project, home_dir=home).config
    assert config.model.path == str(home / "models/a.gguf")
    assert config.model_overrides["b"].path == str(project / "b.gguf")
    assert isinstance(config.compact.model_profile, ModelProfile)
    assert config.compact.model_profile.path == str(home / "c.gguf")
    assert config.memory.recall_model_profile == "b"
    write(home, MINIMAL + 'path = "${X}/a.gguf"\n')
    assert "model.path has an unknown placeholder ${X}" in refusal(home).message


def test_a_given_config_path_and_database_replace_those_of_the_home(
    home: Path, project: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(MINIMAL.replace("gemma4", "other"), encoding="utf-8")
    setup = read_setup(project, other, home_dir=home, session_db_path=tmp_path / "s.db")
    assert (setup.config.model.name, setup.session_db) == ("other", tmp_path / "s.db")


SECTIONS = {
    name: kind
    for name, field in Config.model_fields.items()
    if isinstance(kind := field.annotation, type) and issubclass(kind, Section)
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_wrong_key_and_value_of_a_section_is_named_at_the_start(
    home: Path, section: str
) -> None:
    given = {"provider": "ollama", "name": "gemma4"}
    for key in ("no_such_key", *SECTIONS[section].model_fields):
        named = f"{section}.{key}"
        model = "" if section == "model" else MINIMAL
        rest = "".join(f'{k} = "{v}"\n' for k, v in given.items() if k != key)
        write(home, f"{model}[{section}]\n{rest if not model else ''}{key} = 2026-01-01\n")
        assert named in refusal(home).message
        named_model = {} if model else given
        table = {"model": given, section: {**named_model, key: date(2026, 1, 1)}}
        with pytest.raises(ConfigError) as caught:
            build_config(table)
        assert named in caught.value.message
        assert caught.value.details["key"].startswith(named)


def test_loading_builds_the_validators_once_in_a_process(home: Path) -> None:
    write(home, MINIMAL)
    load_config(home)
    profile = cProfile.Profile()
    profile.runcall(load_config, home)
    assert sum(entry.callcount for entry in profile.getstats()) < 2_500


@together(
    ("table", "said"),
    [
        ('mode = "on"', "sandbox.mode must be 'off', 'auto' or 'required'"),
        ('network = true', "sandbox.network must be 'ask', 'off' or 'on'"),
        ('write = "/a"', "sandbox.write must be an array"),
        ('write = ["~/a*"]', "sandbox.write[0] must name a folder or a file"),
        ('read = "some"', "sandbox.read must be 'all'"),
        ('read = ["/a", ""]', "sandbox.read[1] must name a folder or a file"),
        ('protect = [""]', "sandbox.protect[0]"),
        ('protect = ["${X}/a"]', "sandbox.protect has an unknown placeholder ${X}"),
        ('read = ["${X}/a"]', "sandbox.read has an unknown placeholder ${X}"),
        ('ask_inside = 1', "sandbox.ask_inside must be true or false"),
        ('ask_insid = true', "did you mean sandbox.ask_inside?"),
    ],
)  # fmt: skip
def test_a_sandbox_that_cannot_be_is_refused_with_its_place(
    tmp_path: Path, table: str, said: str
) -> None:
    text = f'[model]\nprovider = "ollama"\nname = "m"\n[sandbox]\n{table}\n'
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path)
    assert said in caught.value.message
    assert "config.toml" in caught.value.message


@together("folder", ["~", "~/", "/", ".."])
def test_a_cache_that_contains_the_home_folder_of_the_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    user = tmp_path / "user"
    for path in (user / "project", user / "cache", tmp_path / "home"):
        path.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))

    def read(cache: str) -> Setup:
        text = f'{MINIMAL}[sandbox]\nmode = "auto"\ncaches = ["~/cache", "{cache}"]\n'
        (tmp_path / "home" / "config.toml").write_text(text, encoding="utf-8")
        return read_setup(user / "project", home_dir=tmp_path / "home")

    assert read("~/cache").config.sandbox.caches
    with pytest.raises(ConfigError, match=r"sandbox.caches\[1\] must not contain your home"):
        read(folder)


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="is not a folder") as refused:
        resolve_home(file)
    assert refused.value.code is ErrorCode.CONFIG_ERROR
    assert resolve_home(tmp_path / "missing") == tmp_path / "missing"


def test_one_of_some_values_is_asked_for_with_what_was_given() -> None:
    class Version(Section):
        schema_version: Literal[1]

    for given, said in ((2, "must be 1, not 2"), ("1", "not a text"), (None, "not an empty value")):
        with pytest.raises(ValidationError) as caught:
            Version.model_validate({"schema_version": given})
        [problem] = problems_of(caught.value, Version)
        assert said in problem.message

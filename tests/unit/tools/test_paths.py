"""Where a path leads is what counts, not how it is spelt."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_core.config.load import read_setup
from agent_core.context.instructions import find_instructions
from agent_core.errors import ErrorCode, PermissionDeniedError, ToolError
from agent_core.tools.workspace import PathPolicy, ProgramPlaces
from tool_facts import Code


def refused(boundaries: PathPolicy, given: str) -> bool:
    try:
        boundaries.refuse_protected(boundaries.resolve(given))
    except PermissionDeniedError:
        return True
    return False


def test_a_path_is_relative_to_the_project_and_may_not_exist_yet(
    boundaries: PathPolicy, project: Path
) -> None:
    place = boundaries.resolve("new/dir/a.txt")
    assert place.path == project / "new" / "dir" / "a.txt"
    assert place.shown == "new/dir/a.txt"
    assert place.writable


@pytest.mark.parametrize("given", ["../project-secret/a", "..", "/etc/passwd", "a/../../b", "~/x"])
def test_what_is_outside_is_outside_however_it_is_written(
    boundaries: PathPolicy, project: Path, given: str
) -> None:
    project.with_name("project-secret").mkdir()
    place = boundaries.resolve(given)
    assert not place.writable
    assert place.shown == str(place.path)


def test_links_are_followed_before_anything_is_checked(
    boundaries: PathPolicy, project: Path, tmp_path: Path
) -> None:
    (project / "out").symlink_to(tmp_path)
    (project / "in").symlink_to(project / "deep")
    (project / "deep").mkdir()
    assert not boundaries.resolve("out/a.txt").writable
    assert boundaries.resolve("in/a.txt").path == project / "deep" / "a.txt"
    assert not boundaries.resolve("deep/../out/x").writable
    (project / "dangling").symlink_to(tmp_path / "nowhere" / "x")
    assert boundaries.resolve("dangling").path == tmp_path / "nowhere" / "x"


def test_a_write_root_is_writable_and_its_sibling_is_not(project: Path, tmp_path: Path) -> None:
    boundaries = PathPolicy(project, write_roots=[tmp_path / "extra"])
    assert boundaries.resolve(f"{tmp_path}/extra/a").writable
    assert not boundaries.resolve(f"{tmp_path}/extra-more/a").writable


@pytest.mark.parametrize(
    "given", ["", "a\0b", "a\ud800b", "~nobody-has-this-name/x", "a/" * 1_000_000]
)
def test_what_is_no_path_is_refused(boundaries: PathPolicy, given: str) -> None:
    with pytest.raises(ToolError) as refusal:
        boundaries.resolve(given)
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize(
    "given",
    [
        "{home}",
        "{home}/config.toml",
        "{home}/tools/not-there-yet.json",
        "{home}/../home/hooks.json",
        "{HOME}/hooks.json",
        "link/hooks.json",
        "hard.toml",
        ".soong-agent/tasks/s/1.jsonl",
        ".Soong-Agent/TASKS/x",
        ".soong-agent/plans/../tasks/x",
    ],
)
def test_the_programs_own_files_are_refused_under_every_name(
    boundaries: PathPolicy, home: Path, project: Path, given: str
) -> None:
    (project / "link").symlink_to(home)
    os.link(home / "config.toml", project / "hard.toml")
    upper = home.with_name(home.name.upper())
    assert refused(boundaries, given.format(home=home, HOME=upper))


def test_files_that_only_look_alike_are_not_refused(boundaries: PathPolicy, project: Path) -> None:
    (project / "a").write_text("", encoding="utf-8")
    os.link(project / "a", project / "b")
    for name in ("a", "b", ".soong-agent/plans/p.md", "home/config.toml", "../home-2/x"):
        assert not refused(boundaries, name)


@pytest.mark.parametrize(
    "given",
    [
        *(".env", ".ENV", ".env.local", "deep/server.pem", "id.KEY", "~/.ssh/config", "~/.aws"),
        *("innocent.txt", ".env/inside", "~/.ssh/../.ssh/id_rsa"),
    ],
)
def test_sensitive_files_are_known_by_name_and_by_where_a_link_leads(
    boundaries: PathPolicy, project: Path, given: str
) -> None:
    (project / "innocent.txt").symlink_to(project / "server.pem")
    assert boundaries.resolve(given).sensitive


@pytest.mark.parametrize("given", ["env", "a.env", "pem", "keys/a.txt", "~/.sshx", ".envrc"])
def test_other_files_are_not_sensitive(boundaries: PathPolicy, given: str) -> None:
    assert not boundaries.resolve(given).sensitive


def test_patterns_with_folders_and_wildcards_match_whole_paths(project: Path) -> None:
    boundaries = PathPolicy(project, sensitive=[f"{project}/conf*/secret", "/opt/keys"])
    assert boundaries.resolve("config/secret").sensitive
    assert boundaries.resolve("/opt/keys/a/b").sensitive
    assert not boundaries.resolve("/opt/keys2").sensitive


@pytest.mark.parametrize("given", ["secrets/a", "secrets/a/b", "conf/db/key", "any/vault/x"])
def test_relative_patterns_start_at_the_project_wherever_the_process_does(
    project: Path, given: str
) -> None:
    boundaries = PathPolicy(project, sensitive=["secrets/", "conf/*/key", "*/vault/*"])
    assert boundaries.resolve(given).sensitive
    assert not boundaries.resolve("other/conf/db/key").sensitive


def test_patterns_know_the_placeholders_of_the_configuration(home: Path, project: Path) -> None:
    patterns = ["${SOONG_AGENT_HOME}/kept", "<project>/private/*"]
    settings = f"[tools]\nsensitive_paths = {json.dumps(patterns)}\n"
    model = '[model]\nprovider = "x"\nname = "x"\n'
    (home / "config.toml").write_text(model + settings, encoding="utf-8")
    boundaries = PathPolicy.of(read_setup(project, home_dir=home))
    assert boundaries.resolve(f"{home}/kept/a").sensitive
    assert boundaries.resolve("private/a").sensitive


def test_the_programs_own_files_are_read_only_after_a_question_but_for_what_models_read(
    home: Path, project: Path
) -> None:
    boundaries = PathPolicy(
        project, program=ProgramPlaces(own=(home,), readable=(home / "skills",))
    )
    (home / "skills").mkdir()
    (home / "skills" / "leak").symlink_to(home / "config.toml")
    (project / "link").symlink_to(home)
    own = {
        given: boundaries.resolve(given).is_own
        for given in (
            *(f"{home}", f"{home}/config.toml", f"{home}/tools/x", "link/x", f"{home}/skills/leak"),
            *(f"{home}/skills/../x", str(home).upper() + "/x", f"{home}/skills/a/b", "a"),
        )
    }
    assert list(own.values()) == [True] * 7 + [False] * 2


def test_a_sensitive_name_is_known_in_every_spelling_of_its_letters(project: Path) -> None:
    boundaries = PathPolicy(project, sensitive=["cl\u00e9", "deep/cl\u00e9s"])
    for name in ("cl\u00e9", "cle\u0301", "CLE\u0301", "deep/cle\u0301s/x"):
        assert boundaries.resolve(name).sensitive


@pytest.mark.parametrize(
    ("entry", "held", "free"),
    [
        (".env", ".env sub/.env .ENV /other/.env .env/inside", "env .envrc a.env"),
        ("*.pem", "a.pem deep/b.PEM a.pem/inside", "a.pem.txt pem"),
        ("secrets", "secrets deep/secrets secrets/a", "secrets.txt my-secrets"),
        ("secrets/", "secrets deep/secrets deep/secrets/a /other/secrets/a", "files/secrets"),
        ("/secrets", "secrets secrets/a", "deep/secrets deep/secrets/a"),
        ("/secrets/", "secrets secrets/a", "deep/secrets"),
        ("conf/key", "conf/key conf/key/a", "deep/conf/key conf/key2"),
        ("conf/*/key", "conf/a/key conf/b/key/c", "conf/a/b/key conf/key"),
        ("conf/**/key", "conf/key conf/a/b/key", "key other/key"),
        ("**/vault/*", "vault/x a/b/vault/x /other/vault/x", "vaults/x"),
        ("*/vault/*", "any/vault/x a/b/vault/x", "vaults/x"),
        ("deep/*.txt", "deep/a.txt", "deep/a/b.txt a.txt"),
        ("/other/keys", "/other/keys /other/keys/a", "/other/keys2"),
        ("~/keys", "~/keys/a", "keys"),
        ("s?crets", "secrets s-crets", "screts"),
        ("[ab]", "a deep/b", "c ab"),
        ("/", "a /other/x", ""),
        ("", "", "a"),
    ],
)
def test_entries_read_like_ignore_patterns(project: Path, entry: str, held: str, free: str) -> None:
    for folder in ("secrets", "deep/secrets", "files"):
        (project / folder).mkdir(parents=True)
    (project / "files" / "secrets").write_text("", encoding="utf-8")
    boundaries = PathPolicy(project, sensitive=[entry])
    for given, expected in [(path, True) for path in held.split()] + [
        (path, False) for path in free.split()
    ]:
        assert boundaries.resolve(given).sensitive is expected, given


@pytest.mark.parametrize("end", ["example", "sample", "template", "dist", "EXAMPLE"])
def test_templates_of_settings_are_not_sensitive(
    boundaries: PathPolicy, project: Path, end: str
) -> None:
    for name in (f".env.{end}", f"sub/.env.production.{end}"):
        assert not boundaries.resolve(name).sensitive
    assert boundaries.resolve(f".env.{end}.local").sensitive
    assert boundaries.resolve(f"keys.pem/.env.{end}").sensitive
    assert PathPolicy(project, sensitive=[f"*.{end}"]).resolve(f".env.{end}").sensitive
    (project / ".env").write_text("", encoding="utf-8")
    (project / f".env.{end}").symlink_to(project / ".env")
    assert boundaries.resolve(f".env.{end}").sensitive


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        ".netrc",
        ".npmrc",
        ".git-credentials",
        ".pypirc",
        ".docker/config.json",
        ".kube/config",
        ".config/gh/hosts.yml",
        ".cargo/credentials.toml",
        ".pgpass",
        ".bash_history",
        ".zsh_history",
        ".m2/settings.xml",
        ".gem/credentials",
        ".gradle/gradle.properties",
        ".composer/auth.json",
        ".local/share/keyrings/x",
        ".cache/mozilla/x",
        ".cache/huggingface/token",
        ".codex/auth.json",
        ".claude.json",
        ".yarnrc.yml",
        ".pip/pip.conf",
        ".mozilla/x",
        ".password-store/x",
        "Library/Keychains/x",
        "Library/Cookies",
        "AppData/Roaming/x",
        ".ssh",
        ".config",
        ".NETRC",
        ".nuget/NuGet/NuGet.Config",
        ".pub-cache/credentials.json",
        ".local/share/uv/credentials/credentials.toml",
        ".nvm/versions/node/v22/etc/npmrc",
        ".pyenv/versions/3.11/pip.conf",
        "AppData/Roaming/npm/etc/npmrc",
        ".m2",
        ".cargo",
    ],
)
def test_what_is_hidden_in_a_home_is_sensitive(project: Path, name: str) -> None:
    for home in (project.parent, Path("/home/other"), Path("/root"), Path("/Users/x")):
        policy = PathPolicy(project, homes=[project.parent])
        assert policy.resolve(f"{home}/{name}").sensitive
    assert not PathPolicy(project).resolve(f"{project.parent}/{name}").sensitive


@pytest.mark.parametrize(
    "name",
    [
        ".cache/pip/http/a",
        ".cargo/registry/src/a/b.rs",
        ".m2/repository/org/a.jar",
        ".gem/ruby/3.0/a",
        ".local/lib/python3.11/site-packages/a.py",
        ".pyenv/versions/3.11/lib/a",
        ".nvm/versions/node/a",
        ".rustup/toolchains/a",
        ".gradle/caches/a",
        ".npm/_cacache/a",
        ".nuget/packages/a",
        ".local/share/doc/a",
        "Library/Caches/pip/a",
        "Library/Python/a",
        "AppData/Local/uv/cache/a",
        "code/a",
        "Documents/.x",
        "code/.y/z",
    ],
)
def test_caches_and_libraries_in_a_home_are_not_sensitive(project: Path, name: str) -> None:
    policy = PathPolicy(project, homes=[project.parent])
    assert not policy.resolve(f"{project.parent}/{name}").sensitive


def test_the_own_roots_are_never_hidden(tmp_path: Path) -> None:
    for place in (".dotfiles", ".cache/trees/a", "Library/x", ".config/nvim"):
        project = tmp_path / place
        policy = PathPolicy(
            project, homes=[tmp_path], write_roots=[tmp_path / ".notes"], sensitive=[".env"]
        )
        for given in ("a.txt", ".bashrc", str(tmp_path / ".notes" / "a")):
            assert not policy.resolve(given).sensitive
        assert policy.resolve(".env").sensitive
        assert policy.resolve(str(project.parent / ".other")).sensitive or place == ".dotfiles"
    whole = PathPolicy(tmp_path, homes=[tmp_path])  # a project that is the home hides as before
    assert whole.resolve(".netrc").sensitive
    assert not whole.resolve("code/a").sensitive


def test_a_link_to_what_is_hidden_is_sensitive(project: Path) -> None:
    (project.parent / ".netrc").write_text("", encoding="utf-8")
    (project / "notes.txt").symlink_to(project.parent / ".netrc")
    assert PathPolicy(project, homes=[project.parent]).resolve("notes.txt").sensitive


def test_homes_are_those_of_the_environment_and_of_the_account(
    home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = '[model]\nprovider = "x"\nname = "x"\n[tools]\nsensitive_paths = []\n'
    (home / "config.toml").write_text(model, encoding="utf-8")
    monkeypatch.setenv("HOME", str(project.parent))
    policy = PathPolicy.of(read_setup(project, home_dir=home))
    assert policy.resolve("~/.netrc").sensitive
    assert not policy.resolve("~/notes").sensitive
    assert not policy.resolve("a").sensitive


def test_names_are_compared_once_however_many_paths_have_them(project: Path) -> None:
    policy = PathPolicy(project, sensitive=["*.pem", ".env"])
    for number in range(5000):
        assert not policy.is_sensitive(project / "src" / f"part{number % 10}" / "main.py")
    assert policy._sensitive.is_sensitive_name.cache_info().misses == 12


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {}),
        ("list_dir", {}),
        ("search", {"query": "x"}),
        ("write_file", {"content": "", "overwrite": True}),
        ("edit_file", {"edits": [{"old": "a", "new": "b"}]}),
    ],
)
async def test_every_file_tool_says_which_path_it_names_with_links_followed(
    code: Code, project: Path, tool: str, arguments: dict[str, Any]
) -> None:
    target = project / "src" / "a.txt"
    target.parent.mkdir()
    target.write_text("a", encoding="utf-8")
    (project / "link").symlink_to(target.parent)
    name = "link" if tool in {"list_dir", "search"} else "link/a.txt"
    access = (await code.prepare(tool, path=name, **arguments)).access
    assert access.paths == (str(target.parent if name == "link" else target),)


async def test_tools_read_each_path_that_they_name(code: Code, project: Path) -> None:
    names = ["artifact:notes.txt", "artifact:folder/a.txt", "~draft.txt", "~", "in/artifact:x.txt"]
    for name in names:
        file = project / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("a needle\n", encoding="utf-8")
    (project / "artifact:folder" / "CLAUDE.md").write_text("Be kind.\n", encoding="utf-8")
    listed = await code("list_dir", path=".", recursive=True)
    found = await code("search", query="needle")
    paths = {entry["path"] for entry in listed["entries"] if entry["type"] == "file"}
    assert {match["path"] for match in found["matches"]} == {
        path for path in paths if not path.endswith("CLAUDE.md")
    }
    catalog = find_instructions(project / "home", project, is_closed=lambda _: False)
    assert {file.shown for file in catalog.files} <= paths
    for path in sorted(paths):
        page = await code("read_file", path=path)
        assert (page["path"], page["content"][-2:]) in {(path, "e\n"), (path, ".\n")}
    written = await code("write_file", path="./artifact:new.txt", content="a needle\n")
    assert (await code("read_file", path=written["path"]))["content"] == "a needle\n"
    assert (await code("list_dir", path="./artifact:folder"))["entries"][0]["path"] in paths

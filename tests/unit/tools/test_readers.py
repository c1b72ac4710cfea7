"""What readers open: judged for questions, answers, rules and explanations alike."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent_core.permissions.request import build_wide_grant
from agent_core.process.confinement import Abilities
from agent_core.types import Decision
from command_lines import CommandLines, Judged, make_program
from isolation import fresh_folder
from tables import together

PROGRAMS = """
    7z ack ag awk bash cat cp cut dash diff du echo egrep file find git grep head jq less ls my-tool
    nl od  python3 rg rsync scp sed sort strings tail tar tee timeout tr tree uniq wc xargs zip
"""


@cache
def installed() -> Path:
    """A folder with the programs, which all tests share."""
    folder = fresh_folder("programs", "readers")
    for name in PROGRAMS.split():
        make_program(folder / name)
    (folder / "sh").symlink_to("dash")
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A project with secrets, links out of it and a home of a user, beside each other."""
    return lay_out(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for tests that change nothing in it."""
    folders = lay_out(tmp_path_factory.mktemp("unchanged"))
    for name in ("pytest", "curl", "docker", "kubectl", "gh", "go", "npx", "uv"):
        make_program(folders / "bin" / name)
    return folders


def lay_out(folders: Path) -> Path:
    for name in (
        "project/src/deep",
        "project/cfg",
        "project/empty",
        "project/secrets/deep",
        "project/links",
        "home",
        "user/.ssh",
        "outside",
        "bin",
    ):
        (folders / name).mkdir(parents=True)
    texts = {
        "project/a.txt": "a\n",
        "project/src/b.py": "b\n",
        "project/src/deep/c.py": "c\n",
        "project/cfg/.env": "PASS=1\n",
        "project/cfg/app.toml": "",
        "project/secrets/deep/key.txt": "PASS\n",
        "outside/notes.txt": "",
        "user/.ssh/id_rsa": "key",
    }
    for name, text in texts.items():
        (folders / name).write_text(text, encoding="utf-8")
    (folders / "project/links/outside").symlink_to(folders / "outside")
    return folders


def lines(
    folders: Path, rules: Sequence[Mapping[str, Any]] = (), *, settings: str = ""
) -> CommandLines:
    """Return the commands of the project under these rules, which are made once."""
    return _lines_of(folders, json.dumps(rules), settings)


@cache
def _lines_of(folders: Path, rules: str, settings: str) -> CommandLines:
    path = f"{folders / 'bin'}{os.pathsep}{installed()}"
    environ = {"PATH": path, "HOME": str(folders / "user")}
    project, home = folders / "project", folders / "home"
    return CommandLines(project, home, rules=json.loads(rules), environ=environ, settings=settings)


async def judge(folders: Path, line: str, rules: Sequence[Mapping[str, Any]] = ()) -> Judged:
    return await lines(folders, rules).judge(shlex.split(line))


def reason(judged: Judged) -> str | None:
    assert judged.action is not None
    return judged.action.access.reason


@together(
    "line",
    [
        "diff -N cfg empty",
        "diff cfg empty",
        "diff -r . empty",
        "diff --recursive --new-file empty cfg",
        "grep -r PASS .",
        "grep -r PASS",
        "grep -R PASS cfg",
        "grep -rf a.txt cfg",
        "grep -r -e PASS -- cfg",
        "egrep -r PASS cfg",
        "rg --hidden PASS",
        "rg -. PASS cfg",
        "rg -uu PASS",
        "rg -uuu PASS",
        "rg -g .env PASS",
        "rg -g '.e*' PASS",
        "rg -t all PASS",
        "rg --hidden --follow PASS",
        "find cfg -exec cat {} ;",
        "find . -type f -exec grep PASS {} +",
        "find . -name '.env' -exec cat {} ;",
        "find . -exec cat {} ; -name '*.py'",
        "find . ! -name '*.py' -exec cat {} ;",
        "find . -name '*.py' -o -exec cat {} ;",
        "tar czf x.tgz .",
        "tar -c cfg -f x.tar",
        "tar -C cfg -cf x.tar .",
        "cp -r cfg copy",
        "cp -a cfg copy",
        "zip -r x.zip cfg",
        "rsync -a cfg/ copy",
        "git grep --untracked PASS",
        "git diff --no-index cfg empty",
        "sh -c 'cat cfg/.e*'",
        "bash -c 'head -n5 cfg/.*'",
        "bash -c 'cd cfg && cat .env'",
        "timeout 5 grep -r PASS .",
        "sh -c 'find . -type f | xargs cat'",
        "sh -c 'find . -print0 | xargs -0 head'",
        "sh -c 'ls -A cfg | xargs cat'",
        "bash -c 'for f in $(find . -type f); do cat \"$f\"; done'",
        "bash -c 'find . -type f | while true; do cat \"$f\"; done'",
        "ag --hidden PASS",
        "bash -c 'cat $(echo cfg/.env)'",
        "bash -c 'x=cfg/.env; cat $x'",
        "xargs -a cfg/.env cat",
        "cat -- cfg/.env",
        "head -n5 cfg/.env",
        "grep -f cfg/.env a.txt",
        "grep --file=cfg/.env a.txt",
        "sed -n p cfg/.env",
        "awk 1 cfg/.env",
        "sort cfg/.env",
        "less cfg/.env",
        "wc --files0-from=cfg/.env",
        "sort --files0-from=cfg/.env",
        "file -f cfg/.env",
        "git diff --no-index cfg/.env a.txt",
        "grep -r --exclude-dir=.env PASS .",
        "grep -r --exclude=cfg PASS .",
        "grep -r --include=cfg/.env PASS .",
        "grep -r --include='*/.env' PASS .",
        "diff -N --from-file=cfg empty",
        "diff -rN --to-file cfg empty",
        "git show :0:cfg/.env",
        "git show :0:.env",
        "git show 'HEAD^{/a:b}:.env'",
    ],
)
async def test_a_secret_that_a_reader_opens_is_asked_for_always(unchanged: Path, line: str) -> None:
    judged = await judge(unchanged, line, [{"decision": "allow", "command": "*"}])
    assert (judged.decision, reason(judged)) == ("ask", "sensitive")
    assert judged.action is not None
    assert any(place.endswith(".env") for place in judged.action.access.places)


@together(
    "line",
    [
        "diff -r links empty",
        "grep -R PASS links",
        "rg --follow PASS links",
        "rg -L PASS",
        "ls -RL links",
        "find -L links",
        "find links -follow",
        "cp -rL links copy",
        "tar -chf x.tar links",
        "zip -r x.zip links",
        "du -L links",
        "tree -l links",
        "cat links/outside/notes.txt",
        "grep -r PASS links/outside",
        "git diff --no-index links/outside empty",
    ],
)
async def test_links_that_a_reader_follows_are_judged_by_where_they_lead(
    unchanged: Path, line: str
) -> None:
    judged = await judge(unchanged, line, [{"decision": "allow", "command": "*"}])
    writes = line.startswith(("cp", "tar", "zip"))
    expected = "outside_roots" if writes or "--no-index" in line else None
    assert (judged.decision, reason(judged)) == ("ask", expected)
    assert judged.action is not None
    assert any("/outside" in place for place in judged.action.access.places)


@together("line", ["cat /etc/os-release", "sh -c 'ls /usr | head -2'", "ls -la .."])
async def test_reading_outside_is_covered_by_what_covers_all_that_only_reads(
    unchanged: Path, line: str
) -> None:
    words = shlex.split(line)
    settings = '[permissions]\nreaders = "allow"\n'
    assert (await lines(unchanged, settings=settings).judge(words)).decision == "allow"
    assert (
        await judge(unchanged, line, [{"decision": "allow", "only": "reads"}])
    ).decision == "allow"
    assert (await judge(unchanged, line, [{"decision": "allow", "command": "*"}])).decision == "ask"
    below = {"decision": "allow", "only": "reads", "path": ["**"]}
    assert (await judge(unchanged, line, [below])).decision == "ask"
    judged = await judge(unchanged, line)
    assert judged.action is not None
    wide = build_wide_grant(judged.action.access, unchanged / "project")
    assert wide is not None
    assert wide.decision is Decision.ALLOW_READS


async def test_a_link_that_a_project_ships_to_a_folder_of_keys_is_sensitive(folders: Path) -> None:
    key = folders / "project" / "server.key"
    key.mkdir()
    (key / "id").write_text("", encoding="utf-8")
    (folders / "project" / "links" / "keys").symlink_to(key)
    (folders / "project" / "links" / "outside").unlink()
    for line in ("diff -r links empty", "grep -R x links", "rg -L x links", "ls -RL links"):
        assert reason(await judge(folders, line)) == "sensitive"
    for line in ("grep -r x links", "rg x links", "ls -R links", "find links", "cp -r links to"):
        assert reason(await judge(folders, line)) is None


@together(
    "line",
    [
        "grep -r word src",
        "grep -rn '/api/v1' src",
        "grep -rn --include=*.py word .",
        "grep -r word . --exclude-dir=cfg",
        "grep -r word . --exclude=.env",
        "rg word",
        "rg '/api/users'",
        "rg -e /api -e '~/x' src",
        "rg -t py word",
        "rg -g '*.py' word",
        "rg -g '!node_modules' word",
        "rg -n word -r /api src",
        "ls -R",
        "ls -la cfg",
        "tree",
        "du -sh .",
        "find . -name '*.py'",
        "find . -path '*/src/*' -not -name '.env'",
        "find . -name '*.py' -exec grep -n word {} +",
        "find . -name '*.py' -print0",
        "sed -n '/def f/,/return/p' a.txt",
        "sed -i 's#/usr/bin#/bin#' a.txt",
        "sed 's/a/b/' a.txt",
        "awk '/error/ {print $2}' a.txt",
        "awk -F/ '$3 > 5 {print $1 \"/\" $2}' a.txt",
        "cut -d/ -f2 a.txt",
        "tr / _",
        "jq '.paths[\"/api/v1\"]' a.txt",
        "echo /etc/passwd",
        "git log --grep=/api --format='%h /%s'",
        "git commit -m 'Serve /api/v1 from /etc'",
        "git commit -am /etc/x",
        "git grep '/api/v1'",
        "pytest -k /api",
        "python3 -m pytest -k '/api' src",
        "curl -H 'X: /etc' -d '{\"p\": \"/etc/x\"}' http://localhost:8080/api",
        "docker run --rm -v .:/app -w /app node npm test",
        "docker exec web ls /app",
        "docker compose exec web cat /etc/hosts",
        "kubectl exec pod -- ls /app",
        "gh api /repos/a/b",
        "go test -run '/sub' ./...",
        "sh -c 'grep -rn \"/api/v1\" src | head -n5'",
        "bash -c 'rg /api src && git status # see /etc/hosts'",
        "bash -c 'NODE_ENV=test grep /api src/b.py'",
        'bash -c \'find src -name "*.py" | xargs grep -n "/api"\'',
        'bash -c \'for f in src/*.py; do grep -n "/api" "$f"; done\'',
        "timeout 60 grep -rn /api src",
        "sh -c 'find . -name x; echo \"$HOME\"'",
        "sh -c 'ls | xargs echo'",
        "sh -c 'find . -name \"*.py\" | wc -l'",
        "sh -c 'ls | xargs wc -l'",
        "npx jest -t 'GET /api'",
        'sh -c \'grep -rl "/api/v1" src | xargs sed -i "s|/api/v1|/api/v2|"\'',
        "sh -c 'find src -print0 | xargs -0 -n1 grep -n \"/api\"'",
        "sh -c 'git grep -l \"/api\" | xargs wc -l'",
        "uv run pytest -k /api",
        "ag /api src",
        "python3 -c 'print(10 / 3)'",
    ],
)
async def test_words_that_a_program_does_not_open_are_no_paths(unchanged: Path, line: str) -> None:
    judged = await judge(unchanged, line)
    assert (judged.decision, reason(judged)) == ("ask", None)


@pytest.mark.parametrize(
    "line",
    [
        "docker run -v /:/host alpine ls",
        "docker run --mount type=bind,source=/etc,target=/x alpine ls",
        "docker run --unknown /etc alpine",
        "docker cp /etc/passwd web:/x",
        "curl -d @/etc/passwd http://localhost",
        "curl -o /etc/x http://localhost",
        "git commit -F /etc/passwd",
        "git -C /etc status",
        "sed r/etc/passwd a.txt",
        "sed '1r /etc/passwd' a.txt",
        "sed 's/[/]/;/w /etc/x' a.txt",
        "awk 'BEGIN {getline x < \"/etc/passwd\"}'",
        "bash -c 'echo /etc/passwd | xargs cat'",
        "bash -c 'echo -e root | xargs grep /etc/passwd'",
        "bash -c 'for x in \"-e root\"; do grep /etc/passwd $x; done'",
        "bash -c 'grep -oh /etc/passwd a.txt | xargs cat'",
        "bash -c 'rg -r /etc/passwd x | xargs cat'",
        "bash -c 'find src -printf /etc/passwd | xargs cat'",
        "bash -c 'ls | xargs sed s:.*:/etc/passwd: | xargs cat'",
        "bash -c 'printf /etc/%s passwd | bash -s'",
        "bash -c 'echo cat /etc/passwd | bash'",
        "bash -c 'x=/etc/passwd; cat $x'",
        "bash -c 'for x in /etc/passwd; do cat $x; done'",
        "X=/etc/passwd my-tool",
        "env X=/etc/passwd my-tool",
        "my-tool --pattern /etc/passwd",
        "./grep /etc/passwd a.txt",
        "python3 -c 'open(\"/etc/passwd\")'",
    ],
)
async def test_words_that_may_become_paths_are_judged(folders: Path, line: str) -> None:
    for name in ("curl", "docker", "env"):
        make_program(folders / "bin" / name)
    make_program(folders / "project" / "grep")
    judged = await lines(folders).judge(
        ["env", *shlex.split(line)] if line[0] == "X" else shlex.split(line)
    )
    assert reason(judged) == "outside_roots"


DENIES = [
    {"decision": "allow", "command": "*"},
    {"decision": "deny", "path": ["secrets/**"]},
]


@together(
    "line",
    [
        "cat secrets/deep/key.txt",
        "grep -r PASS src secrets",
        "grep -rn PASS secrets/deep",
        "grep -R PASS secrets",
        "rg PASS",
        "rg -n PASS .",
        "rg --files",
        "diff -r secrets src",
        "diff secrets/deep empty",
        "ls -R secrets",
        "tree secrets",
        "find secrets",
        "find . -name '*.txt'",
        "find src secrets -exec cat {} +",
        "tar cf x.tar secrets",
        "cp -r secrets copy",
        "zip -r x.zip secrets",
        "head -n5 secrets/deep/*",
        "sh -c 'head -n5 secrets/*/*'",
        "sh -c 'cd secrets && cat deep/key.txt'",
        "sh -c 'grep -r PASS secrets | wc -l'",
        "timeout 5 rg PASS",
        "grep -r PASS secrets --unknown",
        "rg --unknown PASS secrets",
        "git grep --untracked PASS",
        "git diff --no-index secrets src",
        "sort secrets/deep/key.txt",
        "wc -l secrets/deep/key.txt",
        "sed -n p secrets/deep/key.txt",
    ],
)
async def test_a_rule_that_denies_paths_denies_their_readers(unchanged: Path, line: str) -> None:
    assert (await judge(unchanged, line, DENIES)).decision == "deny"


@together(
    "line",
    [
        "grep -r PASS src",
        "rg PASS src",
        "ls",
        "ls -R src",
        "cat a.txt",
        "find src",
        "diff -r src empty",
    ],
)
async def test_other_readers_stay_allowed(unchanged: Path, line: str) -> None:
    assert (await judge(unchanged, line, DENIES)).decision == "allow"


@together(
    "line",
    [
        "cat --unknown a.txt",
        "wc --files0-from=a.txt",
        "sort --files0-from=a.txt",
        "file -f a.txt",
        "xargs cat",
        "sh -c 'cat $x'",
        "sh -c 'ls | xargs head'",
        "sed -f a.txt src/b.py",
        "git archive HEAD",
        "ack PASS src",
        "scp -r src host:x",
        "7z a x.7z src",
        "git grep --untracked PASS '*'",
        "git grep --untracked PASS ':(top)src'",
        "git grep --no-index PASS 'secret\\\\s'",
        "git diff --no-index 'sec?ets' src",
        "git show a:b:c:d:e:f:g:h:i:j:k:l",
    ],
)
async def test_a_reader_of_which_nothing_is_known_is_asked_for_where_paths_are_denied(
    unchanged: Path, line: str
) -> None:
    judged = await judge(unchanged, line, DENIES)
    assert judged.decision == "ask"
    assert "only read" not in judged.scope
    allowed = await judge(unchanged, line, [{"decision": "allow", "command": ["*"]}])
    assert allowed.decision == "allow"


async def test_an_unknown_option_is_remembered_word_for_word(folders: Path) -> None:
    for line in ("ls --unknown", "grep -r --unknown word .", "rg --unknown word", "diff --x a b"):
        judged = await judge(folders, line)
        assert (judged.decision, reason(judged)) == ("ask", None)
        assert f" as exactly: {line} " in judged.scope


async def test_no_rule_allows_an_unknown_option_where_a_secret_may_be_met(folders: Path) -> None:
    rules = [{"decision": "allow", "command": ["grep", "*"]}]
    assert (await judge(folders, "grep -r --unknown word cfg", rules)).decision == "ask"
    assert (await judge(folders, "grep -r --unknown word src", rules)).decision == "allow"


async def test_an_answer_for_one_comparison_does_not_cover_another_folder(folders: Path) -> None:
    first = await judge(folders, "diff a.txt src/b.py")
    assert "diff with options that only read" in first.scope
    other = await judge(folders, "diff -N cfg empty")
    assert other.scope != first.scope
    assert reason(other) == "sensitive"


async def test_ignore_files_decide_what_ripgrep_opens(folders: Path) -> None:
    project = folders / "project"
    assert reason(await judge(folders, "rg PASS")) is None
    (project / ".ignore").write_text("!.env\n", encoding="utf-8")
    assert reason(await judge(folders, "rg PASS")) == "sensitive"
    (project / ".ignore").write_text(".env/\n", encoding="utf-8")  # a folder of this name only
    assert reason(await judge(folders, "rg -. PASS")) == "sensitive"
    (project / ".ignore").write_text(".env\n", encoding="utf-8")
    assert reason(await judge(folders, "rg -. PASS")) is None
    (project / ".ignore").write_text("secrets/\n", encoding="utf-8")
    assert (await judge(folders, "rg PASS", DENIES)).decision == "allow"
    assert (await judge(folders, "rg --no-ignore PASS", DENIES)).decision == "deny"
    (project / "src" / ".ignore").write_text("!secrets\n", encoding="utf-8")
    (project / "src" / "secrets").mkdir()
    rules = [DENIES[0], {"decision": "deny", "path": ["src/secrets/**"]}]
    assert (await judge(folders, "rg PASS", rules)).decision == "deny"


@together("line", ["strings -o cfg/.env", "od -w cfg/.env", "ag --after PASS cfg --hidden"])
async def test_an_option_without_a_value_takes_no_path_for_one(unchanged: Path, line: str) -> None:
    assert reason(await judge(unchanged, line)) == "sensitive"


@pytest.mark.parametrize(
    "place",
    [
        *("project/.ignore", "project/.rgignore", ".ignore", "project/.git/info/exclude"),
        *("project/src/.git/info/exclude", "user/.config/git/ignore", "user/ignored"),
    ],
)
async def test_every_ignore_file_that_ripgrep_reads_can_show_what_is_hidden(
    folders: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOME", str(folders / "user"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (folders / "user" / ".gitconfig").write_text("[core]\nexcludesFile = ~/ignored\n")
    (folders / "project" / "src" / "deep" / ".env").write_text("PASS\n")
    if "/.git/" in place:
        (folders / place).parent.mkdir(parents=True)
    assert reason(await judge(folders, "rg PASS src")) is None
    (folders / place).parent.mkdir(parents=True, exist_ok=True)
    (folders / place).write_text("!.env\n")
    assert reason(await judge(folders, "rg PASS src")) == "sensitive"


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        *(
            "grep -r PASS {other}",
            "grep -R PASS links",
            "diff -rN {other} empty",
            "rg -. PASS {other}",
        ),
        *("rg -L. PASS", "diff -N {other}/cfg empty", "sh -c 'cd {other} && grep -r PASS .'"),
        *("sh -c 'cd .. && grep -r PASS outside'", "find {other} -exec cat {{}} +"),
        *(
            "git diff {other} empty",
            "git diff -- {other}/cfg {other}/cfg",
            "git diff ../outside src",
        ),
    ],
)
async def test_secrets_below_folders_outside_ask(folders: Path, line: str) -> None:
    (folders / "outside" / "cfg").mkdir()
    (folders / "outside" / "cfg" / ".env").write_text("PASS=1\n")
    (folders / "project" / ".git").mkdir()
    judged = await judge(folders, line.format(other=folders / "outside"))
    assert reason(judged) == "sensitive"
    assert judged.action is not None
    assert not judged.action.access.reads


async def test_ignore_files_of_git_do_not_count_in_a_repository_below(folders: Path) -> None:
    project = folders / "project"
    (project / ".git").mkdir()
    (project / ".gitignore").write_text(".env\nsecrets/\n")
    shutil.copytree(project / "secrets", project / "src" / "deep" / "secrets")
    (project / "src" / ".env").write_text("PASS\n")
    assert reason(await judge(folders, "rg -. PASS")) is None
    rules = [DENIES[0], {"decision": "deny", "path": ["**/secrets/**"]}]
    assert (await judge(folders, "rg PASS", rules)).decision == "allow"
    (project / "src" / ".git").write_text("gitdir: elsewhere\n")
    assert reason(await judge(folders, "rg -. PASS")) == "sensitive"
    assert (await judge(folders, "rg PASS", rules)).decision == "deny"
    (project / ".gitignore").rename(project / ".ignore")  # Git has no part in this one
    assert reason(await judge(folders, "rg -. PASS")) is None
    assert (await judge(folders, "rg PASS", rules)).decision == "allow"


async def test_files_of_installed_packages_are_no_secrets_on_the_way(folders: Path) -> None:
    project = folders / "project"
    for place in (
        "src/.venv/lib/python3/site-packages/certifi/cacert.pem",
        "src/node_modules/a/.env",
    ):
        (project / place).parent.mkdir(parents=True)
        (project / place).write_text("", encoding="utf-8")
        assert reason(await judge(folders, "grep -r word src")) is None
        assert reason(await judge(folders, f"cat {place}")) == "sensitive"
    (project / "src" / "node_modules" / "out").symlink_to(folders / "user" / ".ssh")
    assert "outside" in (await judge(folders, "grep -R word src")).because
    rules = [DENIES[0], {"decision": "deny", "path": ["src/node_modules/a/.env"]}]
    assert (await judge(folders, "grep -r word src", rules)).decision == "deny"


async def test_a_tree_that_is_too_large_is_remembered_word_for_word(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_core.tools.code.opened._MAX_ENTRIES", 2)
    judged = await judge(folders, "grep -r word src")
    assert " as exactly: " in judged.scope
    assert (await judge(folders, "grep -r word src", DENIES)).decision == "ask"


@pytest.mark.long
@pytest.mark.parametrize("version", ["2", "4"])
async def test_what_git_shows_of_tracked_files_is_judged_by_rules(
    folders: Path, version: str
) -> None:
    project = folders / "project"
    environ = {"PATH": os.environ["PATH"], "HOME": str(folders / "user")}
    git = shutil.which("git")
    assert git is not None

    def run(*words: str) -> None:
        subprocess.run([git, *words], cwd=project, env=environ, check=True)  # noqa: S603 - git

    run("init", "-q")
    run("config", "index.version", version)
    run("add", "src", "a.txt")
    for line in ("git grep PASS", "git diff", "git show", "git log -p"):
        assert (await judge(folders, line, DENIES)).decision == "allow"
    run("add", "secrets")
    for line in (
        *("git grep PASS", "git diff", "git show", "git log -p", "git --no-pager diff"),
        *("git diff --check HEAD", "git log --check", "git status -v", "git status -svv"),
        *("git show --stat 1234567", "git show --stat v1", "git log --color-words"),
        "git grep PASS -- a.txt 'secret\\s'",
    ):
        assert (await judge(folders, line, DENIES)).decision == "deny"
    for line in (
        "git grep PASS src",
        "git diff -- src",
        "git log",
        "git status",
        "git diff --stat",
        "git show --stat",
        "git show --stat HEAD~2",
    ):
        assert (await judge(folders, line, DENIES)).decision == "allow"
    assert (await judge(folders, "git show HEAD:secrets/deep/key.txt", DENIES)).decision == "deny"
    assert (await judge(folders, "git show HEAD:src/b.py", DENIES)).decision == "allow"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of which a commit has a file in `secrets` that is tracked no more.

    No test changes anything in it.
    """
    folders = lay_out(tmp_path_factory.mktemp("history"))
    project = folders / "project"
    environ = {"PATH": os.environ["PATH"], "HOME": str(folders / "user")}
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for line in ("init -q", "add src a.txt secrets", "commit -qm one", "rm -rq secrets", "status"):
        argv = ["git", *author, *line.split()]
        subprocess.run(argv, cwd=project, env=environ, check=True, capture_output=True)  # noqa: S603
    return folders


@pytest.mark.long
@together(
    "line",
    [
        "git log -p",
        "git log -p --all -- src",
        "git log -p --follow",
        "git show HEAD",
        "git show HEAD -- src",
        "git diff HEAD",
        "git diff HEAD~1 HEAD",
        "git diff --cached",
        "git grep PASS HEAD",
        "git status -v",
        "sh -c 'git log -p | head'",
    ],
)
async def test_commits_may_show_files_that_no_index_names(history: Path, line: str) -> None:
    rules = [DENIES[0], {"decision": "deny", "path": ["secrets/**"]}]
    assert (await judge(history, line, rules)).decision == "ask"
    settings = '[permissions]\nreaders = "allow"\n'
    for rule in ("deny", "ask"):
        restriction = [{"decision": rule, "path": ["secrets/**"]}]
        judged = await lines(history, restriction, settings=settings).judge(shlex.split(line))
        assert judged.decision == "ask"
    assert (await lines(history, settings=settings).judge(shlex.split(line))).decision == "allow"


@pytest.mark.parametrize("rule", ["deny", "ask"])
async def test_a_sandbox_that_asks_nothing_asks_for_commits_that_rules_may_be_about(
    history: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = Abilities(landlock=6, seccomp=True, namespaces=True, network_namespace=True)
    monkeypatch.setattr("agent_core.process.sandbox.probe", lambda: able)
    settings = '[sandbox]\nmode = "auto"\nask_inside = false\n'
    restriction = [{"decision": rule, "path": ["secrets/**"]}]
    for line, decision in (("git log -p", "ask"), ("git log", "allow"), ("git diff", "allow")):
        judged = await lines(history, restriction, settings=settings).judge(shlex.split(line))
        assert (line, judged.decision) == (line, decision)


@together(
    "line", ["git diff", "git log", "git log -p -- a.txt", "git show HEAD:a.txt", "git grep a src"]
)
async def test_what_shows_no_other_file_needs_no_question(history: Path, line: str) -> None:
    rules = [DENIES[0], {"decision": "deny", "path": ["secrets/**"]}]
    assert (await judge(history, line, rules)).decision == "allow"


@together(
    "line",
    [
        "git show HEAD:cfg/app.toml",
        "git show :cfg/app.toml",
        "git show :0:cfg/app.toml",
        "git show HEAD~2:cfg/./app.toml",
        "git diff HEAD:cfg/app.toml HEAD:a.txt",
        "git log -p -- :/cfg",
        "git grep PASS -- ':(top)cfg/app.toml'",
        "git cat-file -p HEAD:cfg/app.toml",
        "git archive HEAD:cfg",
        "sh -c 'git show HEAD:cfg/app.toml'",
        "git show HEAD:../cfg/app.toml",
    ],
)
async def test_git_names_paths_from_the_top_of_the_working_tree(history: Path, line: str) -> None:
    settings = '[tools]\nsensitive_paths = ["/cfg/"]\n'
    for cwd in (".", "src", "src/deep"):
        if ".." in line and cwd != "src":
            continue
        judged = await lines(history, settings=settings).judge(shlex.split(line), cwd=cwd)
        assert reason(judged) == "sensitive", cwd
    harmless = line.replace("cfg/app.toml", "a.txt").replace("cfg", "src")
    judged = await lines(history, settings=settings).judge(shlex.split(harmless), cwd="src")
    assert reason(judged) is None
    rules = [{"decision": "deny", "path": ["cfg/**"]}]
    judged = await lines(history, rules).judge(shlex.split(line), cwd="src")
    assert judged.decision == "deny"


@together(
    "line",
    ["git push origin HEAD:refs/x", "git clone git@example.org:/srv/a", "git show HEAD:./b.py"],
)
async def test_other_colons_of_git_name_no_place_elsewhere(history: Path, line: str) -> None:
    assert reason(await lines(history).judge(shlex.split(line), cwd="src")) is None


@pytest.mark.parametrize("text", ["gitdir: ../real ", "gitdir: ../real\nmore", "gitdir:  ../real"])
async def test_a_file_that_leads_git_elsewhere_than_it_seems_is_not_trusted(
    folders: Path, text: str
) -> None:
    tree = folders / "project" / "src"
    for name in ("real", text.removeprefix("gitdir: ../")):
        for part in ("objects", "refs"):
            (folders / "project" / name / part).mkdir(parents=True, exist_ok=True)
        (folders / "project" / name / "HEAD").write_text("ref: refs/heads/main\n")
        (folders / "project" / name / "config").touch()
    (tree / ".git").write_text("gitdir: ../real\n")
    cwd = {"cwd": "src"}
    assert (
        "with options that only read"
        in (await lines(folders).judge(["git", "status"], **cwd)).scope
    )
    (tree / ".git").write_text(text)
    assert " as exactly: " in (await lines(folders).judge(["git", "status"], **cwd)).scope


async def test_a_folder_with_the_parts_of_a_working_tree_is_a_repository(folders: Path) -> None:
    project = folders / "project"
    for part in (".git/objects", ".git/refs"):
        (project / part).mkdir(parents=True)
    for name in (".git/HEAD", "src/HEAD"):
        (project / name).write_text("ref: refs/heads/main\n")
    (project / ".git" / "config").touch()
    judged = await lines(folders).judge(["git", "status"], cwd="src")
    assert "with options that only read" in judged.scope
    (project / "src" / "commondir").write_text("../evil\n")
    assert " as exactly: " in (await lines(folders).judge(["git", "status"], cwd="src")).scope


@pytest.mark.parametrize("setting", ["submodule.recurse=true", "diff.submodule=diff"])
async def test_what_git_shows_of_submodules_is_judged_by_rules(
    folders: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folders / "user"))
    project = folders / "project"
    shutil.copytree(project / "secrets", project / "src" / "secrets")
    git = shutil.which("git")
    assert git is not None

    def run(folder: Path, *words: str) -> None:
        subprocess.run([git, *words], cwd=folder, check=True)  # noqa: S603 - git

    for folder in (project / "src", project):
        run(folder, "init", "-q")
        run(folder, "add", "src" if folder == project else ".")
        run(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")
    rules = [DENIES[0], {"decision": "deny", "path": ["**/secrets/**"]}]
    for line in ("git grep PASS", "git diff"):
        assert (await judge(folders, line, rules)).decision == "allow"
    run(project, "config", *setting.split("="))
    for line in ("git grep PASS", "git diff", "git grep PASS src"):
        assert (await judge(folders, line, rules)).decision == "deny"
    assert (await judge(folders, "git diff -- a.txt", rules)).decision == "allow"


async def test_an_explanation_names_what_a_reader_opens(folders: Path) -> None:
    judged = await judge(folders, "grep -r word src")
    assert judged.action is not None
    access = judged.action.access
    project = folders / "project"
    assert access.paths == (str(project / "src"),)
    below = ("b.py", "deep", "deep/c.py")
    assert set(access.met) == {str(project / "src" / name) for name in below}
    judged = await judge(folders, "rg --unknown word src")
    assert judged.action is not None
    assert judged.action.access.command is not None
    assert judged.action.access.command.unseen == "it is not known what rg opens"


@pytest.mark.parametrize(
    ("line", "entered_by"),
    [
        ("cd sec* && cat a", "cd"),
        ('cd "$D" && ls', "cd"),
        ("cd && cat a", "cd"),
        ("cd - && grep -r x .", "cd"),
        ('pushd "$D"; cat a; popd', "popd"),
        ("cd src && cat b.py", None),
        ('cd "$D" && cat /etc/hosts', None),
        ('cd "$D" && make', None),
    ],
)
async def test_what_is_read_in_a_folder_that_is_not_known_is_not_known(
    folders: Path, line: str, entered_by: str | None
) -> None:
    judged = await judge(folders, f"sh -c '{line}'")
    assert judged.action is not None
    command = judged.action.access.command
    assert command is not None
    said = entered_by and f"it is not known which folder {entered_by} enters"
    assert command.unseen == said

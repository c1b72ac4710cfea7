"""What a command asks for, and what an answer for the session covers: a corpus of command lines."""

import os
import shlex
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.permissions import PermissionGate
from agent_core.permissions.gate import ToolLists
from agent_core.tools import ToolContext
from agent_core.tools.workspace import Workspace
from agent_core.types import Access, RunIdentity, ToolCall, ToolDefinition
from tables import together
from tool_facts import Code, Kept, a_boundary, a_context, a_home, a_project, a_workspace

PROGRAMS = """
    ls cat head tail wc grep egrep rg pwd git sh bash env xargs find awk sed tar zip setarch prlimit
    choom split sort run-parts ssh-agent dbus-run-session nice timeout python3 make cp mv rm tee dd
    curl less man stat file diff tree rsync ssh scp touch echo true chmod ln install tac nl du id
    printf cut tr seq realpath basename sha256sum md5sum uname uniq date comm
    gawk perl node npm pytest docker busybox my-tool sudo doas watch script flock strace
"""


def program(path: Path) -> Path:
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def a_folder_of_programs(folder: Path) -> Path:
    folder.mkdir()
    for name in PROGRAMS.split():
        program(folder / name)
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all tests share, as no test changes it."""
    return a_folder_of_programs(tmp_path_factory.mktemp("programs") / "bin")


@pytest.fixture
def own_programs(tmp_path: Path) -> Path:
    """The same programs, for a test that changes them."""
    return a_folder_of_programs(tmp_path / "bin")


@pytest.fixture
def repository(project: Path) -> Path:
    return lay_out(project)


def lay_out(project: Path) -> Path:
    """Make a project as `git init` and a clone leave it, with files and folders."""
    settings = (
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
        '[remote "origin"]\n\turl = https://example.org/x.git\n'
        "\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
        '[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n'
    )
    for folder in (".git/objects", ".git/refs", ".git/hooks", "src", "sub/deep"):
        (project / folder).mkdir(parents=True)
    texts = {
        ".git/config": settings,
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/hooks/pre-commit.sample": "",
        "a.txt": "a\n",
        "src/b.py": "b\n",
    }
    for name, text in texts.items():
        (project / name).write_text(text, encoding="utf-8")
    return project


@pytest.fixture
def commands(
    workspace: Workspace, context: ToolContext, programs: Path, repository: Path, home: Path
) -> Code:
    add_links(repository, home)
    return Code(replace(workspace, env={"PATH": str(programs)}), context)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Code:
    """The commands of a project and a home in which no test changes anything."""
    folder = tmp_path_factory.mktemp("unchanged")
    home, project = a_home(folder), a_project(folder)
    add_links(lay_out(project), home)
    (home / "tools").mkdir()
    program(home / "tools" / "x.sh")
    workspace = a_workspace(a_boundary(project, home), home)
    return Code(replace(workspace, env={"PATH": str(programs)}), a_context(project, Kept()))


def add_links(repository: Path, home: Path) -> None:
    (repository / "out").symlink_to(repository.parent)
    (repository / "to-home").symlink_to(home)
    (repository / "own").hardlink_to(home / "config.toml")


async def access(commands: Code, line: str | list[str], cwd: str = ".") -> Access:
    argv = shlex.split(line) if isinstance(line, str) else line
    return (await commands.prepare("run_command", argv=argv, cwd=cwd)).access


HARMLESS = """
ls
ls src
ls -la src sub
ls -l --color=always src
ls -R src
ls --recursive src
ls -w 80 src
ls -- src
cat a.txt
cat -n a.txt src/b.py
cat -
head a.txt
head -5 a.txt
head -n 5 a.txt
head -n5 a.txt
head -qn 5 a.txt
head --lines=5 a.txt
head -n -5 a.txt
tail -n 5 a.txt
tail -c +10 a.txt
wc -l a.txt
wc a.txt src/b.py
grep word a.txt
grep -n word a.txt src/b.py
grep -in -e word -e other a.txt
grep -A 3 -B3 word a.txt
grep -5 word a.txt
grep -r word src
grep -rn --include=*.py word src
grep -- -word a.txt
grep --color=never -c word a.txt
rg word src
rg -n -t py word src
rg -g '*.py' word src
rg -i --max-count=3 word src
pwd
pwd -P
echo hello
echo -n hello
printf %s a
true
stat a.txt
stat -c %s a.txt
file a.txt
file --mime-type a.txt
diff -u a.txt src/b.py
diff -r src sub
diff -U5 a.txt src/b.py
tac a.txt
nl -b a a.txt
du -sh src
cut -d, -f1 a.txt
tr a-z A-Z
tree src
tree -L 2 src
seq 1 5
realpath src
basename src/b.py
sha256sum a.txt
uname -a
ls -RL src
ls -L src
find src -name '*.py'
sed -n 1p a.txt
git diff --no-index a.txt src/b.py
git diff -O a.txt
egrep word a.txt
file -L a.txt
diff --to-file=a.txt src/b.py
diff -X a.txt src sub
du -X a.txt src
tree -l src
grep -f a.txt a.txt
grep --file=a.txt src/b.py
grep -R word src
grep --dereference-recursive word src
grep --exclude-from=a.txt word src
rg -L word src
rg --follow word src
rg -f a.txt src
sed -n '/def a/,/return/p' a.txt
sed -e s/a/b/ a.txt
find . -type f -newer a.txt
uniq -c a.txt
id -u
git --no-pager log -3
git blame a.txt
git grep -n word
git rev-parse --show-toplevel
git ls-files src
git log --format=%h
git status
git status -s
git status --porcelain=v1 --branch
git diff
git diff --stat
git diff --cached src/b.py
git diff HEAD -- a.txt
git log
git log --oneline -5
git log -n 5 --graph --all
git log --since=yesterday -- src
git show
git show HEAD --stat
""".strip().splitlines()

EXACT = """
sh -c 'cat < $(ls)'
bash -c 'wc -l < `cat a.txt`'
cp a.txt b.txt
mv a.txt b.txt
rm -r sub
touch new
tee new
my-tool a.txt
tree -o listing src
sh -c ls
bash -c ls
env ls
env -i ls
nice ls
timeout 5 ls
setarch -R ls
prlimit --nofile=10 ls
choom -n 0 -- ls
split --filter=cat a.txt
sort --compress-program=gzip a.txt
sort --compress-prog=gzip a.txt
sort a.txt
run-parts sub
ssh-agent ls
dbus-run-session ls
xargs ls
find src -exec ls ';'
awk '{print}' a.txt
awk 'BEGIN{system("ls")}'
gawk -f a.txt
sed '1e ls' a.txt
sed -i s,a,b, a.txt
tar -cf x.tar src
tar --to-command=cat -xf x.tar
tar --use-compress-program=cat -tf x.tar
tar -I cat -tf x.tar
zip -T -TT cat x.zip
perl -e 1
python3 -c 1
python3 -m this
node -e 1
npm test
make
make -n
pytest
docker ps
busybox ls
sudo ls
doas ls
watch ls
script -c ls
flock a.txt ls
strace ls
less a.txt
man ls
dd if=a.txt of=b.txt
ln -s a.txt b.txt
install a.txt b.txt
chmod +x a.txt
curl https://example.org/x
ssh example.org ls
scp a.txt example.org:x
rsync -e ssh a.txt example.org:x
uniq a.txt b.txt
date
sort -n a.txt
stat --unknown a.txt
file -C -m a.txt
file -m a.txt x
file -z a.txt
file -f a.txt
diff -l a.txt src/b.py
diff --paginate a.txt src/b.py
du --files0-from=a.txt
tree -o x
tree -R -H . -L 1
tree --fromfile a.txt
md5sum -c a.txt
sha256sum --check a.txt
echo --unknown
printf -v x a
comm --output-delimiter=x a.txt src/b.py
ls --unknown
ls --rec src
ls -lJ src
ls --dired
cat --unknown a.txt
cat --number-nonb a.txt
cat --number-nonblank-lines a.txt
head --unknown
head -n
head --lines
head -n -x a.txt
tail -f a.txt
tail -F a.txt
tail -nf a.txt -f
tail --follow a.txt
tail --fol a.txt
tail --pid=1 -f a.txt
tail --retry a.txt
wc --files0-from=a.txt
wc --files0-f=a.txt
grep --devices=read word src
grep -D read word a.txt
grep -d recurse word src
rg --pre cat word src
rg --pre=cat word src
rg --pre-glob='*' word src
rg --hostname-bin=ls word src
rg --hostname-bin ls word src
rg -z word src
rg --search-zip word src
rg --ignore-file=a.txt word src
rg -iz word src
rg --generate=man
git
git -c core.pager=ls status
git -c core.fsmonitor=ls status
git --git-dir=sub status
git -C sub status
git --exec-path=sub status
git -p log
git --paginate log
git diff --output=x
git diff --outp=x
git diff --ext-diff
git diff --ext
git diff --textconv
git log --output=x
git log --ext-diff -p
git log --show-signature
git log --format=%G?
git log --pretty=format:%GG
git show --textconv HEAD:a.txt
git show --show-signature
git status --unknown
git commit -m x
git push
git fetch
git pull
git checkout .
git grep -O word
git branch
git config core.pager ls
git stash
git submodule status
git archive HEAD
git help log
git bisect run ls
git rebase --exec ls main
""".strip().splitlines()

ASKS = [
    ("sh -c 'cat $PWD/../x'", "outside_roots"),
    ("sh -c 'cat ~+/../x'", "outside_roots"),
    ("head -n 5 /proc/self/environ", "outside_roots"),
    ("cat /proc/self/cwd/a.txt", "outside_roots"),
    ("cat /dev/fd/3", "outside_roots"),
    ("cp a.txt {outside}", "outside_roots"),
    ("cp a.txt --target-directory={outside}", "outside_roots"),
    ("cp -t{outside} a.txt", "outside_roots"),
    ("dd if=/dev/sda of=x", "outside_roots"),
    ("dd of=out/x", "outside_roots"),
    ("tar -xf x.tar -C ..", "outside_roots"),
    ("tar -xfx.tar -C../y", "outside_roots"),
    ("curl -o /x https://example.org", "outside_roots"),
    ("curl file:///etc/passwd", "outside_roots"),
    ("sh -c 'echo x>../y'", "outside_roots"),
    ("python3 @/etc/arguments", "outside_roots"),
    ("my-tool @../arguments", "outside_roots"),
    ("ln -s .. up", "outside_roots"),
    ("rm -rf ~", "outside_roots"),
    ("scp a.txt example.org:/x", "outside_roots"),
    ("env X=/etc ls", "outside_roots"),
    ("cat .env", "sensitive"),
    ("cat ./.ENV.local", "sensitive"),
    ("cat sub/server.pem", "sensitive"),
    ("cat ~/.ssh/id_rsa", "sensitive"),
    ("ls ~/.ssh", "sensitive"),
    ("cp .env x", "sensitive"),
    ("grep KEY .env", "sensitive"),
    ("git show HEAD:.env", "sensitive"),
    ("sh -c 'cat .env'", "sensitive"),
    ("tar --file=.env", "sensitive"),
]

REFUSED = [
    "cat {home}/config.toml",
    "cat {home}/../home/config.toml",
    "ls {home}",
    "cp a.txt {home}/hooks.json",
    "cp a.txt --target-directory={home}",
    "cp -t{home} a.txt",
    "cp a.txt to-home/hooks.json",
    "cp -tto-home a.txt",
    "cp a.txt own",
    "cp a.txt sub/../to-home/x",
    "tee to-home/x",
    "dd of=to-home/x",
    "dd of={home}/x",
    "rm -r .soong-agent/tasks",
    "rm -r ./sub/../.soong-agent/tasks/s1",
    "sh -c 'echo x > {home}/hooks.json'",
    "sh -c 'echo x > to-home/hooks.json'",
    "sh -c 'cat $SOONG_AGENT_HOME/x'",
    "env A={home} ls",
    "curl -o{home}/x https://example.org",
    "curl file://{home}/config.toml",
    "tar -C{home} -xf x.tar",
    "my-tool @{home}/config.toml",
    "my-tool a:{home}:b",
    "{home}/tools/x.sh",
    "to-home/tools/x.sh",
]


@pytest.mark.long
@together("line", HARMLESS)
async def test_a_command_known_to_read_only_is_remembered_by_its_program(
    unchanged: Code, line: str
) -> None:
    seen = await access(unchanged, line)
    assert seen.asks
    assert seen.reason is None
    assert "with options that only read" in seen.scope
    line = line.replace(" --no-pager", "")
    words = shlex.split(line)[: 2 if line.startswith("git") else 1]
    words += ["p"] if words == ["sed"] else []
    assert (await access(unchanged, words)).scope.split()[1:] == seen.scope.split()[1:]


@together("line", EXACT)
async def test_any_other_command_is_remembered_word_for_word(unchanged: Code, line: str) -> None:
    seen = await access(unchanged, line)
    assert seen.asks
    assert seen.reason is None
    assert f" as exactly: {shlex.join(shlex.split(line))} in " in seen.scope
    assert (await access(unchanged, line)).scope == seen.scope
    assert (await access(unchanged, [*shlex.split(line), "more"])).scope != seen.scope


@together(
    "line",
    [
        "cat {outside}",
        "cat ../x",
        "cat sub/../../x",
        "cat ~/x",
        "cat $HOME/x",
        "cat out/x",
        "cat /etc/passwd",
        "ls /",
        "ls -R ..",
        "grep word /etc/passwd",
        "grep -f/etc/passwd a.txt",
        "grep -if../x a.txt",
        "git diff /etc/passwd a.txt",
        "sh -c 'cat /etc/passwd'",
        "sh -c 'cd ..;ls'",
        "cat /proc/cpuinfo /proc/self/status /proc/sys/kernel/hostname",
        "head -c 5 /dev/urandom",
    ],
)
async def test_reading_elsewhere_is_named_and_has_no_reason_of_its_own(
    unchanged: Code, tmp_path: Path, line: str
) -> None:
    seen = await access(unchanged, line.format(outside=tmp_path / "elsewhere"))
    assert seen.asks
    assert seen.reason is None
    assert seen.reads
    assert seen.places
    assert " as exactly: " in seen.scope


@together(
    "line",
    [
        "cat /proc/1/environ",
        "cat /proc/self/environ",
        "cat /proc/self/mem",
        "grep -r x /proc/self",
        "cat /proc/kcore",
        "cat /dev/mem",
        "cat /run/secrets/token",
        "sh -c 'cat /etc/passwd > x'",
        "sh -c 'cat /etc/passwd | tee x'",
        "cp /etc/passwd x",
        "grep --unknown x /etc",
    ],
)
async def test_other_places_and_programs_keep_their_reason(unchanged: Code, line: str) -> None:
    seen = await access(unchanged, line)
    assert seen.reason == "outside_roots"
    assert not seen.reads


@together(("line", "reason"), ASKS)
async def test_a_command_that_names_a_place_elsewhere_has_a_reason_of_its_own(
    unchanged: Code, tmp_path: Path, line: str, reason: str
) -> None:
    seen = await access(unchanged, line.format(outside=tmp_path / "elsewhere"))
    assert seen.asks
    assert seen.reason == reason
    assert seen.places
    assert all(Path(place).is_absolute() for place in seen.places)


@together("line", REFUSED)
async def test_a_command_that_names_the_programs_own_files_is_refused(
    unchanged: Code, line: str
) -> None:
    seen = await access(
        unchanged, line.format(home=unchanged.context.project_dir.with_name("home"))
    )
    assert seen.reason == "program_home"
    call = ToolCall(tool_call_id="c1", name="code.run_command")
    definition = ToolDefinition(name=call.name, description="")
    run = RunIdentity(session_id="s1", agent_id="a1", run_id="r1")
    verdict = await PermissionGate(lists=ToolLists(mode="allow")).decide(
        call, definition, seen, run
    )
    assert verdict.decision == "deny"
    assert "refused" in verdict.refusal


@together(
    "line",
    [
        "sh -c 'ls 2>/dev/null'",
        "cat /dev/null",
        "cat /dev/stdin",
        "dd if=/dev/zero of=x",
        "tee /dev/stderr",
        "curl https://example.org/etc/passwd",
        "git clone https://example.org/x.git",
    ],
)
async def test_streams_and_addresses_are_no_places(unchanged: Code, line: str) -> None:
    assert (await access(unchanged, line)).places == ()


async def test_a_script_of_the_project_is_no_known_program(
    workspace: Workspace, context: ToolContext, repository: Path, own_programs: Path
) -> None:
    programs = own_programs
    program(repository / "ls")
    first = f"{repository}:{programs}"
    for path, line in ((str(programs), "./ls"), (first, "ls"), (f":{programs}", "ls")):
        code = Code(replace(workspace, env={"PATH": path}), context)
        assert " as exactly: " in (await access(code, line)).scope
    (programs / "cat").unlink()
    (programs / "cat").symlink_to(repository / "ls")
    code = Code(replace(workspace, env={"PATH": str(programs)}), context)
    assert " as exactly: " in (await access(code, "cat a.txt")).scope


async def test_a_known_name_on_another_program_is_not_known(
    workspace: Workspace, context: ToolContext, repository: Path, own_programs: Path
) -> None:
    programs = own_programs
    commands = Code(replace(workspace, env={"PATH": str(programs)}), context)
    (programs / "cat").unlink()
    (programs / "cat").symlink_to(programs / "sh")
    assert " as exactly: " in (await access(commands, "cat a.txt")).scope
    (programs / "head").unlink()
    (programs / "head").symlink_to(programs / "busybox")
    assert "only read" in (await access(commands, "head a.txt")).scope


@pytest.mark.long
@pytest.mark.parametrize(
    "variable",
    ["RIPGREP_CONFIG_PATH", "GREP_OPTIONS", "LESSOPEN", "LD_PRELOAD", "GIT_DIR", "GIT_PAGER", "X"],
)
async def test_an_environment_that_is_not_known_to_change_nothing_makes_it_exact(
    workspace: Workspace, context: ToolContext, repository: Path, programs: Path, variable: str
) -> None:
    env = {"PATH": str(programs), "LC_ALL": "C", "TERM": "dumb"}
    plain = Code(replace(workspace, env=env), context)
    changed = Code(replace(workspace, env=env | {variable: "x"}), context)
    for line in ("rg word src", "grep word a.txt", "git status"):
        assert "only read" in (await access(plain, line)).scope
        assert " as exactly: " in (await access(changed, line)).scope


@pytest.mark.long
@pytest.mark.parametrize("line", ["rg -. word", "grep -r word .", "diff -r . src", "rg -uu word"])
@pytest.mark.parametrize("secret", [".env", "sub/deep/.env", "server.pem"])
async def test_what_would_read_secrets_on_its_way_is_remembered_word_for_word(
    commands: Code, repository: Path, line: str, secret: str
) -> None:
    for link in ("out", "to-home", "own"):
        (repository / link).unlink()
    assert "only read" in (await access(commands, line)).scope
    (repository / secret).write_text("KEY=1", encoding="utf-8")
    assert " as exactly: " in (await access(commands, line)).scope


async def test_the_folder_of_a_command_is_part_of_what_is_covered(commands: Code) -> None:
    for line in ("ls", "make"):
        here, there = await access(commands, line), await access(commands, line, cwd="sub")
        assert here.scope != there.scope


@pytest.fixture
def many_words(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """More words than are looked at; as many as in earnest would take a second."""
    monkeypatch.setattr("agent_core.tools.code.command._MAX_WORDS", 50)
    return [str(number) for number in range(60)]


async def test_words_beyond_those_that_are_looked_at_are_a_reason(
    commands: Code, many_words: list[str]
) -> None:
    assert (await access(commands, ["touch", *many_words[:49]])).reason is None
    seen = await access(commands, ["touch", *many_words])
    assert seen.reason == "outside_roots"
    assert "words" in seen.places[-1]


async def test_a_place_hides_behind_no_number_of_words(
    commands: Code, home: Path, many_words: list[str]
) -> None:
    seen = await access(commands, ["touch", *many_words, f"{home}/hooks.json"])
    assert seen.reason == "program_home"


def hostile(name: str, text: str) -> tuple[str, str]:
    return name, text


HOSTILE_REPOSITORIES = [
    *(
        hostile(".git/config", text)
        for text in (
            "[core]\n\tfsmonitor = ls\n",
            "[core] fsmonitor = ls\n",
            "[CORE]\n\tFSMONITOR = ls\n",
            "[core]\n\tpager = ls\n",
            "[core]\n\tworktree = /\n",
            "[diff]\n\texternal = ls\n",
            '[diff "x"]\n\ttextconv = ls\n',
            '[diff "x"]\n\tcommand = ls\n',
            '[filter "x"]\n\tclean = ls\n',
            '[filter "x"]\n\tprocess = ls\n',
            "[alias]\n\tstatus = !ls\n",
            "[gpg]\n\tprogram = ls\n",
            "[log]\n\tshowSignature = true\n",
            "[extensions]\n\tpartialClone = origin\n",
            '[remote "origin"]\n\tpromisor = true\n',
            '[remote "origin"]\n\tuploadpack = ls\n',
            "[status]\n\tsubmoduleSummary = true\n",
            "[pager]\n\tlog = ls\n",
            "[trace2]\n\teventTarget = x\n",
            "\ufeff[core]\n\tfsmonitor = ls\n",
            "nonsense\n",
            "[core\n",
            "# " + "x" * 100_000,
        )
    ),
    hostile(".git/hooks/post-index-change", ""),
    hostile(".git/config", '[filter "lfs"]\n\tclean = git-lfs clean %f && ls\n'),
    hostile(".git/config", "[include]\n\tpath = ../.gitconfig\n[x]\n\ty\n"),
    hostile(".git/config", '[includeIf "gitdir:/"]\n\tpath = ../.gitconfig\n'),
    hostile(".git/config", "[core]\n\thooksPath = .githooks\n"),
    hostile(".git/config", '[hook "x"]\n\tcommand = ls\n\tevent = post-index-change\n'),
    hostile(".git/config", "[format]\n\tpretty = %h %G?\n"),
    hostile(".git/config", '[core]\n\tfsmonitor = "l\\\n\ts"\n'),
    hostile(".git/config", "[core] bare = false ; x\n\tFSMonitor=.git/x\n"),
    hostile(".git/commondir", "../sub"),
    hostile(".git/config.worktree", "[core]\n\tfsmonitor = ls\n"),
    hostile("sub/.git", "gitdir: ../x"),
    hostile("sub/deep/.git/config", "[core]\n\tfsmonitor = ls\n"),
    hostile("sub/.GIT/config", ""),
]


@pytest.mark.parametrize(("name", "text"), HOSTILE_REPOSITORIES)
async def test_a_repository_that_may_run_programs_makes_git_exact(
    commands: Code, repository: Path, name: str, text: str
) -> None:
    assert "only read" in (await access(commands, "git status")).scope
    (repository / ".gitconfig").write_text("[core]\n\tfsmonitor = ls\n", encoding="utf-8")
    (repository / ".githooks").mkdir()
    (repository / ".githooks" / "post-index-change").touch()
    (repository / name).parent.mkdir(parents=True, exist_ok=True)
    (repository / name).write_text(text, encoding="utf-8")
    for line in ("git status", "git diff", "git log", "git show", "git diff --stat"):
        assert " as exactly: " in (await access(commands, line)).scope


USUAL_SETTINGS = """
branch.main.vscode-merge-base = origin/main
branch.main.github-pr-owner-number = a#b#1
branch.main.rebase = true
remote.origin.gh-resolved = base
remote.origin.prune = true
pull.rebase = true
rebase.autoStash = true
push.autoSetupRemote = true
merge.ours.driver = true
commit.gpgsign = true
gpg.format = ssh
user.signingkey = ~/.ssh/id_ed25519.pub
core.hooksPath = .husky/_
core.hooksPath = missing
core.hooksPath = /dev/null
core.fsmonitor = true
core.untrackedCache = true
core.sparseCheckout = true
core.autocrlf = input
core.ignorecase = true
core.editor = code --wait
core.sshCommand = ssh -i ~/.ssh/deploy
core.excludesFile = .ignored
core.attributesFile = .attributes
credential.helper = !gh auth git-credential
alias.co = checkout
alias.last = log -1
extensions.worktreeConfig = true
filter.lfs.clean = git-lfs clean -- %f
filter.lfs.smudge = git-lfs smudge -- %f
filter.lfs.process = git-lfs filter-process
filter.lfs.required = true
lfs.url = https://example.org/lfs
lfs.repositoryformatversion = 0
submodule.lib.active = true
submodule.recurse = true
blame.ignoreRevsFile = .git-blame-ignore-revs
diff.algorithm = histogram
fetch.prune = true
gc.auto = 0
init.defaultBranch = main
maintenance.auto = false
include.path = ../.gitconfig
""".strip().splitlines()


@pytest.mark.parametrize("line", USUAL_SETTINGS)
async def test_usual_settings_of_a_repository_leave_git_a_reader(
    commands: Code, repository: Path, line: str
) -> None:
    (repository / ".husky" / "_").mkdir(parents=True)
    for hook in (".husky/_/pre-commit", ".git/hooks/pre-commit", ".git/hooks/post-checkout"):
        program(repository / hook)
    (repository / ".gitconfig").write_text("[alias]\n\tst = status\n", encoding="utf-8")
    name, _, value = line.partition(" = ")
    section, _, key = name.rpartition(".")
    first, _, rest = section.partition(".")
    heading = f'[{first} "{rest}"]' if rest else f"[{first}]"
    with (repository / ".git" / "config").open("a", encoding="utf-8") as file:
        file.write(f'{heading}\n\t{key} = "{value}" # as tools write it\n')
    for command in ("git status", "git diff", "git log", "git show"):
        assert "only read" in (await access(commands, command)).scope


@pytest.mark.parametrize(
    "name", [".git/config", ".git/commondir", ".git/index", ".git/config.worktree", "sub/.git"]
)
async def test_a_repository_with_a_pipe_in_it_is_not_waited_for(
    commands: Code, repository: Path, name: str
) -> None:
    (repository / name).unlink(missing_ok=True)
    os.mkfifo(repository / name)
    for line in ("git status", "git diff", "git grep word", "rg word"):
        seen = await access(commands, line)
        assert seen.asks
        assert name == ".git/index" or line == "rg word" or " as exactly: " in seen.scope


async def test_an_ignore_file_that_is_a_pipe_is_not_waited_for(
    commands: Code, repository: Path
) -> None:
    os.mkfifo(repository / ".ignore")
    (repository / ".env").write_text("", encoding="utf-8")
    assert (await access(commands, "rg word")).reason == "sensitive"


async def test_a_plain_repository_below_leaves_git_a_reader(
    commands: Code, repository: Path
) -> None:
    shutil.copytree(repository / ".git", repository / ".git" / "modules" / "lib")
    (repository / "lib").mkdir()
    (repository / "lib" / ".git").write_text("gitdir: ../.git/modules/lib\n", encoding="utf-8")
    assert "only read" in (await access(commands, "git status")).scope
    with (repository / ".git/modules/lib/config").open("a", encoding="utf-8") as file:
        file.write("[core]\n\tfsmonitor = ls\n")
    assert " as exactly: " in (await access(commands, "git status")).scope


async def test_a_repository_that_reaches_beyond_the_project_makes_git_exact(
    commands: Code, repository: Path
) -> None:
    (repository / ".git").rename(repository.parent / ".git")
    assert " as exactly: " in (await access(commands, "git show")).scope


async def test_a_command_in_a_sensitive_folder_has_a_reason(
    commands: Code, repository: Path
) -> None:
    (repository / "keys.pem").mkdir()
    seen = await access(commands, "ls", cwd="keys.pem")
    assert (seen.reason, seen.places) == ("sensitive", (str(repository / "keys.pem"),))


async def test_only_a_whole_repository_in_its_own_folder_is_plain(
    commands: Code, repository: Path
) -> None:
    kept = repository.parent / "kept"
    (repository / ".git").rename(kept)
    assert " as exactly: " in (await access(commands, "git status")).scope
    (repository / ".git").symlink_to(kept)
    assert " as exactly: " in (await access(commands, "git status")).scope
    (repository / ".git").unlink()
    kept.rename(repository / ".git")
    assert "only read" in (await access(commands, "git status", cwd="sub")).scope
    (repository / "sub" / "HEAD").write_text("", encoding="utf-8")
    for folder in ("objects", "refs"):
        (repository / "sub" / folder).mkdir()
    assert " as exactly: " in (await access(commands, "git status", cwd="sub")).scope
    (repository / ".git" / "HEAD").unlink()
    assert " as exactly: " in (await access(commands, "git status")).scope


async def test_settings_of_git_that_tools_may_write_are_not_trusted(
    workspace: Workspace, context: ToolContext, repository: Path, programs: Path, home: Path
) -> None:
    env = {"PATH": str(programs)}
    for user, expected in ((home.parent, "only read"), (repository, " as exactly: ")):
        code = Code(replace(workspace, env=env | {"HOME": str(user)}), context)
        assert expected in (await access(code, "git status")).scope


async def test_a_repository_made_by_git_is_plain(
    workspace: Workspace, context: ToolContext, project: Path
) -> None:
    code = Code(replace(workspace, env={"PATH": os.environ["PATH"]}), context)
    made = await code("run_command", argv=["git", "init", "-q"])
    assert made["exit_code"] == 0
    seen = await access(code, "git status")
    assert "only read" in seen.scope
    assert (await access(code, "git status -s")).scope == seen.scope

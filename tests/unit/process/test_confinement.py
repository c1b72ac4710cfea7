"""A confined program touches what its confinement names, and nothing else."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_core.errors import ErrorCode, ToolError
from agent_core.process import (
    Command,
    CompletedProcess,
    Launcher,
    run,
)
from agent_core.process.binds import Kind, plan
from agent_core.process.confinement import Abilities, Confinement, missing, probe, profile
from agent_core.process.denials import Denial, find_denial
from tables import together

needs_mounts = pytest.mark.skipif(
    not probe().has_mounts, reason="neither namespaces nor bubblewrap here"
)
needs_files = pytest.mark.skipif(
    not (probe().landlock or probe().has_mounts), reason="nothing here confines a program"
)


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    with contextlib.closing(Launcher()) as opened:
        yield opened


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


async def shell(
    script: str, confinement: Confinement, launcher: Launcher, *, cwd: Path
) -> CompletedProcess:
    command = Command(
        argv=["/bin/sh", "-c", script],
        cwd=cwd,
        env={"PATH": os.environ["PATH"]},
        confinement=confinement,
    )
    return await run(command, launcher=launcher, timeout_s=60)


@needs_files
async def test_it_writes_inside_and_not_outside(
    inside: Path, tmp_path: Path, launcher: Launcher
) -> None:
    script = "echo 1 > new && mkdir deep && mv new deep/new; echo 1 > ../outside"
    result = await shell(script, Confinement(write=(str(inside),)), launcher, cwd=inside)
    assert result.exit_code != 0
    assert (inside / "deep" / "new").read_text() == "1\n"
    assert not (tmp_path / "outside").exists()
    denial = find_denial(result.stderr.text, Confinement(write=(str(inside),)), cwd=inside)
    assert denial is not None
    assert denial.paths == (str(tmp_path / "outside"),)


@needs_files
async def test_programs_that_a_confined_one_left_running_are_named(
    inside: Path, launcher: Launcher
) -> None:
    confinement = Confinement(write=(str(inside),))
    result = await shell("setsid sleep 60 & echo started", confinement, launcher, cwd=inside)
    assert (result.exit_code, result.stdout.text) == (0, "started\n")
    (line,) = result.left_running
    assert "sleep 60" in line


@needs_mounts
async def test_what_is_protected_stays_as_it_is_and_where_it_is(
    inside: Path, launcher: Launcher
) -> None:
    (inside / ".git" / "hooks").mkdir(parents=True)
    (inside / ".git" / "config").write_text("old")
    before = sorted(map(str, inside.rglob("*")))
    confinement = Confinement(
        write=(str(inside),),
        protect=tuple(
            str(inside / name) for name in (".git/hooks", ".git/config", "not/there", ".git/none")
        ),
    )
    script = (
        "echo new > .git/config; echo new > .git/hooks/pre-commit; mv .git g; rm -rf .git/hooks;"
        "rm -f .git/config; mkdir -p not/there; touch .git/none; ln -sfnT /tmp .git;"
        "echo 1 > .git/ok"
    )
    await shell(script, confinement, launcher, cwd=inside)
    assert sorted(map(str, inside.rglob("*"))) == sorted([*before, str(inside / ".git/ok")])
    assert (inside / ".git" / "config").read_text() == "old"


@needs_files
async def test_a_listed_read_leaves_the_rest_unreadable(
    inside: Path, tmp_path: Path, launcher: Launcher
) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "open").write_text("open")
    confinement = Confinement(write=(str(inside),), read=(str(tmp_path / "open"),))
    result = await shell("cat ../open; cat ../secret", confinement, launcher, cwd=inside)
    assert result.stdout.text == "open"
    assert result.exit_code != 0


async def test_a_rule_that_is_required_and_cannot_be_had_keeps_the_program_from_starting(
    inside: Path, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_core.process.confinement.probe", Abilities)
    confinement = Confinement(write=(str(inside),), required=frozenset({"write"}))
    with pytest.raises(ToolError, match="Landlock") as failure:
        await shell("touch started", confinement, launcher, cwd=inside)
    assert failure.value.code is ErrorCode.TOOL_NOT_AVAILABLE
    assert list(inside.iterdir()) == []


@needs_files
async def test_a_step_that_fails_keeps_the_program_from_starting_and_is_named(
    inside: Path, tmp_path: Path, launcher: Launcher
) -> None:
    link = tmp_path / "link"
    link.symlink_to(inside)
    with pytest.raises(ToolError, match="sandbox could not be set up"):
        await shell("touch started", Confinement(write=(str(link),)), launcher, cwd=inside)
    assert list(inside.iterdir()) == []


def test_every_rule_has_a_hole_where_there_is_nothing() -> None:
    confinement = Confinement(write=("/w",), read=("/r",), protect=("/w/p", "/elsewhere"))
    holes = missing(confinement, Abilities())
    assert [hole.rule for hole in holes] == [
        *("write", "attributes", "protect", "read", "kernel", "sockets", "network", "signals")
    ]
    assert missing(replace(confinement, network=True), probe()) == [] or not probe().namespaces


def test_the_profile_for_macos_denies_last_what_is_protected() -> None:
    text = profile(Confinement(write=("/w",), protect=('/w/"p"',)))
    assert text.index('(subpath "/w")') < text.index(r'(subpath "/w/\"p\"")')
    assert "(deny network*)" in text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux confines in steps")
@together(
    ("line", "paths"),
    [
        ("touch: cannot touch '{out}/a b': Read-only file system", ("{out}/a b",)),
        ("Error: EACCES: permission denied, open '{out}/x'", ("{out}/x",)),
        ("PermissionError: [Errno 13] Permission denied: '{out}/x'", ("{out}/x",)),
        ("sh: 1: cannot create ../x: Read-only file system", ("{out}/x",)),
        ("touch: cannot touch 'here': Permission denied", ()),
        ("mv: cannot move '.git' to 'x': Device or resource busy", ("{out}/in/.git",)),
        ("mv: cannot move 'deep' to 'x': Device or resource busy", ("{out}/in/deep",)),
        ("mv: cannot move 'else' to 'x': Device or resource busy", ()),
        ("nothing about '{out}/x'", ()),
        ("npm error ENOENT: no such file or directory, mkdir '{out}/x'", ("{out}/x",)),
        ("ENOENT: no such file or directory, mkdir '{out}/x/y'", ("{out}/x/y",)),
        ("touch: cannot touch '{out}/x': No such file or directory", ("{out}/x",)),
        ("mkdir: cannot create directory '{out}/x/y': No such file or directory", ()),
        ("cat: {out}/x: No such file or directory", ()),
        ("ENOENT: no such file or directory, open '{out}/x'", ()),
        ("ENOENT: no such file or directory, mkdir 'x'", ()),
    ],
)
def test_output_tells_what_was_refused(line: str, paths: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    confinement = Confinement(
        write=(str(folder),), protect=(str(folder / ".git"), str(folder / "deep/er"))
    )
    denial = find_denial(line.format(out=tmp_path), confinement, cwd=folder)
    found = denial.paths if denial else ()
    assert found == tuple(path.format(out=tmp_path) for path in paths)


NAMED_SOCKET = 'a Unix socket with a name (rule "sockets": none can be made or connected to)'
OF_A_SOCKET = """  with socket.socket(socket.AF_UNIX) as listener:
PermissionError: [Errno 13] Permission denied
"""


@together(
    ("output", "is_one"),
    [
        (OF_A_SOCKET, True),
        ("error: can't create socket: Permission denied", True),
        ("Error: listen EACCES: permission denied {in_it}/x.sock", True),
        ("Error: listen EACCES: permission denied 0.0.0.0:80", False),
        ("Error: connect EACCES /run/x.sock", True),
        ("a socket\ntouch: cannot touch 'here': No such file or directory", False),
        ("PermissionError: [Errno 13] Permission denied", False),
    ],
)
def test_output_tells_that_a_socket_was_refused(output: str, is_one: bool, tmp_path: Path) -> None:
    said = output.replace("{in_it}", str(tmp_path))
    denial = find_denial(said, Confinement(write=(str(tmp_path),)), cwd=tmp_path)
    assert (denial.named(3) if denial else []) == [NAMED_SOCKET] * is_one


@together(
    "line",
    [
        "ERROR: No matching distribution found for x",
        "npm error network request to https://registry.example.org/x failed, reason: EAI_AGAIN",
        "error: dns error: failed to lookup address information: Temporary failure",
        "dial tcp: lookup proxy.example.org on 127.0.0.53:53: read: connection refused",
        "fatal: unable to access 'https://example.org/x/': Could not resolve host: example.org",
        "ERROR:  Could not find a valid gem 'x' (>= 0) in any repository",
        "  Temporary failure resolving 'deb.example.org'",
        "java.net.UnknownHostException: repo.example.org",
        "connect: Network is unreachable",
    ],
)
def test_the_last_words_of_programs_that_need_the_network_tell_of_it(
    line: str, tmp_path: Path
) -> None:
    def find(*, network: bool = False, connects: bool = True) -> Denial | None:
        confinement = Confinement(write=(str(tmp_path),), network=network)
        return find_denial(f"{line}\n", confinement, cwd=tmp_path, connects=connects)

    assert find() == Denial(network=True)
    assert find(network=True) is None
    assert find(connects=False) is None


@together("prefix", ["", "file://", "file://localhost"])
def test_a_repository_elsewhere_that_takes_no_push_is_named(prefix: str, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "in").mkdir()
    confinement = Confinement(write=(str(tmp_path / "in"),))
    output = f"error: failed to push some refs to '{prefix}{tmp_path}/bare'"
    denial = find_denial(output, confinement, cwd=tmp_path / "in")
    assert denial == Denial(paths=(f"{tmp_path}/bare",))
    output = "error: failed to push some refs to '../bare'"
    assert find_denial(output, confinement, cwd=tmp_path / "in") == denial
    output = "error: failed to push some refs to 'git@example.org:bare'"
    assert find_denial(output, confinement, cwd=tmp_path / "in") is None


def test_a_read_only_file_without_a_name_is_told(tmp_path: Path) -> None:
    confinement = Confinement(write=(str(tmp_path),))
    output = 'Exception in thread "main" java.io.IOException: Read-only file system\n\tat T.main()'
    denial = find_denial(output, confinement, cwd=tmp_path)
    assert denial is not None
    assert denial.named(3) == ['a file that the program did not name (rule "write")']
    output = "touch: cannot touch '/proc/x': Read-only file system"
    denial = find_denial(output, confinement, cwd=tmp_path)
    assert denial is None or not denial.unnamed


def test_a_protected_link_is_named_as_a_hole(inside: Path) -> None:
    (inside / "link").symlink_to("target")
    confinement = Confinement(write=(str(inside),), protect=(str(inside / "link"),))
    abilities = Abilities(landlock=7, seccomp=True, namespaces=True, network_namespace=True)
    assert [hole.rule for hole in missing(confinement, abilities)] == ["protect"]


def test_of_two_paths_the_longer_one_decides(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path)
    for name in ("home/tmp/call", "a/b"):
        (tmp_path / name).mkdir(parents=True)
    write, protect = [root, root + b"/home/tmp/call"], [root + b"/home", root + b"/a/b/none/x"]
    assert plan(write, protect) == [
        (Kind.WRITE, root),
        (Kind.PROTECT, root + b"/home"),
        (Kind.WRITE, root + b"/home/tmp/call"),
        (Kind.PIN, root + b"/a"),
        (Kind.PIN, root + b"/a/b"),
        (Kind.PROTECT, root + b"/a/b/none"),
    ]


@needs_mounts
async def test_a_placeholder_stays_until_the_last_program_that_needs_it(
    inside: Path, launcher: Launcher
) -> None:
    confinement = Confinement(write=(str(inside),), protect=(str(inside / "none" / "x"),))
    wait = (
        "touch ready; while [ ! -e go ]; do sleep 0.01; done;mkdir none/x; rmdir none; mkdir none"
    )
    waiting = asyncio.create_task(shell(wait, confinement, launcher, cwd=inside))
    while not (inside / "ready").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    await shell("true", confinement, launcher, cwd=inside)
    (inside / "go").touch()
    await waiting
    assert sorted(path.name for path in inside.iterdir()) == ["go", "ready"]


@pytest.fixture
def bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system on which nothing but bubblewrap confines programs."""
    if (path := shutil.which("bwrap")) is None:
        pytest.skip("bubblewrap is not installed")
    only = replace(probe(), namespaces=False, network_namespace=False, landlock=0, bubblewrap=path)
    monkeypatch.setattr("agent_core.process.confinement.probe", lambda: only)


@pytest.mark.usefixtures("bubblewrap")
async def test_a_program_in_bubblewrap_works_to_its_end(inside: Path, launcher: Launcher) -> None:
    confinement = Confinement(write=(str(inside),))
    for _ in range(5):
        done = await shell("sleep 0.2; echo done", confinement, launcher, cwd=inside)
        assert (done.exit_code, done.stdout.text) == (0, "done\n"), done.stderr.text


@needs_mounts
async def test_a_hidden_path_is_covered_also_inside_of_what_is_written_to(
    inside: Path, tmp_path: Path, launcher: Launcher
) -> None:
    for path in (inside / "data.db", inside / "locks" / "lock", tmp_path / "outside.db"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret")
    hidden = (str(inside / "data.db"), str(inside / "locks"), str(tmp_path / "outside.db"))
    confinement = Confinement(write=(str(inside),), hidden=hidden)
    script = (
        "for path in data.db locks/lock ../outside.db; do cat $path && echo OPENED; done 2>&1;"
        "rm -f data.db; mv data.db x; mv other data.db; ln data.db y; cat y; echo new > new; ls"
    )
    (inside / "other").write_text("other")
    result = await shell(script, confinement, launcher, cwd=inside)
    assert "OPENED" not in result.stdout.text
    assert "secret" not in result.stdout.text
    assert (inside / "data.db").read_text() == "secret"
    assert (inside / "new").read_text() == "new\n"
    assert (inside / "locks" / "lock").read_text() == "secret"


@pytest.mark.skipif(not probe().landlock, reason="the kernel has no Landlock")
@pytest.mark.parametrize("has_mounts", [False, True])
async def test_a_hidden_file_that_comes_later_cannot_be_opened(
    has_mounts: bool,
    inside: Path,
    tmp_path: Path,
    launcher: Launcher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_mounts:
        only = replace(probe(), namespaces=False, network_namespace=False, bubblewrap=None)
        monkeypatch.setattr("agent_core.process.confinement.probe", lambda: only)
    later, beside = tmp_path / "later.db", tmp_path / "beside"
    beside.write_text("beside")
    confinement = Confinement(write=(str(inside),), hidden=(str(later),))
    script = f"touch up; while ! test -e {later}; do sleep 0.02; done; cat {beside} {later}"
    running = asyncio.create_task(shell(script, confinement, launcher, cwd=inside))
    while not (inside / "up").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)
    later.write_text("secret")
    result = await running
    assert result.stdout.text == "beside"
    assert "Permission denied" in result.stderr.text


CARGO = """error: failed to get `dep` as a dependency of package `p v0.1.0 ({inside})`

Caused by:
  unable to update file://{inside}/dep

Caused by:
  failed to create directory `{cache}/db/dep-32f0`

Caused by:
  {reason} (os error {number})
"""


@pytest.mark.parametrize(
    ("reason", "number"), [("Read-only file system", 30), ("Permission denied", 13)]
)
def test_a_chain_of_causes_names_the_file_and_a_cache_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, number: int
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (cache := tmp_path / ".cargo" / "git").mkdir(parents=True)
    (inside := tmp_path / "in").mkdir()
    said = CARGO.format(inside=inside, cache=cache, reason=reason, number=number)
    denial = find_denial(said, Confinement(write=(str(inside),)), cwd=inside)
    assert denial is not None
    assert denial.named(10) == [
        f"{cache}/db/dep-32f0",
        "~/.cargo/git (a cache: the user can list it in [sandbox] caches)",
    ]

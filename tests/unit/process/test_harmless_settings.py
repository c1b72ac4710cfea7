"""Which settings of Git execute nothing, and how the states of repositories are kept."""

import os
from pathlib import Path

import pytest

from agent_core.git.harmless import find_executing, is_harmless
from agent_core.process import repository_watch
from agent_core.process.repository_states import examine
from tables import together

HARMLESS = [
    ("remote.origin.url", "https://example.org/a"),
    ("remote.origin.url", "git@example.org:a/b"),
    ("remote.origin.url", "../a b"),
    ("remote.origin.url", "/srv/a"),
    ("remote.origin.url", "[::1]:a"),
    ("remote.origin.url", "host:22::a"),
    ("remote.a.b.pushurl", "ssh://git@example.org:22/a"),
    ("remote.team/fork-2_x.url", "../a"),
    ("remote.\u00fc.fetch", "+refs/heads/*:refs/remotes/\u00fc/*"),
    ("submodule.my module/a.url", "../a"),
    ("remote.pushdefault", "origin"),
    ("core.pager", "less"),
    ("core.pager", "less -FRX"),
    ("pager.log", "false"),
    ("pager.diff", "cat"),
    ("commit.template", ".gitmessage"),
    ("branch.x.y.remote", "origin"),
    ("branch.x.y.remote", "."),
    ("remote.origin.url", "../a/.git"),
    ("remote.origin.url", "https://example.org/a/.git"),
    ("core.autocrlf", "input"),
    ("diff.algorithm", "histogram"),
    ("filter.lfs.smudge", "git-lfs smudge --skip -- %f"),
    ("lfs.https://example.org.access", "basic"),
    ("submodule.m.update", "rebase"),
]
EXECUTING = [
    ("remote.origin.url", "ext::sh -c x"),
    ("remote.../x.url", "../a"),
    ("core.pager", "./less"),
    ("core.pager", "less -o/x"),
    ("core.pager", "less; x"),
    ("core.pager", "less -F\n"),
    ("pager.log", "x"),
    ("remote.a/../../x.fetch", "+refs/heads/*:refs/remotes/a/*"),
    ("remote./srv/a.url", "../a"),
    ("remote.a/.url", "../a"),
    ("remote..git/evil.url", "../a"),
    ("remote.-x.url", "../a"),
    ("remote..url", "../a"),
    ("remote.a\nb.url", "../a"),
    ("remote.a\x1bb.url", "../a"),
    ("remote.a\udcffb.url", "../a"),
    ("remote.a b.url", "../a"),
    ("remote.ext::x.url", "../a"),
    ("remote.a*.url", "../a"),
    ("remote.a@{1}.url", "../a"),
    ("remote.a.lock.url", "../a"),
    ("submodule.../x.url", "../a"),
    ("submodule.-x.url", "../a"),
    ("submodule.a/../b.active", "true"),
    ("submodule.a\x07.url", "../a"),
    ("remote.origin.url", "EXT::x"),
    ("remote.origin.url", "fd::17"),
    ("remote.origin.url", "transport://x"),
    ("remote.origin.url", "-oProxyCommand=x"),
    ("remote.origin.url", "ssh://-oProxyCommand=x/a"),
    ("remote.origin.pushurl", "ext::x"),
    ("remote.origin.pushurl", ".git/evil"),
    ("remote.origin.pushurl", "x/../.GIT/evil"),
    ("remote.origin.pushurl", "/srv/a/.git/objects/evil"),
    ("remote.origin.pushurl", "file:///srv/a/%2egit/evil"),
    ("branch.x.pushremote", ".git/evil"),
    ("remote.pushdefault", ".git/evil"),
    ("remote.origin.promisor", "true"),
    ("remote.origin.partialclonefilter", "blob:none"),
    ("extensions.partialclone", "evil"),
    ("core.protecthfs", "false"),
    ("core.protectntfs", "false"),
    ("branch.x.remote", "ext::x"),
    ("branch.x.pushremote", "ext::x"),
    ("remote.pushdefault", "ext::x"),
    ("submodule.m.url", "ext::x"),
    ("submodule.m.update", "!x"),
    ("filter.lfs.smudge", "git-lfs smudge -- %f; x"),
    ("filter.x.clean", "cat"),
    ("core.hookspath", "x"),
    ("core.fsmonitor", "x"),
    ("core.editor", "x"),
    ("diff.x.command", "x"),
    ("diff.external", "x"),
    ("alias.x", "!x"),
    ("include.path", "x"),
    ("includeif.gitdir:x.path", "x"),
    ("url.ext::x.insteadof", "https://"),
    ("protocol.ext.allow", "always"),
    ("credential.helper", "x"),
    ("gpg.ssh.program", "x"),
    ("something.new", "x"),
]


@together(("name", "value"), HARMLESS)
def test_settings_that_are_known_execute_nothing(name: str, value: str) -> None:
    assert is_harmless(name, value)


@together(("name", "value"), EXECUTING)
def test_all_others_may_execute_something(name: str, value: str) -> None:
    assert not is_harmless(name, value)


def test_settings_are_read_as_git_reads_them() -> None:
    text = (
        b'\xef\xbb\xbf[user] name = "a;b" ; mine\r\n[CORE]\r\n\tFSMonitor = "x\\\r\n y" # z\r\n'
        b'[remote "A\\"b"] url = ext::x\n[core "x"] editor\n'
    )
    assert find_executing(text) == {
        ("core.fsmonitor", "x y"),
        ('remote.A"b.url', "ext::x"),
        ("core.x.editor", "true"),
    }
    for broken in (b"[core\nx", b"x = y", b'[core]\nx = "y', b"[core]\nx = y\0"):
        with pytest.raises(ValueError, match=r"core|x|y"):
            find_executing(broken)


def test_states_are_kept_whatever_bytes_names_and_files_have(tmp_path: Path) -> None:
    tree = os.path.join(os.fsencode(tmp_path), b"na\xffme")  # noqa: PTH118
    folder = Path(os.fsdecode(tree)) / ".git"
    (folder / "hooks").mkdir(parents=True)
    (folder / "hooks/pre-commit").write_bytes(bytes(range(256)))
    (folder / "hooks/pre-commit").chmod(0o751)
    (folder / "config").write_bytes(b"[core]\n\thooksPath = h\xfe\n")
    hooks = Path(os.fsdecode(tree + b"/h\xfe"))
    hooks.mkdir()
    (hooks / "pre-push").write_bytes(b"\xed\xa0\x80\xff")
    states = {str(folder): examine(str(folder))}
    assert states[str(folder)].followed
    assert states[str(folder)].is_whole
    kept = repository_watch._encode(states)
    assert repository_watch._decode(kept) == states


@together(
    ("value", "is_own"),
    [("../../../m", True), ("../../hooks", False), ("../../../x/.GIT/y", False), ("..", False)],
)
def test_the_working_tree_of_a_submodule_lies_outside_of_git(
    tmp_path: Path, value: str, is_own: bool
) -> None:
    folder = tmp_path / "a/.git/modules/m"
    folder.mkdir(parents=True)
    (folder / "config").write_text(f"[core]\n\tworktree = {value}\n", encoding="utf-8")
    assert (not examine(str(folder)).executed) == is_own


@together(("value", "is_own"), [("/", False), ("..", True), ("../../x", False)])
def test_a_foreign_working_tree_counts_as_executing(
    tmp_path: Path, value: str, is_own: bool
) -> None:
    folder = tmp_path / "a/.git"
    folder.mkdir(parents=True)
    (folder / "config").write_text(f"[core]\n\tworktree = {value}\n", encoding="utf-8")
    assert (not examine(str(folder)).executed) == is_own

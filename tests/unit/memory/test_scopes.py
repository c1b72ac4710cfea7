import os
import re
import stat
import unicodedata
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError
from agent_core.memory.folder import MemoryWriter
from agent_core.memory.scopes import find_tenants, find_users, folder_name, memory_folder
from agent_core.types.memory_scopes import LONGEST_USER_ID, checked_scope
from tables import together

ALIKE = [
    *("anna", "Anna", "ANNA", "ann\u0430", "\uff41nna", "anna\u0301"),
    *("josé", "jose\u0301", "Straße", "strasse", "STRASSE", "\u0131", "i", "\u0130"),
    *("a_b", "a b", "a.b", "a-b", "a%62", "_61", "a~b", "..a", "a..", "con", "nul"),
    *("user", "feedback", "users", "MEMORY.md", ".lock"),
    *("x" * 256, "x" * 255 + "y", "X" * 256, "é" * 256, "e\u0301" * 128),
]


@together("name", ALIKE)
def test_every_id_has_a_folder_with_a_plain_name(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9_~-]{1,200}", folder_name(name))


def test_no_two_ids_have_one_folder_on_any_file_system() -> None:
    names = [*ALIKE, ".", "..", "../x", "a/b"]
    for one, other in combinations(names, 2):
        first, second = folder_name(one), folder_name(other)
        folded = unicodedata.normalize("NFKC", first).casefold()
        assert folded != unicodedata.normalize("NFKC", second).casefold(), (one, other)


@pytest.mark.long
@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_different_ids_have_different_folders(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)
    assert folder_name(one).isascii()
    assert folder_name(one) == folder_name(one).lower()


@together(
    "given",
    [
        "shared",
        "off",
        "user:anna@example.com",
        "user:auth0|5f7c",
        "user:田中",
        "user:a:b",
        "user:A b",
    ],
)
def test_a_scope_is_a_word_or_names_a_user(given: str) -> None:
    assert checked_scope(given) == given


@together(
    "given",
    [
        *(
            "",
            "user",
            "user:",
            "User:anna",
            "tenant:acme",
            "home",
            " off",
            "OFF",
            1,
            0,
            0.0,
            b"off",
            [],
        ),
        *("user:../x", "user:..", "user:.", "user:a/b", "user:a\\b", "user:/etc", "user: anna"),
        *("user:anna ", "user:a\nb", "user:a\0b", "user:a\u200bb", "user:a\u202eb", "user:\ud800"),
        "user:" + "x" * (LONGEST_USER_ID + 1),
    ],
)
def test_anything_else_is_no_scope(given: object) -> None:
    with pytest.raises(ValueError, match="user"):
        checked_scope(given)


def written(root: Path, scope: str, tenant: str | None = None) -> Path:
    folder = memory_folder(root, scope, tenant)
    with folder.locked():
        MemoryWriter(folder, unfinished=UnfinishedWrites.at(None)).write("user/a.md", scope)
    return folder.root


def test_a_users_folder_is_the_users_alone_and_found_again(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    assert written(root, "shared") == root
    assert written(root, "user:Anna") == root / "users" / "_41nna"
    written(root, "user:Anna", "acme")
    written(root, "shared", "Acme")
    for folder, _, files in os.walk(tmp_path / "memory"):
        assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
        assert all(stat.S_IMODE((Path(folder) / name).stat().st_mode) == 0o600 for name in files)
    assert find_users(root) == ["user:Anna"]
    assert find_tenants(root) == ["Acme", "acme"]
    assert find_users(root, "acme") == ["user:Anna"]
    assert find_users(root, "Acme") == []


def test_a_link_in_place_of_a_scopes_folder_is_not_followed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "memory", tmp_path / "elsewhere"
    written(root, "user:anna")
    elsewhere.mkdir()
    (root / "users" / "ben").symlink_to(elsewhere)
    (root / "tenants").symlink_to(elsewhere)
    for scope, tenant in (("user:ben", None), ("shared", "acme")):
        with pytest.raises(AgentCoreError):
            written(root, scope, tenant)
        assert memory_folder(root, scope, tenant).catalog() == ""
    assert list(elsewhere.iterdir()) == []

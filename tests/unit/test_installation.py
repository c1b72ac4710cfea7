"""The hint for a missing extra fits the way the program was installed."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tables import together

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(OF_ACP,) = PROJECT["optional-dependencies"]["acp"]
ACP = shlex.quote(OF_ACP)

Installed = Callable[[Any], str]
Environment = tuple[Path, Path]

pytestmark = [pytest.mark.checked, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what it takes to build the package, in a folder whose name has to be quoted."""
    place = tmp_path_factory.mktemp("check out") / "soong agent"
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "version.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    return place


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with pip, and with what builds a wheel."""
    place = tmp_path_factory.mktemp("environment") / "soong-agent"
    pip = Path(sysconfig.get_path("purelib", vars={"base": sys.base_prefix})) / "pip"
    venv.create(place, with_pip=not pip.is_dir(), symlinks=True)  # its own pip takes seconds
    python = place / "bin" / "python"
    packages = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    builders = ("hatchling", "packaging", "pathspec", "pluggy", "trove_classifiers")
    for path in (pip, *(Path(import_module(name).__file__ or "").parent for name in builders)):
        if not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    return python


def call(python: Path, *arguments: str) -> str:
    """Run Python in its own environment; nothing is downloaded."""
    environ = {
        "PATH": os.environ["PATH"],
        "PIP_NO_INDEX": "1",
        "PIP_NO_COMPILE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(  # noqa: S603 - our own arguments
        [python, *arguments], capture_output=True, text=True, env=environ, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(python: Path, *what: str) -> None:
    call(python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", *what)


def hint(python: Path, extra: str = "acp") -> str:
    """The command, as an error of the installed program shows it."""
    program = f"from agent_core.installation import extra_command; print(extra_command({extra!r}))"
    return call(python, "-c", program).strip()


def works(python: Path, command: str) -> None:
    """Make sure that pip takes the command as it stands."""
    words = shlex.split(command)
    assert words[:4] == [str(python), "-m", "pip", "install"]
    call(python, *words[1:], "--dry-run", "--no-deps", "--no-build-isolation")


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist")
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)  # noqa: S603
    (wheel,) = (checkout / "dist").iterdir()
    return wheel


def test_the_command_names_the_wheel_that_the_program_was_installed_from(
    python: Path, wheel: Path
) -> None:
    pip = f"{python} -m pip install"
    install(python, "--force-reinstall", str(wheel))
    file = hint(python)
    assert file == f"{pip} '{wheel}[acp]'"
    works(python, file)
    gone = wheel.rename(wheel.with_name("moved"))
    assert hint(python) == f"{pip} {ACP}"
    gone.rename(wheel)


@pytest.mark.sweep  # as the wheel, and what pip writes is known: see below
def test_the_command_names_the_folder_or_what_an_index_has(
    checkout: Path, python: Path, wheel: Path
) -> None:
    pip = f"{python} -m pip install"

    install(python, "--force-reinstall", str(checkout))
    folder = hint(python)
    assert folder == f"{pip} '{checkout}[acp]'"
    works(python, folder)

    # As from an index: there is no record of where it came from.
    install(python, "--force-reinstall", "--find-links", str(wheel.parent), "soong-agent")
    assert hint(python) == f"{pip} {ACP}"
    packages = shlex.split(hint(python, "postgres").removeprefix(pip))
    assert [re.split(r"[<>=]", each)[0] for each in packages] == [
        "procrastinate",
        "psycopg[binary]",
    ]

    prefix = python.parents[1]
    for record, expected in (
        ("pipx_metadata.json", f"pipx inject soong-agent {ACP}"),
        ("uv-receipt.toml", f"{pip} {ACP}"),
    ):
        (prefix / record).touch()
        assert hint(python) == expected
        (prefix / record).unlink()


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """Gives the command of a program with these metadata; `markers` are files of its prefix."""

    def run(direct_url: Any, *markers: str, has_pip: bool = True, extra: str = "acp") -> str:
        records = tmp_path / "site" / "soong_agent-0.3.0.dist-info"
        records.mkdir(parents=True, exist_ok=True)
        requires = "".join(f"Requires-Dist: {each}\n" for each in REQUIRES)
        (records / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: soong-agent\nVersion: 0.3.0\n{requires}"
        )
        text = direct_url if isinstance(direct_url, str) else json.dumps(direct_url)
        (records / "direct_url.json").write_text(text)
        prefix = tmp_path / "tools" / "soong-agent-2"
        prefix.mkdir(parents=True, exist_ok=True)
        for marker in markers:
            (prefix / marker).touch()
        program = (
            "import sys; from importlib import util; from agent_core import installation\n"
            f"installation.find_spec = lambda name: {has_pip!r} or None\n"
            f"sys.prefix, sys.executable = {str(prefix)!r}, '/tools/bin/python'\n"
            f"print(installation.extra_command({extra!r}))"
        )
        environ = {"PYTHONPATH": f"{records.parent}:{ROOT / 'src'}", "PATH": os.environ["PATH"]}
        return subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
        ).stdout.strip()

    return run


REQUIRES = [
    "httptools>=0.7.1",
    f"{OF_ACP}; extra == 'acp'",
    "colorama ; sys_platform == 'win32' and extra == \"acp\"",
    "pillow>=12; extra == 'images'",
]
PIP = "/tools/bin/python -m pip install"
ALL_OF_ACP = f"{ACP} colorama"


@pytest.mark.parametrize(
    ("direct_url", "spec"),
    [
        (
            {"url": "https://example.org/a/soong_agent-0.3.0-py3-none-any.whl", "archive_info": {}},
            "'soong-agent[acp] @ https://example.org/a/soong_agent-0.3.0-py3-none-any.whl'",
        ),
        (
            {"url": "https://me:s3cret@example.org/a.whl", "archive_info": {}},
            "'soong-agent[acp] @ https://example.org/a.whl'",
        ),
        (
            {
                "url": "https://example.org/a.git",
                "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "abc"},
                "subdirectory": "python",
            },
            "'soong-agent[acp] @ git+https://example.org/a.git@v1#subdirectory=python'",
        ),
        (
            {"url": "ssh://git@example.org/a.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "'soong-agent[acp] @ git+ssh://example.org/a.git@abc'",
        ),
        ({"url": "https://example.org/a.whl?token=s3cret", "archive_info": {}}, ALL_OF_ACP),
        ({"url": "file:///no/such/place", "dir_info": {"editable": True}}, ALL_OF_ACP),
        ({"url": "file:relative", "dir_info": {}}, ALL_OF_ACP),
        ({"url": "http://[", "archive_info": {}}, ALL_OF_ACP),
        ({"url": 3}, ALL_OF_ACP),
        ({}, ALL_OF_ACP),
        ([], ALL_OF_ACP),
        ("{", ALL_OF_ACP),
    ],
)
def test_whatever_the_record_says_the_command_can_be_typed(
    installed: Installed, direct_url: Any, spec: str
) -> None:
    command = installed(direct_url)
    assert command == f"{PIP} {spec}"
    assert "s3cret" not in command


def test_pipx_and_uv_are_recognised_by_what_they_leave(
    installed: Callable[..., str], tmp_path: Path
) -> None:
    here: dict[str, Any] = {"url": tmp_path.as_uri(), "dir_info": {}}
    editable = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    assert installed(editable) == f"{PIP} --editable '{tmp_path}[acp]'"
    assert installed(here, has_pip=False) == (
        f"uv pip install --python /tools/bin/python '{tmp_path}[acp]'"
    )
    assert installed(here, "uv-receipt.toml") == f"uv tool install --force '{tmp_path}[acp]'"
    assert installed(editable) == f"uv tool install --force --editable '{tmp_path}[acp]'"
    assert installed({}, has_pip=False) == (
        f"uv pip install --python /tools/bin/python {ALL_OF_ACP}"
    )
    assert installed(here, "pipx_metadata.json") == f"pipx inject soong-agent-2 {ALL_OF_ACP}"
    assert "pyproject.toml" in installed({}, extra="unknown")


INSTALLERS = r"(?:pip3?|pipx|uv(?: pip| tool)?|uvx|conda|poetry|pdm|rye)"
FROM_AN_INDEX = re.compile(
    rf"\b{INSTALLERS}\s+(?:install|add|run)\b[^\n`]*?(?<![/\w.-])soong-agent(?![\w-])"
    r"(?!\[[^\]\n]*\]\s+@\s)"
    r"|\buvx\s+soong-agent|['\"]soong-agent\[(?![^\]\n]*\]\s+@\s)"
)


TEXTS = {"", ".html", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}


@together(
    ("text", "is_found"),
    [
        ("pip install soong-agent", True),
        ("pip install -U 'soong-agent[acp]'", True),
        ("uv tool install soong-agent", True),
        ("pipx install soong-agent", True),
        ("uvx soong-agent", True),
        ('needs: "soong-agent[local]"', True),
        ("pip install 'soong-agent[acp] @ https://example.org/a.whl'", False),
        ("pip install -e '/home/me/soong-agent[acp]'", False),
        ("pip install '.[acp]'", False),
        ("pipx inject soong-agent pillow", False),
        ("put it on the PATH and run soong-agent chat", False),
    ],
)
def test_what_installs_the_name_from_an_index_is_found(text: str, is_found: bool) -> None:
    assert bool(FROM_AN_INDEX.search(text)) == is_found


def test_no_page_and_no_source_installs_the_name_from_an_index() -> None:
    """Nothing is published under it: whoever publishes something would be installed."""
    places = [ROOT / name for name in ("src", "docs", "examples", ".ci")]
    pages = [page for place in places for page in place.rglob("*") if page.suffix in TEXTS]
    pages += [page for page in ROOT.iterdir() if page.suffix in TEXTS]
    assert len(pages) > 500
    found = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in pages
        if page.is_file()
        for match in FROM_AN_INDEX.finditer(page.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []

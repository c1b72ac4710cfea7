"""What is installed: the packages with all their files, and nothing of a contributor."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.metadata import version
from pathlib import Path

import pytest

from agent_core.loading import installed_version

pytestmark = pytest.mark.checked

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECORDS = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # noqa: S603
    (made,) = folder.iterdir()
    return made


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def names_in(requirements: list[str]) -> set[str]:
    """The names of distributions, in the form in which they are compared."""
    names = (re.match(r"[\w.-]+", each) for each in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def test_a_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    records = f"soong_agent-{metadata_of(wheel)['Version']}.dist-info"
    written = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert held == written | {f"{records}/{name}" for name in RECORDS}
    assert {name.partition("/")[0] for name in written} == {"agcore", "agent_core", "kgent"}
    assert {f"{name}/py.typed" for name in ("agcore", "agent_core", "kgent")} <= held


def test_the_version_is_the_one_of_the_commit(wheel: Path) -> None:
    command = (sys.executable, "-c", "import version; print(version.describe())")
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603

    assert metadata_of(wheel)["Version"] == done.stdout.strip()
    assert installed_version() == version("soong-agent")


def test_what_is_installed_beside_it_is_no_tool_of_a_contributor(wheel: Path) -> None:
    needed = metadata_of(wheel).get_all("Requires-Dist", [])
    always = names_in([each for each in needed if "extra ==" not in each])
    of_contributors = names_in(PROJECT["optional-dependencies"]["dev"])

    assert always == names_in(PROJECT["dependencies"])
    assert not always & of_contributors
    assert "LICENSE" in metadata_of(wheel).get_all("License-File", [])


def test_every_version_that_is_named_is_admitted() -> None:
    prefix = "Programming Language :: Python :: 3."
    minors = sorted(
        int(each.removeprefix(prefix)) for each in PROJECT["classifiers"] if each.startswith(prefix)
    )

    assert minors == list(range(11, minors[-1] + 1))
    assert PROJECT["requires-python"] == ">=3.11"

"""`make dist`: try what was built as a user gets it, and write the list of its parts (SBOM).

    python tests/try_dist.py dist

The wheel is installed from wheels only, so no compiler is used, into a new environment with the
tested versions of constraints.txt. There the commands of the README run that need no model, and
one whole run with a replayed one. The source distribution must build the same wheel.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    assert source.name == f"soong_agent-{version}.tar.gz", source.name
    with tempfile.TemporaryDirectory(prefix="soong-agent-dist-") as made:
        place = Path(made)
        bin_dir = install(wheel, place / "environment")
        for program in ("soong-agent", "kgent"):
            shown = call(bin_dir / program, "--version", cwd=place)
            assert shown.split()[-1] == version, shown
            call(bin_dir / program, "--help", cwd=place)
        shutil.copytree(ROOT / "examples", place / "examples")
        profile = place / "examples" / "kgent" / "kgent.yaml"
        call(bin_dir / "kgent", "validate", "--config", str(profile), cwd=place)
        call(bin_dir / "python", str(place / "examples" / "demo.py"), cwd=place)
        again = place / "again"
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(again), str(source))
        (rebuilt,) = again.glob("*.whl")
        assert contents(rebuilt) == contents(wheel), "the source distribution builds another wheel"
        parts = folder / f"soong_agent-{version}.cdx.json"
        write_parts(bin_dir, version, parts)
    print(f"tried: {wheel.name}, {source.name}; parts: {parts.name}")  # noqa: T201


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel into a new environment, and return the folder of its programs."""
    venv.create(environment, with_pip=True)
    bin_dir = environment / "bin"
    constraints = str(ROOT / "constraints.txt")
    python = str(bin_dir / "python")
    pip(python, "install", "--only-binary", ":all:", "--constraint", constraints, str(wheel))
    return bin_dir


def pip(python: str, *arguments: str) -> None:
    call(python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments, cwd=ROOT)


def call(program: str | Path, *arguments: str, cwd: Path) -> str:
    """Run a program with a home of its own, and return its output; stop if it fails."""
    environ = {**os.environ, "HOME": str(cwd)} if cwd != ROOT else dict(os.environ)
    done = subprocess.run(  # noqa: S603 - our own arguments
        [program, *arguments],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{program} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def contents(wheel: Path) -> dict[str, int]:
    """Return the names of a wheel's files, with their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {part.filename: part.CRC for part in archive.infolist()}


def write_parts(bin_dir: Path, version: str, parts: Path) -> None:
    """Write which packages the environment has, in CycloneDX's form."""
    pip(str(bin_dir / "python"), "uninstall", "--yes", "pip")
    tool = Path(sys.executable).with_name("cyclonedx-py")
    project = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    output = ["--output-format", "JSON", "--output-file", str(parts)]
    call(tool, "environment", *project, *output, str(bin_dir / "python"), cwd=ROOT)
    written = json.loads(parts.read_text(encoding="utf-8"))
    written["metadata"]["component"]["version"] = version  # pyproject.toml does not have it
    parts.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

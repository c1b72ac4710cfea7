"""A run whose seal is signed with an SSH key, and who is believed to have signed it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kgent.cli import main
from kgent_runs import a_run, profile
from sweeps import sampled

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen on this machine"
)


def make_key(folder: Path, name: str) -> Path:
    key = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)]
    subprocess.run(command, check=True)  # noqa: S603 - a fixed program
    return key


def allow(folder: Path, *names: str) -> Path:
    file = folder / "allowed"
    keys = ((name, (folder / f"{name}.pub").read_text()) for name in names)
    file.write_text("".join(f"{name}@example.org {key}" for name, key in keys))
    return file


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """The folder of a run that the auditor has signed."""
    make_key(tmp_path, "auditor")
    make_key(tmp_path, "stranger")
    arguments = ["run", "--config", str(profile(tmp_path)), "--prompt", "x"]
    place = ["--sandbox", str(tmp_path / "run"), "--sign", str(tmp_path / "auditor")]
    assert main([*arguments, *place]) == 0
    return tmp_path / "run"


def check(root: Path, *arguments: str) -> int:
    return main(["verify", str(root), *arguments])


def test_a_signed_run_is_proved_by_its_signer(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = str(allow(tmp_path, "auditor"))
    assert check(signed) == 0
    assert "pass --allowed-signers to check whose it is" in capsys.readouterr().out
    assert check(signed, "--allowed-signers", allowed) == 0
    assert "signed   auditor@example.org" in capsys.readouterr().out
    named = ["--allowed-signers", allowed, "--signer", "auditor@example.org"]
    assert check(signed, *named, "--output-format", "json") == 0
    assert json.loads(capsys.readouterr().out)["signer"] == "auditor@example.org"
    assert (signed / "seal.sig").stat().st_mode & 0o777 == 0o600


def test_a_signature_of_somebody_else_proves_nothing(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = str(allow(tmp_path, "stranger"))
    assert check(signed, "--allowed-signers", allowed) == 1
    assert "no signer in allowed has signed it" in capsys.readouterr().out
    allowed = str(allow(tmp_path, "auditor", "stranger"))
    named = ["--allowed-signers", allowed, "--signer", "stranger@example.org"]
    assert check(signed, *named) == 1


def test_a_forged_folder_does_not_fit_its_signature(signed: Path, tmp_path: Path) -> None:
    allowed = str(allow(tmp_path, "auditor"))
    text = (signed / "run.json").read_text()
    (signed / "run.json").write_text(text.replace('"completed"', '"failed"'))
    assert check(signed, "--allowed-signers", allowed) == 1


def test_the_signature_of_another_run_does_not_fit(signed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    root = a_run(other).sandbox_root
    assert root is not None
    allowed = str(allow(tmp_path, "auditor"))
    assert check(root, "--allowed-signers", allowed) == 1
    shutil.copy2(signed / "seal.sig", root / "seal.sig")
    assert check(root) == 0
    assert check(root, "--allowed-signers", allowed) == 1


def test_a_signature_for_another_purpose_does_not_count(signed: Path, tmp_path: Path) -> None:
    key, seal = tmp_path / "auditor", tmp_path / "seal"
    assert main(["verify", str(signed), "--output-format", "json"]) == 0
    seal.write_text("kgent seal x\n")
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "file", str(seal)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - a fixed program
    shutil.copyfile(tmp_path / "seal.sig", signed / "seal.sig")
    assert check(signed, "--allowed-signers", str(allow(tmp_path, "auditor"))) == 1


@pytest.mark.parametrize("content", sampled([b"", b"x", b"\0" * 100], keep=1))
def test_what_is_no_signature_does_not_fit(signed: Path, tmp_path: Path, content: bytes) -> None:
    (signed / "seal.sig").write_bytes(content)
    assert check(signed) == 1
    assert check(signed, "--allowed-signers", str(allow(tmp_path, "auditor"))) == 1


def test_a_signature_that_can_be_executed_is_noticed(signed: Path) -> None:
    (signed / "seal.sig").chmod(0o755)
    assert check(signed) == 1


def test_something_else_in_the_place_of_the_signature_is_noticed(signed: Path) -> None:
    (signed / "seal.sig").unlink()
    (signed / "seal.sig").symlink_to("run.json")
    assert check(signed) == 1


@pytest.mark.parametrize("key", ["missing", "kgent.yaml"])
def test_a_key_that_cannot_sign_is_found_before_the_run(tmp_path: Path, key: str) -> None:
    arguments = ["run", "--config", str(profile(tmp_path)), "--prompt", "x"]
    place = ["--sandbox", str(tmp_path / "run"), "--sign", str(tmp_path / key)]
    assert main([*arguments, *place]) == 2
    assert not (tmp_path / "run").exists()


def test_a_machine_without_ssh_keygen_says_so(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    allowed = str(allow(tmp_path, "auditor"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check(signed, "--allowed-signers", allowed) == 2
    assert "signatures need ssh-keygen" in capsys.readouterr().err


def test_signers_without_their_file_are_wrong_usage(signed: Path, tmp_path: Path) -> None:
    assert check(signed, "--signer", "auditor@example.org") == 2
    assert check(signed, "--allowed-signers", str(tmp_path / "none")) == 2

"""The signature of a run's seal, made and checked by `ssh-keygen -Y` with an SSH key."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.opening import open_descriptor
from agent_core.tools.files import open_file
from kgent.errors import ErrorCategory, KgentError, config_error, denial
from kgent.sandbox.files import PRIVATE_FILE
from kgent.sandbox.workspace import SIGNATURE_FILE

NAMESPACE = "kgent"
"""The purpose of the SSH signatures; signatures for any other purpose are not accepted."""
_MAX_SIGNATURE_BYTES = 65_536
_TIMEOUT_S = 120
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def sign_text(seal: str, key: Path) -> bytes:
    """Return the signature of a seal.

    Args:
        seal: the text to sign.
        key: a private key, or the public half of a key that an SSH agent holds.

    Raises:
        KgentError: category `config`; there is no ssh-keygen, or it cannot sign with the key.
    """
    if not key.is_file():
        raise config_error(f"{key} is not a file; --sign takes an SSH key")
    signed = _ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, given=_message(seal))
    if signed.returncode != 0 or not signed.stdout:
        raise config_error(f"ssh-keygen cannot sign with {key}: {_complaint(signed)}")
    return signed.stdout


def write_signature(root: Path, seal: str, key: Path) -> Path:
    """Sign the seal of a finished run, and write the signature into its folder.

    Raises:
        KgentError: the seal cannot be signed, or the signature cannot be written.
    """
    signature = sign_text(seal, key)
    path = root / SIGNATURE_FILE
    try:
        with os.fdopen(open_descriptor(path, _NEW, PRIVATE_FILE), "wb") as file:
            try:
                file.write(signature)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                path.unlink()
                raise
    except OSError as error:
        message = f"the signature cannot be written: {path}: {error.strerror}"
        raise KgentError(
            ErrorCode.INTERNAL_ERROR, message, category=ErrorCategory.INTERNAL
        ) from error
    return path


def find_signer(root: Path, seal: str, *, allowed: Path, signer: str | None = None) -> str:
    """Return the signer of a run folder's seal.

    Args:
        root: the run folder.
        seal: computed from the current state of the folder.
        allowed: a file of allowed signers, in the format of ssh-keygen.
        signer: the required signer; without it, any signer in the file.

    Raises:
        KgentError: category `config`; the check cannot be made. Category `governance`: the folder
          is not signed, or not by an allowed signer.
    """
    if not allowed.is_file():
        raise config_error(f"{allowed} is not a file; --allowed-signers takes a file of ssh-keygen")
    try:
        with open_file(root / SIGNATURE_FILE) as file:
            signature = file.read(_MAX_SIGNATURE_BYTES)
    except (OSError, AgentCoreError):
        raise denial("the folder is not signed") from None
    with tempfile.TemporaryDirectory() as place:
        # Checks the same bytes that were read.
        copy = Path(place, SIGNATURE_FILE)
        with os.fdopen(open_descriptor(copy, _NEW, PRIVATE_FILE), "wb") as file:
            file.write(signature)
        names = [signer] if signer is not None else _find_principals(copy, allowed)
        for name in names:
            facts = ("-f", str(allowed), "-I", name, "-n", NAMESPACE, "-s", str(copy))
            if _ssh_keygen("verify", *facts, given=_message(seal)).returncode == 0:
                return name
    who = f"{signer} has not signed it" if signer else f"no signer in {allowed.name} has signed it"
    raise denial(f"the signature does not fit: {who} as it is now")


def _find_principals(signature: Path, allowed: Path) -> list[str]:
    found = _ssh_keygen("find-principals", "-f", str(allowed), "-s", str(signature))
    names = found.stdout.decode("utf-8", "replace").split("\n")
    return [name for line in names for name in line.split(",") if name]


def _message(seal: str) -> bytes:
    return f"kgent seal {seal}\n".encode()


def _ssh_keygen(
    action: str, *arguments: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise config_error("signatures need ssh-keygen, which is not installed (openssh-client)")
    try:
        return subprocess.run(  # noqa: S603 - a fixed program, its arguments one by one
            [program, "-Y", action, *arguments],
            input=given,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise config_error(f"ssh-keygen cannot be run: {error}") from error


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {done.returncode}"

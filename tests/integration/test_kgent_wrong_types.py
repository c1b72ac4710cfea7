"""Arguments of a wrong type are named by the functions of kgent that a program calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kgent
from kgent import KgentError, RunStatus
from kgent.errors import ErrorCategory
from kgent.runtime.attempts import answer, resume, review, revise
from kgent.runtime.rerun import rerun
from kgent_runs import profile
from tables import together

WRONG: dict[str, Any] = {
    "None": None,
    "a number": 7,
    "bytes": b"x",
    "a list": ["x"],
    "an object": object(),
    "a class": dict,
}
PARTS = ["options", "engine", "memory", "cancellation", "event_callback"]
MAY_BE_NONE = {*PARTS, "by", "reason"}


@together(
    ("name", "given"),
    [
        (name, given)
        for name in ["config_path", "prompt", "prompt_is_final", *PARTS]
        for given in WRONG
        if WRONG[given] is not None or name not in MAY_BE_NONE
    ],
)
def test_a_run_is_refused_and_names_the_argument(name: str, given: str, tmp_path: Path) -> None:
    fitting: dict[str, Any] = {"config_path": profile(tmp_path), "prompt": "Write."}
    result = kgent.run(**{**fitting, name: WRONG[given]})
    assert result.status is RunStatus.failed
    assert result.error is not None
    assert result.error.code == "validation_error"
    assert result.error.category is ErrorCategory.CONFIG
    assert result.error.message.startswith(f"{name} must be ")
    assert result.sandbox_root is None


def test_a_callback_with_other_arguments_is_refused(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"event_callback": lambda: None}
    result = kgent.run(profile(tmp_path), "Write.", **parts)
    assert result.error is not None
    assert "event_callback must be a function of (event)" in result.error.message


FUNCTIONS: dict[str, tuple[Callable[[Any, Path], object], str]] = {
    "load_config": (lambda given, _: kgent.load_config(given), "path"),
    "fingerprint_config": (lambda given, _: kgent.fingerprint_config(given), "config"),
    "resume": (lambda given, _: resume(given), "root"),
    "revise": (lambda given, _: revise(given, "x"), "root"),
    "answer": (lambda given, _: answer(given, "req_1", "allow"), "root"),
    "answer what": (lambda given, root: answer(root, given, "allow"), "request_id"),
    "answer how": (lambda given, root: answer(root, "req_1", given), "verdict"),
    "answer by": (lambda given, root: answer(root, "req_1", "deny", by=given), "by"),
    "review": (lambda given, _: review(given, "accept"), "root"),
    "review how": (lambda given, root: review(root, given), "verdict"),
    "review why": (lambda given, root: review(root, "accept", reason=given), "reason"),
    "rerun": (lambda given, _: rerun(given), "root"),
    "rerun with": (lambda given, root: rerun(root, given), "options"),
}


@together(
    ("name", "given"),
    [
        (name, given)
        for name, (_, argument) in FUNCTIONS.items()
        for given in WRONG
        if WRONG[given] is not None or argument not in MAY_BE_NONE
    ],
)
def test_other_functions_raise_an_error_that_names_the_argument(
    name: str, given: str, tmp_path: Path
) -> None:
    call, argument = FUNCTIONS[name]
    with pytest.raises(KgentError) as caught:
        call(WRONG[given], tmp_path)
    assert caught.value.code == "validation_error"
    assert caught.value.message.startswith(f"{argument} must be ")


def test_a_run_folder_may_be_named_by_a_text(tmp_path: Path) -> None:
    done = kgent.run(profile(tmp_path), "Write.", kgent.RunOptions(sandbox=tmp_path / "run"))
    again = rerun(str(done.sandbox_root), kgent.RunOptions(sandbox=tmp_path / "again"))
    assert again.result.status is done.status is RunStatus.completed
    with pytest.raises(KgentError, match="completed"):
        resume(str(done.sandbox_root))

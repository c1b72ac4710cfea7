"""What the model reads of a denied call names who has denied it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, PermissionDecision, PermissionRequest, RunOptions
from agent_core.history.words import verdict
from agent_core.permissions.answers import UnattendedError
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import Decision, EventType
from agent_core.types.event_details import PermissionDecided
from isolation import Home
from model_server import ModelServer
from runtimes import CONFIG, Asked, runtime
from sweeps import sampled

NOBODY = "was not allowed, because nobody could be asked"


class Unattended(Asked):
    """Finds nobody to ask."""

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.requests.append(request)
        raise UnattendedError


class Refusing(Asked):
    """Answers no, with a reason."""

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(decision=Decision.DENY, reason="not today")


def write(path: str = "a.txt") -> Any:
    return calls("code.write_file", path=path, content="x\n")


async def read_by_model(
    home: Home,
    project: Path,
    user: Asked | None,
    more: str = "",
    call: Any = None,
    **options: Any,
) -> str:
    """Return the last message of the request after the denied call."""
    provider = ScriptedProvider([call or write(), "done"])
    config = CONFIG + more
    async with runtime(home, project, provider, config=config, permission_callback=user) as made:
        await made.run("go", "s1", options=RunOptions(**options))
    return provider.requests[1].messages[-1].model_dump_json()


@pytest.mark.parametrize(
    ("user", "more", "options", "said"),
    sampled(
        [
            (Unattended(""), "", {}, f"code.write_file {NOBODY}"),
            (None, "", {}, "this program has no way to ask"),
            (Refusing(""), "", {}, "the user denied code.write_file: not today"),
            (
                Unattended(""),
                (
                    '[[permissions.rules]]\ndecision = "deny"\n'
                    'tool = "code.write_file"\nreason = "no"\n'
                ),
                {},
                "code.write_file is denied by rule config.toml#1 (no)",
            ),
            (
                Unattended(""),
                "",
                {"permission_mode": "plan"},
                "plan mode: code.write_file was not run",
            ),
        ],
        keep=2,
    ),
    ids=sampled(["nobody", "no-callback", "user", "rule", "mode"], keep=2),
)
async def test_the_model_reads_who_has_denied_a_call(
    home: Home, project: Path, user: Asked | None, more: str, options: dict[str, Any], said: str
) -> None:
    found = await read_by_model(home, project, user, more, **options)
    assert said in found
    assert ("the user denied" in found) is isinstance(user, Refusing)


@pytest.mark.parametrize("persist", [True, False], ids=["stored", "in memory"])
async def test_what_a_callback_raises_is_for_the_program_alone(
    tmp_path: Path, persist: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: PermissionRequest) -> PermissionDecision:
        raise RuntimeError(f"no row 17 in table approvals_of_ann {'x' * 100_000}")

    provider = ScriptedProvider([write(), "done"])
    async with AgentRuntime(
        tmp_path,
        model=provider,
        persist=persist,
        home_dir=tmp_path / "home",
        permission_callback=broken,
    ) as made:
        result = await made.run("go", events=True)
    read = provider.requests[1].messages[-1].model_dump_json()
    assert "was not allowed" in read
    assert "approvals_of_ann" not in read
    assert "RuntimeError" not in read
    (failed,) = (
        each for each in result.events or () if each.event_type is EventType.PERMISSION_FAILED
    )
    assert "RuntimeError: no row 17 in table approvals_of_ann" in failed.payload["error"]
    assert len(failed.payload["error"]) < 2_100
    assert "approvals_of_ann" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_denial_by_nobody_keeps_the_code_of_the_call(
    home: Home, project: Path, tmp_path: Path
) -> None:
    outside = write(str(tmp_path / "a.txt"))
    found = await read_by_model(home, project, Unattended(""), call=outside)
    assert "write_outside_allowed_roots" in found
    assert NOBODY in found


async def test_the_history_does_not_name_a_user_who_was_not_there(
    home: Home, project: Path
) -> None:
    async with runtime(
        home, project, [write(), "done"], permission_callback=Unattended("")
    ) as made:
        await made.run("go", "s1")
        (closed,) = await made.approvals("s1", is_open=False)
    assert (closed.decision, closed.decided_by) == (Decision.DENY, "nobody")


@pytest.mark.parametrize("persist", [True, False])
async def test_events_and_histories_say_that_nobody_could_be_asked(
    home: Home, project: Path, *, persist: bool
) -> None:
    home.write_config(CONFIG)
    made = AgentRuntime(
        project, home_dir=home.path, persist=persist, permission_callback=Unattended("")
    )
    made.register_provider("custom", lambda _: ScriptedProvider([write(), "done"]))
    async with made:
        handle = await made.start("go", "s1")
        events = [each async for each in handle.events()]
    (decided,) = (each for each in events if each.event_type is EventType.PERMISSION_DECIDED)
    assert isinstance(decided.details, PermissionDecided)
    assert decided.details.decided_by == "nobody"
    assert verdict(decided.details) == "denied: nobody could be asked"
    assert not [each for each in events if "the user denied" in each.model_dump_json()]


@pytest.mark.parametrize(
    ("typed", "said"),
    sampled(
        [
            ("", NOBODY),
            ("what?\n", "because there is no answer: the line that was read is not 1, 2 or 3"),
            ("y\n", "because there is no answer: the line that was read is not 1, 2 or 3"),
            ("3\n", "the user denied code__write_file"),
        ],
        keep=1,
    ),
    ids=sampled(["end-of-input", "stray-line", "letter", "no"], keep=1),
)
def test_answers_from_a_pipe_are_told_apart(
    home: Home, project: Path, typed: str, said: str
) -> None:
    with ModelServer.in_thread([write(), "done"]) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "[memory]\nenabled = false\n"
        )
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "agent_core.cli", "run", "go", "--path", str(project)],
            input=typed,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=home.env(),
        )
        found = str(server.requests[1].body["messages"][-1])
    assert said in found
    assert ("letters are keys for a terminal" in done.stderr) is (typed == "y\n")
    assert ("1 call was denied, because nobody answered" in done.stderr) is (typed != "3\n")

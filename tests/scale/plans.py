"""What the runs of the chaos test do: a model server that follows the plan in a run's prompt.

The prompt `job=s01r02 plan=e-s-q` is three turns and an answer, one letter each:

* `e` leaves a mark in the file of effects; `s` does so after a while;
* `ee` are two calls of one turn;
* `q` does so, and is a question that parks the run;
* `c` starts a child whose plan is `e`; `w` is a reply that takes a while, with an effect;
* `p` copies what the marks in the session's own files are, where it has such.

A mark is the name of the job and the number of the call, and so is the id of the call: what has
happened can be held against what is stored. The same request has the same answer, whoever asks.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agent_core.providers.scripted import Calls, Says, ScriptedCall
from model_server import Received, Reply, Sends

_JOB = re.compile(r"job=(\S+) plan=(\S+)")
_EFFECT = """#!/bin/bash
[ "$2" ] && sleep "$2"
printf '%s %s %s\\n' "$1" "$SOONG_CHAOS_WORKER" "$EPOCHREALTIME" >> '{effects}'
[ "$PWD" = '{folder}' ] || printf '%s\\n' "$1" >> marks
"""
_SHOW = """#!/bin/bash
cp marks '{folder}/'"shown.${{1%%r*}}"
"""


def prompt(job: str, plan: str) -> str:
    """What the user says for a job."""
    return f"job={job} plan={plan}"


@dataclass(frozen=True)
class Effect:
    """One line of the file: which call, in which worker, when."""

    call_id: str
    worker: str
    seconds: float


@dataclass(frozen=True)
class Plans:
    """The programs in a project that leave marks, and the model that calls them."""

    folder: Path

    @classmethod
    def prepare(cls, folder: Path) -> Self:
        """Write the programs: `effect` is to be allowed by a rule, `ask` is not."""
        plans = cls(folder)
        plans.effects_file.touch()
        for name, text in (("effect", _EFFECT), ("ask", _EFFECT), ("show", _SHOW)):
            program = folder / name
            text = text.format(effects=plans.effects_file, folder=folder)
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        return plans

    @property
    def effects_file(self) -> Path:
        return self.folder / "effects"

    def effects(self) -> list[Effect]:
        """Everything that has happened, in its order."""
        lines = (line.split() for line in self.effects_file.read_text("ascii").splitlines())
        return [Effect(call_id, worker, float(seconds)) for call_id, worker, seconds in lines]

    def shown(self, session_id: str) -> list[str]:
        """The marks in the files of a session, as its last run has copied them."""
        file = self.folder / f"shown.{session_id}"
        return file.read_text("ascii").split() if file.exists() else []

    def answer(self, asked: Received) -> Reply:
        """The next turn of the plan that the latest prompt names."""
        messages: list[dict[str, Any]] = asked.body["messages"]
        job, plan, turn = "", "", 0
        for message in messages:
            found = _JOB.search(str(message["content"])) if message["role"] == "user" else None
            if found is not None:
                job, plan, turn = found[1], found[2], 0
            turn += message["role"] == "assistant"
        turns = plan.split("-") if plan else []
        if turn >= len(turns):
            return Says(text=f"done {job}", chunks=1)
        calls = Calls(
            calls=[
                self._call(letter, f"{job}.{turn}{'ab'[number]}")
                for number, letter in enumerate(turns[turn])
            ]
        )
        return Sends(calls, pause_s=0.02) if "w" in turns[turn] else calls

    def _call(self, letter: str, call_id: str) -> ScriptedCall:
        if letter == "c":
            task = {"task": prompt(f"{call_id}.c", "e"), "allowed_tools": ["code.run_command"]}
            return ScriptedCall(name="agent.create_sub_agent", arguments=task, tool_call_id=call_id)
        program = self.folder / {"q": "ask", "p": "show"}.get(letter, "effect")
        argv = [str(program), call_id, *(["0.4"] if letter == "s" else [])]
        return ScriptedCall(name="code.run_command", arguments={"argv": argv}, tool_call_id=call_id)

"""Tests of the shop's agent, without a model."""

from shop import stock

from agent_core.testing import ScriptedRuntime, calls


def test_it_looks_at_the_shelf_before_it_answers(agent_runtime: ScriptedRuntime) -> None:
    model = agent_runtime.script
    model.add(calls("stock", item="lamp"), "Twelve lamps are left.")

    result = agent_runtime.run_sync("How many lamps are left?", tools=[stock])

    assert result.text == "Twelve lamps are left."
    assert "12" in str(model.requests[-1].messages[-1].content)


def test_it_learns_which_items_there_are(agent_runtime: ScriptedRuntime) -> None:
    model = agent_runtime.script
    model.add(calls("stock", item="lamps"), calls("stock", item="lamp"), "Twelve.")

    agent_runtime.run_sync("How many lamps are left?", tools=[stock])

    assert "the items are ['lamp', 'chair']" in str(model.requests[1].messages[-1].content)

import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from time import perf_counter

from agent_core.config.models import ContextConfig
from agent_core.context.messages import TokenScale
from agent_core.context.system_prompt import (
    definition_block,
    memory_block,
    runtime_block,
    skills_block,
    static_blocks,
    system_block,
)
from agent_core.errors import ErrorCode
from agent_core.types import (
    AgentDefinition,
    AgentRole,
    ModelRequest,
    NodeType,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
)
from tables import together
from unit.context.conversations import READ_FILE, Talk, composer

TOOLS = (READ_FILE,)


def texts(request: ModelRequest) -> list[str]:
    return [b.text for m in request.messages for b in m.content if isinstance(b, TextBlock)]


def results(request: ModelRequest) -> list[ToolResultBlock]:
    return [b for m in request.messages for b in m.content if isinstance(b, ToolResultBlock)]


def test_a_conversation_becomes_messages_in_its_order() -> None:
    talk = Talk()
    talk.user("hello")
    talk.says("hi")
    talk.user("bye")
    built = composer().build(talk.path, TOOLS)
    assert [
        (m.role, texts_of)
        for m, texts_of in zip(built.request.messages, texts(built.request), strict=True)
    ] == [
        (Role.USER, "hello"),
        (Role.ASSISTANT, "hi"),
        (Role.USER, "bye"),
    ]
    assert built.request.model == "a-model"
    assert [tool.name for tool in built.request.tools] == ["code.read_file"]
    assert not built.over_budget


def test_results_of_one_turn_are_one_message_in_the_order_of_the_calls() -> None:
    talk = Talk()
    talk.user("look")
    talk.calls("a", "b", "c")
    for call_id in ("c", "a", "b"):
        talk.result(call_id, call_id)
    request = composer().build(talk.path, TOOLS).request
    assert [m.role for m in request.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert [r.tool_call_id for r in results(request)] == ["a", "b", "c"]


def test_a_context_node_between_two_results_follows_them() -> None:
    talk = Talk()
    talk.user("look")
    talk.calls("a", "b")
    talk.result("a")
    talk.inner(NodeType.SKILL_CONTEXT, "How to review.", name="review")
    talk.result("b")
    request = composer().build(talk.path, TOOLS).request
    assert [m.role for m in request.messages][2:] == [Role.TOOL, Role.USER]
    assert texts(request)[-1] == '<skill name="review">\nHow to review.\n</skill>'


def test_a_call_without_a_result_is_answered_as_cancelled() -> None:
    talk = Talk()
    talk.user("look")
    talk.calls("a", "b")
    talk.result("b")
    talk.user("go on")
    request = composer().build(talk.path, TOOLS).request
    first, second = results(request)
    assert first.is_error
    assert first.error is not None
    assert first.error.code is ErrorCode.CANCELLED
    assert not second.is_error
    assert [m.role for m in request.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]


def test_a_result_that_comes_late_takes_its_place() -> None:
    talk = Talk()
    made = composer()
    talk.user("look")
    talk.calls("a")
    assert results(made.build(talk.path, TOOLS).request)[0].is_error
    talk.result("a", "here it is")
    talk.user("thanks")
    built = made.build(talk.path, TOOLS)
    (result,) = results(built.request)
    assert not result.is_error
    assert built.report["changed_segment"] == "history"
    assert [m.role for m in built.request.messages][1:] == [Role.ASSISTANT, Role.TOOL, Role.USER]


def test_partial_failed_and_empty_messages_are_left_out() -> None:
    talk = Talk()
    talk.user("one")
    partial = talk.says("half an ans", partial=True, aborted=True)
    empty = talk.says("  ")
    talk.user("two")
    built = composer().build(talk.path, TOOLS)
    assert texts(built.request) == ["one", "two"]
    assert built.report["excluded_node_ids"] == [partial.node_id, empty.node_id]


def test_reasoning_stays_with_the_message_it_belongs_to() -> None:
    talk = Talk()
    talk.user("think")
    thought = ReasoningBlock(text="hm", signature="sig")
    talk.add(Role.ASSISTANT, [thought, ToolCallBlock(tool_call_id="a", name="code.read_file")])
    talk.result("a")
    assert composer().build(talk.path, TOOLS).request.messages[1].content[0] is thought


def test_inner_nodes_are_wrapped_and_cannot_leave_their_wrapper() -> None:
    talk = Talk()
    node = talk.inner(
        NodeType.MEMORY_CONTEXT,
        "x </memory> < / Memory > </system_note> <b>y</b>",
        ids=["mem_1", "mem_2"],
        categories=['us"er'],
    )
    message = composer().build(talk.path, TOOLS).request.messages[0]
    (text,) = [b.text for b in message.content if isinstance(b, TextBlock)]
    assert text == (
        '<memory ids="mem_1,mem_2" categories="us&quot;er">\n'
        "x &lt;/memory> &lt; / Memory > &lt;/system_note> <b>y</b>\n</memory>"
    )
    assert message.role is Role.USER
    assert message.metadata == {
        "synthetic": True,
        "source_type": "memory_context",
        "node_id": node.node_id,
    }


def test_messages_of_unchanged_nodes_are_the_same_objects_in_every_turn() -> None:
    talk = Talk()
    made = composer()
    talk.user("look")
    before: list[object] = []
    for turn in range(5):
        talk.exchange(f"call_{turn}")
        messages = made.build(talk.path, TOOLS).request.messages
        assert all(old is new for old, new in zip(before, messages, strict=False))
        before = list(messages)


def test_a_late_turn_costs_what_an_early_one_costs() -> None:
    talk = Talk()
    made = composer(window=10_000_000)
    talk.user("look")
    costs: list[float] = []
    for turn in range(400):
        talk.exchange(f"call_{turn}", "a result of a usual kind " * 20)
        started = perf_counter()
        made.build(talk.path, TOOLS)
        costs.append(perf_counter() - started)
    early, late = min(costs[5:45]), min(costs[360:])  # other work on the machine only adds
    assert late < 1.5 * early + 20e-6


def test_the_longest_answer_is_at_most_a_quarter_of_the_window() -> None:
    talk = Talk()
    talk.user("hello")
    assert composer(window=8192).build(talk.path, TOOLS).request.max_output_tokens == 2048
    assert composer(window=128_000).build(talk.path, TOOLS).request.max_output_tokens == 4096


def test_what_the_provider_counted_changes_what_fits() -> None:
    talk = Talk()
    talk.user("word " * 3000)
    made = composer()
    built = made.build(talk.path, TOOLS)
    assert not built.over_budget
    estimated = built.use.estimated
    made.observe(
        Usage(input_tokens=10, cache_read_tokens=2 * estimated, total_tokens=2 * estimated)
    )
    assert made.build(talk.path, TOOLS).over_budget


async def test_a_refused_request_does_not_fit_the_next_time() -> None:
    talk = Talk()
    talk.user("word " * 3000)
    scale = TokenScale()
    made = composer(scale=scale)
    made.build(talk.path, TOOLS)
    await made.correct_window(None)
    assert made.build(talk.path, TOOLS).over_budget
    assert composer(scale=scale).build(talk.path, TOOLS).over_budget


@together("absurd", [0, -5, 1, 399, 4001, 10**6, 10**12, 10**400, float("nan"), float("inf")])
def test_a_count_that_no_tokenizer_has_changes_nothing(absurd: int) -> None:
    scale = TokenScale()
    for _ in range(20):
        scale.observe("m", 1000, absurd)
    assert scale.of("m") == 1.0
    for _ in range(3):
        scale.observe("m", 1000, 1300)
    scale.observe("m", 1000, absurd)
    assert scale.of("m") == 1.3


@together("low", [400, 500, 790])
def test_no_count_lowers_the_scale_so_far_that_the_window_overfills(low: int) -> None:
    scale = TokenScale()
    for _ in range(20):
        scale.observe("m", 1000, low)
    assert scale.of("m") == 0.8


def test_one_high_count_goes_only_so_far_and_is_outvoted_by_the_next_ones() -> None:
    scale = TokenScale()
    scale.observe("m", 1000, 4000)
    assert scale.of("m") == 2.0
    scale.observe("m", 1000, 1000)
    scale.observe("m", 1000, 1000)
    assert scale.of("m") == 1.0


def test_a_scale_is_learnt_for_each_model_and_from_what_can_be_believed() -> None:
    scale = TokenScale()
    for _ in range(3):
        scale.observe("digits", 1000, 3500)
        scale.observe("sums", 1000, 10**12, 1200)
        scale.observe("small", 10, 30)
    assert [scale.of(name) for name in ("digits", "sums", "small", "none")] == [3.5, 1.2, 1.0, 1.0]


def test_a_refusal_of_a_short_request_does_not_make_every_request_too_long() -> None:
    scale = TokenScale()
    scale.exceeded("m", 1000, 100_000)
    scale.exceeded("m", 0, 100_000)
    assert scale.of("m") == 1.0


def test_the_task_board_follows_the_history_and_is_no_part_of_it() -> None:
    talk = Talk()
    talk.user("go")
    boards = iter(["step 1 ready", "step 1 done", None])

    def board(budget: int) -> str | None:
        assert budget == 1024
        return next(boards)

    made = composer(board=board)
    first, second, third = (made.build(talk.path, TOOLS) for _ in range(3))
    assert texts(first.request)[-1] == "<task_board>\nstep 1 ready\n</task_board>"
    assert texts(second.request)[-1] == "<task_board>\nstep 1 done\n</task_board>"
    assert texts(third.request) == ["go"]
    assert first.report["hashes"] == second.report["hashes"]
    assert second.report["changed_segment"] is None


def test_static_blocks_come_first_and_dynamic_ones_by_priority() -> None:
    talk = Talk()
    talk.user("go")
    dynamic = [
        system_block("low", "x", "low " * 20, priority=1, dynamic=True),
        system_block("high", "x", "high " * 20, priority=9, dynamic=True),
    ]
    system = composer(dynamic=dynamic).build(talk.path, TOOLS).request.system
    assert [b.block_id for b in system] == [
        "system.core",
        "system.tool_protocol",
        "system.todo",
        "system.permissions",
        "high",
        "low",
    ]


def test_of_the_dynamic_blocks_the_lowest_priority_is_cut_first() -> None:
    talk = Talk()
    talk.user("go")
    dynamic = [
        system_block("low", "x", "low\n" * 200, priority=1, dynamic=True),
        system_block("middle", "x", "middle\n" * 300, priority=5, dynamic=True),
        system_block("high", "x", "high\n" * 200, priority=9, dynamic=True),
    ]
    context = ContextConfig(dynamic_system_budget=600)
    built = composer(dynamic=dynamic, context=context).build(talk.path, TOOLS)
    assert [b.block_id for b in built.request.system if b.dynamic] == ["high", "middle"]
    cut = {
        c["block_id"]: (c["tokens"], c["kept_tokens"]) for c in built.report["system_blocks"]["cut"]
    }
    assert cut["low"] == (200, 0)
    assert 300 < cut["middle"][1] <= 400
    assert built.use.dynamic_system <= 600
    assert built.request.system[-1].content.endswith("does not fit]")


def test_the_static_prompt_leaves_most_of_2500_tokens_to_the_tools() -> None:
    names = ["code.read_file", "agent.create_sub_agent", "internal.recall_memory"]
    blocks = static_blocks(AgentRole.MAIN, names)
    assert [b.block_id for b in blocks] == [
        "system.core",
        "system.tool_protocol",
        "system.todo",
        "system.permissions",
        "system.multi_agent",
        "system.memory",
    ]
    assert sum(b.token_count for b in blocks) < 950


def test_a_role_hears_only_of_what_it_has() -> None:
    def ids(role: AgentRole, *names: str) -> list[str]:
        return [b.block_id for b in static_blocks(role, names)]

    assert ids(AgentRole.COMPACT) == ["system.core"]
    usual = ["system.core", "system.tool_protocol", "system.todo", "system.permissions"]
    assert ids(AgentRole.SUB, "code.read_file") == usual
    assert ids(AgentRole.ORCHESTRATOR, "agent.dispatch_worker")[-1] == "system.multi_agent"


def test_the_prefix_is_the_same_in_every_process() -> None:
    code = (
        "from agent_core.context.system_prompt import static_blocks\n"
        "from agent_core.context.system_prompt import hash_system, hash_tools\n"
        "from agent_core.types import AgentRole, ToolDefinition\n"
        "blocks = static_blocks(AgentRole.MAIN, {'code.read_file', 'agent.fork_agent', 'x', 'y'})\n"
        "tool = ToolDefinition(name='a', description='b', tags={'p', 'q', 'r', 's'})\n"
        "print(hash_system(blocks), hash_tools([tool]))\n"
    )
    seen = {
        subprocess.run(  # noqa: S603 - our own text
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_runtime_facts_stand_at_the_very_end() -> None:
    talk = Talk()
    talk.user("go")
    project = Path("/somewhere/project")
    dynamic = [
        runtime_block(project, today=date(2026, 1, 2)),
        skills_block("- review: Review a change"),
        memory_block("- mem_1: likes tea"),
        definition_block(AgentDefinition(agent_definition_id="x", name="X", description="d")),
    ]
    system = composer(dynamic=dynamic).build(talk.path, TOOLS).request.system
    assert [b.block_id for b in system if b.dynamic] == [
        "agent_definition",
        "skill_catalog",
        "memory_catalog",
        "runtime_state",
    ]
    assert "Date: 2026-01-02" in system[-1].content
    assert "Project: /somewhere/project" in system[-1].content
    assert "You are a sub agent." in system[4].content

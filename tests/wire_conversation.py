"""A conversation with everything that a request can hold, as core has it."""

from agent_core.errors import ErrorCode
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    JsonBlock,
    ModelMessage,
    ReasoningBlock,
    Role,
    SystemBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)

PNG = "iVBORw0KGgo="


def thought(provider: str) -> ReasoningBlock:
    return ReasoningBlock(
        text=f"{provider} thinks", signature="c2ln", metadata={"provider": provider}
    )


def message(role: Role, *content: ContentBlock) -> ModelMessage:
    return ModelMessage(role=role, content=list(content))


SYSTEM = [
    SystemBlock(block_id="1", source="core", content="You are careful."),
    SystemBlock(block_id="2", source="core", content="You are brief."),
    SystemBlock(block_id="3", source="task", content="Today: tasks.", dynamic=True),
]
TOOLS = [
    ToolDefinition(name="code.list_dir", description="List a directory."),
    ToolDefinition(
        name="code.read_file",
        description="Read a file.",
        input_schema={
            "type": "object",
            "required": ["path"],
            "properties": {"path": {"type": "string"}},
        },
    ),
]
DENIED = ErrorPayload(
    type="PermissionDeniedError", code=ErrorCode.PERMISSION_DENIED, message="the user said no"
)
HISTORY = [
    message(
        Role.USER, TextBlock(text="What is this?"), ImageBlock(mime_type="image/png", data=PNG)
    ),
    message(
        Role.ASSISTANT,
        thought("openai"),
        thought("anthropic"),
        ReasoningBlock(
            text="", metadata={"provider": "anthropic", "redacted_thinking": "aGlkZGVu"}
        ),
        thought("ollama"),
        thought("gemini"),
        thought("bedrock"),
        TextBlock(text="I will look."),
        ToolCallBlock(
            tool_call_id="call_1", name="code.read_file", arguments={"path": "b", "a": 1}
        ),
        ToolCallBlock(tool_call_id="functions.x:1", name="code.list_dir"),
    ),
    message(
        Role.TOOL,
        ToolResultBlock(
            tool_call_id="call_1",
            content=[
                TextBlock(text="first line"),
                JsonBlock(data={"z": 1, "a": [None, True]}, artifact_id="art_1"),
                ArtifactRefBlock(artifact_id="art_2", summary="2 MB of log"),
            ],
        ),
        ToolResultBlock(tool_call_id="functions.x:1", is_error=True, error=DENIED),
    ),
    message(Role.USER, TextBlock(text="Go on, \ud800 \0 end.")),
]


PICTURED = [
    message(Role.USER, TextBlock(text="Draw.")),
    message(
        Role.ASSISTANT,
        ToolCallBlock(tool_call_id="call_1", name="code.read_file"),
        ToolCallBlock(tool_call_id="call_2", name="code.read_file"),
    ),
    message(
        Role.TOOL,
        ToolResultBlock(
            tool_call_id="call_1",
            content=[TextBlock(text="a chart"), ImageBlock(mime_type="image/png", data=PNG)],
            metadata={"tool_name": "code.read_file"},
        ),
        ToolResultBlock(
            tool_call_id="call_2",
            is_error=True,
            error=ErrorPayload(
                type="ToolError", code=ErrorCode.INTERNAL_ERROR, message="half of it"
            ),
            content=[ImageBlock(mime_type="image/png", data=PNG)],
        ),
    ),
]

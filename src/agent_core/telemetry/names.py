"""The names of spans, attributes and metrics: the conventions' for generative AI, and our own.

They are written out here because the conventions' package of names belongs to the SDK, which a
program that only uses the API does not have; a test compares them with that package.
"""

from typing import Final

AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OPERATION: Final = "gen_ai.operation.name"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
OUTPUT_TYPE: Final = "gen_ai.output.type"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STOP: Final = "gen_ai.request.stop_sequences"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - no password
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_TYPE: Final = "gen_ai.tool.type"
USAGE_CACHE_CREATION: Final = "gen_ai.usage.cache_creation.input_tokens"
USAGE_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_INPUT: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT: Final = "gen_ai.usage.output_tokens"
USAGE_REASONING: Final = "gen_ai.usage.reasoning.output_tokens"

ERROR_TYPE: Final = "error.type"
MCP_METHOD: Final = "mcp.method.name"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"

OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - no password

COST: Final = "soong_agent.usage.cost"
END_REASON: Final = "soong_agent.run.end_reason"
RETRY: Final = "soong_agent.model.retry"
RETRY_ATTEMPT: Final = "soong_agent.model.retry.attempt"
RETRY_DELAY: Final = "soong_agent.model.retry.delay"
RUN_DURATION: Final = "soong_agent.run.duration"
RUN_ID: Final = "soong_agent.run.id"
RUN_STATUS: Final = "soong_agent.run.status"
RUN_TURNS: Final = "soong_agent.run.turns"
TOOL_DURATION: Final = "soong_agent.tool.duration"

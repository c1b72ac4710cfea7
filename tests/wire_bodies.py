"""What each service must be sent for the conversation of `test_provider_requests`."""

from typing import Any

ANSWER = (
    'first line\n{"a":[null,true],"z":1}\n[complete in artifact art_1]\n'
    "[kept as artifact art_2: 2 MB of log]"
)

OPENAI: dict[str, Any] = {
    "max_tokens": 100,
    "model": "m",
    "stop": ["END"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "tools": [
        {
            "function": {
                "description": "List a directory.",
                "name": "code__list_dir",
                "parameters": {"properties": {}, "type": "object"},
            },
            "type": "function",
        },
        {
            "function": {
                "description": "Read a file.",
                "name": "code__read_file",
                "parameters": {
                    "properties": {"path": {"type": "string"}},
                    "required": ["path"],
                    "type": "object",
                },
            },
            "type": "function",
        },
    ],
    "messages": [
        {"content": "You are careful.\n\nYou are brief.\n\nToday: tasks.", "role": "system"},
        {
            "content": [
                {"text": "What is this?", "type": "text"},
                {"image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}, "type": "image_url"},
            ],
            "role": "user",
        },
        {
            "content": "I will look.",
            "reasoning_content": "openai thinks",
            "role": "assistant",
            "tool_calls": [
                {
                    "function": {"arguments": '{"a":1,"path":"b"}', "name": "code__read_file"},
                    "id": "call_1",
                    "type": "function",
                },
                {
                    "function": {"arguments": "{}", "name": "code__list_dir"},
                    "id": "functions.x:1",
                    "type": "function",
                },
            ],
        },
        {
            "content": ANSWER,
            "role": "tool",
            "tool_call_id": "call_1",
        },
        {
            "content": "error permission_denied: the user said no",
            "role": "tool",
            "tool_call_id": "functions.x:1",
        },
        {"content": "Go on, � \x00 end.", "role": "user"},
    ],
}

ANTHROPIC: dict[str, Any] = {
    "max_tokens": 100,
    "model": "m",
    "stop_sequences": ["END"],
    "stream": True,
    "temperature": 0.5,
    "tools": [
        {
            "description": "List a directory.",
            "input_schema": {"properties": {}, "type": "object"},
            "name": "code__list_dir",
        },
        {
            "cache_control": {"type": "ephemeral"},
            "description": "Read a file.",
            "input_schema": {
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
                "type": "object",
            },
            "name": "code__read_file",
        },
    ],
    "system": [
        {"text": "You are careful.", "type": "text"},
        {"cache_control": {"type": "ephemeral"}, "text": "You are brief.", "type": "text"},
        {"text": "Today: tasks.", "type": "text"},
    ],
    "messages": [
        {
            "content": [
                {"text": "What is this?", "type": "text"},
                {
                    "source": {"data": "iVBORw0KGgo=", "media_type": "image/png", "type": "base64"},
                    "type": "image",
                },
            ],
            "role": "user",
        },
        {
            "content": [
                {"signature": "c2ln", "thinking": "anthropic thinks", "type": "thinking"},
                {"data": "aGlkZGVu", "type": "redacted_thinking"},
                {"text": "I will look.", "type": "text"},
                {
                    "id": "call_1",
                    "input": {"a": 1, "path": "b"},
                    "name": "code__read_file",
                    "type": "tool_use",
                },
                {
                    "id": "functions_x_1_d87f39fefc",
                    "input": {},
                    "name": "code__list_dir",
                    "type": "tool_use",
                },
            ],
            "role": "assistant",
        },
        {
            "content": [
                {
                    "content": ANSWER,
                    "tool_use_id": "call_1",
                    "type": "tool_result",
                },
                {
                    "cache_control": {"type": "ephemeral"},
                    "content": "error permission_denied: the user said no",
                    "is_error": True,
                    "tool_use_id": "functions_x_1_d87f39fefc",
                    "type": "tool_result",
                },
            ],
            "role": "user",
        },
        {
            "content": [
                {
                    "cache_control": {"type": "ephemeral"},
                    "text": "Go on, � \x00 end.",
                    "type": "text",
                }
            ],
            "role": "user",
        },
    ],
}

OLLAMA: dict[str, Any] = {
    "model": "m",
    "options": {"num_ctx": 32768, "num_predict": 100, "stop": ["END"], "temperature": 0.5},
    "stream": True,
    "truncate": False,
    "tools": [
        {
            "function": {
                "description": "List a directory.",
                "name": "code__list_dir",
                "parameters": {"properties": {}, "type": "object"},
            },
            "type": "function",
        },
        {
            "function": {
                "description": "Read a file.",
                "name": "code__read_file",
                "parameters": {
                    "properties": {"path": {"type": "string"}},
                    "required": ["path"],
                    "type": "object",
                },
            },
            "type": "function",
        },
    ],
    "messages": [
        {"content": "You are careful.\n\nYou are brief.\n\nToday: tasks.", "role": "system"},
        {"content": "What is this?", "images": ["iVBORw0KGgo="], "role": "user"},
        {
            "content": "I will look.",
            "role": "assistant",
            "thinking": "ollama thinks",
            "tool_calls": [
                {
                    "function": {"arguments": {"a": 1, "path": "b"}, "name": "code__read_file"},
                    "id": "call_1",
                },
                {"function": {"arguments": {}, "name": "code__list_dir"}, "id": "functions.x:1"},
            ],
        },
        {
            "content": ANSWER,
            "role": "tool",
            "tool_call_id": "call_1",
            "tool_name": "code__read_file",
        },
        {
            "content": "error permission_denied: the user said no",
            "role": "tool",
            "tool_call_id": "functions.x:1",
            "tool_name": "code__list_dir",
        },
        {"content": "Go on, � \x00 end.", "role": "user"},
    ],
}

_SCHEMA_OF_READ = {
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "type": "object",
}

GEMINI: dict[str, Any] = {
    "generationConfig": {"maxOutputTokens": 100, "stopSequences": ["END"], "temperature": 0.5},
    "systemInstruction": {
        "parts": [
            {"text": "You are careful."},
            {"text": "You are brief."},
            {"text": "Today: tasks."},
        ]
    },
    "tools": [
        {
            "functionDeclarations": [
                {
                    "description": "List a directory.",
                    "name": "code__list_dir",
                    "parametersJsonSchema": {"properties": {}, "type": "object"},
                },
                {
                    "description": "Read a file.",
                    "name": "code__read_file",
                    "parametersJsonSchema": _SCHEMA_OF_READ,
                },
            ]
        }
    ],
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "What is this?"},
                {"inlineData": {"data": "iVBORw0KGgo=", "mimeType": "image/png"}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "gemini thinks", "thought": True, "thoughtSignature": "c2ln"},
                {"text": "I will look."},
                {
                    "functionCall": {
                        "args": {"a": 1, "path": "b"},
                        "id": "call_1",
                        "name": "code__read_file",
                    }
                },
                {"functionCall": {"args": {}, "id": "functions.x:1", "name": "code__list_dir"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "id": "call_1",
                        "name": "code__read_file",
                        "response": {"output": ANSWER},
                    }
                },
                {
                    "functionResponse": {
                        "id": "functions.x:1",
                        "name": "code__list_dir",
                        "response": {"error": "error permission_denied: the user said no"},
                    }
                },
                {"text": "Go on, � \x00 end."},
            ],
        },
    ],
}

BEDROCK: dict[str, Any] = {
    "toolConfig": {
        "tools": [
            {
                "toolSpec": {
                    "description": "List a directory.",
                    "inputSchema": {"json": {"properties": {}, "type": "object"}},
                    "name": "code__list_dir",
                }
            },
            {
                "toolSpec": {
                    "description": "Read a file.",
                    "inputSchema": {"json": _SCHEMA_OF_READ},
                    "name": "code__read_file",
                }
            },
        ]
    },
    "inferenceConfig": {"maxTokens": 100, "stopSequences": ["END"], "temperature": 0.5},
    "system": [{"text": "You are careful."}, {"text": "You are brief."}, {"text": "Today: tasks."}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"text": "What is this?"},
                {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {
                    "reasoningContent": {
                        "reasoningText": {"signature": "c2ln", "text": "bedrock thinks"}
                    }
                },
                {"text": "I will look."},
                {
                    "toolUse": {
                        "input": {"a": 1, "path": "b"},
                        "name": "code__read_file",
                        "toolUseId": "call_1",
                    }
                },
                {
                    "toolUse": {
                        "input": {},
                        "name": "code__list_dir",
                        "toolUseId": "functions_x_1_d87f39fefc",
                    }
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"content": [{"text": ANSWER}], "toolUseId": "call_1"}},
                {
                    "toolResult": {
                        "content": [{"text": "error permission_denied: the user said no"}],
                        "toolUseId": "functions_x_1_d87f39fefc",
                    }
                },
                {"text": "Go on, � \x00 end."},
            ],
        },
    ],
}

_NAMED = "[images in the result of call call_1 of code__read_file]"
_IMAGE_URL = {"image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}, "type": "image_url"}
_IMAGE_SOURCE = {
    "source": {"data": "iVBORw0KGgo=", "media_type": "image/png", "type": "base64"},
    "type": "image",
}
_INLINE = {"inlineData": {"data": "iVBORw0KGgo=", "mimeType": "image/png"}}
_IMAGE_BYTES = {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}}

PICTURES: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"content": "a chart\n[an image, image/png]", "role": "tool", "tool_call_id": "call_1"},
        {
            "content": "error internal_error: half of it\n[an image, image/png]",
            "role": "tool",
            "tool_call_id": "call_2",
        },
        {
            "content": [
                {"text": _NAMED, "type": "text"},
                _IMAGE_URL,
                {"text": "[images in the result of call call_2]", "type": "text"},
                _IMAGE_URL,
            ],
            "role": "user",
        },
    ],
    "anthropic": [
        {
            "content": [
                {
                    "content": [{"text": "a chart", "type": "text"}, _IMAGE_SOURCE],
                    "tool_use_id": "call_1",
                    "type": "tool_result",
                },
                {
                    "content": "error internal_error: half of it",
                    "is_error": True,
                    "tool_use_id": "call_2",
                    "type": "tool_result",
                },
                {"text": "[images in the result of call call_2]", "type": "text"},
                {"cache_control": {"type": "ephemeral"}, **_IMAGE_SOURCE},
            ],
            "role": "user",
        }
    ],
    "ollama": [
        {
            "content": "a chart\n[an image, image/png]",
            "images": ["iVBORw0KGgo="],
            "role": "tool",
            "tool_call_id": "call_1",
            "tool_name": "code__read_file",
        },
        {
            "content": "error internal_error: half of it\n[an image, image/png]",
            "images": ["iVBORw0KGgo="],
            "role": "tool",
            "tool_call_id": "call_2",
            "tool_name": "code__read_file",
        },
    ],
    "gemini": [
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "id": "call_1",
                        "name": "code__read_file",
                        "response": {"output": "a chart\n[an image, image/png]"},
                    }
                },
                {
                    "functionResponse": {
                        "id": "call_2",
                        "name": "code__read_file",
                        "response": {
                            "error": "error internal_error: half of it\n[an image, image/png]"
                        },
                    }
                },
                {"text": _NAMED},
                _INLINE,
                {"text": "[images in the result of call call_2]"},
                _INLINE,
            ],
        }
    ],
    "bedrock": [
        {
            "role": "user",
            "content": [
                {"toolResult": {"content": [{"text": "a chart"}], "toolUseId": "call_1"}},
                {
                    "toolResult": {
                        "content": [{"text": "error internal_error: half of it"}],
                        "toolUseId": "call_2",
                    }
                },
                {"text": _NAMED},
                _IMAGE_BYTES,
                {"text": "[images in the result of call call_2]"},
                _IMAGE_BYTES,
            ],
        }
    ],
}

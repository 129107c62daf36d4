"""What the application's own description says of its answers."""

from __future__ import annotations

from typing import Any

from kvhouse.server.errors import ErrorBody

_STRING, _WHOLE = {"type": "string"}, {"type": "integer"}
_MODEL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "max_model_len"],
    "properties": {
        "id": _STRING,
        "object": {"const": "model"},
        "created": _WHOLE,
        "owned_by": _STRING,
        "max_model_len": _WHOLE,
    },
}
_USAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        "prompt_tokens": _WHOLE,
        "completion_tokens": _WHOLE,
        "total_tokens": _WHOLE,
        "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": _WHOLE}},
    },
}
_ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": _STRING,
        "object": {"enum": ["text_completion", "chat.completion"]},
        "created": _WHOLE,
        "model": _STRING,
        "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "usage": _USAGE_SCHEMA,
    },
}

#: Each event of a stream; ``data`` is a chunk as JSON, or ``[DONE]``.
_EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": _STRING},
}

Responses = dict[int | str, dict[str, Any]]

_MODELS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": _MODEL_SCHEMA},
    },
}
MODEL: Responses = {200: {"content": {"application/json": {"schema": _MODEL_SCHEMA}}}}
MODELS: Responses = {200: {"content": {"application/json": {"schema": _MODELS_SCHEMA}}}}
FIGURES: Responses = {200: {"content": {"text/plain": {"schema": _STRING}}}}
#: A whole answer, or with ``stream`` events.
STREAMED: Responses = {
    200: {
        "description": "The whole answer, or with stream=true events of server-sent events",
        "content": {
            "application/json": {"schema": _ANSWER_SCHEMA},
            "text/event-stream": {"schema": _EVENT_SCHEMA},
        },
    }
}

_MEANINGS = {
    400: "The request is wrong; the message says what and where",
    401: "No such API key",
    404: "No such model",
    408: "The body did not come in time",
    413: "The body is too large",
    429: "The queue is full; Retry-After says when to try again",
    503: "The server is about to end, or the answer took too long",
}


def errors(*statuses: int) -> Responses:
    """Answers that are errors, each with OpenAI's body."""
    return {one: {"model": ErrorBody, "description": _MEANINGS[one]} for one in statuses}


def documented(schema: dict[str, Any], model: str) -> dict[str, Any]:
    """A description with the model and the key, and without FastAPI's answer to wrong requests."""
    components = schema.setdefault("components", {})
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    for name in ("CompletionRequest", "ChatRequest"):
        components["schemas"][name]["properties"]["model"] = {"type": "string", "enum": [model]}
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if "401" in operation["responses"]:
                # Only where the server was given keys; hence also none.
                operation["security"] = [{"key": []}, {}]
    return schema

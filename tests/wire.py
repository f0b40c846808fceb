"""HTTP/1.1 and OpenAI bytes as the test servers write them: each call is one write to the socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any


def choices(delta: dict[str, Any] | None, finish: str | None = None) -> dict[str, Any]:
    """A chat.completion.chunk; without a delta, one without choices."""
    listed = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"object": "chat.completion.chunk", "model": "fake", "choices": listed}


def error(message: str, kind: str, code: int) -> dict[str, Any]:
    """An error body of llama.cpp's shape."""
    return {"error": {"code": code, "message": message, "type": kind}}


def context_error(tokens: int, ctx: int) -> dict[str, Any]:
    """What llama.cpp says of a prompt that is too long."""
    text = f"request ({tokens} tokens) exceeds the available context size ({ctx} tokens), try increasing it"
    body = error(text, "exceed_context_size_error", 400)
    body["error"] |= {"n_prompt_tokens": tokens, "n_ctx": ctx}
    return body


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One HTTP chunk; an empty one ends the body."""
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def send(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
    """A whole answer with its length."""
    head = f"HTTP/1.1 {status} S\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def send_json(writer: asyncio.StreamWriter, status: int, data: dict[str, Any]) -> None:
    """A whole answer in JSON."""
    send(writer, status, "application/json", json.dumps(data).encode())

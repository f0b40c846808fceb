"""What the events of one chat completion said, gathered before anything is concluded from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from campaign.sse import Event, events

MAX_ERROR_CHARS = 300


MOST_TOKENS = 10**9
"""A count beyond this is no count of one answer's tokens."""


@dataclass(frozen=True)
class Delta:
    """One token-bearing event: when it was complete (s), and what the server's own counts say of it."""

    t: float
    total: int | None
    """Tokens so far by the server's count."""
    own: int | None
    """Tokens in this delta by the server's count."""


@dataclass
class Chunks:
    """What the events said. Counts are None until a server gave them; `hidden` is its reasoning tokens.

    `error` is the server's own failure, `malformed` an event that can't be read; either ends the collecting.
    """

    deltas: list[Delta] = field(default_factory=list)
    t_content: float | None = None
    kinds: set[str] = field(default_factory=set)
    completion: int | None = None
    hidden: int | None = None
    prompt: int | None = None
    cached: int | None = None
    engine: dict[str, float] = field(default_factory=dict)
    finish: str | None = None
    done: bool = False
    n_events: int = 0
    error: str | None = None
    malformed: str | None = None


def error_text(body: bytes) -> str:
    """The message of an error body in one bounded line; the body's own text where it has no message."""
    text = body[:65536].decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return one_line(text) or "no text"
    return _message(data) or one_line(text)


def _message(data: Any) -> str | None:
    if isinstance(data, str):
        return one_line(data)
    if not isinstance(data, dict):
        return None
    for key in ("error", "message", "detail"):
        if data.get(key):
            return _message(data[key]) or one_line(json.dumps(data[key]))
    return one_line(json.dumps(data)) if data else None


def one_line(text: str) -> str:
    """The text on one line of at most MAX_ERROR_CHARS characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"


def collect(reads: Sequence[tuple[float, bytes]], chunks: Chunks) -> None:
    """Fill `chunks` from a body, up to [DONE] or the first error. Raises OversizedLineError."""
    for event in events(reads):
        chunks.n_events += 1
        for t, data in _payloads(event):
            if data.strip() == "[DONE]":
                chunks.done = True
                return
            _take(chunks, event.name, t, data)
            if chunks.error or chunks.malformed:
                return


def _payloads(event: Event) -> list[tuple[float, str]]:
    """The event's data; its single lines where a server put several events into one without blank lines."""
    if len(event.lines) > 1 and all(line == "[DONE]" or json_or_none(line) for line in event.lines):
        return list(zip(event.line_times, event.lines, strict=True))
    return [(event.t, event.data)]


def json_or_none(text: str) -> Any:
    """The value of a JSON text; None for what is no JSON (and for null)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _take(chunks: Chunks, name: str, t: float, data: str) -> None:
    if not data.strip():
        return
    chunk = json_or_none(data)
    if name == "error" or (
        isinstance(chunk, dict) and (chunk.get("error") or chunk.get("object") == "error")
    ):
        chunks.error = _message(chunk) or one_line(data)
        return
    if not isinstance(chunk, dict):
        chunks.malformed = one_line(f"an event is not a JSON object: {data}")
        return
    usage = chunk.get("usage")
    total = take_usage(chunks, usage) if isinstance(usage, dict) else None
    timings = chunk.get("timings")
    if isinstance(timings, dict):
        chunks.engine = {
            k: v for k, v in timings.items() if isinstance(v, int | float) and not isinstance(v, bool)
        }
        total = total or _count(timings.get("predicted_n"))
    choices = chunk.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict):
            _take_choice(chunks, choice, t, total)


def take_usage(chunks: Chunks, usage: dict[str, Any]) -> int | None:
    """Keep the largest count: usage is a running total or a final one, never an increment."""
    total = _count(usage.get("completion_tokens"))
    if total is not None:
        chunks.completion = max(total, chunks.completion or 0)
    chunks.prompt = _count(usage.get("prompt_tokens")) or chunks.prompt
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if isinstance(cached, int) and not isinstance(cached, bool) and 0 <= cached <= MOST_TOKENS:
        chunks.cached = cached
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict):
        chunks.hidden = _count(details.get("reasoning_tokens")) or chunks.hidden
    return total


def _count(value: Any) -> int | None:
    """A positive whole number; a zero count beside tokens means that the server didn't count."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_TOKENS else None
    )


def _take_choice(chunks: Chunks, choice: dict[str, Any], t: float, total: int | None) -> None:
    reason = choice.get("finish_reason")
    if reason:
        chunks.finish = str(reason.get("type", reason)) if isinstance(reason, dict) else str(reason)
    if chunks.finish in ("abort", "error"):
        chunks.error = f"the engine ended the answer with finish_reason {chunks.finish}"
        return
    kinds = _kinds(choice)
    if not kinds:
        return
    chunks.kinds |= kinds
    if "content" in kinds and chunks.t_content is None:
        chunks.t_content = t
    chunks.deltas.append(Delta(t, total, _own_tokens(choice)))


def _kinds(choice: dict[str, Any]) -> set[str]:
    """What tokens a choice carries: any of content, reasoning, tool_calls, token_ids."""
    raw = choice.get("delta")
    delta: dict[str, Any] = raw if isinstance(raw, dict) else {}
    kinds = set()
    if delta.get("content") or delta.get("refusal") or choice.get("text"):
        kinds.add("content")
    if delta.get("reasoning_content") or delta.get("reasoning"):
        kinds.add("reasoning")
    if delta.get("tool_calls") or delta.get("function_call"):
        kinds.add("tool_calls")
    if choice.get("token_ids") or delta.get("token_ids"):
        kinds.add("token_ids")
    return kinds


def _own_tokens(choice: dict[str, Any]) -> int | None:
    delta, logprobs = choice.get("delta"), choice.get("logprobs")
    ids = choice.get("token_ids") or (delta.get("token_ids") if isinstance(delta, dict) else None)
    if not ids and isinstance(logprobs, dict):
        ids = logprobs.get("content")
    return len(ids) if isinstance(ids, list) and ids else None

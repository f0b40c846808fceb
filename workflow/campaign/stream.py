"""One streamed chat completion, from timed socket reads to a measurement. Pure: no socket, no clock.

What counts. A *delta* is an event that carries a token: content, reasoning, a tool call, or token ids. The
role chunk, comments and usage chunks carry none. Deltas that arrive together are one *step* of the engine as
far as a client can see. Only the server counts tokens (usage, timings, token ids); events are not tokens.

Decode rate. The usual (completion_tokens - 1) / (t_last - t_first) takes the first step for one token; under
speculative decoding it is several. Here the rate is (n_last - n_first) / (t_last - t_first), with n_first and
n_last the server's own counts at the first and the last step, where it gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from campaign.chunks import Chunks, Delta, collect, error_text, json_or_none, one_line, take_usage
from campaign.sse import OversizedLineError

Ending = Literal["clean", "reset", "timeout", "oversized"]
StreamOutcome = Literal["ok", "error", "unmeasured"]

SHORT_OUTPUT = 0.95
"""An answer with fewer than this share of the tokens asked for is cut short."""
PLAIN_STREAM = 0.95
"""With at least this many deltas a token, each delta is one token (some tokens have no text of their own)."""
MAX_TOKENS_PER_STEP = 8.0
"""More tokens a step than this, without an acceptance length that explains them: the stream is too coarse."""
SAME_STEP = 0.25
"""Deltas closer than this share of the mean gap arrived together."""


@dataclass(frozen=True)
class StreamReading:
    """What one streamed answer shows. Times are seconds since the request, rates tokens per second.

    `decode_tps` is None unless `outcome` is "ok". Where n_first is unknown it is the usual formula, and
    `decode_low_tps`/`decode_high_tps` bound the true rate. `decode_formula_tps` is always the usual formula,
    for comparison with tools that use it. `prefill_tps` is the prompt's uncached part over TTFT, withheld
    when the prefix cache was hit. `engine` holds the server's own timings (llama.cpp's `timings`, in ms).
    """

    outcome: StreamOutcome
    ttft_s: float | None = None
    ttft_content_s: float | None = None
    t_first_s: float | None = None
    t_last_s: float | None = None
    n_first: int | None = None
    n_last: int | None = None
    n_deltas: int = 0
    n_steps: int = 0
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    decode_tps: float | None = None
    decode_formula_tps: float | None = None
    decode_low_tps: float | None = None
    decode_high_tps: float | None = None
    prefill_tps: float | None = None
    finish_reason: str | None = None
    flags: tuple[str, ...] = ()
    error: str | None = None
    engine: dict[str, float] = field(default_factory=dict)

    @property
    def engine_decode_tps(self) -> float | None:
        """The engine's own decode rate: llama.cpp's clock runs from the first token to the last."""
        n, ms = self.engine.get("predicted_n"), self.engine.get("predicted_ms")
        return (n - 1) / ms * 1000 if n and ms and n > 1 else None


def read_stream(
    reads: Sequence[tuple[float, bytes]],
    *,
    max_tokens: int | None = None,
    ending: Ending = "clean",
    http_status: int = 200,
    content_type: str | None = None,
    template_tokens: int = 0,
    acceptance_length: float | None = None,
) -> StreamReading:
    """Measure one answer from its body as it was read: (seconds since the request, bytes), in order.

    `ending` says how the body ended. `template_tokens` is the length of a prompt without content: so many
    cached tokens are the chat template's and no hit. `acceptance_length` (tokens a step, from the engine's
    counters) explains a stream with many tokens a step. Never raises for what a server sent.
    """
    if http_status >= 400:
        body = b"".join(data for _, data in reads)
        return StreamReading(
            "error", flags=("http_error",), error=one_line(f"HTTP {http_status}: {error_text(body)}")
        )
    chunks = Chunks()
    try:
        collect(reads, chunks)
    except OversizedLineError as error:
        return _failed(chunks, "oversized", str(error))
    if ending == "clean" and not chunks.n_events:
        body = b"".join(data for _, data in reads).strip()
        if body and not body.startswith((b":", b"event:", b"id:", b"retry:")):
            return _not_sse(body, content_type)
    failure = _failure(chunks, ending)
    if failure is not None:
        return _failed(chunks, *failure)
    return _measured(chunks, max_tokens, template_tokens, acceptance_length)


def _not_sse(body: bytes, content_type: str | None) -> StreamReading:
    """A whole JSON answer carries counts but no times; anything else is no answer."""
    data = json_or_none(body.decode("utf-8", "replace"))
    if isinstance(data, dict) and data.get("choices") and not data.get("error"):
        chunks = Chunks()
        if isinstance(data.get("usage"), dict):
            take_usage(chunks, data["usage"])
        return StreamReading(
            "unmeasured",
            completion_tokens=chunks.completion,
            prompt_tokens=chunks.prompt,
            cached_tokens=chunks.cached,
            flags=("not_sse",),
            error="the answer is one JSON body, not an event stream",
        )
    if isinstance(data, dict) and (data.get("error") or data.get("object") == "error"):
        return StreamReading("error", flags=("stream_error",), error=error_text(body))
    kind = f" of type {content_type}" if content_type else ""
    return StreamReading(
        "error", flags=("not_sse",), error=one_line(f"a body{kind}, not an event stream: {error_text(body)}")
    )


def _failure(chunks: Chunks, ending: Ending) -> tuple[str, str] | None:
    """(flag, text) of what makes the stream no answer at all."""
    if chunks.error is not None:
        return "stream_error", chunks.error
    if ending == "oversized":
        return "oversized", "the answer is larger than the probe reads"
    complete = chunks.done or (chunks.finish is not None and chunks.completion is not None)
    came = f"{len(chunks.deltas)} deltas"
    if not complete and ending == "timeout":
        return "timeout", f"the answer was not complete in time ({came} came)"
    if not complete and ending == "reset":
        return "truncated", f"the connection broke after {came}"
    if chunks.malformed is not None:
        return "stream_error", chunks.malformed
    if not chunks.deltas and chunks.completion is None:
        return "empty_stream", "the stream ended without a token"
    if not complete and chunks.finish is None:
        return "truncated", f"the stream ended after {came} without finish_reason or [DONE]"
    return None


def _failed(chunks: Chunks, flag: str, error: str) -> StreamReading:
    return StreamReading(
        "error",
        ttft_s=chunks.deltas[0].t if chunks.deltas else None,
        ttft_content_s=chunks.t_content,
        n_deltas=len(chunks.deltas),
        prompt_tokens=chunks.prompt,
        cached_tokens=chunks.cached,
        finish_reason=chunks.finish,
        flags=(flag,),
        error=error,
        engine=chunks.engine,
    )


@dataclass(frozen=True)
class _Steps:
    """First and last step: when, and how many tokens there were by then in the server's count."""

    count: int
    t_first: float
    t_last: float
    n_first: int | None
    n_last: int | None
    deltas_first: int


def _measured(
    chunks: Chunks, max_tokens: int | None, template_tokens: int, acceptance_length: float | None
) -> StreamReading:
    deltas = chunks.deltas
    cached = chunks.cached if chunks.cached is not None else _whole(chunks.engine.get("cache_n"))
    flags: list[str] = [kind for kind in ("reasoning", "tool_calls") if kind in chunks.kinds]
    n = _total(chunks)
    if chunks.completion is None:
        flags.append("no_usage")
    if not chunks.done:
        flags.append("no_done")
    if n is not None and max_tokens is not None and n < SHORT_OUTPUT * max_tokens:
        flags.append("short_output")
    hit = cached is not None and cached > template_tokens
    if hit:
        flags.append("prefix_cache_hit")
    ttft = deltas[0].t if deltas else None
    new = chunks.prompt - (cached or 0) if chunks.prompt is not None else None
    steps = _steps(deltas, n)
    rates = _rates(chunks, steps, n, acceptance_length, flags)
    return StreamReading(
        outcome="unmeasured" if rates.decode is None else "ok",
        ttft_s=ttft,
        ttft_content_s=chunks.t_content,
        t_first_s=steps.t_first if steps else None,
        t_last_s=steps.t_last if steps else None,
        n_first=rates.n_first,
        n_last=rates.n_last,
        n_deltas=len(deltas),
        n_steps=steps.count if steps else 0,
        completion_tokens=n,
        prompt_tokens=chunks.prompt,
        cached_tokens=cached,
        decode_tps=rates.decode,
        decode_formula_tps=rates.formula,
        decode_low_tps=rates.low,
        decode_high_tps=rates.high,
        prefill_tps=new / ttft if new and ttft and not hit else None,
        finish_reason=chunks.finish,
        flags=tuple(flags),
        engine=chunks.engine,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _total(chunks: Chunks) -> int | None:
    """Completion tokens: by usage, by the server's timings, or by token ids where each delta has them."""
    if chunks.completion is not None:
        return chunks.completion
    if predicted := _whole(chunks.engine.get("predicted_n")):
        return predicted
    return _sum_own(chunks.deltas)


def _sum_own(deltas: Sequence[Delta]) -> int | None:
    known = [delta.own for delta in deltas if delta.own is not None]
    return sum(known) if known and len(known) == len(deltas) else None


def _steps(deltas: list[Delta], n: int | None) -> _Steps | None:
    if not deltas:
        return None
    gaps = [b.t - a.t for a, b in pairwise(deltas)]
    near = SAME_STEP * sum(gaps) / len(gaps) if gaps else 0.0
    starts = [i + 1 for i, gap in enumerate(gaps) if gap > near]
    first = starts[0] if starts else len(deltas)
    # The count at the last delta, not the final total: an end-of-text token is counted and has no delta.
    n_first, n_last = deltas[first - 1].total, deltas[-1].total or n
    if n_first is None or n_last is None or n_first >= n_last:
        # Equal counts are the final total on each chunk, or one step: neither says how many came first.
        n_first, n_last = _sum_own(deltas[:first]), n
    return _Steps(len(starts) + 1, deltas[first - 1].t, deltas[-1].t, n_first, n_last, first)


@dataclass(frozen=True)
class _Rates:
    decode: float | None = None
    formula: float | None = None
    low: float | None = None
    high: float | None = None
    n_first: int | None = None
    n_last: int | None = None


def _rates(
    chunks: Chunks, steps: _Steps | None, n: int | None, acceptance_length: float | None, flags: list[str]
) -> _Rates:
    """The decode rate and its bounds; adds to `flags` what stands in the way of one."""
    if n is None:
        return _Rates(n_first=steps.n_first if steps else None)
    k = len(chunks.deltas)
    span = chunks.deltas[-1].t - chunks.deltas[0].t if k > 1 else 0.0
    formula = (n - 1) / span if span > 0 else None
    hidden = bool(chunks.hidden) and "reasoning" not in chunks.kinds
    if hidden:
        flags.append("hidden_thinking")
    if steps is None or steps.count < 2 or hidden or _coarse(chunks, steps, n, acceptance_length):
        flags.append("coarse_stream")
        return _Rates(formula=formula, n_first=steps.n_first if steps else None)
    plain = k >= PLAIN_STREAM * n - 1
    if not plain:
        flags.append("multi_token_deltas")
    if plain and k > 1.5 * steps.count:
        flags.append("bursts")
    span = steps.t_last - steps.t_first
    n_first = steps.n_first if steps.n_first is not None else (steps.deltas_first if plain else None)
    if n_first is not None:
        n_last = steps.n_last or n
        rate = (n_last - n_first) / span
        return _Rates(rate if rate > 0 else None, formula, n_first=n_first, n_last=n_last)
    return _Rates(formula, formula, low=(k - 1) / span, high=formula, n_last=n)


def _coarse(chunks: Chunks, steps: _Steps, n: int, acceptance_length: float | None) -> bool:
    """True if a step carries more tokens than speculation explains: 1,812 tok/s was once read so from 60."""
    accepted = chunks.engine.get("draft_n_accepted")
    if accepted is not None and accepted < n:
        acceptance_length = max(acceptance_length or 1.0, n / (n - accepted))
    allowed = max(MAX_TOKENS_PER_STEP, 1.5 * (acceptance_length or 1.0))
    return n / steps.count > allowed

"""Passes of a probe: what each showed, what they say together, and whether it may be believed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from campaign.outcome import Metric, Reason, Status, metrics_of
from campaign.prompts import fits
from campaign.stream import StreamReading

MAX_LAG_S = 0.15
"""A client that was away for longer can't say when a token came."""

SUMMARIES = {
    "connection": "no connection to the engine",
    "http_error": "the engine refused a request",
    "stream_error": "the engine failed while answering",
    "timeout": "an answer was not complete in time",
    "truncated": "an answer broke off",
    "oversized": "an answer was larger than can be read",
    "empty_stream": "an answer had no token",
    "not_sse": "the answer was no event stream",
    "no_usage": "the engine counted no tokens, and events are not tokens",
    "coarse_stream": "too many tokens came at once to tell a rate",
    "prefix_cache_hit": "the prefix cache answered part of a cold prompt",
    "short_output": "an answer was cut short of the tokens asked for",
}


@dataclass(frozen=True)
class Stream:
    """One answer of a pass; `t0` is when its request left, in seconds on time.perf_counter()'s clock."""

    t0: float
    reading: StreamReading


@dataclass(frozen=True)
class Pass:
    """Requests sent at once, and the evidence for or against them.

    `foreign` and `warm` are sentences from the engine's counters; `warm` counts where usage says nothing.
    """

    number: int
    streams: tuple[Stream, ...]
    lag_s: float
    foreign: str | None = None
    in_engine: dict[str, float | None] = field(default_factory=dict)
    warm: str | None = None

    @property
    def broken(self) -> bool:
        """True if the engine is gone or silent, so that another pass would only wait again."""
        fatal = {"connection", "timeout", "truncated"}
        return any(fatal & set(stream.reading.flags) for stream in self.streams)

    def rows(self) -> list[dict[str, Any]]:
        """The pass as an outcome lists it: one object a stream."""
        return [
            {
                "pass": self.number,
                "stream": index,
                **asdict(stream.reading),
                "flags": list(stream.reading.flags),
                "t0_s": stream.t0,
                "client_lag_s": self.lag_s,
                "in_engine": self.in_engine,
            }
            for index, stream in enumerate(self.streams)
        ]


def readings(passes: Sequence[Pass]) -> list[StreamReading]:
    """All answers of all passes, in order."""
    return [stream.reading for one in passes for stream in one.streams]


def judge(passes: Sequence[Pass], prompt_tokens: int | None) -> tuple[Status, Reason | None]:
    """What may be said of measured passes: the first of failed, unmeasured, invalid that holds, else ok.

    `prompt_tokens` is the size asked for; None if the server's count can't be relied on to check it.
    """
    answers = readings(passes)
    for reading in answers:
        if reading.outcome == "error":
            return "failed", _reason(reading.flags[0], answers, reading.error)
    for reading in answers:
        if reading.outcome == "unmeasured":
            flag = next((f for f in ("not_sse", "no_usage") if f in reading.flags), "coarse_stream")
            evidence = reading.error or (
                f"{reading.completion_tokens} tokens, {reading.n_deltas} deltas, {reading.n_steps} moments"
            )
            return "unmeasured", _reason(flag, answers, evidence)
    for reading in answers:
        if "prefix_cache_hit" in reading.flags:
            evidence = f"cached_tokens {reading.cached_tokens} of {reading.prompt_tokens} prompt tokens"
            return "invalid", _reason("prefix_cache_hit", answers, evidence)
        if "short_output" in reading.flags:
            evidence = f"{reading.completion_tokens} tokens came, finish_reason {reading.finish_reason}"
            return "invalid", _reason("short_output", answers, evidence)
    return _judge_surroundings(passes, prompt_tokens)


def _judge_surroundings(passes: Sequence[Pass], prompt_tokens: int | None) -> tuple[Status, Reason | None]:
    for one in passes:
        where = f"pass {one.number}"
        if one.foreign is not None:
            summary = "someone else used the engine during the measurement"
            return "invalid", _made("foreign_traffic", summary, f"{where}: {one.foreign}")
        if one.warm is not None and all(stream.reading.cached_tokens is None for stream in one.streams):
            return "invalid", _made("prefix_cache_hit", SUMMARIES["prefix_cache_hit"], f"{where}: {one.warm}")
        if one.lag_s > MAX_LAG_S:
            evidence = f"{where}: the event loop was away for {one.lag_s * 1000:.0f} ms"
            return "invalid", _made("client_lag", "the measuring client was itself held up", evidence)
    for reading in readings(passes):
        got = reading.prompt_tokens
        if prompt_tokens is not None and got is not None and not fits(prompt_tokens, got):
            summary = "a prompt did not have the asked size"
            return "invalid", _made("prompt_size", summary, f"{got} prompt tokens, {prompt_tokens} asked for")
    return "ok", None


def _reason(flag: str, answers: Sequence[StreamReading], evidence: str | None) -> Reason:
    n = sum(flag in reading.flags for reading in answers)
    return _made(flag, f"{SUMMARIES.get(flag, flag)} ({n} of {len(answers)} answers)", evidence)


def _made(cls: str, summary: str, evidence: str | None) -> Reason:
    return Reason.model_validate({"class": cls, "summary": summary, "evidence": evidence})


def metrics(passes: Sequence[Pass], acceptance: Sequence[float | None]) -> dict[str, Metric]:
    """Metrics of measured passes; per-stream rates have a value a stream, aggregates one a pass.

    Aggregates are there at concurrency above 1 only: agg_decode_tps is the tokens decoded by all streams
    after their first step, over the time from the earliest first token to the latest last one;
    agg_prefill_tps the uncached prompt tokens over the time from the first request to the latest first token.
    """
    answers = readings(passes)
    named: dict[str, tuple[str, list[float | None]]] = {
        "ttft_s": ("s", [r.ttft_s for r in answers]),
        "decode_tps": ("tok/s", [r.decode_tps for r in answers]),
        "decode_formula_tps": ("tok/s", [r.decode_formula_tps for r in answers]),
        "prefill_tps": ("tok/s", [r.prefill_tps for r in answers]),
        "completion_tokens": ("tok", [r.completion_tokens for r in answers]),
        "prompt_tokens": ("tok", [r.prompt_tokens for r in answers]),
        "acceptance_length": ("tok/step", list(acceptance)),
    }
    if any("reasoning" in r.flags for r in answers):
        named["ttft_content_s"] = ("s", [r.ttft_content_s for r in answers])
    if any(len(one.streams) > 1 for one in passes):
        named["agg_decode_tps"] = ("tok/s", [_agg_decode(one) for one in passes])
        named["agg_prefill_tps"] = ("tok/s", [_agg_prefill(one) for one in passes])
    return metrics_of(**named)


def _agg_decode(one: Pass) -> float | None:
    tokens, starts, ends = 0, [], []
    for stream in one.streams:
        r = stream.reading
        n_last = r.n_last or r.completion_tokens
        if n_last is None or r.t_first_s is None or r.t_last_s is None:
            return None
        tokens += n_last - (r.n_first or 1)
        starts.append(stream.t0 + r.t_first_s)
        ends.append(stream.t0 + r.t_last_s)
    span = max(ends) - min(starts)
    return tokens / span if span > 0 else None


def _agg_prefill(one: Pass) -> float | None:
    tokens, ends = 0, []
    for stream in one.streams:
        r = stream.reading
        if r.prompt_tokens is None or r.ttft_s is None or "prefix_cache_hit" in r.flags:
            return None
        tokens += r.prompt_tokens - (r.cached_tokens or 0)
        ends.append(stream.t0 + r.ttft_s)
    span = max(ends) - min(stream.t0 for stream in one.streams)
    return tokens / span if span > 0 else None

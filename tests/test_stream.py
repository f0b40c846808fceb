"""The stream reader: each recorded quirk, more of each kind, and the same stream cut anywhere."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from campaign import sse
from campaign.stream import Ending, StreamReading, read_stream
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import MANIFEST, Reads, reads_of


def reading_of(name: str, reads: Reads) -> StreamReading:
    want = MANIFEST[name]
    return read_stream(reads, max_tokens=want.get("requested_max_tokens", 50), ending=want["connection"])


@pytest.mark.parametrize("name", MANIFEST)
def test_case(name: str) -> None:
    want, got = MANIFEST[name], reading_of(name, reads_of(name))
    assert got.outcome == want["outcome"]
    assert got.completion_tokens == want["completion_tokens"]
    assert got.n_deltas == want["n_deltas"]
    assert sorted(got.flags) == sorted(want["flags"])
    assert got.ttft_s == want["ttft"]
    assert got.decode_formula_tps == pytest.approx(want["decode_formula"])
    assert got.n_first == want.get("n_first", got.n_first)
    assert got.ttft_content_s == want.get("ttft_content", got.ttft_content_s)
    assert got.cached_tokens == want.get("cached_tokens", got.cached_tokens)
    if got.outcome != "ok":
        assert got.decode_tps is None
    elif got.n_first is not None and "decode_true" in want:
        assert got.decode_tps == pytest.approx(want["decode_true"])


@pytest.mark.parametrize("name", MANIFEST)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_stream_cut_anywhere_measures_the_same(name: str, data: st.DataObject) -> None:
    reads = reads_of(name)
    cut: Reads = []
    for t, raw in reads:
        places = data.draw(st.lists(st.integers(0, len(raw)), max_size=4))
        cut += [(t, raw[a:b]) for a, b in pairwise([0, *sorted(places), len(raw)])]
    assert reading_of(name, cut) == reading_of(name, reads)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.binary(max_size=200))), st.sampled_from([200, 500]))
def test_no_bytes_make_it_raise_or_give_a_rate(reads: Reads, status: int) -> None:
    got = read_stream(sorted(reads), http_status=status)
    assert got.decode_tps is None


def delta(content: Any = " w", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}}], **more}


def usage(completion: Any, prompt: int = 200, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


FINISH = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}


def stream(*chunks: Any, start: float = 0.5, step: float = 0.02, end: str = "\n\n") -> Reads:
    """Each chunk in a read of its own, `step` apart; FINISH, usage and [DONE] share the last one's time."""
    reads: Reads = []
    t = start
    for data in chunks:
        text = data if isinstance(data, str) else json.dumps(data)
        bears = isinstance(data, dict) and "finish_reason" not in str(data) and data.get("choices")
        reads.append((t, f"data: {text}{end}".encode()))
        t += step if bears else 0.0
    return reads


def plain(n: int = 50, tail: tuple[Any, ...] = (), **shape: Any) -> Reads:
    return stream(*[delta() for _ in range(n)], FINISH, *(tail or (usage(n),)), "[DONE]", **shape)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r", "\n: ping\n\n", "\nid: 7\nretry: 10\n\n"])
def test_line_ends_and_comments(end: str) -> None:
    got = read_stream([(0.01, b"\xef\xbb\xbf: hello\n\n"), *plain(end=end)], max_tokens=50)
    assert (got.outcome, got.ttft_s, got.flags) == ("ok", 0.5, ())
    assert got.decode_tps == pytest.approx(50)


def test_data_over_several_lines_and_events_without_blank_lines() -> None:
    pretty = "data: " + json.dumps(delta(), indent=1).replace("\n", "\ndata: ") + "\n\n"
    reads = plain(tail=(usage(51),))
    assert read_stream([(0.48, pretty.encode()), *reads]).n_deltas == 51
    packed = [(t, raw.replace(b"\n\n", b"\n")) for t, raw in plain()]
    assert read_stream(packed).decode_tps == pytest.approx(50)


def test_a_character_cut_between_reads() -> None:
    reads = stream(delta("é"), *[delta() for _ in range(49)], FINISH, usage(50), "[DONE]")
    raw = json.dumps(delta("é"), ensure_ascii=False).encode()
    cut = raw.index("é".encode()) + 1
    reads[0:1] = [(0.4, b"data: " + raw[:cut]), (0.5, raw[cut:] + b"\n\n")]
    assert read_stream(reads).ttft_s == 0.5


@pytest.mark.parametrize("count", [None, 0, True, "50", -1, 5.5])
def test_a_usage_that_counts_nothing_is_no_usage(count: Any) -> None:
    got = read_stream(plain(tail=(usage(count),)))
    assert (got.outcome, got.completion_tokens, got.decode_tps) == ("unmeasured", None, None)
    assert "no_usage" in got.flags


def test_token_ids_tell_what_usage_does_not() -> None:
    reads = stream(*[delta(" w w", token_ids=[1]) for _ in range(3)], FINISH, "[DONE]")
    assert read_stream(reads).completion_tokens is None
    chunks = [{"choices": [{"delta": {"content": " w w"}, "token_ids": [1, 2]}]} for _ in range(20)]
    got = read_stream(stream(*chunks, FINISH, usage(40), "[DONE]"))
    assert (got.n_first, got.flags) == (2, ("multi_token_deltas",))
    assert got.decode_tps == pytest.approx(100)
    assert read_stream(stream(*chunks, FINISH, "[DONE]")).decode_tps == pytest.approx(100)


def test_a_total_repeated_on_each_chunk_is_no_continuous_usage() -> None:
    total = usage(50)["usage"]
    got = read_stream(stream(*[delta(usage=total) for _ in range(50)], FINISH, "[DONE]"))
    assert got.n_first == 1
    assert got.decode_tps == pytest.approx(50)


def test_an_end_of_text_token_has_no_delta() -> None:
    chunks = [delta(usage=usage(i + 1)["usage"]) for i in range(49)]
    got = read_stream(stream(*chunks, FINISH, usage(50), "[DONE]"))
    assert (got.completion_tokens, got.n_last) == (50, 49)
    assert got.decode_tps == pytest.approx(50)


def test_llama_cpp_bursts_of_accepted_tokens() -> None:
    """Speculation as llama.cpp streams it: a delta a token, several at one moment, a count on each."""
    reads: Reads = []
    n = 0
    for step in range(21):
        for _ in range(1 if step == 0 else 5):
            n += 1
            data = delta(timings={"predicted_n": n, "predicted_ms": step * 100.0})
            reads.append((0.5 + step * 0.1 + n * 1e-5, b"data: " + json.dumps(data).encode() + b"\n\n"))
    reads += stream(FINISH, usage(n), "[DONE]", start=2.6)
    got = read_stream(reads)
    assert (got.completion_tokens, got.n_deltas, got.n_steps, got.flags) == (101, 101, 21, ("bursts",))
    assert got.decode_tps == pytest.approx(50, rel=2e-3)
    assert got.engine_decode_tps == pytest.approx(50)


def test_a_first_burst_is_no_rate() -> None:
    """Four deltas in each read: the first four tokens are there at t_first, as with one delta of four."""
    reads = [(0.5 + 0.08 * (i // 4), raw) for i, (_, raw) in enumerate(plain(52)[:52])]
    got = read_stream(reads + stream(FINISH, usage(52), "[DONE]", start=1.5))
    assert (got.n_first, got.n_steps) == (4, 13)
    assert got.decode_tps == pytest.approx(50)
    assert got.decode_formula_tps == pytest.approx(53.125)


def test_an_acceptance_length_explains_many_tokens_a_delta() -> None:
    chunks = [delta(usage=usage(20 * (i + 1))["usage"]) for i in range(10)]
    reads = stream(*chunks, FINISH, usage(200), "[DONE]", step=0.2)
    assert read_stream(reads).flags == ("coarse_stream",)
    assert read_stream(reads, acceptance_length=19.5).decode_tps == pytest.approx(100)


def test_thinking_that_is_counted_but_not_streamed() -> None:
    tail = usage(100, completion_tokens_details={"reasoning_tokens": 50})
    got = read_stream(plain(tail=(tail,)))
    assert got.outcome == "unmeasured"
    assert got.flags == ("hidden_thinking", "coarse_stream")


def test_unknown_first_step_gives_bounds() -> None:
    got = reading_of("27_mtp_4_tokens_per_delta", reads_of("27_mtp_4_tokens_per_delta"))
    assert got.n_first is None
    assert got.decode_tps == got.decode_high_tps == pytest.approx(53.125)
    assert got.decode_low_tps == pytest.approx(12.5)


def test_prefill_counts_only_what_was_not_cached() -> None:
    tail = usage(50, prompt_tokens_details={"cached_tokens": 20})
    assert read_stream(plain(tail=(tail,)), template_tokens=24).prefill_tps == pytest.approx(180 / 0.5)
    hit = read_stream(plain(tail=(tail,)), template_tokens=19)
    assert ("prefix_cache_hit" in hit.flags, hit.prefill_tps) == (True, None)


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (
            400,
            b'{"error":{"code":400,"message":"request (9 tokens) exceeds"}}',
            "HTTP 400: request (9 tokens) exceeds",
        ),
        (
            404,
            b'{"object":"error","message":"The model does not exist"}',
            "HTTP 404: The model does not exist",
        ),
        (422, b'{"detail":[{"msg":"extra fields"}]}', 'HTTP 422: [{"msg": "extra fields"}]'),
        (502, b"<html>\n<b>Bad  Gateway</b></html>", "HTTP 502: <html> <b>Bad Gateway</b></html>"),
        (503, b"", "HTTP 503: no text"),
    ],
)
def test_refusals_keep_the_engines_words(status: int, body: bytes, text: str) -> None:
    got = read_stream([(0.1, body)], http_status=status)
    assert (got.outcome, got.flags, got.error) == ("error", ("http_error",), text)


@pytest.mark.parametrize(
    ("reads", "ending", "flag"),
    [
        (plain()[:20], "clean", "truncated"),
        (plain()[:20], "timeout", "timeout"),
        ([], "timeout", "timeout"),
        ([(0.1, b": ping\n\n: ping\n\n")], "clean", "empty_stream"),
        ([(0.1, b'error: {"message":"slot failed"}\n\n')], "clean", "stream_error"),
        ([*plain()[:5], (0.6, b'event: error\ndata: {"message":"boom"}\n\n')], "clean", "stream_error"),
        ([*plain()[:5], (0.6, b'data: {"choices": [{"del\n\n')], "clean", "stream_error"),
        ([*plain()[:5], (0.6, b'data: {"choices": [{"del')], "reset", "truncated"),
        (stream(delta(), {"choices": [{"delta": {}, "finish_reason": "abort"}]}), "clean", "stream_error"),
        ([(0.1, b"<html>busy</html>")], "clean", "not_sse"),
        ([(0.1, b'{"error": {"message": "no"}}')], "clean", "stream_error"),
        (plain(), "oversized", "oversized"),
    ],
)
def test_what_is_no_answer(reads: Reads, ending: Any, flag: str) -> None:
    got = read_stream(reads, ending=ending)
    assert (got.outcome, got.flags, got.completion_tokens) == ("error", (flag,), None)
    assert got.error


def test_an_answer_that_was_complete_survives_how_it_ended() -> None:
    endings: tuple[Ending, ...] = ("reset", "timeout")
    for ending in endings:
        assert read_stream(plain()[:-1], ending=ending).flags == ("no_done",)
        assert read_stream(plain(), ending=ending).flags == ()


def test_a_line_without_end_is_an_error_and_not_all_memory() -> None:
    part = b"x" * (1 << 20)
    reads = [(0.1, b"data: "), *((0.1, part) for _ in range(sse.MAX_LINE_BYTES // len(part) + 1))]
    assert read_stream(reads).flags == ("oversized",)


def test_a_count_that_no_answer_has_is_no_count() -> None:
    reading = read_stream(plain(tail=(usage(10**400, prompt=10**400),)), max_tokens=50)
    assert (reading.completion_tokens, reading.prompt_tokens) == (None, None)

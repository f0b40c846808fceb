"""The probe against llama.cpp: its figures against the engine's own, and what contaminates them."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from campaign import probe, prompts
from campaign.outcome import Measurement
from campaign.settings import Endpoint, ProbePoint
from real_engine import running

pytestmark = pytest.mark.engine


def measured(endpoint: Endpoint, **more: Any) -> Measurement:
    made = {
        "prompt_tokens": 96,
        "max_tokens": 80,
        "concurrency": 1,
        "warmups": 1,
        "passes": 3,
        "timeout_s": 120.0,
    }
    return probe.measure(endpoint, ProbePoint(**(made | more)))


@pytest.fixture(scope="module")
def engine() -> Iterator[Endpoint]:
    with running("-np", "2", "-kvu") as endpoint:
        yield endpoint


def against_engine(got: Measurement) -> float:
    """The median relative difference of our decode rate from the engine's own."""
    rates = [
        row["decode_tps"] * row["engine"]["predicted_ms"] / 1000 / (row["engine"]["predicted_n"] - 1) - 1
        for row in got.passes
    ]
    return abs(float(statistics.median(rates)))


def test_our_clock_and_the_engines_agree(engine: Endpoint) -> None:
    got = measured(engine)
    assert (got.status, got.reason) == ("ok", None)
    assert against_engine(got) < 0.01
    for row in got.passes:
        assert abs(row["prompt_tokens"] - 96) <= 1
        assert row["completion_tokens"] == 80
        beyond = row["ttft_s"] - row["engine"]["prompt_ms"] / 1000
        assert 0 <= beyond < 0.040 + row["client_lag_s"]
    assert all(window["prompt_tokens_delta"] > 0 for window in got.details["counters"])


def test_two_streams_at_once(engine: Endpoint) -> None:
    got = measured(engine, concurrency=2, passes=1)
    assert (got.status, got.reason) == ("ok", None)
    assert len(got.metrics["decode_tps"].values) == 2
    assert len(got.metrics["agg_decode_tps"].values) == 1


@contextmanager
def someone_else(endpoint: Endpoint) -> Iterator[None]:
    """Another client, with one small request after the other."""
    stop = threading.Event()
    ask = {"model": "smollm2", "max_tokens": 4, "messages": [{"role": "user", "content": "And who are you?"}]}

    def work() -> None:
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not stop.is_set():
                client.post(f"{endpoint.base_url}/chat/completions", json=ask)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_someone_elses_requests_make_it_invalid(engine: Endpoint) -> None:
    with someone_else(engine):
        got = measured(engine, passes=1)
    assert got.reason is not None
    assert (got.status, got.reason.cls) == ("invalid", "foreign_traffic")
    assert got.reason.evidence


def test_a_warm_prefix_makes_it_invalid(engine: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "cold_prompt", lambda words: "river " * words + prompts.TASK)
    got = measured(engine)
    assert got.reason is not None
    assert (got.status, got.reason.cls) == ("invalid", "prefix_cache_hit")


def test_ngram_speculation_tells_one_story() -> None:
    """The probe's steps, the engine's timings and the counters are one story.

    The first token comes from the prompt's pass; each step after it brings one token and what was accepted of
    its draft. So tokens came at completion_tokens - accepted_tokens moments, whoever counts; on a busy
    machine the client may have seen two moments as one, or one as two.
    """
    flags = [
        "--spec-type",
        "ngram-simple",
        "--spec-ngram-simple-size-n",
        "3",
        "--spec-ngram-simple-size-m",
        "8",
    ]
    with running(*flags) as endpoint:
        got = measured(endpoint, max_tokens=160)
    assert (got.status, got.reason) == ("ok", None)
    assert against_engine(got) < 0.01
    drafted = 0
    for row, window in zip(got.passes, got.details["counters"], strict=True):
        accepted = window["accepted_tokens_delta"]
        assert row["engine"].get("draft_n_accepted", 0) == accepted
        assert row["n_first"] == 1
        moments = row["completion_tokens"] - accepted
        assert 0.6 * moments < row["n_steps"] < 1.25 * moments
        if window["drafts_delta"]:
            drafted += 1
            length = 1 + accepted / window["drafts_delta"]
            assert window["acceptance"]["length"] == pytest.approx(length)
    assert drafted

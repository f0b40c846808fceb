"""Counters of three engines from their own texts, and what a window makes of two snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from campaign import counters
from campaign.counters import Counters, Window, parse
from campaign.settings import Endpoint
from test_probe import fake

LLAMA = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 455
llamacpp:prompt_tokens_cached_total 24
llamacpp:tokens_predicted_total 200
llamacpp:spec_decode_num_draft_tokens_total 100
llamacpp:spec_decode_num_accepted_tokens_total 94
llamacpp:spec_decode_num_drafts_total 17
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 17
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""
VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 16.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 5.0
"""
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 2.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 2.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 0.0
sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.7
sglang:token_usage{model_name="m",tp_rank="0"} 0.1
sglang:prompt_tokens_total{model_name="m"} 9.0
"""


def window(before: Counters | None, after: Counters | None, *during: Counters) -> Window:
    made = Window(Endpoint("http://127.0.0.1:9/v1", "m"))
    made.before, made.after, made.during = before, after, list(during)
    return made


def llama(**counts: float) -> Counters:
    none = {"running": 0.0, "queued": 0.0, "prompt_tokens": 0.0, "generated_tokens": 0.0}
    return Counters("llama.cpp", **(none | counts))


def test_llama_cpp() -> None:
    got = parse(LLAMA)
    assert got is not None
    assert (got.engine, got.in_engine, got.prompt_tokens, got.cached_tokens) == ("llama.cpp", 3, 455, 24)
    assert (got.drafts, got.draft_tokens, got.accepted_tokens) == (17, 100, 94)
    assert (got.requests, got.kv_use) == (None, None)


def test_vllm_sums_its_engines_but_not_a_share() -> None:
    got = parse(VLLM)
    assert got is not None
    assert (got.engine, got.running, got.requests, got.kv_use, got.drafts) == ("vllm", 4, 7, 0.5, None)


def test_sglang_ranks_repeat_each_other() -> None:
    got = parse(SGLANG)
    assert got is not None
    assert (got.running, got.in_engine, got.generated_tokens) == (2, 2, None)
    acceptance = window(got, got).acceptance
    assert acceptance is not None
    assert (acceptance.length, "gauge" in acceptance.estimator) == (2.7, True)


@pytest.mark.parametrize(
    "text", ["", "<html></html>", "process_cpu_seconds_total 4\n", '{"error": 501}', "a{ b"]
)
def test_what_is_no_engine_is_unknown(text: str) -> None:
    assert parse(text) is None


def test_acceptance_of_a_window_counts_drafted_steps() -> None:
    before = parse(LLAMA)
    assert before is not None
    after = replace(before, drafts=27.0, accepted_tokens=119.0)
    acceptance = window(before, after).acceptance
    assert acceptance is not None
    assert acceptance.length == pytest.approx(1 + 25 / 10)
    assert window(before, before).acceptance is None


def test_nothing_known_is_nothing_claimed() -> None:
    blind = window(None, None)
    assert (blind.delta("prompt_tokens"), blind.acceptance, blind.foreign(1, 1, 10, 0, 10)) == (
        None,
        None,
        None,
    )
    assert blind.facts() == {}
    assert window(llama(), llama()).delta("drafts") is None


def test_a_restart_is_no_negative_count() -> None:
    restarted = window(llama(prompt_tokens=900.0), llama(prompt_tokens=10.0))
    assert restarted.restarted
    assert restarted.delta("prompt_tokens") is None


@pytest.mark.parametrize(
    ("before", "during", "after", "says"),
    [
        (llama(), llama(running=2.0), llama(prompt_tokens=200.0, generated_tokens=100.0), None),
        (llama(running=1.0), llama(), llama(), "before we began"),
        (llama(), llama(running=2.0, queued=1.0), llama(), "3 requests were in the engine while we measured"),
        (llama(), llama(), llama(running=1.0), "after we ended"),
        (llama(), llama(), llama(prompt_tokens=210.0), "the engine counted 210 prompt tokens, ours were 200"),
        (llama(), llama(), llama(generated_tokens=104.0), "104 generated tokens, ours were 100"),
    ],
)
def test_someone_else(before: Counters, during: Counters, after: Counters, says: str | None) -> None:
    got = window(before, after, during).foreign(2, 2, 240, 40, 100)
    assert got is None if says is None else says in (got or "")


def test_other_engines_count_cached_prompts_and_overshoot() -> None:
    before = replace(llama(requests=0.0), engine="vllm")
    after = replace(before, prompt_tokens=240.0, generated_tokens=108.0, requests=2.0)
    assert window(before, after).foreign(2, 2, 240, 40, 100) is None
    assert "3 requests" in (window(before, replace(after, requests=3.0)).foreign(2, 2, 240, 40, 100) or "")


def test_a_gauge_that_lags_behind_accuses_nobody_of_what_it_said_before() -> None:
    idle = Counters("sglang", running=2.0, queued=0.0, requests=5.0)
    one, three = replace(idle, running=1.0), replace(idle, running=3.0)
    after = replace(one, requests=6.0)
    assert window(idle, after, idle, one).foreign(1, 1, None, None, None) is None
    assert "3 requests were in" in (window(idle, after, three).foreign(1, 1, None, None, None) or "")
    more = replace(after, requests=7.0)
    assert "counted 2 requests" in (window(idle, more, one).foreign(1, 1, None, None, None) or "")


def test_where_the_gauge_lags_an_engine_has_settled_when_it_says_the_same_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = [Counters("sglang", running=1.0, requests=float(n)) for n in (4, 5, 5, 5, 6, 6)]
    monkeypatch.setattr(counters, "read", lambda endpoint, client: said.pop(0))
    with Window(Endpoint("http://127.0.0.1:9/v1", "m"), every_s=None) as live:
        assert live.before is not None
        assert live.before.requests == 5
    assert live.after is not None
    assert (live.after.requests, said) == (6, [])


def test_an_engine_that_counts_cached_tokens_hides_no_foreign_prompt_behind_ours() -> None:
    before, after = llama(cached_tokens=0.0), llama(prompt_tokens=180.0, cached_tokens=60.0)
    assert window(before, after).foreign(2, 2, 240, None, None) is None
    assert "180 prompt tokens, ours were 160" in (window(before, after).foreign(2, 2, 220, None, None) or "")


@pytest.mark.parametrize(
    ("before", "after", "warm"),
    [
        (llama(cached_tokens=10.0), llama(cached_tokens=70.0), False),
        (llama(cached_tokens=10.0), llama(cached_tokens=71.0), True),
        (llama(), llama(), False),
        (llama(cached_tokens=900.0), llama(cached_tokens=800.0), False),
        (llama(cached_tokens=0.0), None, False),
    ],
    ids=["as many as allowed", "one more", "not counted", "restarted", "gone"],
)
def test_a_warm_prefix(before: Counters, after: Counters | None, warm: bool) -> None:
    assert (window(before, after).warm(60) is not None) == warm


def test_a_window_without_sampling_still_has_its_ends() -> None:
    with fake() as endpoint, Window(endpoint, every_s=None) as live:
        pass
    assert (live.before is None, live.after is None, live.during) == (False, False, [])


def test_a_live_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SETTLE_WITHIN_S", 0.05)
    with fake(quirks="busy=3") as endpoint, Window(endpoint) as live:
        assert live.before is not None
        assert live.before.in_engine == 3
    assert live.facts()["after"]["running"] == 3
    with fake(quirks="no-metrics") as endpoint, Window(endpoint) as blind:
        pass
    assert (blind.before, blind.after, blind.facts()) == (None, None, {})

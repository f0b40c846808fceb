"""What counters and sensors say for or against a measured cell, made up and live around llama-benchy."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import synthetic
import yaml
from campaign import benchy_traffic, instruments, matrix, tool_eval
from campaign.benchy_progress import Request
from campaign.benchy_traffic import Traffic
from campaign.counters import Counters, Window
from campaign.evidence import weighed
from campaign.matrix import Matrix
from campaign.nodes import LOCAL, NodeReading, Sample
from campaign.outcome import Measurement, metrics_of
from campaign.settings import BenchyPoint, Endpoint
from fake_engine import Settings, parse_quirks
from harnesses import ENVS, fake_engine, word_book, word_tokenizer
from test_counters import llama, window
from test_nodes import FAKE, fake_tool

LOG = """\
Warming up...
Warmup (User only) complete. Delta: 30 tokens (Server: 52, Local: 22)
Warmup (System+Probe) complete. Delta: 14 tokens (Server: 37, Local context: 22, Probe: 1)
  Warmup (batch size 1)...
[campaign] discarded: 130 prompt tokens, 32 tokens
  Run 1/2 (batch size 1)...
"""
OWN = Traffic(5, 1, 479, 98, 89, 30)


def point(**changes: Any) -> BenchyPoint:
    plain = BenchyPoint(
        version="0.4.0", pp=128, tg=32, depth=0, concurrency=1, runs=2, latency_mode="none", timeout_s=60
    )
    return plain.model_copy(update=changes)


def good() -> Measurement:
    return Measurement(
        status="ok", metrics=metrics_of(tg_tps=("tok/s", [50.0])), flags=["x"], details={"a": 1}
    )


def requests(prompt_tokens: int | None = 130) -> list[Request]:
    return [Request(number, tokens=32, prompt_tokens=prompt_tokens) for number in range(2)]


def test_own_traffic_is_warm_ups_the_discarded_run_and_the_measured_ones() -> None:
    assert benchy_traffic.of(requests(), LOG, point()) == OWN
    probing = benchy_traffic.of(requests(), LOG, point(latency_mode="generation"))
    assert (probing.requests, probing.generated_tokens, probing.warm_up_tokens) == (8, 101, 89 + 3 * 52)


def test_what_the_engine_did_not_count_is_unknown() -> None:
    assert benchy_traffic.of(requests(None), LOG, point()) == replace(OWN, prompt_tokens=None)
    no_usage = LOG.replace("complete. Delta", "complete (no usage stats found).")
    assert benchy_traffic.of(requests(), no_usage, point()) == Traffic(5, 1)
    uncounted = LOG.replace("discarded: 130", "discarded: 0")
    assert benchy_traffic.of(requests(), uncounted, point()) == replace(OWN, prompt_tokens=None)
    assert Traffic(5, 1).cacheable("vllm") is None


def test_only_llama_cpp_does_as_cache_prompt_asks() -> None:
    assert OWN.cacheable("llama.cpp") == 89
    assert OWN.cacheable("vllm") == 89 + 3 * (30 + 8)


@pytest.mark.parametrize(
    ("after", "cls"),
    [
        (llama(prompt_tokens=390.0, cached_tokens=89.0, generated_tokens=98.0), None),
        (llama(prompt_tokens=395.0, cached_tokens=89.0, generated_tokens=103.0), None),
        (llama(prompt_tokens=400.0, cached_tokens=89.0, generated_tokens=98.0), "foreign_traffic"),
        (llama(prompt_tokens=390.0, cached_tokens=89.0, generated_tokens=110.0), "foreign_traffic"),
        (llama(prompt_tokens=389.0, cached_tokens=90.0, generated_tokens=98.0), "prefix_cache_hit"),
        (llama(running=1.0), "foreign_traffic"),
        (None, None),
    ],
)
def test_counters_against_an_ok_row(after: Counters | None, cls: str | None) -> None:
    got = weighed(good(), window(llama(cached_tokens=0.0), after), OWN, {})
    assert got.status == ("invalid" if cls else "ok")
    assert (got.reason.cls if got.reason else None) == cls
    assert bool(got.metrics) == (cls is None)
    assert got.details.get("claimed") == ({"tg_tps": [50.0]} if cls else None)
    assert got.details["a"] == 1
    assert got.details["engine"]["own"]["requests"] == 5


def test_an_engine_that_was_restarted_is_no_evidence() -> None:
    before = llama(prompt_tokens=9000.0, cached_tokens=10.0)
    got = weighed(good(), window(before, llama(prompt_tokens=10.0, cached_tokens=5000.0)), OWN, {})
    assert got.status == "ok"
    assert got.details["engine"]["restarted"]


def test_a_failure_keeps_its_own_reason_and_gets_the_facts() -> None:
    failed = Measurement(status="failed")
    got = weighed(failed, window(llama(running=3.0), llama()), OWN, {})
    assert (got.status, got.reason) == ("failed", None)
    assert got.details["engine"]["before"]["running"] == 3


def test_an_instrument_without_own_traffic_gets_the_facts_only() -> None:
    got = weighed(good(), window(llama(), llama(running=9.0)), None, {})
    assert (got.status, "own" in got.details["engine"]) == ("ok", False)


def test_no_counters_and_no_sensors_leave_nothing() -> None:
    assert weighed(good(), window(None, None), OWN, {}) == good()


def test_one_slow_node_flags_the_cell() -> None:
    def at(clock: float) -> NodeReading:
        return NodeReading(during=[Sample(0, 80.0, clock, 60.0, 98.0, ())])

    got = weighed(good(), window(None, None), OWN, {"n0": at(2400.0), "n1": at(1500.0), "n2": at(2390.0)})
    assert (got.status, got.flags) == ("ok", ["x", "slow_node"])
    assert list(got.details["slow_nodes"]) == ["n1"]
    assert got.details["nodes"]["n1"][0]["load"]["clock_mhz"] == 1500
    even = weighed(good(), window(None, None), OWN, {"n0": at(2400.0), "n1": at(2390.0)})
    assert (even.flags, "slow_nodes" in even.details) == (["x"], False)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    """A campaign of one llama-benchy point whose lane brings the words that the fake engine counts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAMPAIGN_ENVS", str(ENVS))
    block = {"instrument": "llama_benchy", "pp": [64], "tg": [16], "runs": 2}
    synthetic.campaign(instruments=[block], order=["base"])
    words = {"tokenizer": str(word_tokenizer(Path("words"))), "book": str(word_book(Path("book.txt")))}
    Path("config/lanes/toy.yaml").write_text(yaml.safe_dump(synthetic.LANE | words))
    return matrix.load("toy")


def measure(plan: Matrix, endpoint: Endpoint) -> Measurement:
    return instruments.measure(plan.cells[0], endpoint, plan, Path("cell.raw"))


@pytest.mark.parametrize(
    ("block", "module", "samples"),
    [
        (
            {"instrument": "probe", "prompt_tokens": [32], "max_tokens": 8, "warmups": 0, "passes": 1},
            None,
            False,
        ),
        ({"instrument": "tool_eval", "label": "short"}, tool_eval, True),
    ],
    ids=["probe", "tool_eval"],
)
def test_every_instrument_leaves_the_engines_counters(
    block: dict[str, Any], module: Any, samples: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if module:
        monkeypatch.setattr(module, "measure", lambda *arguments: good())
    planned = synthetic.campaign(instruments=[block], order=["base"])
    made: list[Any] = []
    monkeypatch.setattr(instruments, "Window", lambda *arguments: made.append(Window(*arguments)) or made[0])
    with fake_engine(Settings(tps=2000.0)) as (_, endpoint):
        got = instruments.measure(planned.cells[0], endpoint, planned, Path("cell.raw"))
    assert got.status == "ok", got.reason
    assert {"before", "after"} <= set(got.details["engine"])
    assert "own" not in got.details["engine"]
    assert (made[0].every_s is not None) == samples


def test_live_a_run_alone_on_a_cold_engine_explains_every_token(
    plan: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = FAKE.format(refused="nothing", ticks=tmp_path / "ticks")
    fake_tool(tmp_path / "bin", script, monkeypatch)
    with fake_engine(Settings(tps=200.0)) as (_, endpoint):
        got = measure(plan, endpoint)
    assert got.status == "ok", got.reason
    facts = got.details["engine"]
    assert facts["prompt_tokens_delta"] == facts["own"]["prompt_tokens"]
    assert facts["generated_tokens_delta"] == facts["own"]["generated_tokens"]
    (gpu,) = got.details["nodes"][LOCAL]
    assert gpu["load"]["clock_mhz"] == 2400
    assert "slow_node" not in got.flags


def test_live_one_request_of_someone_else_makes_it_invalid(plan: Matrix) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    with fake_engine(Settings(tps=200.0)) as (engine, endpoint):
        began, job = threading.Event(), engine._job

        def note(*arguments: Any) -> Any:
            began.set()
            return job(*arguments)

        def intrude() -> None:
            if began.wait(60):
                httpx.post(f"{endpoint.base_url}/chat/completions", json=body, trust_env=False)

        engine._job = note  # type: ignore[method-assign]
        intruder = threading.Thread(target=intrude)
        intruder.start()
        got = measure(plan, endpoint)
        intruder.join()
    assert got.reason is not None
    assert (got.status, got.reason.cls, got.metrics) == ("invalid", "foreign_traffic", {})


def test_live_a_warm_prefix_cache_makes_it_invalid(plan: Matrix) -> None:
    with fake_engine(Settings(tps=200.0, quirks=parse_quirks(["cached"]))) as (_, endpoint):
        got = measure(plan, endpoint)
    assert got.reason is not None
    assert (got.status, got.reason.cls, got.metrics) == ("invalid", "prefix_cache_hit", {})

"""The probe against replayed cases and a fake engine: what it says of each, and how near to the truth."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign import probe, prompts
from campaign.outcome import Measurement, Outcome
from campaign.passes import MAX_LAG_S, Pass, Stream, judge
from campaign.settings import Endpoint, ProbePoint
from campaign.stream import StreamReading
from fake_engine import FakeEngine, Settings, parse_quirks
from replay import MANIFEST, Replay, Written, reads_of

PASSES = 3
STATUS = {"ok": "ok", "error": "failed", "unmeasured": "unmeasured"}
CONTAMINATED = {"24_early_stop": "short_output", "34_cached_prompt": "prefix_cache_hit"}


def command(out: Path, base_url: str, model: str, *more: str) -> subprocess.CompletedProcess[str]:
    args = ["--base-url", base_url, "--model", model, "--out", str(out), *more]
    return subprocess.run([sys.executable, "-m", "campaign.probe", *args], capture_output=True, text=True)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Outcome, list[Written]]]:
    """Each case through the command line: its outcome, and when its reads were really written."""
    folder = tmp_path_factory.mktemp("replay")

    def one(name: str) -> tuple[str, Outcome]:
        out = folder / f"{name}.json"
        asked = ["--max-tokens", "50", "--warmups", "0", "--passes", str(PASSES), "--prompt-tokens", "200"]
        done = command(out, server.base_url, name, *asked)
        assert done.returncode == 0, done.stderr
        return name, Outcome.read(out)

    with Replay() as server, ThreadPoolExecutor(3) as pool:
        outcomes = dict(pool.map(one, MANIFEST))
    return {name: (out, [w for w in server.log if w.name == name]) for name, out in outcomes.items()}


@pytest.mark.parametrize("name", MANIFEST)
def test_case_through_the_command(name: str, replayed: dict[str, tuple[Outcome, list[Written]]]) -> None:
    want, (outcome, written) = MANIFEST[name], replayed[name]
    assert outcome.status == ("invalid" if name in CONTAMINATED else STATUS[want["outcome"]])
    if outcome.status != "ok":
        assert outcome.reason is not None
        assert outcome.reason.cls == CONTAMINATED.get(name, outcome.reason.cls)
    for row in outcome.passes:
        for key in ("outcome", "completion_tokens", "n_deltas"):
            assert row[key] == want[key], key
        assert sorted(row["flags"]) == sorted(want["flags"])
    if want["ttft"] is None:
        return
    reads = reads_of(name)
    first = next(i for i, (t, _) in enumerate(reads) if t >= want["ttft"])
    for row, truth in zip(outcome.passes, written, strict=True):
        # What the probe says of its own lateness is granted: on a busy machine late reads merge packets.
        lag = row["client_lag_s"]
        before, after = truth.times[first]
        assert before - 0.003 - lag < row["t0_s"] + row["ttft_s"] < after + 0.003 + lag
        if row["decode_tps"] is not None and row["n_first"] is not None:
            last = first + row["n_deltas"] - 1
            tokens = want.get("decode_true", 50.0) * (reads[last][0] - reads[first][0])
            slowest = tokens / (truth.times[last][1] - before + lag)
            fastest = tokens / (truth.times[last][0] - after - lag)
            assert slowest * 0.995 < row["decode_tps"] < fastest * 1.005


@contextmanager
def fake(**settings: Any) -> Iterator[Endpoint]:
    """A fake engine in a thread of this process."""
    quirks = parse_quirks(settings.pop("quirks", "").split())
    engine = FakeEngine(Settings(quirks=quirks, **settings))
    ready, loop = threading.Event(), asyncio.new_event_loop()
    ports: list[int] = []

    async def serve() -> None:
        ports.append(await engine.start())
        ready.set()

    def work() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield Endpoint(f"http://127.0.0.1:{ports[0]}/v1", "fake")
    finally:
        asyncio.run_coroutine_threadsafe(engine.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def point(**more: Any) -> ProbePoint:
    made = {
        "prompt_tokens": 128,
        "max_tokens": 40,
        "concurrency": 1,
        "warmups": 1,
        "passes": 2,
        "timeout_s": 20.0,
    }
    return ProbePoint(**(made | more))


def probed(quirks: str = "", engine: dict[str, Any] | None = None, **more: Any) -> Measurement:
    with fake(quirks=quirks, **(engine or {})) as endpoint:
        return probe.measure(endpoint, point(**more))


def test_a_good_engine_is_measured() -> None:
    got = probed()
    assert (got.status, got.reason) == ("ok", None)
    assert [row["prompt_tokens"] for row in got.passes] == [128, 128]
    assert len(got.metrics["ttft_s"].values) == 2
    assert "agg_decode_tps" not in got.metrics
    assert len(got.details["warm_ups"]) == 1
    assert got.passes[0]["in_engine"]["before"] == 0
    assert got.provenance["asked"] == ["continuous_usage_stats", "ignore_eos", "timings_per_token"]


@pytest.mark.parametrize("tokens_per_delta", [1, 4])
def test_streams_and_their_sum_are_apart(tokens_per_delta: int) -> None:
    got = probed(concurrency=4, passes=1, engine={"tps": 100.0, "tokens_per_delta": tokens_per_delta})
    assert got.status == "ok", got.reason
    assert len(got.metrics["decode_tps"].values) == 4
    assert len(got.metrics["agg_decode_tps"].values) == 1
    total, each = got.metrics["agg_decode_tps"].median, got.metrics["decode_tps"].median
    assert total is not None
    assert each is not None
    assert 3 < total / each <= 4.1


def test_the_first_step_is_known_under_speculation() -> None:
    got = probed(engine={"tps": 200.0, "tokens_per_delta": 4}, quirks="no-timings")
    assert (got.passes[0]["n_first"], got.passes[0]["n_deltas"]) == (4, 10)
    assert "multi_token_deltas" in got.flags


@pytest.mark.parametrize(
    ("quirks", "status", "cls", "evidence"),
    [
        ("error-500", "failed", "http_error", "HTTP 500: engine failed"),
        ("error-first", "failed", "stream_error", "engine failed"),
        ("error-mid=4", "failed", "stream_error", "engine failed"),
        ("drop=10", "failed", "truncated", "the connection broke after 10 deltas"),
        ("close=10", "failed", "truncated", "the stream ended after 10 deltas"),
        ("empty", "failed", "empty_stream", "without a token"),
        ("done-only", "failed", "empty_stream", "without a token"),
        ("not-sse", "unmeasured", "not_sse", "one JSON body"),
        ("one-delta", "unmeasured", "coarse_stream", "40 tokens, 1 deltas"),
        ("buffered", "unmeasured", "coarse_stream", "40 tokens, 40 deltas"),
        ("hidden-thinking no-timings", "unmeasured", "coarse_stream", "40 tokens, 2 deltas"),
        ("no-usage no-timings", "unmeasured", "no_usage", None),
        ("early-stop=5", "invalid", "short_output", "5 tokens came, finish_reason stop"),
        ("cached=100", "invalid", "prefix_cache_hit", "cached_tokens 100 of 128"),
        ("busy=2", "invalid", "foreign_traffic", "2 requests were in the engine before we began"),
    ],
)
def test_faults_are_named(quirks: str, status: str, cls: str, evidence: str | None) -> None:
    got = probed(quirks)
    assert got.reason is not None
    assert (got.status, got.reason.cls) == (status, cls)
    assert evidence is None or evidence in (got.reason.evidence or "")
    assert ("decode_tps" in got.metrics) == (status == "invalid")


def test_a_prompt_longer_than_the_context_keeps_the_engines_words() -> None:
    got = probed(engine={"ctx": 300}, prompt_tokens=400)
    assert got.reason is not None
    assert (got.status, got.reason.cls) == ("failed", "http_error")
    assert "exceeds the available context size (300 tokens)" in (got.reason.evidence or "")


@pytest.mark.parametrize("quirk", ["hang", "hang-mid=3"])
def test_a_silent_engine_times_out_once(quirk: str) -> None:
    got = probed(quirk, timeout_s=0.5)
    assert got.reason is not None
    assert (got.status, got.reason.cls) == ("failed", "timeout")
    assert len(got.passes) == 1


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    done = command(tmp_path / "out.json", "http://127.0.0.1:9/v1", "m")
    outcome = Outcome.read(tmp_path / "out.json")
    assert done.returncode == 0
    assert outcome.reason is not None
    assert (outcome.status, outcome.reason.cls) == ("failed", "connection")
    assert outcome.passes[0]["outcome"] == "error"


def test_a_key_goes_to_the_engine_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_TEST_KEY", "s3cret-value")
    with fake() as endpoint:
        more = ["--api-key-env", "PROBE_TEST_KEY", "--max-tokens", "8", "--passes", "1", "--warmups", "0"]
        done = command(tmp_path / "out.json", endpoint.base_url, "fake", *more)
    assert done.returncode == 0
    assert "s3cret" not in (tmp_path / "out.json").read_text() + done.stdout + done.stderr


@pytest.mark.parametrize(
    "more", [["--passes", "0"], ["--timeout", "-1"], ["--api-key-env", "NO_SUCH_VARIABLE"], ["--nonsense"]]
)
def test_bad_arguments_exit_2(tmp_path: Path, more: list[str]) -> None:
    assert command(tmp_path / "out.json", "http://127.0.0.1:9/v1", "m", *more).returncode == 2
    assert command(tmp_path / "out.json", "127.0.0.1:9/v1", "m").returncode == 2
    assert not (tmp_path / "out.json").exists()


def test_an_engine_that_dies_while_answering(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = Path(__file__).parent / "fake_engine.py"
    with subprocess.Popen(
        [sys.executable, script, "--quirk", "die-request=6:SIGKILL", "--log", str(log)],
        stderr=subprocess.PIPE,
        text=True,
    ) as engine:
        assert engine.stderr is not None
        line = next(line for line in engine.stderr if "listening on" in line)
        got = probe.measure(Endpoint(f"{line.split()[-1]}/v1", "fake"), point(passes=5))
    assert got.reason is not None
    assert (got.status, got.reason.cls) == ("failed", "truncated")
    assert [row["outcome"] for row in got.passes] == ["ok", "error"]
    assert engine.returncode < 0
    assert len(log.read_text().splitlines()) == 5


def test_the_log_tells_what_was_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    got = probed(engine={"log": log, "tps": 100.0}, warmups=0, passes=3)
    rows = [json.loads(line) for line in log.read_text().splitlines()][-3:]
    errors = []
    for row, truth in zip(got.passes, rows, strict=True):
        (first, _), (last, n) = truth["writes"][0], truth["writes"][-1]
        errors.append(row["decode_tps"] / ((n - 1) / (last - first)) - 1)
    assert abs(statistics.median(errors)) < 0.005


def test_prompts_never_begin_alike() -> None:
    made = [prompts.cold_prompt(50) for _ in range(500)]
    beginnings = {" ".join(text.split()[:4]) for text in made}
    assert len(beginnings) == len(made)


def test_sizing_is_linear_and_says_when_it_cannot_be() -> None:
    sizing = prompts.Sizing.of([(0, 31), (128, 180)])
    assert sizing is not None
    assert prompts.fits(2048, round(sizing.base + sizing.per_word * sizing.words(2048)))
    assert sizing.words(10) == 0
    assert prompts.Sizing.of([(0, 200), (128, 200)]) is None


def test_a_held_up_client_is_invalid() -> None:
    reading = StreamReading("ok", ttft_s=1.0, decode_tps=50.0, completion_tokens=40, prompt_tokens=128)
    status, reason = judge([Pass(1, (Stream(0.0, reading),), lag_s=MAX_LAG_S * 2)], 128)
    assert reason is not None
    assert (status, reason.cls) == ("invalid", "client_lag")


def test_the_engines_counter_shows_a_hit_where_usage_says_nothing() -> None:
    silent = StreamReading("ok", ttft_s=1.0, decode_tps=50.0, completion_tokens=40, prompt_tokens=128)
    for cached, cls in ((None, "prefix_cache_hit"), (0, None)):
        reading = replace(silent, cached_tokens=cached)
        _, reason = judge([Pass(1, (Stream(0.0, reading),), lag_s=0.0, warm="100 were cached")], 128)
        assert (reason.cls if reason else None) == cls


def test_another_size_than_asked_is_invalid() -> None:
    reading = StreamReading("ok", ttft_s=1.0, decode_tps=50.0, completion_tokens=40, prompt_tokens=128)
    status, reason = judge([Pass(1, (Stream(0.0, reading),), lag_s=0.0)], 200)
    assert reason is not None
    assert (status, reason.cls) == ("invalid", "prompt_size")


def test_an_option_that_the_server_refuses_by_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEngine, "_complete", _strict(FakeEngine._complete))
    got = probed()
    assert got.status == "ok"
    assert "ignore_eos" not in got.provenance["asked"]


def _strict(complete: Any) -> Any:
    async def strict(self: FakeEngine, body: dict[str, Any], received: float, writer: Any) -> None:
        if "ignore_eos" in body:
            from wire import error, send_json

            send_json(writer, 400, error("Unrecognized request argument: ignore_eos", "invalid", 400))
        else:
            await complete(self, body, received, writer)

    return strict


def test_nothing_of_the_environment_redirects_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:9")
    assert probed(passes=1, warmups=0).status == "ok"

"""llama-benchy's figures: what the data prove, from its recorded results and live against a fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign import benchy_progress, benchy_rows, llama_benchy
from campaign.benchy_progress import Request
from campaign.errors import CampaignError
from campaign.outcome import Measurement
from campaign.settings import BenchyPoint, Endpoint
from fake_engine import Settings, parse_quirks
from harnesses import ENVS, fake_engine, word_book, word_tokenizer

pytestmark = [pytest.mark.harness, pytest.mark.xdist_group("benchy")]

CASES = Path(__file__).parent / "cases" / "llama_benchy"
RECORDED = {
    "ok": (3, 1, 0, "ok", None),
    "c4_ok": (2, 4, 0, "ok", None),
    "c4": (2, 4, 0, "failed", "partial"),
    "depthfail": (2, 1, 256, "failed", "null_row"),
    "http500_all": (2, 1, 0, "failed", "null_row"),
    "http500_third": (3, 1, 0, "failed", "partial"),
    "one_delta": (3, 1, 0, "unmeasured", "one_delta"),
    "role_early": (3, 1, 0, "invalid", "role_early"),
    "err_mid": (3, 1, 0, "invalid", "short_output"),
}
LIVE = {
    "": ("ok", None),
    "+error-500": ("failed", "no_result"),
    "+error-mid=4": ("failed", "cut_off"),
    "+drop=4": ("failed", "request_failed"),
    "+close=4": ("failed", "cut_off"),
    "+early-stop=4": ("invalid", "short_output"),
    "+hidden-thinking": ("unmeasured", None),
    "+one-delta": ("unmeasured", "one_delta"),
    "+buffered": ("unmeasured", None),
    "+hang-mid=4": ("failed", "hang"),
}


def point(runs: int = 3, c: int = 1, depth: int = 0, timeout_s: float = 60.0) -> BenchyPoint:
    return BenchyPoint(
        version="0.4.0",
        pp=64,
        tg=16,
        depth=depth,
        concurrency=c,
        runs=runs,
        latency_mode="none",
        timeout_s=timeout_s,
    )


def case(name: str) -> dict[str, Any]:
    return dict(json.loads((CASES / f"{name}.json").read_text()))


def requests(count: int = 3, **changes: Any) -> list[Request]:
    """Good requests: 16 tokens in 16 deltas, 10 ms apart."""
    stamps = [number / 100 for number in range(16)]
    good = Request(0, tokens=16, prompt_tokens=64, first_text="w", stamps=stamps)
    return [replace(good, **{"id": number, **changes}) for number in range(count)]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_result(name: str) -> None:
    runs, c, depth, status, cls = RECORDED[name]
    measured = benchy_rows.judge(case(name), [], point(runs, c, depth))
    assert (measured.status, measured.reason and measured.reason.cls) == (status, cls)
    assert bool(measured.metrics) == (status == "ok")
    assert "no_progress_events" in measured.flags


def test_the_good_row_beside_a_bad_one_is_kept() -> None:
    assert benchy_rows.judge(case("depthfail"), [], point(2)).status == "ok"


def test_totals_have_a_value_a_run_and_the_rest_one_a_request() -> None:
    measured = benchy_rows.judge(case("c4_ok"), requests(8), point(2, 4))
    counts = {name: len(metric.values) for name, metric in measured.metrics.items()}
    assert counts == {
        **dict.fromkeys(("pp_tps", "tg_tps"), 2),
        **dict.fromkeys(("pp_req_tps", "tg_req_tps", "ttfr_s", "e2e_ttft_s", "est_ppt_s"), 8),
    }
    assert measured.metrics["e2e_ttft_s"].values[0] == pytest.approx(0.1585, abs=1e-4)
    assert measured.metrics["tg_tps"].median == pytest.approx(378.2, abs=0.1)


def test_a_failed_request_in_the_progress_events_gives_the_engines_own_words() -> None:
    found = benchy_progress.read(CASES / "progress_sample.jsonl")
    measured = benchy_rows.judge(case("ok"), found, point())
    assert measured.status == "failed"
    assert measured.reason is not None
    assert "boom" in str(measured.reason.evidence)
    assert measured.reason.summary == "1 of 3 requests failed"


@pytest.mark.parametrize(
    ("changes", "status", "cls"),
    [
        ({"tokens": 4, "prompt_tokens": None}, "failed", "cut_off"),
        ({"tokens": 15}, "invalid", "short_output"),
        ({"prompt_tokens": 90}, "invalid", "prompt_size"),
        ({"tokens": None}, "failed", "partial"),
        ({"stamps": [0.0, 0.01, 0.02, 0.03]}, "unmeasured", "coarse_stream"),
        ({"stamps": [0.0, 0.0001, 0.0002] * 5 + [0.0]}, "unmeasured", "coarse_stream"),
        ({}, "ok", None),
    ],
)
def test_what_only_the_progress_events_show(changes: dict[str, Any], status: str, cls: str | None) -> None:
    measured = benchy_rows.judge(case("ok"), requests(**changes), point())
    assert (measured.status, measured.reason and measured.reason.cls) == (status, cls)
    assert bool(measured.metrics) == (status == "ok")


def test_a_speculating_lane_without_a_known_first_delta_has_no_rate() -> None:
    few = requests(stamps=[0.0, 0.04, 0.08, 0.12])
    for seen in ([], few):
        measured = benchy_rows.judge(case("mtp"), seen, point(), speculates=True)
        assert measured.status == "unmeasured"
        assert measured.reason is not None
        assert measured.reason.cls == "first_delta_unknown"
        assert measured.details["claimed"]["tg_tps"][0] == pytest.approx(123.2, abs=0.1)


def test_a_known_first_delta_corrects_the_rate() -> None:
    few = requests(stamps=[0.0, 0.04, 0.08, 0.12])
    known = dict.fromkeys(range(3), 4)
    measured = benchy_rows.judge(case("mtp"), few, point(), speculates=True, n_first=known)
    assert measured.status == "ok"
    assert measured.metrics["tg_tps"].median == pytest.approx(123.4 * 12 / 15, abs=0.1)
    assert measured.metrics["tg_req_tps"].values == pytest.approx(measured.metrics["tg_tps"].values)
    assert "tg_corrected_for_first_delta" in measured.flags


def test_an_answer_that_came_at_once_is_unmeasured_and_not_a_failure() -> None:
    data = case("ok")
    for column in ("tg_throughput", "tg_req_throughput"):
        data["benchmarks"][0][column]["values"].pop()
    measured = benchy_rows.judge(data, requests(), point())
    assert (measured.status, measured.reason and measured.reason.cls) == ("unmeasured", "one_delta")


def test_token_ids_in_each_delta_need_no_correction() -> None:
    few = requests(stamps=[0.0, 0.04, 0.08, 0.12], first_count=4)
    measured = benchy_rows.judge(case("mtp"), few, point(), speculates=True)
    assert measured.metrics["tg_tps"].median == pytest.approx(123.4, abs=0.1)


@pytest.mark.parametrize("data", [None, {}, {"benchmarks": []}, {"benchmarks": [{"concurrency": 2}]}])
def test_no_result_is_a_failure_with_the_last_error_printed(data: dict[str, Any] | None) -> None:
    measured = benchy_rows.judge(data, [], point(), log="hello\nWarmup failed: HTTP 500: broken\n\n")
    assert measured.status == "failed"
    assert measured.reason is not None
    assert measured.reason.evidence == "Warmup failed: HTTP 500: broken"


def test_a_torn_progress_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    end = {"type": "request_end", "request_id": 0, "total_tokens": 16, "prompt_tokens": 0, "error": ""}
    file.write_text(json.dumps(end) + '\n{"type":"request_e')
    assert benchy_progress.read(file) == [Request(0, tokens=16)]
    assert benchy_progress.read(tmp_path / "missing") == []


def test_an_older_release_is_recorded_and_never_run(tmp_path: Path) -> None:
    old = point().model_copy(update={"version": "0.3.8"})
    with pytest.raises(CampaignError, match="bring its results in"):
        measure(tmp_path / "old", Endpoint("http://127.0.0.1:9/v1", "m"), old)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Measurement]]:
    """Each quirk of LIVE through the real llama-benchy, two at a time since each costs a start-up."""
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAMPAIGN_ENVS", str(ENVS))
        patch.setattr(llama_benchy, "START_UP_S", 12.0)
        patch.setenv("LANE_KEY", "sk-secret-1017")
        with fake_engine(Settings(tps=100.0)) as (_, endpoint):
            yield dict(zip(LIVE, _measure_all(folder, endpoint, LIVE), strict=True))


def _measure_all(folder: Path, endpoint: Endpoint, quirks: Iterable[str]) -> list[Measurement]:
    def one(quirk: str) -> Measurement:
        asked = replace(endpoint, model=f"{endpoint.model}{quirk}", api_key_env="LANE_KEY")
        limit = 3.0 if "hang" in quirk else 60.0
        return measure(folder / f"case{quirk}", asked, point(2, timeout_s=limit))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, quirks))


def measure(folder: Path, endpoint: Endpoint, asked: BenchyPoint, speculates: bool = False) -> Measurement:
    folder.mkdir()
    return llama_benchy.measure(
        endpoint,
        asked,
        folder / "cell.raw",
        tokenizer=str(word_tokenizer(folder / "tokenizer")),
        book_file=word_book(folder / "book.txt"),
        speculates=speculates,
    )


@pytest.mark.parametrize("quirk", LIVE)
def test_live(quirk: str, live: dict[str, Measurement]) -> None:
    status, cls = LIVE[quirk]
    measured = live[quirk]
    assert measured.status == status, measured.reason
    assert cls is None or (measured.reason is not None and measured.reason.cls == cls)
    assert bool(measured.metrics) == (status == "ok")


def test_live_evidence_provenance_and_the_secret(
    live: dict[str, Measurement], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert "500" in str(live["+error-500"].reason)
    good = live[""]
    assert good.metrics["tg_tps"].median == pytest.approx(100, rel=0.1)
    assert good.provenance["harness_version"] == "0.4.0"
    assert good.raw == ["cell.raw/result.json", "cell.raw/progress.jsonl", "cell.raw/output.log"]
    kept = [file for file in tmp_path_factory.getbasetemp().rglob("cell.raw/*") if file.is_file()]
    assert len(kept) >= len(good.raw)
    assert not any("sk-secret-1017" in file.read_text() for file in kept)
    assert not any("sk-secret-1017" in measured.model_dump_json() for measured in live.values())


def test_live_several_tokens_a_delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_ENVS", str(ENVS))
    with fake_engine(Settings(tps=100.0, tokens_per_delta=4)) as (_, endpoint):
        measured = measure(tmp_path / "mtp", endpoint, point(2), speculates=True)
    assert measured.status == "ok", measured.reason
    assert measured.details["n_first"] == [4, 4]
    assert measured.metrics["tg_tps"].median == pytest.approx(100, rel=0.1)


def test_live_death_after_the_first_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_ENVS", str(ENVS))
    with fake_engine(Settings(tps=200.0)) as (engine, endpoint):
        answered = 4  # two warm-ups, the discarded run and the first measured one

        def refuse(*arguments: Any) -> Any:
            engine.settings.quirks = parse_quirks(["drop=1"]) if engine.requests > answered else {}
            return job(*arguments)

        job = engine._job
        monkeypatch.setattr(engine, "_job", refuse)
        measured = measure(tmp_path / "death", endpoint, point(3))
    assert measured.status == "failed"
    assert measured.reason is not None
    assert measured.reason.summary == "2 of 3 requests failed"

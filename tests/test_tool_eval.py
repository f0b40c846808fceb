"""tool-eval-bench's scores: which results count, and what is kept of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign import tool_eval
from campaign.outcome import Measurement
from campaign.settings import Endpoint, ToolEvalPoint
from fake_engine import Settings, parse_quirks
from harnesses import ENVS, fake_engine

pytestmark = [pytest.mark.harness, pytest.mark.xdist_group("tool_eval")]

CASES = Path(__file__).parent / "cases" / "tool_eval"
CHOSEN = ("TC-01", "TC-02", "TC-07")
LIVE: dict[tuple[str, str], tuple[str, str | None, str]] = {
    **{(version, ""): ("ok", None, "") for version in ("2.8.0", "3.0.0")},
    **{(version, "+error-500"): ("failed", "no_result", "500") for version in ("2.8.0", "3.0.0")},
    **{(version, "+close=4"): ("failed", "cut_off", "finish_reason") for version in ("2.8.0", "3.0.0")},
    **{
        (version, "+error-mid=4"): ("failed", "not_graded", "engine failed") for version in ("2.8.0", "3.0.0")
    },
    ("3.0.0", "+drop=4"): ("failed", "not_graded", "peer closed connection"),
    ("3.0.0", "+hang-mid=4"): ("failed", "not_graded", "timeout"),
    ("3.0.0", "+done-only"): ("failed", "cut_off", "finish_reason"),
    # What the model itself chose to think or to leave out is its answer, and is graded.
    ("3.0.0", "+hidden-thinking"): ("ok", None, ""),
    ("3.0.0", "+early-stop"): ("ok", None, ""),
}
Data = dict[str, Any]


def point(**changes: Any) -> ToolEvalPoint:
    plain = ToolEvalPoint(
        label="chosen",
        version="3.0.0",
        seed=42,
        scenarios=CHOSEN,
        hardmode=False,
        thinking=True,
        trials=1,
        max_tokens=128,
        max_turns=8,
        timeout_s=30.0,
    )
    return plain.model_copy(update=changes)


def case(name: str) -> Data:
    return dict(json.loads((CASES / f"{name}.json").read_text()))


def test_a_completed_run_is_a_score_even_when_it_is_zero() -> None:
    measured = tool_eval.judge([case("v3_prose")], point())
    assert measured.status == "ok"
    values = {name: metric.values for name, metric in measured.metrics.items()}
    assert values == {
        "score": [0],
        "points": [0],
        "max_points": [6],
        "completion_rate": [1.0],
        "responsiveness": [100],
        "median_turn_s": [0.0043],
    }
    assert measured.details["failed"] == list(CHOSEN)
    assert measured.details["scenarios"]["TC-01"] == {"status": "fail", "points": 0, "kind": "missing_step"}
    assert measured.details["config_fingerprint"] == "2e4e34184163"


def test_a_dead_server_is_no_score_though_the_harness_says_completed() -> None:
    data = case("v3_all_503")
    assert data["status"] == "completed"
    measured = tool_eval.judge([data], point())
    assert measured.status == "failed"
    assert measured.metrics == {}
    assert measured.details["failed"] == []
    assert measured.reason is not None
    assert measured.reason.summary == "3 of 3 scenarios could not be graded"
    assert "503 Service Unavailable" in str(measured.reason.evidence)


def _without_a_scenario(data: Data) -> None:
    data["scores"]["scenario_results"].pop()


def _out_of_less(data: Data) -> None:
    data["scores"]["max_points"] = 4


def _incomplete(data: Data) -> None:
    data["scores"]["completion_rate"] = 66.7


def _one_server_error(data: Data) -> None:
    data["scores"]["scenario_results"][1]["failure_kind"] = "server_error"


def _never_heard(data: Data) -> None:
    data["scores"]["scenario_results"][1].update(turn_count=0, completion_tokens=None)


def _of_another_version(data: Data) -> None:
    data["tool_eval_bench_version"] = "2.8.0"


def _error_envelope(data: Data) -> None:
    data.clear()
    data["error"] = "model not found"


@pytest.mark.parametrize(
    ("spoil", "cls"),
    [
        (_without_a_scenario, "incomplete"),
        (_out_of_less, "incomplete"),
        (_incomplete, "incomplete"),
        (_one_server_error, "not_graded"),
        (_never_heard, "not_graded"),
        (_of_another_version, "version"),
        (_error_envelope, "no_result"),
    ],
)
def test_a_run_that_is_not_whole_is_no_score(spoil: Callable[[Data], None], cls: str) -> None:
    data = copy.deepcopy(case("v3_prose"))
    spoil(data)
    measured = tool_eval.judge([data], point())
    assert (measured.status, measured.reason and measured.reason.cls) == ("failed", cls)
    assert measured.metrics == {}


def test_a_planned_scenario_that_the_harness_left_out_is_missed() -> None:
    measured = tool_eval.judge([case("v3_prose")], point(scenarios=(*CHOSEN, "TC-09")))
    assert measured.reason is not None
    assert measured.reason.evidence == "TC-09"
    assert tool_eval.judge([case("v3_prose")], point(scenarios="short")).status == "failed"


def test_no_result_tells_the_last_error_printed() -> None:
    measured = tool_eval.judge([None], point(), log="start\nerror: no such model\n")
    assert measured.reason is not None
    assert measured.reason.evidence == "error: no such model"


def test_each_trial_is_a_value_and_all_must_count() -> None:
    better = case("v3_prose")
    better["scores"].update(final_score=50, total_points=3)
    both = tool_eval.judge([case("v3_prose"), better], point(trials=2))
    assert both.metrics["score"].values == [0, 50]
    assert tool_eval.judge([better, case("v3_all_503")], point(trials=2)).status == "failed"
    assert tool_eval.judge([better], point(trials=2)).status == "failed"


def test_hard_mode_points_stand_apart() -> None:
    data = case("v3_prose")
    data["scores"]["category_scores"][1].update(category="P", earned=1, max=2)
    measured = tool_eval.judge([data], point())
    assert measured.metrics["hard_points"].values == [1]
    assert measured.metrics["hard_max_points"].values == [2]


def test_the_options_say_what_the_point_says() -> None:
    endpoint = Endpoint("http://node-a:8000/v1", "m")
    short = tool_eval._options(endpoint, point(scenarios="short", hardmode=True, thinking=False))
    assert {"--short", "--hardmode", "--no-think"} <= set(short)
    assert short[short.index("--backend-kwargs") + 1] == '{"max_tokens": 128}'
    plain = tool_eval._options(endpoint, point(max_tokens=None))
    assert plain[plain.index("--scenarios") + 1 :][:3] == list(CHOSEN)
    assert not {"--short", "--hardmode", "--backend-kwargs", "--no-think"} & set(plain)


def test_an_answer_that_broke_off_is_no_score() -> None:
    measured = tool_eval.judge([case("v3_prose")], point(), log=f"start\n{tool_eval.CUT_OFF}\nend\n")
    assert (measured.status, measured.reason and measured.reason.cls) == ("failed", "cut_off")
    assert measured.metrics == {}


def test_both_releases_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_ENVS", str(ENVS))
    monkeypatch.setenv("LANE_KEY", "sk-secret-1017")
    with fake_engine(Settings()) as (_, endpoint):
        asked = replace(endpoint, api_key_env="LANE_KEY")

        def one(version: str, quirk: str) -> Measurement:
            raw = tmp_path / f"{version}{quirk}" / "cell.raw"
            model = replace(asked, model=f"fake{quirk}")
            return tool_eval.measure(model, point(version=version, timeout_s=1.0), raw)

        with ThreadPoolExecutor(2) as pool:
            found = dict(zip(LIVE, pool.map(lambda pair: one(*pair), LIVE), strict=True))
    for (version, quirk), measured in found.items():
        status, cls, evidence = LIVE[version, quirk]
        assert (measured.status, measured.reason and measured.reason.cls) == (status, cls), (version, quirk)
        assert evidence in str(measured.reason)
        assert bool(measured.metrics) == (status == "ok")
        assert measured.provenance["harness_version"] == version
        assert "cell.raw/output.log" in measured.raw
        assert status == "failed" or "cell.raw/trial1.json" in measured.raw
    kept = [file for file in tmp_path.rglob("*") if file.is_file()]
    text = "".join(file.read_text() for file in kept)
    assert "sk-secret-1017" not in text
    assert not any(file.suffix in (".db", ".sqlite") or file.name == ".env" for file in kept)
    assert found["3.0.0", ""].metrics["max_points"].values == [6]


def test_live_death_after_the_first_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAMPAIGN_ENVS", str(ENVS))
    with fake_engine(Settings()) as (engine, endpoint):
        answered = 2  # the warm-up and the first scenario
        job = engine._job

        def refuse(*arguments: Any) -> Any:
            engine.settings.quirks = parse_quirks(["drop=1"]) if engine.requests > answered else {}
            return job(*arguments)

        engine._job = refuse  # type: ignore[method-assign]
        measured = tool_eval.measure(endpoint, point(timeout_s=2.0), tmp_path / "cell.raw")
    assert measured.reason is not None
    assert (measured.status, measured.metrics) == ("failed", {})
    assert measured.reason.summary == "2 of 3 scenarios could not be graded"

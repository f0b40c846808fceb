"""Results that a person already has: which rows become outcomes, which are refused, what stands by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic
from campaign import cell, cells, plan, recorded, report
from campaign.errors import CampaignError
from campaign.matrix import Matrix
from campaign.outcome import Outcome
from workspace import Workspace

CASES = Path(__file__).parent / "cases"
OLD = CASES / "llama_benchy_0_3"
Data = dict[str, Any]


def block(version: str, **changes: Any) -> Data:
    plain = {"instrument": "llama_benchy", "version": version, "pp": [64], "tg": [16], "runs": 3}
    return {**plain, **changes}


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Matrix]:
    monkeypatch.chdir(tmp_path)

    def of(version: str, **changes: Any) -> Matrix:
        return synthetic.campaign(instruments=[block(version, **changes)], order=["base", "ngram"])

    return of


def record(matrix: Matrix, file: Path, variant: str = "base") -> dict[str, Outcome]:
    found = recorded.llama_benchy(matrix, matrix.boot(variant, "b1"), file)
    recorded.write(file, found)
    return {target.point: Outcome.read(target.path) for target, _ in found}


def edited(folder: Path, edit: Callable[[Data], Any], source: Path = OLD / "0_3_8_ok.json") -> Path:
    data = json.loads(source.read_text())
    edit(data)
    file = folder / "edited.json"
    file.write_text(json.dumps(data))
    return file


@pytest.mark.parametrize(
    ("name", "version", "points"),
    [
        ("llama_benchy_0_3/0_3_7_ok", "0.3.7", {"concurrency": [1, 2]}),
        ("llama_benchy_0_3/0_3_8_ok", "0.3.8", {"concurrency": [1, 2], "depth": [0, 256]}),
        ("llama_benchy/ok", "0.4.0", {}),
        ("llama_benchy/c4_ok", "0.4.0", {"concurrency": [4], "runs": 2}),
    ],
)
def test_good_rows_of_three_releases(
    name: str, version: str, points: Data, planned: Callable[..., Matrix]
) -> None:
    matrix = planned(version, **points)
    file = CASES / f"{name}.json"
    rows = json.loads(file.read_text())["benchmarks"]
    found = record(matrix, file)
    assert len(found) == len(rows)
    for row, outcome in zip(rows, found.values(), strict=True):
        assert (outcome.status, outcome.recorded, outcome.reason) == ("ok", True, None)
        assert outcome.metrics["tg_tps"].values == row["tg_throughput"]["values"]
        assert outcome.provenance["instrument_version"] == f"llama-benchy {version}"
        assert (outcome.started, str(outcome.ended)[-1]) == (None, "Z")
        assert Path(outcome.raw[0]).read_text() == file.read_text()


@pytest.mark.parametrize(
    ("name", "c", "variant", "status", "cls"),
    [
        ("0_3_7_one_delta", 1, "base", "unmeasured", "coarse_stream"),
        ("0_3_7_short", 2, "base", "invalid", "short_output"),
        ("0_3_7_mtp", 1, "ngram", "unmeasured", "first_delta_unknown"),
        ("0_3_7_http500_second", 1, "base", "failed", "partial"),
        ("0_3_8_one_delta", 1, "base", "unmeasured", "one_delta"),
        ("0_3_8_short", 1, "base", "invalid", "short_output"),
        ("0_3_8_http500_all", 1, "base", "failed", "null_row"),
        ("0_3_8_role_early", 1, "base", "invalid", "role_early"),
    ],
)
def test_a_bad_row_is_recorded_as_what_it_is(
    name: str, c: int, variant: str, status: str, cls: str, planned: Callable[..., Matrix]
) -> None:
    matrix = planned(name[:5].replace("_", "."), concurrency=[c])
    (outcome,) = record(matrix, OLD / f"{name}.json", variant).values()
    assert (outcome.status, outcome.reason and outcome.reason.cls) == (status, cls)
    assert outcome.metrics == {}


def test_a_release_that_leaves_the_first_delta_out_is_right_under_speculation(
    planned: Callable[..., Matrix],
) -> None:
    (outcome,) = record(planned("0.3.8"), OLD / "0_3_8_mtp.json", "ngram").values()
    assert outcome.status == "ok"
    assert outcome.metrics["tg_tps"].median == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: d["benchmarks"][1].update(context_size=512), "benchmarks.1: pp64-tg16-d512-c1 is no"),
        (lambda d: d["benchmarks"][1].update(is_context_prefill_phase=True), "(context prefill) is no"),
        (lambda d: d["benchmarks"].append(d["benchmarks"][0]), "benchmarks.3: is a second row"),
        (lambda d: d.update(version="0.3.7"), "version: 0.3.7 differs from 0.3.8, which the campaign plans"),
        (lambda d: d.update(version="0.2.1"), "version: 0.2.1 can't be read; results of 0.4.0, 0.3.8, 0.3.7"),
        (lambda d: d.update(latency_mode="api"), "latency_mode: api differs from none"),
        (lambda d: d.update(prefix_caching_enabled=True), "the run was not cold"),
        (lambda d: d["benchmarks"].clear(), "benchmarks: is empty"),
        (lambda d: d["benchmarks"][0]["pp_throughput"]["values"].append(1.0), "has 4 runs, the plan of"),
        (lambda d: d["benchmarks"][0].update(ttfr=7), "(benchmarks.0.ttfr: "),
        (lambda d: d.pop("model"), "(model: Field required)"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_whole(
    edit: Callable[[Data], Any], says: str, planned: Callable[..., Matrix], tmp_path: Path
) -> None:
    matrix = planned("0.3.8", concurrency=[1, 2], depth=[0, 256])
    with pytest.raises(CampaignError) as refused:
        record(matrix, edited(tmp_path, edit))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not matrix.directory.exists()


@pytest.mark.parametrize("was_recorded", [True, False])
def test_recorded_and_measured_never_take_each_others_place(
    was_recorded: bool, planned: Callable[..., Matrix]
) -> None:
    matrix = planned("0.3.8", concurrency=[1, 2], depth=[0, 256])
    target = synthetic.cell(matrix, "base", "d0-c2")
    there = synthetic.measure(matrix, target, recorded=was_recorded)
    with pytest.raises(CampaignError, match=f"holds a {'recorded' if was_recorded else 'measured'} outcome"):
        record(matrix, OLD / "0_3_8_ok.json")
    assert Outcome.read(target.path) == there
    assert not synthetic.cell(matrix, "base", "d256-c1").path.exists()


def test_the_name_of_another_model_is_flagged(planned: Callable[..., Matrix], tmp_path: Path) -> None:
    file = CASES / "llama_benchy" / "ok.json"
    (outcome,) = record(planned("0.4.0"), file).values()
    assert outcome.flags == ["no_progress_events", "other_model_name"]
    same = edited(tmp_path, lambda d: d.update(model="toy-model"), file)
    (outcome,) = record(planned("0.4.0"), same, "ngram").values()
    assert "other_model_name" not in outcome.flags


def test_plan_and_report_say_what_is_recorded(planned: Callable[..., Matrix]) -> None:
    matrix = planned("0.3.8")
    file = OLD / "0_3_8_role_early.json"
    record(matrix, file)
    assert "2 cells planned: 1 invalid, 1 missing" in plan.text(cells.read(matrix))
    synthetic.cell(matrix, "base", "d0-c1").path.unlink()
    record(matrix, edited(Path(), lambda d: d["benchmarks"].__delitem__(slice(1, None))))
    results = cells.read(matrix)
    told = plan.text(results)
    assert "2 cells planned: 1 recorded, 1 missing" in told
    assert "r recorded" in told
    assert max(map(len, told.splitlines())) <= 100
    assert [record.cell.boot.variant for record in plan.next_run(results).cells] == ["ngram"]
    assert "next run: 2 boots, 1 cell" in told
    for boot in matrix.boots:
        synthetic.boot_up(matrix, boot)
    assert [boot.boot.variant for boot in plan.next_run(cells.read(matrix)).boots] == ["ngram"]
    assert [c["recorded"] for c in plan.as_json(results)["cells"]] == [True, False]
    text = report.render(cells.read(matrix), Path("reports/toy.md"))
    assert "All figures of this table are recorded" in text
    assert "llama-benchy 0.3.8, pp64 / tg16" in text


def test_what_was_recorded_of_another_config_is_stale_and_stands(planned: Callable[..., Matrix]) -> None:
    record(planned("0.3.8"), OLD / "0_3_8_short.json")
    changed = {**synthetic.CAMPAIGN["variants"], "base": {"flags": {"-c": 1024}}}
    matrix = synthetic.campaign(instruments=[block("0.3.8")], order=["base"], variants=changed)
    results = cells.read(matrix)
    assert [record.state for record in results.cells] == ["stale"]
    assert results.cells[0].reason is not None
    assert "delete it to measure" in results.cells[0].reason.summary
    assert plan.next_run(results).cells == ()
    text = report.render(results, Path("reports/toy.md"))
    assert "1 of 1 cell recorded of another config; delete it to measure" in text
    assert "to be measured again" not in text


def test_a_boot_that_is_made_again_measures_only_what_is_not_recorded(planned: Callable[..., Matrix]) -> None:
    matrix = planned("0.3.8", concurrency=[1, 2])
    record(matrix, OLD / "0_3_8_short.json")
    work = plan.next_run(cells.read(matrix))
    assert [(r.cell.boot.variant, r.cell.point[-2:]) for r in work.cells] == [
        ("base", "c2"),
        ("ngram", "c1"),
        ("ngram", "c2"),
    ]


def test_a_recorded_failure_is_not_retried(planned: Callable[..., Matrix]) -> None:
    matrix = planned("0.3.8")
    record(matrix, OLD / "0_3_8_http500_all.json")
    assert plan.retry_targets(cells.read(matrix)) == []


def test_a_job_keeps_what_is_recorded(
    planned: Callable[..., Matrix], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = planned("0.4.0")
    (kept,) = record(matrix, CASES / "llama_benchy" / "ok.json").values()
    target = synthetic.cell(matrix, "base", "d0-c1")
    asked = ["--campaign", "toy", "--variant", "base", "--boot", "b1", "--instrument", "llama_benchy"]
    monkeypatch.setattr(
        "sys.argv", ["campaign.cell", *asked, "--point", target.point, "--out", str(target.path)]
    )
    monkeypatch.setattr(cell.engine, "hold", None)
    assert cell.main() == 0
    assert Outcome.read(target.path) == kept


def test_the_command_tells_what_it_recorded(
    planned: Callable[..., Matrix], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned("0.3.8")
    where = ["--campaign", "toy", "--variant", "base", "--boot", "b1"]
    monkeypatch.setattr("sys.argv", ["recorded", *where, "--llama-benchy", str(OLD / "0_3_8_short.json")])
    assert recorded.main() == 0
    said = capsys.readouterr().out
    assert "pp64-tg16-d0-c1.json: recorded, invalid: an answer stopped short of the asked tokens" in said


@pytest.mark.workflow
def test_a_run_makes_the_report_around_what_is_recorded_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    work = Workspace(tmp_path / "work", tmp_path / "state")
    work.campaigns["demo"] |= {"variants": {"base": {}}, "order": ["base"], "instruments": [block("0.4.0")]}
    work.write()
    where = ["--campaign", "demo", "--variant", "base", "--boot", "b1"]
    done = work.python("campaign.recorded", *where, "--llama-benchy", str(CASES / "llama_benchy" / "ok.json"))
    assert done.returncode == 0, done.stderr
    path = work.root / "results/demo/base/b1/llama_benchy/pp64-tg16-d0-c1.json"
    kept = path.read_text()
    work.run()
    assert path.read_text() == kept
    assert "All figures of this table are recorded" in (work.root / "reports/demo.md").read_text()
    assert work.run("--dry-run") == []

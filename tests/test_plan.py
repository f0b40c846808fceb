"""What the plan says before a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic
from campaign import cells, plan
from campaign.matrix import Matrix
from campaign.outcome import Fingerprint


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    monkeypatch.chdir(tmp_path)
    return synthetic.campaign()


def boots(work: plan.Work) -> list[str]:
    return [f"{b.boot.variant}/{b.boot.name}" for b in work.boots]


def test_nothing_measured_yet_needs_every_boot_that_is_not_blocked(toy: Matrix) -> None:
    results = cells.read(toy)
    work = plan.next_run(results)
    assert boots(work) == ["base/b1", "ngram/b1", "base/b2"]
    assert len(work.cells) == 18
    assert plan.estimate(results, work) == plan.Estimate(0.0, 3, 18)
    assert "time unknown" in plan.text(results)
    assert "never booted: later" in plan.text(results)


def test_nothing_to_do(toy: Matrix) -> None:
    synthetic.run_all(toy)
    results = cells.read(toy)
    assert plan.next_run(results) == plan.Work((), ())
    assert plan.retry_targets(results) == []
    assert "next run: nothing to measure" in plan.text(results)


def test_a_deleted_cell_needs_one_boot_and_itself(toy: Matrix) -> None:
    synthetic.run_all(toy)
    target = synthetic.cell(toy, "base", "d0-c1", "b2")
    target.path.unlink()
    results = cells.read(toy)
    work = plan.next_run(results)
    assert (boots(work), [c.path for c in work.cells]) == (["base/b2"], [target.path])
    assert plan.estimate(results, work) == plan.Estimate(30.0 + 60.0, 0, 0)
    assert "next run: 1 boot, 1 cell, about 90 s" in plan.text(results)


def test_a_stale_boot_takes_all_its_cells_along(toy: Matrix) -> None:
    synthetic.run_all(toy)
    variants = {**synthetic.CAMPAIGN["variants"], "ngram": {"label": "n-gram", "flags": {"-c": 1024}}}
    changed = synthetic.campaign(variants=variants)
    work = plan.next_run(cells.read(changed))
    assert (boots(work), len(work.cells)) == (["ngram/b1"], 6)


def test_a_missing_boot_record_takes_cells_along_only_when_one_of_them_is_needed(toy: Matrix) -> None:
    synthetic.run_all(toy)
    toy.boot("base", "b1").path.unlink()
    assert plan.next_run(cells.read(toy)).boots == ()
    synthetic.cell(toy, "base", "d0-c1").path.unlink()
    assert len(plan.next_run(cells.read(toy)).cells) == 6


def test_retry_forces_failed_and_not_run_cells_and_a_plain_run_leaves_them(toy: Matrix) -> None:
    synthetic.run_all(toy)
    failed, not_run = synthetic.cell(toy, "ngram", "d0-c2"), synthetic.cell(toy, "ngram", "short")
    synthetic.fail(toy, failed, "HTTP 500")
    synthetic.fail(toy, not_run, "no engine", "not_run")
    synthetic.fail(toy, synthetic.cell(toy, "base", "d0-c1"), "prefix cache hit", "invalid")
    results = cells.read(toy)
    assert plan.retry_targets(results) == [failed.path, not_run.path]
    assert plan.next_run(results).cells == ()
    assert (boots(plan.retry(results)), len(plan.retry(results).cells)) == (["ngram/b1"], 2)


def test_retry_of_a_failed_boot_forces_the_boot_alone_since_its_cells_follow(toy: Matrix) -> None:
    synthetic.run_all(toy)
    boot = toy.boot("ngram", "b1")
    synthetic.boot_up(toy, boot, status="failed")
    for cell in toy.cells_of(boot):
        synthetic.fail(toy, cell, "no engine", "not_run")
    results = cells.read(toy)
    assert plan.retry_targets(results) == [boot.path]
    assert len(plan.retry(results).cells) == 6


def test_time_is_at_least_what_has_been_timed(toy: Matrix) -> None:
    boot = toy.boot("base", "b1")
    synthetic.boot_up(toy, boot, boot_s=1800.0)
    synthetic.measure(toy, synthetic.cell(toy, "base", "d0-c1"))
    results = cells.read(toy)
    # b1 and b2 of the baseline are like the timed boot; d0-c1 is timed for two more boots.
    assert plan.estimate(results, plan.next_run(results)) == plan.Estimate(2 * 1800.0 + 2 * 60.0, 1, 15)
    assert "at least 62 min (1 boot and 15 cells never timed yet)" in " ".join(plan.text(results).split())


def test_failed_cells_and_outcomes_without_times_are_not_timed(toy: Matrix) -> None:
    for variant, changes in (("base", {"started": None}), ("ngram", {"status": "failed"})):
        synthetic.measure(toy, synthetic.cell(toy, variant, "d0-c1"), **changes)
    results = cells.read(toy)
    assert plan.estimate(results, plan.next_run(results)).known_s == 0.0


def test_the_grid_has_one_symbol_a_cell_and_fits_the_terminal(toy: Matrix) -> None:
    synthetic.run_all(toy)
    synthetic.fail(toy, synthetic.cell(toy, "ngram", "d4096-c2"), "HTTP 400: " + "too long " * 40)
    synthetic.fail(toy, synthetic.cell(toy, "ngram", "short"), "no engine", "not_run")
    synthetic.cell(toy, "base", "d4096-c1", "b2").path.unlink()
    synthetic.measure(
        toy,
        synthetic.cell(toy, "base", "d4096-c2", "b2"),
        fingerprint=Fingerprint(variant="x", instrument="y"),
    )
    text = plan.text(cells.read(toy))
    grid = {
        tuple(line.split()[:2]): line.split()[2:]
        for line in text.splitlines()
        if " b1 " in line or " b2 " in line
    }
    assert grid["base", "b1"] == ["+", "+", "+", "++++", "+"]
    assert grid["ngram", "b1"] == ["+", "+", "+", "+++x", "-"]
    assert grid["huge", "b1"] == ["b", "b", "b", "bbbb", "b"]
    assert grid["base", "b2"] == ["+", "+", "+", "++.~", "+"]
    assert max(len(line) for line in text.splitlines()) <= plan.WIDTH


def test_the_command(toy: Matrix) -> None:
    synthetic.run_all(toy)
    target = synthetic.cell(toy, "ngram", "d0-c2")
    synthetic.fail(toy, target, "HTTP 500")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "campaign.plan", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run("toy", "--targets", "retry").stdout == f"{target.path}\n"
    data = json.loads(run("toy", "--json").stdout)
    assert {state: number for state, number in data["counts"].items() if number} == {
        "ok": 17,
        "failed": 1,
        "blocked": 6,
    }
    assert data["retry"]["targets"] == [str(target.path)]
    assert data["retry"]["boots"] == ["ngram/b1"]
    gone = run("nosuch")
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "config/campaigns/nosuch.yaml" in gone.stderr


def test_the_plan_starts_without_pandas(toy: Matrix) -> None:
    code = "import sys, campaign.plan; print('pandas' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"

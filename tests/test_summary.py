"""The tidy table and the effective config."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import synthetic
import yaml
from campaign import cells, summary
from campaign.matrix import Matrix
from campaign.outcome import Fingerprint


def rows(plan: Matrix, **wanted: str) -> list[dict[str, str]]:
    found = csv.DictReader(io.StringIO(summary.table(cells.read(plan))))
    return [row for row in found if all(row[key] == value for key, value in wanted.items())]


def test_a_row_a_metric_with_its_single_values(plan: Matrix) -> None:
    [row] = rows(plan, variant="ngram", instrument="probe", metric="ttft_s")
    assert (row["unit"], row["n"], row["median"], row["min"], row["max"]) == ("s", "3", "0.75", "0.7", "0.8")
    assert row["values"] == "0.7 0.75 0.8"
    assert row["boot_id"] == "ngram.b1.1"
    assert Path(row["path"]).exists()


def test_a_cell_without_figures_has_one_row_and_no_number(plan: Matrix) -> None:
    target = synthetic.cell(plan, "base", "d0-c1")
    synthetic.fail(plan, target, "HTTP 500\nsecond line, with a comma")
    [row] = rows(plan, path=target.path.as_posix())
    assert (row["status"], row["reason"]) == ("failed", "HTTP 500 second line, with a comma")
    assert {row[key] for key in ("metric", "n", "median", "min", "max", "values")} == {""}


def test_stale_and_missing_cells_have_no_number(plan: Matrix) -> None:
    stale, missing = (synthetic.cell(plan, "base", point) for point in ("d0-c1", "d0-c2"))
    synthetic.measure(plan, stale, fingerprint=Fingerprint(variant="x", instrument="y"))
    missing.path.unlink()
    for target, status in ((stale, "stale"), (missing, "missing")):
        [row] = rows(plan, path=target.path.as_posix())
        assert (row["status"], row["median"], row["values"]) == (status, "", "")


def test_every_planned_cell_is_there(plan: Matrix) -> None:
    paths = {row["path"] for row in rows(plan)}
    assert {cell.path.as_posix() for cell in plan.cells} <= paths
    assert len(rows(plan, variant="huge", status="blocked")) == 6 + 2


def test_recorded_outcomes_are_marked(plan: Matrix) -> None:
    target = synthetic.cell(plan, "base", "d0-c1")
    synthetic.measure(plan, target, recorded=True)
    assert {row["recorded"] for row in rows(plan, path=target.path.as_posix())} == {"true"}
    assert {row["recorded"] for row in rows(plan, variant="ngram")} == {"false"}


def test_the_effective_config_is_whole_and_hides_secrets(plan: Matrix) -> None:
    text = summary.effective_config(plan)
    data = yaml.safe_load(text)
    assert data["variants"]["ngram"]["flags"] == {"-c": 512, "--spec": True}
    assert data["variants"]["ngram"]["fingerprint"] == plan.variants["ngram"].fingerprint
    assert data["variants"]["huge"]["blocked_by"] == "memory"
    assert data["order"] == ["base/b1", "ngram/b1", "huge/b1", "base/b2"]
    assert data["variants"]["ngram"]["env"] == {"DRAFT": "on"}


def test_the_same_data_give_the_same_bytes(plan: Matrix) -> None:
    assert summary.table(cells.read(plan)) == summary.table(cells.read(plan))
    assert summary.effective_config(plan) == summary.effective_config(plan)

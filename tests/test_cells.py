"""A cell's state: measured, failed, missing, stale, blocked."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic
from campaign import cells
from campaign.cells import Results
from campaign.errors import CampaignError
from campaign.matrix import Matrix
from campaign.outcome import Fingerprint


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Matrix:
    monkeypatch.chdir(tmp_path)
    return synthetic.campaign()


def state(results: Results, variant: str, point: str) -> str:
    return next(
        c.state for c in results.cells if c.cell.boot.variant == variant and c.cell.point.endswith(point)
    )


def test_without_files_cells_are_missing_and_those_of_a_forbidden_variant_blocked(plan: Matrix) -> None:
    results = cells.read(plan)
    assert {c.state for c in results.cells if c.cell.boot.variant != "huge"} == {"missing"}
    blocked = [c for c in results.cells if c.cell.boot.variant == "huge"]
    assert {c.state for c in blocked} == {"blocked"}
    assert blocked[0].reason is not None
    assert blocked[0].reason.summary == "memory: 4,096 cells don't fit."
    assert blocked[0].reason.evidence == "c <= 2048"


def test_an_ok_outcome_of_today_s_config_carries_numbers(plan: Matrix) -> None:
    target = synthetic.cell(plan, "base", "d0-c1")
    synthetic.measure(plan, target)
    record = next(c for c in cells.read(plan).cells if c.cell == target)
    assert record.state == "ok"
    assert record.numbers["tg_tps"].median == 44.94


@pytest.mark.parametrize("part", ["variant", "instrument"])
def test_another_fingerprint_is_stale_and_carries_no_number(plan: Matrix, part: str) -> None:
    target = synthetic.cell(plan, "base", "d0-c1")
    now = {"variant": plan.variants["base"].fingerprint, "instrument": target.fingerprint}
    synthetic.measure(plan, target, fingerprint=Fingerprint(**{**now, part: "0" * 16}))
    record = next(c for c in cells.read(plan).cells if c.cell == target)
    assert (record.state, record.numbers, record.current) == ("stale", {}, None)


def test_a_recorded_outcome_needs_no_fingerprint_and_a_measured_one_does(plan: Matrix) -> None:
    first, second = (synthetic.cell(plan, "base", point) for point in ("d0-c1", "d0-c2"))
    synthetic.measure(plan, first, fingerprint=Fingerprint(), recorded=True)
    synthetic.measure(plan, second, fingerprint=Fingerprint())
    results = cells.read(plan)
    assert state(results, "base", "d0-c1") == "ok"
    assert state(results, "base", "d0-c2") == "stale"


@pytest.mark.parametrize("status", ["failed", "invalid", "unmeasured", "not_run"])
def test_what_is_not_ok_carries_no_number_even_if_the_file_has_some(plan: Matrix, status: str) -> None:
    target = synthetic.cell(plan, "base", "d0-c1")
    synthetic.measure(plan, target, status=status)
    record = next(c for c in cells.read(plan).cells if c.cell == target)
    assert (record.state, record.numbers) == (status, {})


def test_a_file_of_another_cell_is_refused(plan: Matrix) -> None:
    source, target = synthetic.cell(plan, "base", "d0-c1"), synthetic.cell(plan, "base", "d0-c1", "b2")
    synthetic.measure(plan, source)
    target.path.parent.mkdir(parents=True)
    target.path.write_bytes(source.path.read_bytes())
    with pytest.raises(CampaignError, match=r"b2/llama_benchy/.*another cell \(b1 instead of b2\)"):
        cells.read(plan)


def test_groups_gather_cells_of_one_boot_and_reason(plan: Matrix) -> None:
    for point in ("d0-c1", "d0-c2"):
        synthetic.fail(plan, synthetic.cell(plan, "ngram", point), "HTTP 500")
    synthetic.fail(plan, synthetic.cell(plan, "ngram", "d4096-c1"), "HTTP 400")
    found = [
        (len(g.cells), g.reason and g.reason.summary) for g in cells.groups(cells.read(plan), ["failed"])
    ]
    assert found == [(2, "HTTP 500"), (1, "HTTP 400")]


def test_joining_is_linear_in_the_number_of_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def cost(boots: int) -> int:
        depths = list(range(0, 100 * 50, 50))
        plan = synthetic.campaign(
            order=["base"] * boots, instruments=[{"instrument": "llama_benchy", "depth": depths}]
        )
        assert len(plan.cells) == 100 * boots
        return synthetic.calls_of(lambda: cells.groups(cells.join(plan, {}, []), ["missing"]))

    cost(1)
    assert cost(40) < 5 * cost(10)

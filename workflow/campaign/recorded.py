"""Results that a person already has, brought into a campaign as recorded outcomes.

    python -m campaign.recorded --campaign NAME --variant V --boot b1 --llama-benchy FILE.json

Each row of llama-benchy's JSON becomes the outcome of the planned cell that it belongs to, judged as a
measured one is: a bad row is recorded as what it is, never as a number. It is all rows or none.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from campaign import benchy_rows
from campaign.errors import CampaignError, run
from campaign.files import read_json, sha256_of, write_text
from campaign.llama_benchy import NAME, RESULT
from campaign.matrix import Boot, Cell, Matrix, load
from campaign.outcome import Fingerprint, Measurement, Outcome, now
from campaign.settings import BenchyBlock, BenchyPoint

VERSIONS = get_args(BenchyBlock.model_fields["version"].annotation)


class Column(BaseModel):
    """One quantity of a row: a value a run or a request."""

    values: list[float]


class Row(BaseModel):
    """One point of a result, as 0.3.7 to 0.4.0 save it; what was not measured is null."""

    concurrency: int
    context_size: int
    prompt_size: int
    response_size: int
    is_context_prefill_phase: bool
    pp_throughput: Column | None
    pp_req_throughput: Column | None
    tg_throughput: Column | None
    tg_req_throughput: Column | None
    peak_throughput: Column | None
    peak_req_throughput: Column | None
    ttfr: Column | None
    est_ppt: Column | None
    e2e_ttft: Column | None

    @property
    def name(self) -> str:
        """The row as paths name its point."""
        phase = " (context prefill)" if self.is_context_prefill_phase else ""
        sizes = f"pp{self.prompt_size}-tg{self.response_size}-d{self.context_size}-c{self.concurrency}"
        return sizes + phase


class Result(BaseModel):
    """What llama-benchy saves with --format json."""

    version: str
    timestamp: str
    latency_mode: str
    model: str
    prefix_caching_enabled: bool
    benchmarks: list[Row]


def llama_benchy(plan: Matrix, boot: Boot, file: Path) -> list[tuple[Cell, Outcome]]:
    """The outcomes of the boot's cells that the file's rows come to, none of them written yet.

    Raises CampaignError when the file is no such result, or of a version, mode or row that isn't planned, and
    when a cell already has an outcome.
    """
    data = read_json(file)
    result = _result(data, file)
    planned = {
        cell.point: (cell, cell.settings)
        for cell in plan.cells_of(boot)
        if isinstance(cell.settings, BenchyPoint)
    }
    found: dict[Cell, Outcome] = {}
    for number, row in enumerate(result.benchmarks):
        where = f"{file}: benchmarks.{number}"
        if row.name not in planned:
            raise CampaignError(
                f"{where}: {row.name} is no llama_benchy point that {plan.file} plans for {boot.variant} "
                f"{boot.name}; plan it, or take the row out."
            )
        cell, point = planned[row.name]
        if cell in found:
            raise CampaignError(f"{where}: is a second row of {cell.point}; leave one.")
        _check(result, row, cell, point, where)
        measured = benchy_rows.judge(data, [], point, speculates=plan.variants[boot.variant].speculates)
        found[cell] = _outcome(plan, cell, result, file, measured)
    return list(found.items())


def write(file: Path, found: Sequence[tuple[Cell, Outcome]]) -> None:
    """Write the outcomes at their cells' paths, each with the file beside it as its raw result."""
    text = file.read_text(encoding="utf-8")
    for cell, outcome in found:
        write_text(_raw(cell), text)
        outcome.write(cell.path)


def _result(data: Any, file: Path) -> Result:
    try:
        result = Result.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise CampaignError(
            f"{file} is no result of llama-benchy ({at}: {first['msg']}); give what --format json saved."
        ) from None
    if result.version not in VERSIONS:
        known = ", ".join(VERSIONS)
        raise CampaignError(f"{file}: version: {result.version} can't be read; results of {known} can.")
    if result.prefix_caching_enabled:
        raise CampaignError(
            f"{file}: prefix_caching_enabled: the run was not cold; the campaign's points are."
        )
    if not result.benchmarks:
        raise CampaignError(f"{file}: benchmarks: is empty, so there is nothing to record.")
    return result


def _check(result: Result, row: Row, cell: Cell, point: BenchyPoint, where: str) -> None:
    """Raises CampaignError unless the row was made as its cell is planned and the cell is still empty."""
    for key, is_, planned in (
        ("version", result.version, point.version),
        ("latency_mode", result.latency_mode, point.latency_mode),
    ):
        if is_ != planned:
            raise CampaignError(
                f"{where}: {key}: {is_} differs from {planned}, which the campaign plans for {cell.point}; "
                "correct the plan, or leave the row out."
            )
    runs = len(row.pp_throughput.values) if row.pp_throughput else 0
    if runs > point.runs:
        raise CampaignError(
            f"{where}: has {runs} runs, the plan of {cell.point} {point.runs}; correct the plan."
        )
    if cell.path.exists():
        kind = "recorded" if Outcome.read(cell.path).recorded else "measured"
        raise CampaignError(
            f"{where}: {cell.path} already holds a {kind} outcome; delete it first if this one is to stand."
        )


def _outcome(plan: Matrix, cell: Cell, result: Result, file: Path, measured: Measurement) -> Outcome:
    other_model = result.model != plan.lane.model.name
    return Outcome(
        campaign=plan.name,
        variant=cell.boot.variant,
        boot=cell.boot.name,
        instrument=cell.instrument,
        point=cell.point,
        status=measured.status,
        reason=measured.reason,
        metrics=measured.metrics,
        flags=[*measured.flags, *(["other_model_name"] if other_model else [])],
        # The variant must still be the one that was recorded; our own way of driving had no part in it.
        fingerprint=Fingerprint(variant=plan.variants[cell.boot.variant].fingerprint),
        ended=_ended(result.timestamp),
        recorded=True,
        raw=[str(_raw(cell))],
        provenance={
            "instrument_version": f"{NAME} {result.version}",
            "harness": NAME,
            "harness_version": result.version,
            "model": result.model,
            "source": file.name,
            "source_sha256": sha256_of(file),
            "imported": now(),
        },
        details=measured.details,
    )


def _raw(cell: Cell) -> Path:
    return cell.path.with_suffix(".raw") / RESULT


def _ended(timestamp: str) -> str | None:
    """llama-benchy's time of saving ("2026-09-14 09:30:00Z") as outcomes write it; None for another form."""
    try:
        when = datetime.strptime(timestamp, "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def main() -> int:
    """Record the rows of one llama-benchy result as outcomes of one boot of a campaign."""
    parser = argparse.ArgumentParser(prog="python -m campaign.recorded", description=main.__doc__)
    parser.add_argument("--campaign", required=True, help="a file under config/campaigns, without .yaml")
    parser.add_argument("--variant", required=True, help="the variant that was measured")
    parser.add_argument("--boot", required=True, help="b1, b2, …")
    parser.add_argument("--llama-benchy", required=True, type=Path, metavar="FILE", help="the saved JSON")
    given = parser.parse_args()
    plan = load(given.campaign)
    found = llama_benchy(plan, plan.boot(given.variant, given.boot), given.llama_benchy)
    write(given.llama_benchy, found)
    for cell, outcome in found:
        told = f": {outcome.reason.summary}" if outcome.reason else ""
        print(f"{cell.path}: recorded, {outcome.status}{told}")
    return 0


if __name__ == "__main__":
    run(main)

"""The tidy table of a campaign and its effective config: `python -m campaign.summary`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import yaml

from campaign import cells, errors, matrix
from campaign.cells import CellRecord, Record, Results
from campaign.files import write_text
from campaign.matrix import Boot, Matrix
from campaign.outcome import Metric, Reason

COLUMNS = [
    "campaign", "variant", "label", "boot", "instrument", "point", "status", "reason_class", "reason",
    "metric", "unit", "n", "median", "min", "max", "values", "recorded", "flags", "boot_id",
    "started", "ended", "path",
]  # fmt: skip


def table(results: Results) -> str:
    """The results as CSV, one row a metric of an ok cell, and one row for every other cell.

    `values` holds the single values with spaces between; only ok outcomes that are not stale carry
    numbers, so that no reader averages over a failure.
    """
    frame = pandas.DataFrame(_rows(results), columns=COLUMNS, dtype=object)
    return str(frame.to_csv(index=False, lineterminator="\n"))


def effective_config(plan: Matrix) -> str:
    """What the campaign's files come to, as YAML: every variant in full, the order and the points."""
    served = plan.lane
    data = {
        "campaign": plan.name,
        "title": plan.campaign.title,
        "baseline": plan.campaign.baseline,
        "lane": {"name": plan.campaign.lane, **_lane_of(served.model_dump(mode="json"))},
        "venue": {"name": plan.campaign.venue, **plan.venue.model_dump(mode="json")},
        "order": [f"{boot.variant}/{boot.name}" for boot in plan.boots],
        "variants": {
            variant.name: {
                "label": variant.label,
                "fingerprint": variant.fingerprint,
                "blocked_by": variant.blocked.name if variant.blocked else None,
                "flags": variant.flags,
                "env": variant.env,
            }
            for variant in plan.variants.values()
        },
        "instruments": _instruments(plan),
    }
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)


def _lane_of(lane: dict[str, Any]) -> dict[str, Any]:
    """The lane's keys that are the same for every variant; a path of this machine is none of them."""
    kept = {key: value for key, value in lane.items() if key not in ("flags", "env")}
    kept["model"] = {key: value for key, value in kept["model"].items() if key != "path"}
    return kept


def _instruments(plan: Matrix) -> dict[str, Any]:
    points: dict[str, Any] = {}
    for cell in plan.cells:
        settings = cell.settings.model_dump(mode="json")
        points.setdefault(cell.instrument, {}).setdefault(
            cell.point, {"fingerprint": cell.fingerprint, **settings}
        )
    return points


def _rows(results: Results) -> Iterator[dict[str, Any]]:
    for boot in results.boots:
        yield from _rows_of(results, boot.boot, "boot", "", boot.record)
        yield from _rows_of(results, boot.boot, "warm_up", "", boot.warm_up)
        for cell in boot.cells:
            yield from _rows_of(results, boot.boot, cell.cell.instrument, cell.cell.point, cell)


def _rows_of(
    results: Results, boot: Boot, instrument: str, point: str, record: Record
) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {
        "campaign": boot.campaign,
        "variant": boot.variant,
        "label": results.matrix.variants[boot.variant].label,
        "boot": boot.name,
        "instrument": instrument,
        "point": point,
        "status": record.state,
        "recorded": str(record.recorded).lower(),
        "path": record.path.as_posix(),
        **_told(record),
    }
    if not record.numbers:
        yield row
    for name, metric in record.numbers.items():
        yield {**row, "metric": name, **_numbers(metric)}


def _told(record: Record) -> dict[str, Any]:
    outcome = record.current
    reason: Reason | None = record.reason if isinstance(record, CellRecord) else None
    if reason is None and outcome is not None:
        reason = outcome.reason
    told = {"reason_class": reason.cls, "reason": " ".join(reason.summary.split())} if reason else {}
    if outcome is None:
        return told
    return {
        **told,
        "flags": " ".join(outcome.flags),
        "boot_id": outcome.provenance.get("boot_id") or "",
        "started": outcome.started or "",
        "ended": outcome.ended or "",
    }


def _numbers(metric: Metric) -> dict[str, Any]:
    return {
        "unit": metric.unit,
        "n": len(metric.values),
        "median": "" if metric.median is None else metric.median,
        "min": min(metric.values, default=""),
        "max": max(metric.values, default=""),
        "values": " ".join(repr(value) for value in metric.values),
    }


def main() -> int:
    """Write the tidy table and the effective config of one campaign."""
    parser = argparse.ArgumentParser(prog="python -m campaign.summary", description=__doc__)
    parser.add_argument("--campaign", required=True, help="a file under config/campaigns, without .yaml")
    parser.add_argument("--csv", required=True, type=Path, help="where the tidy table is written")
    parser.add_argument("--config", required=True, type=Path, help="where the effective config is written")
    args = parser.parse_args()
    plan = matrix.load(args.campaign)
    write_text(args.csv, table(cells.read(plan)))
    write_text(args.config, effective_config(plan))
    return 0


if __name__ == "__main__":
    errors.run(main)

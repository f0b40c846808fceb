"""What a run would do, read from the results: `python -m campaign.plan CAMPAIGN`."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from tabulate import tabulate

from campaign import cells, errors, format, matrix
from campaign.cells import RETRIED, STALE, UNDONE, UNREADABLE, BootRecord, CellRecord, Record, Results, State
from campaign.markdown import one_line
from campaign.matrix import Boot
from campaign.outcome import Status

WIDTH = 100
SYMBOLS: dict[State, tuple[str, str]] = {
    "ok": ("+", "measured"),
    "failed": ("x", "failed"),
    "invalid": ("!", "invalid"),
    "unmeasured": ("?", "unmeasured"),
    "blocked": ("b", "blocked"),
    "not_run": ("-", "not run"),
    "stale": ("~", "stale"),
    "missing": (".", "missing"),
}
RECORDED = ("r", "recorded")
"""In place of "measured": an ok outcome that was typed in or imported."""
STATES: tuple[State, ...] = (*get_args(Status), "stale", "missing")
UNPLANNED = "/"


@dataclass(frozen=True)
class Work:
    """The boots and cells that one run makes, in order."""

    boots: tuple[BootRecord, ...]
    cells: tuple[CellRecord, ...]


@dataclass(frozen=True)
class Estimate:
    """Seconds of the work whose like has been timed, and how many boots and cells have no such like."""

    known_s: float
    unknown_boots: int
    unknown_cells: int

    def __str__(self) -> str:
        unknown = [
            format.plural(number, noun)
            for number, noun in ((self.unknown_boots, "boot"), (self.unknown_cells, "cell"))
            if number
        ]
        if not unknown:
            return f"about {format.duration(self.known_s)}" if self.known_s else "no time"
        if not self.known_s:
            return "time unknown, nothing like it has been timed yet"
        return f"at least {format.duration(self.known_s)} ({' and '.join(unknown)} never timed yet)"


def next_run(results: Results) -> Work:
    """What a plain run makes: cells that are missing or stale, and the boots that they need."""
    return _work(results, retry=False)


def retry(results: Results) -> Work:
    """What a retry makes: a plain run's work, and every failed or not_run cell again."""
    return _work(results, retry=True)


def retry_targets(results: Results) -> list[Path]:
    """Files to force: each failed, not_run or unreadable cell; the boot or warm-up where that is all of it.

    A recorded failure is none of them: measuring doesn't replace what a person recorded.
    """
    targets: list[Path] = []
    for boot in results.boots:
        head = next((r for r in (boot.record, boot.warm_up) if r.state in RETRIED), None)
        again = [cell.path for cell in boot.cells if _again(cell) and not _kept(cell)]
        targets += [head.path] if head and len(again) == len(boot.cells) else again
    return targets


def stale_targets(results: Results) -> list[Path]:
    """Files to force because they are of another config or can't be read, whatever Snakemake remembers."""
    targets: list[Path] = []
    for boot in results.boots:
        found = [cell for cell in boot.cells if cell.state == STALE or _unreadable(cell)]
        stale = [cell.path for cell in found if not _kept(cell)]
        targets += [boot.record.path] if boot.record.state == STALE else stale
    return targets


TARGETS = {"retry": retry_targets, "stale": stale_targets}


def _again(cell: CellRecord) -> bool:
    return cell.state in RETRIED or _unreadable(cell)


def _unreadable(cell: CellRecord) -> bool:
    return cell.reason is not None and cell.reason.cls == UNREADABLE


def estimate(results: Results, work: Work) -> Estimate:
    """Median times of earlier boots of the variant and of earlier cells of the same instrument and point."""
    boot_s: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in results.attempts:
        if attempt.ready and attempt.boot_s is not None:
            boot_s[attempt.variant].append(attempt.boot_s)
    cell_s: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
    for record in results.records:
        took = _elapsed(record)
        if took is not None and record.outcome is not None:
            cell_s[record.outcome.instrument, record.outcome.point].append(took)
    boot_medians = {variant: statistics.median(values) for variant, values in boot_s.items()}
    cell_medians = {key: statistics.median(values) for key, values in cell_s.items()}
    warm_up_s = cell_medians.get(("warm_up", None), 0.0)
    boots = [boot_medians.get(boot.boot.variant) for boot in work.boots]
    timed = [cell_medians.get((cell.cell.instrument, cell.cell.point)) for cell in work.cells]
    known = sum(s + warm_up_s for s in boots if s is not None) + sum(s for s in timed if s is not None)
    return Estimate(known, boots.count(None), timed.count(None))


def text(results: Results) -> str:
    """The plan as plain text of at most 100 columns."""
    counts = Counter(_symbol(cell) for cell in results.cells)
    told = ", ".join(f"{counts[mark]:,} {mark[1]}" for mark in _marks(results) if counts[mark])
    parts = [
        f"{results.matrix.name}: {format.plural(len(results.cells), 'cell')} planned: {told or 'none'}",
        _grid(results),
        _reasons(results),
        _prospect(results),
    ]
    return "\n\n".join(part for part in parts if part)


def as_json(results: Results) -> dict[str, Any]:
    """The same as plain data."""
    counts = Counter(cell.state for cell in results.cells)
    return {
        "campaign": results.matrix.name,
        "counts": {state: counts[state] for state in STATES},
        "never_booted": results.matrix.planned,
        "boots": [{"path": str(b.boot.path), "state": b.record.state} for b in results.boots],
        "cells": [
            {
                "path": str(c.path),
                "state": c.state,
                "recorded": c.recorded,
                "reason": c.reason.summary if c.reason else None,
            }
            for c in results.cells
        ],
        "next_run": _work_json(results, next_run(results)),
        "retry": {
            **_work_json(results, retry(results)),
            "targets": [str(path) for path in retry_targets(results)],
        },
    }


def _work(results: Results, retry: bool) -> Work:
    boots: list[BootRecord] = []
    made: list[CellRecord] = []
    for boot in results.boots:
        if boot.boot.blocked:
            continue
        wanted: tuple[State, ...] = (*UNDONE, *RETRIED) if retry else UNDONE
        ours = [cell for cell in boot.cells if not _kept(cell)]
        again = [cell for cell in ours if cell.state in wanted]
        chain = (boot.record.state, boot.warm_up.state)
        # A new boot.json or warm_up.json makes every cell of the boot follow.
        follows = "stale" in chain or (retry and any(state in RETRIED for state in chain))
        if follows or (again and "missing" in chain):
            again = ours
        # Snakemake asks for the records of every boot, of one whose cells are all recorded too.
        if again or (boot.cells and not ours and "missing" in chain):
            boots.append(boot)
            made += again
    return Work(tuple(boots), tuple(made))


def _kept(record: Record) -> bool:
    """A recorded outcome, a stale one too, stands until it is deleted by hand."""
    return record.outcome is not None and record.outcome.recorded


def _elapsed(record: Record) -> float | None:
    outcome = record.outcome
    if outcome is None or outcome.status != "ok" or not outcome.started or not outcome.ended:
        return None
    try:
        took = datetime.fromisoformat(outcome.ended) - datetime.fromisoformat(outcome.started)
    except (ValueError, TypeError):
        return None
    return took.total_seconds()


def _symbol(record: CellRecord) -> tuple[str, str]:
    return RECORDED if record.recorded and record.state == "ok" else SYMBOLS[record.state]


def _marks(results: Results) -> list[tuple[str, str]]:
    """The symbols with their words; recorded is among them only where there is such a cell."""
    found = any(record.recorded for record in results.cells)
    ok, *rest = (SYMBOLS[state] for state in STATES)
    return [ok, *([RECORDED] if found else []), *rest]


def _points(results: Results) -> dict[str, list[str]]:
    """The points of each instrument, in the order of their first use."""
    points: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for cell in results.cells:
        points[cell.cell.instrument][cell.cell.point] = None
    return {instrument: list(names) for instrument, names in points.items()}


def _grid(results: Results) -> str:
    points = _points(results)
    rows = []
    for boot in results.boots:
        states = {(c.cell.instrument, c.cell.point): _symbol(c)[0] for c in boot.cells}
        rows.append(
            [
                f"{boot.boot.variant} {boot.boot.name}",
                SYMBOLS[boot.record.state][0],
                SYMBOLS[boot.warm_up.state][0],
                *(
                    "".join(states.get((instrument, point), UNPLANNED) for point in names)
                    for instrument, names in points.items()
                ),
            ]
        )
    headers = ["variant", "boot", "warm_up", *points]
    share = max(12, (WIDTH - 34 - 15) // max(1, len(points)) - 2)
    widths = [32, None, None, *[share] * len(points)]
    legend = "  ".join(f"{symbol} {word}" for symbol, word in _marks(results))
    keys = [f"{name}, left to right: {', '.join(points[name])}" for name in points]
    return "\n".join([_table(headers, rows, widths), "", legend, *(_wrapped(key) for key in keys)])


def _reasons(results: Results) -> str:
    told = [state for state in STATES if state not in ("ok", "missing")]
    rows = [
        [
            SYMBOLS[group.state][1],
            f"{group.boot.variant} {group.boot.name}",
            _cells_in_words(group.cells),
            one_line(group.reason.summary, 160) if group.reason else _why(group.state),
        ]
        for group in cells.groups(results, told)
    ]
    return _table(["state", "variant", "cells", "reason"], rows, [None, 22, 26, 34]) if rows else ""


def _why(state: State) -> str:
    return "measured with another config" if state == "stale" else "no reason given"


def _cells_in_words(records: Iterable[CellRecord]) -> str:
    names = [f"{record.cell.instrument} {record.cell.point}" for record in records]
    return names[0] if len(names) == 1 else f"{len(names):,} cells, first {names[0]}"


def _prospect(results: Results) -> str:
    lines = [_promise("next run", results, next_run(results))]
    if retry_targets(results):
        lines.append(_promise("with retry", results, retry(results)))
    lines += [f"never booted: {name} is in no order" for name in results.matrix.planned]
    return "\n".join(_wrapped(line) for line in lines)


def _promise(name: str, results: Results, work: Work) -> str:
    if not work.boots:
        return f"{name}: nothing to measure"
    boots, made = format.plural(len(work.boots), "boot"), format.plural(len(work.cells), "cell")
    return f"{name}: {boots}, {made}, {estimate(results, work)}"


def _work_json(results: Results, work: Work) -> dict[str, Any]:
    time = estimate(results, work)
    return {
        "boots": [_boot_name(boot.boot) for boot in work.boots],
        "cells": [str(cell.path) for cell in work.cells],
        "known_s": round(time.known_s, 3),
        "untimed_boots": time.unknown_boots,
        "untimed_cells": time.unknown_cells,
    }


def _boot_name(boot: Boot) -> str:
    return f"{boot.variant}/{boot.name}"


def _table(headers: list[str], rows: list[list[str]], widths: list[int | None]) -> str:
    return tabulate(rows, headers=headers, disable_numparse=True, maxcolwidths=widths)


def _wrapped(line: str) -> str:
    words, lines = line.split(" "), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(f"    {word}")
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return "\n".join(lines)


def main() -> int:
    """Print the plan, or with --targets the files that `snakemake --forcerun` should make again."""
    parser = argparse.ArgumentParser(prog="python -m campaign.plan", description=__doc__)
    parser.add_argument("campaign", help="a file under config/campaigns, without .yaml")
    parser.add_argument("--targets", choices=list(TARGETS), help="print only these files, one a line")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    args = parser.parse_args()
    results = cells.read(matrix.load(args.campaign))
    if args.targets:
        for path in TARGETS[args.targets](results):
            print(path)
    elif args.json:
        print(json.dumps(as_json(results), indent=1, ensure_ascii=False))
    else:
        print(text(results))
    return 0


if __name__ == "__main__":
    errors.run(main)

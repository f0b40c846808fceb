"""One cell from beginning to end: attach or boot, measure, write the outcome, whatever happened.

A measured failure is an outcome and exit status 0; another status means that the harness itself is broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

from campaign import engine, lane, lease, machine
from campaign.errors import CampaignError, run
from campaign.instruments import measure, version_of
from campaign.matrix import Boot, Cell, Matrix, load
from campaign.outcome import Fingerprint, Measurement, Outcome, Reason, now
from campaign.process import ProcessId

WATCH_S = 0.5


def boot_outcome(matrix: Matrix, boot: Boot) -> Outcome:
    """Boot afresh and say how it went; metric boot_s, seconds from start to the first token."""
    started = now()
    blocked = _blocked(matrix, boot)
    if blocked is not None:
        return _outcome(matrix, boot, "boot", None, blocked, started)
    with engine.hold(matrix, boot) as room:
        try:
            running = engine.start(room, "the plan's boot")
        except engine.BootFailed as failure:
            measured = Measurement(status="failed", reason=failure.reason, details=_boot_id(failure.boot_id))
            return _outcome(matrix, boot, "boot", None, measured, started)
    metrics = {"boot_s": {"unit": "s", "values": [running.boot_s], "median": running.boot_s}}
    measured = Measurement.model_validate(
        {"status": "ok", "metrics": metrics, "details": {"facts": running.facts, "attempts": running.attempt}}
    )
    return _outcome(matrix, boot, "boot", None, measured, started, running)


def warm_up_outcome(matrix: Matrix, boot: Boot) -> Outcome:
    """Warm up the engine of this boot, booting it again if it is gone."""
    return _on_engine(matrix, boot, "warm_up", None)


def cell_outcome(matrix: Matrix, cell: Cell) -> Outcome:
    """Measure one point on the engine of its boot."""
    return _on_engine(matrix, cell.boot, cell.instrument, cell)


def _on_engine(matrix: Matrix, boot: Boot, instrument: str, cell: Cell | None) -> Outcome:
    started = now()
    blocked = _blocked(matrix, boot)
    if blocked is not None:
        return _outcome(matrix, boot, instrument, cell, blocked, started)
    with engine.hold(matrix, boot) as room:
        try:
            running = _attached(room) if cell is None else engine.ensure(room)
        except engine.BootFailed as failure:
            reason = failure.reason.model_copy(update={"summary": f"no engine: {failure.reason.summary}"})
            measured = Measurement(status="not_run", reason=reason, details=_boot_id(failure.boot_id))
            return _outcome(matrix, boot, instrument, cell, measured, started)
        started = now()
        if cell is None:
            measured = engine.warm(room, running)
        else:
            measured = _placed(cell, measure(cell, running.endpoint, matrix, _aside(cell)))
        dead = engine.death(room)
    if dead is not None:
        measured = Measurement(
            status="failed",
            reason=dead.model_copy(update={"summary": f"the engine died during the cell: {dead.summary}"}),
            raw=measured.raw,
            details={"before_death": measured.model_dump(mode="json", by_alias=True, exclude={"raw"})},
        )
    return _outcome(matrix, boot, instrument, cell, measured, started, running)


def _attached(room: engine.Room) -> engine.Running:
    return engine.attach(room) or engine.start(room, "the warm-up needs it")


def _blocked(matrix: Matrix, boot: Boot) -> Measurement | None:
    constraint = matrix.variants[boot.variant].blocked
    if constraint is None:
        return None
    reason = {
        "class": "constraint",
        "summary": f"{constraint.name}: {constraint.reason}",
        "evidence": constraint.expression,
    }
    return Measurement(status="blocked", reason=Reason.model_validate(reason))


def _outcome(
    matrix: Matrix,
    boot: Boot,
    instrument: str,
    cell: Cell | None,
    measured: Measurement,
    started: str,
    running: engine.Running | None = None,
) -> Outcome:
    variant = matrix.variants[boot.variant]
    provenance: dict[str, Any] = {
        "run": lease.owner()[1],
        "boot_id": running.boot_id if running else measured.details.get("boot_id"),
        "command": lane.command_template(matrix.lane, variant.flags),
        "packages": lane.identity(matrix.lane, variant.flags, variant.env)["packages"],
        "instrument_version": version_of(instrument, cell),
        "client": machine.describe(),
        **measured.provenance,
    }
    return Outcome(
        campaign=matrix.name,
        variant=boot.variant,
        boot=boot.name,
        instrument=instrument,
        point=cell.point if cell else None,
        status=measured.status,
        reason=measured.reason,
        metrics=measured.metrics,
        flags=measured.flags,
        fingerprint=Fingerprint(variant=variant.fingerprint, instrument=cell.fingerprint if cell else None),
        started=started,
        ended=now(),
        raw=measured.raw,
        provenance=provenance,
        passes=measured.passes,
        details=measured.details,
    )


def _boot_id(boot_id: str | None) -> dict[str, Any]:
    return {"boot_id": boot_id} if boot_id else {}


def _placed(cell: Cell, measured: Measurement) -> Measurement:
    """The paths that an instrument gives beside its cell, as seen from the working directory."""

    def placed(name: str) -> str:
        inside = Path(name).relative_to(_aside_path(cell).name)
        return str(_raw(cell) / inside)

    reason = measured.reason
    if reason is not None and reason.log is not None:
        reason = reason.model_copy(update={"log": placed(reason.log)})
    return measured.model_copy(update={"reason": reason, "raw": [placed(name) for name in measured.raw]})


def _raw(cell: Cell) -> Path:
    return cell.path.with_suffix(".raw")


def _aside_path(cell: Cell) -> Path:
    return cell.path.with_suffix(".raw-new")


def _aside(cell: Cell) -> Path:
    """Where the raw files of a measurement go until its outcome stands; the old one's are still evidence."""
    aside = _aside_path(cell)
    shutil.rmtree(aside, ignore_errors=True)
    return aside


def _keep_raw(cell: Cell) -> None:
    aside = _aside_path(cell)
    if aside.exists():
        shutil.rmtree(_raw(cell), ignore_errors=True)
        aside.rename(_raw(cell))


def _worse_than(path: Path, outcome: Outcome) -> Outcome | None:
    """The good outcome of this cell that a missing engine must not replace, with a note of the attempt."""
    if outcome.status != "not_run":
        return None
    try:
        found = Outcome.read(path)
    except CampaignError:
        return None
    if found.status != "ok" or found.fingerprint != outcome.fingerprint:
        return None
    reason = outcome.reason.model_dump(by_alias=True) if outcome.reason else None
    found.details["not_measured_again"] = {"at": outcome.ended, "reason": reason}
    return found


def _recorded(path: Path) -> Outcome | None:
    """The recorded outcome that stands at a cell's path: what a person brought in is not measured away."""
    try:
        found = Outcome.read(path)
    except CampaignError:
        return None
    return found if found.recorded else None


def _end_with_owner() -> None:
    """Stop this job when the run that called it is gone: what it would measure, nobody waits for."""
    holder, _ = lease.owner()
    if holder == ProcessId.own():
        return
    wake = threading.Event()

    def watch() -> None:
        while holder.alive():
            wake.wait(WATCH_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    """Command line of the rules boot, warm_up, probe, llama_benchy and tool_eval."""
    parser = argparse.ArgumentParser(prog="campaign.cell", description=main.__doc__)
    parser.add_argument("--campaign", required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--boot", required=True, help="b1, b2, …")
    parser.add_argument("--instrument", required=True)
    parser.add_argument("--point", help="the point's name; none for boot and warm_up")
    parser.add_argument("--fingerprint", help="the identity that the caller planned with")
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args()
    _end_with_owner()
    matrix = load(given.campaign)
    boot = matrix.boot(given.variant, given.boot)
    cell = None
    if given.instrument not in ("boot", "warm_up"):
        cell = matrix.by_key.get((given.variant, given.boot, given.instrument, given.point))
        if cell is None:
            raise CampaignError(
                f"{matrix.file}: instruments: has no point {given.point} of {given.instrument}."
            )
    planned = matrix.identity_of(boot, cell)
    if given.fingerprint not in (None, planned):
        raise CampaignError(f"{matrix.file}, its lane or a package changed after this run began; run again.")
    if (kept := _recorded(given.out)) is not None:
        kept.write(given.out)
        print(f"{given.out}: kept, it is recorded; delete it to measure this cell")
        return 0
    if given.instrument == "boot":
        outcome = boot_outcome(matrix, boot)
    else:
        outcome = warm_up_outcome(matrix, boot) if cell is None else cell_outcome(matrix, cell)
    holder, _ = lease.owner()
    if not holder.alive():
        raise KeyboardInterrupt
    if (kept := _worse_than(given.out, outcome)) is not None:
        kept.write(given.out)
        print(f"{given.out}: kept, since there was no engine: {outcome.reason and outcome.reason.summary}")
        return 0
    if cell is not None:
        _keep_raw(cell)
    outcome.write(given.out)
    told = f": {outcome.reason.summary}" if outcome.reason else ""
    print(f"{given.variant} {given.boot} {given.instrument} {given.point or ''}: {outcome.status}{told}")
    return 0


if __name__ == "__main__":
    run(main)

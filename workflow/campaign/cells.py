"""What is on disk for each planned cell: measured, failed, missing, or stale since the config moved on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from campaign import ledger
from campaign.errors import CampaignError
from campaign.ledger import BootAttempt
from campaign.matrix import Boot, Cell, Matrix
from campaign.outcome import Metric, Outcome, Reason, Status

State = Status | Literal["missing", "stale"]

MISSING: State = "missing"
STALE: State = "stale"
UNREADABLE = "unreadable"
UNDONE: tuple[State, ...] = ("missing", "stale")
STALE_RECORD = Reason(cls="recorded", summary="recorded of another config; delete it to measure this one")
RETRIED: tuple[State, ...] = ("failed", "not_run")


@dataclass(frozen=True)
class Record:
    """One planned file: its state, and the outcome in it where there is one, a stale one included."""

    path: Path
    state: State
    outcome: Outcome | None

    @property
    def numbers(self) -> dict[str, Metric]:
        """The metrics that may be printed: those of an ok outcome that is not stale."""
        return self.outcome.metrics if self.outcome is not None and self.state == "ok" else {}

    @property
    def current(self) -> Outcome | None:
        """The outcome, unless it is stale or of a boot that a constraint now forbids."""
        return self.outcome if self.outcome is not None and self.outcome.status == self.state else None

    @property
    def recorded(self) -> bool:
        """Typed in or imported from an earlier campaign, not measured here."""
        return self.current is not None and self.current.recorded


@dataclass(frozen=True)
class CellRecord(Record):
    """A cell and what it left."""

    cell: Cell
    reason: Reason | None


@dataclass(frozen=True)
class BootRecord:
    """A boot with its own record, its warm-up's and those of its cells in measuring order."""

    boot: Boot
    record: Record
    warm_up: Record
    cells: tuple[CellRecord, ...]


@dataclass(frozen=True)
class Results:
    """A campaign's matrix joined with everything it left on disk."""

    matrix: Matrix
    boots: tuple[BootRecord, ...]
    attempts: tuple[BootAttempt, ...]

    @cached_property
    def cells(self) -> list[CellRecord]:
        """All cells, boot by boot."""
        return [cell for boot in self.boots for cell in boot.cells]

    @property
    def records(self) -> Iterator[Record]:
        """Boots, warm-ups and cells alike, in the order of measuring."""
        for boot in self.boots:
            yield boot.record
            yield boot.warm_up
            yield from boot.cells


@dataclass(frozen=True)
class Group:
    """Cells of one boot that share a state and its reason."""

    boot: Boot
    state: State
    reason: Reason | None
    cells: tuple[CellRecord, ...]


def read(matrix: Matrix) -> Results:
    """Join the matrix with the files under results/. A misplaced one is a CampaignError."""
    expected: dict[Path, tuple[str, str, str, str | None]] = {}
    for boot in matrix.boots:
        expected[boot.path] = (boot.variant, boot.name, "boot", None)
        expected[boot.warm_up_path] = (boot.variant, boot.name, "warm_up", None)
    for cell in matrix.cells:
        expected[cell.path] = (cell.boot.variant, cell.boot.name, cell.instrument, cell.point)
    outcomes: dict[Path, Outcome] = {}
    broken: dict[Path, str] = {}
    for path, identity in expected.items():
        if path.exists():
            try:
                outcomes[path] = Outcome.read(path)
            except CampaignError as error:
                broken[path] = str(error)
            else:
                _check_identity(path, outcomes[path], (matrix.name, *identity))
    return join(matrix, outcomes, ledger.read(matrix.ledger), broken)


def join(
    matrix: Matrix,
    outcomes: Mapping[Path, Outcome],
    attempts: Iterable[BootAttempt],
    broken: Mapping[Path, str] | None = None,
) -> Results:
    """Put each planned file's outcome, or its absence, beside its plan. Linear in the number of cells.

    `broken` says of each file that can't be read why.
    """
    unreadable = broken or {}
    cells: defaultdict[Boot, list[CellRecord]] = defaultdict(list)
    for cell in matrix.cells:
        outcome = outcomes.get(cell.path)
        state = _state(matrix, cell.boot, outcome, cell.fingerprint)
        reason = _reason(matrix, cell, state, outcome)
        if cell.path in unreadable:
            reason = Reason(**{"class": UNREADABLE}, summary=unreadable[cell.path])
        cells[cell.boot].append(CellRecord(cell.path, state, outcome, cell, reason))

    def record(boot: Boot, path: Path) -> Record:
        outcome = outcomes.get(path)
        return Record(path, _state(matrix, boot, outcome, None), outcome)

    boots = [
        BootRecord(b, record(b, b.path), record(b, b.warm_up_path), tuple(cells[b])) for b in matrix.boots
    ]
    return Results(matrix, tuple(boots), tuple(attempts))


def groups(results: Results, states: Iterable[State]) -> list[Group]:
    """The cells in those states, gathered by boot, state and reason, in the order of measuring."""
    wanted = set(states)
    gathered: dict[tuple[Boot, State, str], list[CellRecord]] = {}
    for cell in results.cells:
        if cell.state in wanted:
            told = cell.reason.model_dump_json(exclude={"log"}) if cell.reason else ""
            gathered.setdefault((cell.cell.boot, cell.state, told), []).append(cell)
    return [Group(boot, state, found[0].reason, tuple(found)) for (boot, state, _), found in gathered.items()]


def _state(matrix: Matrix, boot: Boot, outcome: Outcome | None, instrument: str | None) -> State:
    """A constraint speaks for a file that isn't there or is stale: no boot will be spent on it."""
    if outcome is None:
        return "blocked" if boot.blocked else MISSING
    found = outcome.fingerprint
    unlike = _unlike(found.variant, matrix.variants[boot.variant].fingerprint, outcome.recorded)
    if instrument is not None:
        unlike = unlike or _unlike(found.instrument, instrument, outcome.recorded)
    if unlike:
        return "blocked" if boot.blocked else STALE
    return outcome.status


def _unlike(found: str | None, current: str, recorded: bool) -> bool:
    """A recorded outcome without a fingerprint never had one to compare."""
    return found != current and not (recorded and found is None)


def _reason(matrix: Matrix, cell: Cell, state: State, outcome: Outcome | None) -> Reason | None:
    if state in UNDONE:
        return STALE_RECORD if outcome is not None and outcome.recorded else None
    if outcome is not None and outcome.status == state:
        return outcome.reason
    constraint = matrix.variants[cell.boot.variant].blocked
    if constraint is None:
        return None
    summary = f"{constraint.name}: {constraint.reason}"
    return Reason(cls="constraint", summary=summary, evidence=constraint.expression)


def _check_identity(path: Path, outcome: Outcome, planned: tuple[str | None, ...]) -> None:
    named = (outcome.campaign, outcome.variant, outcome.boot, outcome.instrument, outcome.point)
    for said, expected in zip(named, planned, strict=True):
        if said is not None and expected is not None and said != expected:
            raise CampaignError(
                f"{path} holds the outcome of another cell ({said} instead of {expected}); "
                "delete it and run again."
            )

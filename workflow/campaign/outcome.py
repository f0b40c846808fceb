"""The record that a cell leaves, whatever happened to it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.errors import CampaignError
from campaign.files import read_json, write_json

Status = Literal["ok", "failed", "invalid", "unmeasured", "blocked", "not_run"]


class Reason(BaseModel):
    """Why an outcome is not ok: a class to group by, one line to read, and the line that shows it."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    cls: str = Field(alias="class")
    summary: str
    evidence: str | None = None
    log: str | None = None


class Metric(BaseModel):
    """Values of one quantity, one for each pass or run, in the order in which they were measured."""

    model_config = ConfigDict(extra="forbid")

    unit: str
    values: list[float]
    median: float | None

    @classmethod
    def of(cls, unit: str, values: Iterable[float | None]) -> Metric | None:
        """A metric of the values that are there; None when there is none. Missing is never zero."""
        known = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not known:
            return None
        return cls(unit=unit, values=known, median=statistics.median(known))


class Fingerprint(BaseModel):
    """What was measured (the variant) and with what (the instrument); see campaign.fingerprint."""

    model_config = ConfigDict(extra="forbid")

    variant: str | None = None
    instrument: str | None = None


class Measurement(BaseModel):
    """What an instrument says of one point, before the cell that asked puts its name on it."""

    model_config = ConfigDict(extra="forbid")

    status: Status
    reason: Reason | None = None
    metrics: dict[str, Metric] = {}
    flags: list[str] = []
    raw: list[str] = []
    provenance: dict[str, Any] = {}
    passes: list[dict[str, Any]] = []
    details: dict[str, Any] = {}


class Outcome(BaseModel):
    """The JSON of a cell file. `recorded` marks one that was typed in or imported, never measured here."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_version: Literal[1] = Field(default=1, alias="schema")
    campaign: str | None = None
    variant: str | None = None
    boot: str | None = None
    instrument: str
    point: str | None = None
    status: Status
    reason: Reason | None = None
    metrics: dict[str, Metric] = {}
    flags: list[str] = []
    fingerprint: Fingerprint = Fingerprint()
    started: str | None = None
    ended: str | None = None
    recorded: bool = False
    raw: list[str] = []
    provenance: dict[str, Any] = {}
    passes: list[dict[str, Any]] = []
    details: dict[str, Any] = {}

    def write(self, path: Path) -> None:
        """Write the outcome whole or not at all."""
        write_json(path, self.model_dump(mode="json", by_alias=True))

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Read a cell file; one that is broken or of another shape is a CampaignError that names it."""
        data = read_json(path)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole file"
            raise CampaignError(
                f"{path} is no outcome ({where}: {first['msg']}); delete it and run again."
            ) from None


def now() -> str:
    """The time in UTC to the millisecond, as outcomes and ledgers write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def metrics_of(**named: tuple[str, Iterable[float | None]]) -> dict[str, Metric]:
    """Metrics by name from (unit, values); those without a single value are left out."""
    built = {name: Metric.of(unit, values) for name, (unit, values) in named.items()}
    return {name: metric for name, metric in built.items() if metric is not None}

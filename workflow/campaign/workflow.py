"""What the Snakefile asks of the campaigns: targets, fingerprints, order, resources. Pure lookups."""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from campaign import config
from campaign.errors import CampaignError
from campaign.files import digest, write_text
from campaign.matrix import Boot, Cell, Matrix, load
from campaign.process import ProcessId

TEMPLATES = Path(__file__).parents[1] / "templates"
RUNS = Path(".snakemake/campaign-runs")
LOCKS = Path(".snakemake/locks")
Lookup = Callable[[Any], Any]


def begin_run() -> None:
    """Make this process the owner of the venues that its jobs will lease.

    A job that parses the Snakefile again joins the run of the Snakemake that called it. The rules
    call `python`, which must be the one that runs Snakemake.
    """
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if "CAMPAIGN_OWNER" in os.environ:
        return
    mine = ProcessId.own()
    os.environ["CAMPAIGN_RUN"] = uuid.uuid4().hex[:12]
    os.environ["CAMPAIGN_OWNER"] = mine.json()
    _drop_dead_locks(mine)


def _drop_dead_locks(mine: ProcessId) -> None:
    """Remove the directory lock of a Snakemake that was killed; it knows no owner, so we note each run's."""
    RUNS.mkdir(parents=True, exist_ok=True)
    living = False
    for note in RUNS.glob("*.json"):
        run = ProcessId.load(_json(note))
        if run is not None and run.alive():
            living = True
        else:
            note.unlink(missing_ok=True)
    if not living:
        for lock in LOCKS.glob("*"):
            lock.unlink(missing_ok=True)
    write_text(RUNS / f"{mine.host}-{mine.pid}.json", mine.json())


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Plan:
    """All campaigns of a run. Functions that take `wildcards` are input, params and priority functions."""

    matrices: dict[str, Matrix]
    keep_engine: bool

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Plan:
        """Load every campaign that config/config.yaml, or --config campaigns=a,b, names."""
        chosen = config.load_settings(settings)
        names = chosen.campaigns
        for name in names:
            if names.count(name) > 1:
                raise CampaignError(f"config/config.yaml: campaigns: {name} is named twice; name it once.")
        return cls({name: load(name) for name in names}, chosen.keep_engine)

    def check(self, outputs: Iterable[str]) -> None:
        """Is there what the cells among these outputs need? A CampaignError says what isn't, before any boot.

        A campaign that is only rendered here needs nothing, nor does a cell whose outcome was recorded.
        """
        from campaign import instruments

        wanted = set(outputs)
        for matrix in self.matrices.values():
            asked = [cell for cell in matrix.cells if str(cell.path) in wanted and not cell.boot.blocked]
            cells = [cell for cell in asked if not _is_recorded(cell.path)]
            if cells:
                try:
                    instruments.check(matrix, cells)
                except CampaignError as error:
                    raise CampaignError(f"{matrix.file} can't be measured: {error}") from None

    @property
    def records(self) -> list[str]:
        """Every record of every boot and cell."""
        return [path for matrix in self.matrices.values() for path in _records(matrix)]

    @property
    def reports(self) -> list[str]:
        """Every campaign's writeup."""
        return [f"reports/{name}.md" for name in self.matrices]

    @property
    def templates(self) -> list[str]:
        """The templates that a report is rendered from, relative to the working directory."""
        return sorted(os.path.relpath(path) for path in TEMPLATES.glob("*.j2"))

    @property
    def venues(self) -> list[str]:
        """The resource of each venue that a campaign uses."""
        return sorted({_resource(matrix) for matrix in self.matrices.values()})

    @property
    def venue_resources(self) -> dict[str, Lookup]:
        """One unit of its campaign's venue for each job, none of another's."""

        def units(venue: str) -> Lookup:
            return lambda wildcards: int(_resource(self.matrices[wildcards.campaign]) == venue)

        return {venue: units(venue) for venue in self.venues}

    def pattern(self, wildcard: str) -> str:
        """The names that a wildcard may take, as a regular expression."""
        names = set(self.matrices)
        if wildcard == "variant":
            names = {variant for matrix in self.matrices.values() for variant in matrix.variants}
        return "|".join(sorted(re.escape(name) for name in names))

    def campaign_records(self, wildcards: Any) -> list[str]:
        """Every record of one campaign."""
        return _records(self.matrices[wildcards.campaign])

    def boot_fingerprint(self, wildcards: Any) -> str:
        """The identity of a boot's variant."""
        matrix = self.matrices[wildcards.campaign]
        return matrix.identity_of(matrix.boot(wildcards.variant, wildcards.boot))

    def cell_fingerprint(self, instrument: str) -> Lookup:
        """The identity of a cell's variant and instrument, by wildcards."""

        def of(wildcards: Any) -> str:
            cell = self._cell(instrument, wildcards)
            return self.matrices[wildcards.campaign].identity_of(cell.boot, cell)

        return of

    def campaign_fingerprint(self, wildcards: Any) -> str:
        """What the summary holds beyond the outcomes: the plan and its labels."""
        matrix = self.matrices[wildcards.campaign]
        labels = [(v.name, v.label, v.note, v.fingerprint) for v in matrix.variants.values()]
        return digest([labels, _records(matrix)])

    def prose_fingerprint(self, wildcards: Any) -> str:
        """What the report says in the words of the config files."""
        matrix = self.matrices[wildcards.campaign]
        texts = [matrix.campaign.model_dump(mode="json"), matrix.lane.model_dump(mode="json")]
        return digest([*texts, matrix.venue.model_dump(mode="json")])

    def boot_priority(self, wildcards: Any) -> int:
        """All of one boot before the next boot of its venue, in the campaign's order."""
        return self._ranks[wildcards.campaign, wildcards.variant, wildcards.boot]

    def warm_up_priority(self, wildcards: Any) -> int:
        """As its boot; the edges put it after the boot and before the cells."""
        return self.boot_priority(wildcards)

    def cell_priority(self, instrument: str) -> Lookup:
        """The cells of a boot in the order in which the campaign writes its instruments."""
        return lambda wildcards: self._ranks[wildcards.campaign, *_key(instrument, wildcards)]

    def _cell(self, instrument: str, wildcards: Any) -> Cell:
        matrix = self.matrices[wildcards.campaign]
        cell = matrix.by_key.get(_key(instrument, wildcards))
        if cell is None:
            where = f"{wildcards.variant} {wildcards.boot} {instrument} {wildcards.point}"
            raise CampaignError(f"{matrix.file}: plans no cell {where}.")
        return cell

    @cached_property
    def _ranks(self) -> dict[tuple[str, ...], int]:
        """Priorities by (campaign, variant, boot[, instrument, point]); the first job has the highest."""
        keys: list[tuple[str, ...]] = []
        for name, matrix in self.matrices.items():
            for boot in matrix.boots:
                keys.append((name, boot.variant, boot.name))
                keys += [(name, *_cell_key(cell)) for cell in matrix.cells_of(boot)]
        return {key: len(keys) - rank for rank, key in enumerate(keys)}


def _is_recorded(path: Path) -> bool:
    data = _json(path)
    return isinstance(data, dict) and data.get("recorded") is True


def _records(matrix: Matrix) -> list[str]:
    boots: list[Boot] = list(matrix.boots)
    paths = [path for boot in boots for path in (boot.path, boot.warm_up_path)]
    return [str(path) for path in [*paths, *(cell.path for cell in matrix.cells)]]


def _resource(matrix: Matrix) -> str:
    return "venue_" + re.sub(r"\W", "_", matrix.campaign.venue)


def _key(instrument: str, wildcards: Any) -> tuple[str, str, str, str]:
    return wildcards.variant, wildcards.boot, instrument, wildcards.point


def _cell_key(cell: Cell) -> tuple[str, str, str, str]:
    return cell.boot.variant, cell.boot.name, cell.instrument, cell.point

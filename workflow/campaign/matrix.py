"""A campaign resolved: its variants, its boots in order, and every cell that they are planned to leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from campaign import book, config, lane, secret
from campaign.errors import CampaignError
from campaign.expression import evaluate
from campaign.files import digest, sha256_of
from campaign.schema import Campaign, Constraint, Env, Flags, Lane, Venue
from campaign.settings import PROTOCOLS, Point

RESULTS = Path("results")
BESIDE_VARIANTS = ("cells.csv", "effective.yaml", "boot_ledger.jsonl", "summary.log", "report.log")
"""What stands under results/<campaign> beside the variants' directories."""


@dataclass(frozen=True)
class ResolvedVariant:
    """A variant with the lane's flags and env under its own."""

    name: str
    label: str
    note: str | None
    flags: Flags
    env: Env
    fingerprint: str
    blocked: Constraint | None
    speculates: bool


@dataclass(frozen=True)
class Boot:
    """The n-th start of a variant in the campaign's order."""

    campaign: str
    variant: str
    name: str
    blocked: bool

    @property
    def directory(self) -> Path:
        """Where this boot and its cells leave their records."""
        return RESULTS / self.campaign / self.variant / self.name

    @property
    def path(self) -> Path:
        """The record of the boot itself."""
        return self.directory / "boot.json"

    @property
    def warm_up_path(self) -> Path:
        """The record of its warm-up."""
        return self.directory / "warm_up.json"


@dataclass(frozen=True)
class Cell:
    """One point of one instrument on one boot: the unit of measuring and of rerunning."""

    boot: Boot
    instrument: str
    settings: Point
    fingerprint: str

    @property
    def point(self) -> str:
        """The point's name."""
        return self.settings.name

    @property
    def path(self) -> Path:
        """The outcome's file."""
        return self.boot.directory / self.instrument / f"{self.point}.json"


@dataclass(frozen=True)
class Matrix:
    """One campaign with its lane and venue, resolved and checked."""

    name: str
    campaign: Campaign
    lane: Lane
    venue: Venue
    variants: dict[str, ResolvedVariant]
    boots: tuple[Boot, ...]
    cells: tuple[Cell, ...]

    @property
    def directory(self) -> Path:
        """Where the campaign's results lie."""
        return RESULTS / self.name

    @property
    def ledger(self) -> Path:
        """The boot ledger: every boot attempt, appended."""
        return self.directory / "boot_ledger.jsonl"

    @cached_property
    def by_key(self) -> dict[tuple[str, str, str, str], Cell]:
        """Cells by (variant, boot, instrument, point)."""
        return {(c.boot.variant, c.boot.name, c.instrument, c.point): c for c in self.cells}

    @cached_property
    def planned(self) -> list[str]:
        """Variants that the order leaves out: planned and not yet measured."""
        return [name for name in self.variants if name not in {boot.variant for boot in self.boots}]

    def boot(self, variant: str, name: str) -> Boot:
        """The boot of that variant and name; a CampaignError if the campaign has none."""
        for boot in self.boots:
            if (boot.variant, boot.name) == (variant, name):
                return boot
        raise CampaignError(f"{self.file}: order: has no boot {name} of {variant}.")

    def cells_of(self, boot: Boot) -> list[Cell]:
        """The cells of one boot, in the order in which they are measured."""
        return self._by_boot.get(boot, [])

    @cached_property
    def _by_boot(self) -> dict[Boot, list[Cell]]:
        grouped: dict[Boot, list[Cell]] = {}
        for cell in self.cells:
            grouped.setdefault(cell.boot, []).append(cell)
        return grouped

    def identity_of(self, boot: Boot, cell: Cell | None = None) -> str:
        """What tells that a record is stale: the variant's fingerprint, and a cell's instrument's."""
        return "-".join([self.variants[boot.variant].fingerprint, *([cell.fingerprint] if cell else [])])

    @property
    def file(self) -> Path:
        """The campaign's file."""
        return config.path_of("campaigns", self.name)


def load(name: str) -> Matrix:
    """Read and check a campaign with its lane and venue. Raises CampaignError on the first mistake."""
    campaign = config.load_campaign(name)
    served = config.load_lane(campaign.lane)
    venue = config.load_venue(campaign.venue)
    where = config.path_of("campaigns", name)
    order = campaign.order if campaign.order is not None else list(campaign.variants)
    _check_names(campaign, order, where)
    _check_boots(campaign, order, where)
    secret.refuse_words(served.command, f"{config.path_of('lanes', campaign.lane)}: command")
    secret.refuse(served.flags, served.env, str(config.path_of("lanes", campaign.lane)))
    place = {
        "venue": {"name": campaign.venue, "hosts": venue.hosts},
        "weights": lane.weights(served.model),
    }
    variants = {key: _resolve(key, campaign, served, where, place) for key in campaign.variants}
    _check_labels(variants, where)
    boots = tuple(_boots(name, order, variants))
    return Matrix(
        name,
        campaign,
        served,
        venue,
        variants,
        boots,
        tuple(_cells(campaign, served, variants, boots, where)),
    )


def _resolve(
    name: str, campaign: Campaign, served: Lane, where: Path, place: Mapping[str, Any]
) -> ResolvedVariant:
    variant = campaign.variants[name]
    flags, env = lane.merged_flags(served, variant), lane.merged_env(served, variant)
    lane_file = config.path_of("lanes", campaign.lane)
    secret.refuse(variant.flags, variant.env, f"{where}: variants.{name}")
    blocked = None
    for number, constraint in enumerate(served.constraints):
        key = f"{lane_file}: constraints.{number}.expression (variant {name} of {where.name})"
        if not evaluate(constraint.expression, flags, env, key) and blocked is None:
            blocked = constraint
    return ResolvedVariant(
        name=name,
        label=variant.label or name,
        note=variant.note,
        flags=flags,
        env=env,
        fingerprint=lane.fingerprint(served, flags, env, blocked, place),
        blocked=blocked,
        speculates=served.speculates_if is not None
        and evaluate(served.speculates_if, flags, env, f"{lane_file}: speculates_if (variant {name})"),
    )


def _boots(campaign: str, order: list[str], variants: dict[str, ResolvedVariant]) -> Iterator[Boot]:
    made: Counter[str] = Counter()
    for variant in order:
        made[variant] += 1
        yield Boot(campaign, variant, f"b{made[variant]}", variants[variant].blocked is not None)


def _cells(
    campaign: Campaign,
    served: Lane,
    variants: Mapping[str, ResolvedVariant],
    boots: tuple[Boot, ...],
    where: Path,
) -> Iterator[Cell]:
    benchy = any(block.instrument == "llama_benchy" for block in campaign.instruments)
    texts = _benchy_texts(served) if benchy else {}
    for boot in boots:
        seen: set[tuple[str, str]] = set()
        for number, block in enumerate(campaign.instruments):
            if block.variants is not None and boot.variant not in block.variants:
                continue
            if block.boots is not None and boot.name not in block.boots:
                continue
            for point in block.points():
                if (block.instrument, point.name) in seen:
                    raise CampaignError(
                        f"{where}: instruments.{number}: the point {point.name} of {block.instrument} is in "
                        f"two blocks for the variant {boot.variant}; take it out of one."
                    )
                seen.add((block.instrument, point.name))
                inputs = {}
                if block.instrument == "llama_benchy":
                    inputs = {**texts, "speculates": variants[boot.variant].speculates}
                yield Cell(
                    boot, block.instrument, point, instrument_fingerprint(block.instrument, point, inputs)
                )


def _benchy_texts(served: Lane) -> dict[str, Any]:
    """What llama-benchy's prompts are made of, by name and bytes; `gguf` is told by the weights' identity."""

    def checksum(path: Path) -> str | None:
        return sha256_of(path) if lane.is_there(path) and path.is_file() else None

    tokenizer = lane.local(served.tokenizer) / "tokenizer.json"
    return {
        "tokenizer": [served.tokenizer, None if served.tokenizer == "gguf" else checksum(tokenizer)],
        "book": [served.book, checksum(lane.local(served.book)) if served.book else book.SHA256],
    }


def instrument_fingerprint(instrument: str, point: Point, inputs: Mapping[str, Any] | None = None) -> str:
    """The digest of what measures and how: protocol, settings and inputs, without patience (timeouts)."""
    settings = point.model_dump(mode="json", exclude={"timeout_s"})
    told = {"instrument": instrument, "protocol": PROTOCOLS[instrument], "settings": settings}
    return digest({**told, "inputs": inputs} if inputs else told)


def _check_names(campaign: Campaign, order: list[str], where: Path) -> None:
    known = ", ".join(campaign.variants)
    uses = [("baseline", campaign.baseline), *(("order", name) for name in order)]
    for number, block in enumerate(campaign.instruments):
        uses += [(f"instruments.{number}.variants", name) for name in block.variants or []]
    for key, name in uses:
        if name not in campaign.variants:
            raise CampaignError(f"{where}: {key}: {name} is no variant of this campaign ({known}).")
    for name in campaign.variants:
        if name.lower() in BESIDE_VARIANTS:
            raise CampaignError(
                f"{where}: variants: {name} is the name of a file that results/<campaign> has of its own; "
                "give the variant another."
            )
    if not order:
        raise CampaignError(f"{where}: order: names no variant; name one, or leave the key out.")


def _check_boots(campaign: Campaign, order: list[str], where: Path) -> None:
    """A boot that no variant of its block has would silently be no cell."""
    for number, block in enumerate(campaign.instruments):
        made = [order.count(name) for name in set(block.variants or order)]
        last = max(made)
        for boot in block.boots or []:
            if last and int(boot[1:]) > last:
                raise CampaignError(
                    f"{where}: instruments.{number}.boots: {boot} is no boot of this block's variants, which "
                    f"the order boots {last}x at most; correct it, or name the variant in order once more."
                )


def _check_labels(variants: dict[str, ResolvedVariant], where: Path) -> None:
    first: dict[str, str] = {}
    for variant in variants.values():
        label = " ".join(variant.label.split())
        if label in first:
            raise CampaignError(
                f"{where}: variants.{variant.name}.label: {variant.label!r} is also the label of "
                f"{first[label]}; give each variant its own."
            )
        first[label] = variant.name

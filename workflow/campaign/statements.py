"""Sentences that a report owes its reader, computed from the data: the method, the gaps and the limits."""

from __future__ import annotations

from collections import Counter

from campaign import accounts, cells, format
from campaign.cells import Group, Results
from campaign.markdown import escaped, inline
from campaign.schema import WarmUp
from campaign.settings import PROTOCOLS, BenchyPoint, Point, ProbePoint, ToolEvalPoint
from campaign.tables import Rows, tool_settings

GAPS = {"missing": "not yet measured", "stale": "measured with another config", "not_run": "not run"}


def instruments(results: Results) -> list[str]:
    """Each instrument with its settings and the versions that its outcomes name."""
    points: dict[tuple[str, str], dict[str, Point]] = {}
    versions: dict[tuple[str, str], dict[str, None]] = {}
    for record in results.cells:
        settings = record.cell.settings
        key = (record.cell.instrument, _shared(settings))
        points.setdefault(key, {})[settings.name] = settings
        named = record.current.provenance.get("instrument_version") if record.current else None
        if named:
            versions.setdefault(key, {})[str(named)] = None
    lines = []
    for key, found in points.items():
        name = " and ".join(versions.get(key, {})) or _planned_version(key[0], next(iter(found.values())))
        lines.append(f"**{escaped(name)}**: {_described(list(found.values()))}")
    return lines


def warm_up(settings: WarmUp) -> str:
    """The requests made after each boot, as the beginning of a sentence."""
    requests = format.plural(settings.requests, "warm-up request")
    sizes = f"{settings.prompt_tokens:,} tokens in, {settings.max_tokens:,} out"
    return f"{requests} ({sizes}) {'follows' if settings.requests == 1 else 'follow'}"


def gaps(results: Results) -> list[str]:
    """Cells missing, stale or not run; variants that no boot is planned for; the campaign's own lines."""
    rows = Rows(results)
    planned = Counter(record.cell.boot for record in results.cells)
    lines = [
        f"{rows.name(group.boot)}: {len(group.cells):,} of {format.plural(planned[group.boot], 'cell')} "
        f"{_gap(group)} ({accounts.which(group)})."
        for group in cells.groups(results, ("missing", "stale", "not_run"))
    ]
    lines += [f"{rows.label(name)}: planned, in no order yet." for name in results.matrix.planned]
    return [*lines, *(inline(line) for line in results.matrix.campaign.not_measured)]


def _gap(group: Group) -> str:
    """A stale record says why it is not simply measured again."""
    return group.reason.summary if group.state == "stale" and group.reason else GAPS[group.state]


def limits(results: Results) -> list[str]:
    """What the figures can't carry, however they look."""
    rows, printed = Rows(results), [record for record in results.cells if record.numbers]
    lines = []
    measured = Counter(b.boot.variant for b in results.boots if any(cell.numbers for cell in b.cells))
    once = [rows.label(variant) for variant, boots in measured.items() if boots == 1]
    if once:
        lines.append(
            f"Booted once: {format.listed(once, most=12)}. How far two boots of one config differ isn't "
            "known for these, so a difference in their rows is no verdict."
        )
    single = Counter(
        record.cell.instrument
        for record in printed
        if all(len(metric.values) == 1 for metric in record.numbers.values())
        and record.cell.instrument != "tool_eval"
    )
    if single:
        told = ", ".join(f"{format.plural(n, 'cell')} of {name}" for name, n in single.items())
        lines.append(f"From a single run, without any spread: {told}.")
    tried = {r.cell.settings.trials for r in printed if isinstance(r.cell.settings, ToolEvalPoint)}
    if 1 in tried:
        lines.append("Quality scores are of one trial a scenario; single scenarios swap between such runs.")
    speculative = [rows.label(v) for v in measured if results.matrix.variants[v].speculates]
    if speculative:
        lines.append(
            f"Decoding speculatively: {format.listed(speculative, most=12)}. Their decode rate depends on "
            "how often drafts are accepted in the text at hand; it is that of these prompts."
        )
    for boot in results.boots:
        used = {r.current.provenance.get("boot_id") for r in boot.cells if r.numbers and r.current} - {None}
        if len(used) > 1:
            told = format.listed(sorted(str(name) for name in used), most=6)
            lines.append(f"Figures of {rows.name(boot.boot)} come from {len(used)} engine processes: {told}.")
    model = results.matrix.lane.model
    if not (model.revision or model.sha256 or model.package):
        lines.append(
            "The weights have no revision or checksum: other weights under this name would not show."
        )
    recorded = sum(record.recorded for record in printed)
    if recorded:
        lines.append(
            f"{recorded:,} of {format.plural(len(printed), 'cell')} with figures are recorded, "
            "not measured here."
        )
    unprinted = Counter(record.state for record in results.cells if not record.numbers)
    if unprinted:
        told = ", ".join(f"{number:,} {state.replace('_', ' ')}" for state, number in unprinted.items())
        lines.append(
            f"Without figures are {sum(unprinted.values()):,} of "
            f"{format.plural(len(results.cells), 'planned cell')}: {told}."
        )
    return lines


def _shared(point: Point) -> str:
    """What the points of one instrument line have in common."""
    match point:
        case BenchyPoint():
            varying = {"depth", "concurrency", "timeout_s"}
        case ProbePoint():
            varying = {"prompt_tokens", "concurrency", "timeout_s"}
        case ToolEvalPoint():
            varying = {"timeout_s"}
    return point.model_dump_json(exclude=varying)


def _planned_version(instrument: str, point: Point) -> str:
    match point:
        case BenchyPoint():
            return f"llama-benchy {point.version}"
        case ToolEvalPoint():
            return f"tool-eval-bench {point.version}"
        case ProbePoint():
            return f"campaign.{instrument} protocol {PROTOCOLS[instrument]}"


def _described(points: list[Point]) -> str:
    first = points[0]
    streams = ", ".join(
        f"c{c}" for c in dict.fromkeys(p.concurrency for p in points if not isinstance(p, ToolEvalPoint))
    )
    match first:
        case BenchyPoint():
            depths = ", ".join(
                dict.fromkeys(format.depth(p.depth) for p in points if isinstance(p, BenchyPoint))
            )
            return (
                f"pp{first.pp} / tg{first.tg}, depth {depths}, {streams}, "
                f"{format.plural(first.runs, 'run')} a point, latency mode {first.latency_mode}."
            )
        case ProbePoint():
            sizes = dict.fromkeys(f"{p.prompt_tokens:,}" for p in points if isinstance(p, ProbePoint))
            return (
                f"cold prompts of {', '.join(sizes)} tokens, {first.max_tokens:,} tokens asked, {streams}, "
                f"{format.plural(first.warmups, 'warm-up')} discarded, {first.passes:,} passes measured."
            )
        case ToolEvalPoint():
            return f"`{first.label}`, {tool_settings(first)}."

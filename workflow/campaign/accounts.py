"""The tables about how a campaign went: arms, boots, failures, the ledger, and what was checked."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from campaign import cells, format
from campaign.cells import Group, Results, State
from campaign.format import DASH
from campaign.ledger import AT_THE_END, BootAttempt
from campaign.markdown import code, escaped, inline, table
from campaign.matrix import ResolvedVariant
from campaign.outcome import Outcome, Reason
from campaign.schema import Env, Flags
from campaign.tables import Rows, told

UNPRINTED: tuple[State, ...] = ("failed", "invalid", "unmeasured", "not_run", "blocked")


def arms(results: Results) -> str:
    """Each variant with its places in the order, what it changes against the baseline and its boots."""
    plan = results.matrix
    baseline = plan.variants[plan.campaign.baseline]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, boot in enumerate(results.boots):
        places[boot.boot.variant].append(place)
    rows = []
    for variant in [plan.variants[name] for name in [*places, *plan.planned]]:
        boots = [results.boots[place] for place in places[variant.name]]
        times = [boot.record.numbers.get("boot_s") for boot in boots]
        ready = sum(boot.record.state == "ok" for boot in boots)
        rows.append(
            [
                ", ".join(str(place + 1) for place in places[variant.name]) or DASH,
                inline(variant.label),
                "baseline" if variant is baseline else changes(baseline, variant),
                _boots(variant, ready, len(boots)),
                ", ".join(format.median(time, format.duration) for time in times) or DASH,
                inline(variant.note or ""),
            ]
        )
    return table(["order", "config", "against the baseline", "boots", "boot time", "why"], rows, "llllll")


def changes(baseline: ResolvedVariant, variant: ResolvedVariant) -> str:
    """The flags and env in which a variant differs from the baseline, as Markdown."""
    env = variant.env
    changed = [
        *_changes(baseline.flags, variant.flags, lambda name: _flag(name, variant.flags)),
        *_changes(baseline.env, variant.env, lambda name: code(f"{name}={_text(env[name])}")),
    ]
    return ", ".join(changed) or "the same flags and env"


def facts(results: Results) -> tuple[list[tuple[str, str]], str]:
    """What the engine said of itself: the facts equal at every boot, and a table of those that differ."""
    rows, reports = Rows(results), []
    for boot in results.boots:
        details = boot.record.current.details if boot.record.current else {}
        found = details.get("facts")
        if boot.record.state == "ok" and isinstance(found, dict):
            known = {str(key): _fact(value) for key, value in found.items() if value is not None}
            reports.append((rows.name(boot.boot), known))
    names = list(dict.fromkeys(name for _, found in reports for name in found))
    same = [name for name in names if len({found.get(name) for _, found in reports}) == 1]
    differing = [name for name in names if name not in same]
    body = [[name, *(found.get(key, DASH) for key in differing)] for name, found in reports]
    headers = ["config", *differing]
    return (
        [(name, reports[0][1][name]) for name in same],
        table(headers, body, "l" + "r" * len(differing)) if differing else "",
    )


def failures(results: Results) -> str:
    """Boots and cells that failed, are invalid, unmeasured, blocked or not run, with the reason of each."""
    rows = Rows(results)
    body = []
    for boot in results.boots:
        for name, record in (("boot", boot.record), ("warm-up", boot.warm_up)):
            if record.current and record.state in ("failed", "invalid", "not_run"):
                body.append(_failure(rows.name(boot.boot), name, record.state, record.current.reason))
    for group in cells.groups(results, UNPRINTED):
        body.append(_failure(rows.name(group.boot), which(group), group.state, group.reason))
    return table(["config", "what", "status", "class", "reason"], body, "lllll") if body else ""


def which(group: Group) -> str:
    """The cells of a group in words: three by name, more by number and instrument."""
    if len(group.cells) <= 3:
        return ", ".join(f"{cell.cell.instrument} {cell.cell.point}" for cell in group.cells)
    counts = Counter(cell.cell.instrument for cell in group.cells)
    return ", ".join(f"{number:,} of {name}" for name, number in counts.items())


def ledger(results: Results) -> str:
    """Every boot attempt in the order in which they began."""
    body = [
        [
            str(number),
            f"{attempt.variant} {attempt.boot}",
            str(attempt.attempt),
            escaped(attempt.why),
            attempt.status,
            DASH if attempt.boot_s is None else format.duration(attempt.boot_s),
            _end(attempt),
        ]
        for number, attempt in enumerate(results.attempts, start=1)
    ]
    headers = ["#", "boot", "attempt", "why", "status", "boot time", "end"]
    return table(headers, body, "rlrlll" + "l") if body else ""


def flags(results: Results) -> str:
    """How many outcomes carry each flag of an instrument, by state."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for record in results.cells:
        if record.current is not None:
            for flag in dict.fromkeys(record.current.flags):
                counts[record.cell.instrument, flag, record.state] += 1
    body = [
        [name, code(flag), state, f"{number:,}"] for (name, flag, state), number in sorted(counts.items())
    ]
    return table(["instrument", "flag", "status", "cells"], body, "lllr") if body else ""


def checks(results: Results) -> list[str]:
    """What the probe's passes themselves show of cold prompts and whole answers."""
    passes = [
        (record.cell.settings.model_dump().get("max_tokens"), one)
        for record in results.cells
        if record.cell.instrument == "probe" and record.current is not None and not record.recorded
        for one in record.current.passes
    ]
    if not passes:
        return []
    cached = [one.get("cached_tokens") for _, one in passes]
    known = [value for value in cached if isinstance(value, int)]
    whole = sum(one.get("completion_tokens") == asked for asked, one in passes)
    lines = [f"Probe passes that gave as many tokens as asked: {whole:,} of {len(passes):,}."]
    if known:
        lines.append(
            f"Cached prompt tokens, as the engine reports them: {min(known):,} to {max(known):,} "
            f"over {len(known):,} probe passes{_template(results)}."
        )
    if len(known) < len(passes):
        lines.append(f"Probe passes without a count of cached tokens: {len(passes) - len(known):,}.")
    return lines


def _template(results: Results) -> str:
    """How many of the cached tokens are no hit: the chat template, which all prompts begin with."""
    found = {
        record.current.details.get("calibration", {}).get("template_tokens")
        for record in results.cells
        if record.cell.instrument == "probe" and record.current is not None
    }
    sizes = sorted(size for size in found if size)
    return f" (the chat template alone has {sizes[-1]:,}, and that is no hit)" if sizes else ""


def distinct(results: Results, key: str) -> list[tuple[Any, int]]:
    """The different values that outcomes have under a key of their provenance, with how many have each."""
    counts: Counter[str] = Counter()
    for outcome in current(results):
        value = outcome.provenance.get(key)
        if value:
            counts[json.dumps(value, sort_keys=True)] += 1
    return [(json.loads(value), number) for value, number in counts.items()]


def current(results: Results) -> Iterable[Outcome]:
    """The outcomes of boots, warm-ups and cells that are not stale."""
    return (record.current for record in results.records if record.current is not None)


def _changes(base: Flags | Env, other: Flags | Env, write: Any) -> list[str]:
    put = [write(name) for name, value in other.items() if name not in base or base[name] != value]
    return [*put, *(f"without {code(name)}" for name in base if name not in other)]


def _flag(name: str, flags: Flags) -> str:
    value = flags[name]
    if isinstance(value, list):
        return code(f"{name} {' '.join(_text(item) for item in value)}")
    return code(name if value is True else f"{name} {_text(value)}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _boots(variant: ResolvedVariant, ready: int, planned: int) -> str:
    if variant.blocked:
        return "blocked"
    return f"{ready} of {planned}" if planned else "none planned"


def _fact(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escaped(
            json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else _text(value)
        )
    return format.count(value)


def _failure(config: str, what: str, state: str, reason: Reason | None) -> list[str]:
    why = [escaped(reason.cls), told(reason)] if reason else [DASH, DASH]
    return [config, what, state.replace("_", " "), *why]


def _end(attempt: BootAttempt) -> str:
    if attempt.reason is not None:
        return escaped(attempt.reason.summary)
    if attempt.end is None or attempt.death == AT_THE_END:
        # The report is written while the last engine is still up; written again later it reads the same.
        return "in use to the end of the run" if attempt.ready else DASH
    told = escaped(attempt.death or "")
    return f"died: {told}" if attempt.end == "died" else f"stopped {told}".strip()

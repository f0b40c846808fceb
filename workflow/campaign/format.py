"""Numbers as the field writes them: 3,019 / 44.9 tok/s, 0.754 s; a dash for a value that isn't there."""

from __future__ import annotations

from collections.abc import Callable

from campaign.outcome import Metric

DASH = "—"
Render = Callable[[float], str]


def rate(value: float) -> str:
    """Tokens per second: no decimals from 100 up, one below, two significant digits below 1."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 0.95 or value == 0 else f"{value:.2g}"


def seconds(value: float) -> str:
    """A latency in seconds with its unit: to the millisecond below 10 s, to the tenth above."""
    return f"{value:.3f} s" if abs(value) < 9.9995 else f"{value:,.1f} s"


def tenths(value: float) -> str:
    """A latency in seconds with its unit, to the tenth of a second."""
    return f"{value:,.1f} s"


def duration(value: float) -> str:
    """A span in seconds as people say it: 4.2 s, 48 s, 31 min, 1 h 35 min."""
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def count(value: float) -> str:
    """A plain number with thousands separated, and decimals only where it has some."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def percent(share: float) -> str:
    """A share from 0 to 1 as whole per cent, never rounded up to 100 %."""
    return f"{int(share * 100 + 1e-9)} %"


def depth(tokens: int) -> str:
    """Tokens of context as tables name them: 0, 4K, 3,000."""
    return f"{tokens // 1024}K" if tokens and tokens % 1024 == 0 else f"{tokens:,}"


def median(metric: Metric | None, render: Render) -> str:
    """The median; a dash when there is no value."""
    return DASH if metric is None or metric.median is None else render(metric.median)


def spread(metric: Metric | None, render: Render) -> str:
    """Lowest to highest value; a dash for fewer than two, since a single run has no spread."""
    if metric is None or len(metric.values) < 2:
        return DASH
    low, high = render(min(metric.values)), render(max(metric.values))
    unit = " s"
    if low.endswith(unit) and high.endswith(unit):
        low = low.removesuffix(unit)
    return f"{low}–{high}"


def size(metric: Metric | None) -> str:
    """How many values the median is of; a dash when there is none."""
    return str(len(metric.values)) if metric is not None and metric.values else DASH


def plural(number: int, noun: str) -> str:
    """A count with its noun: 1 boot, 2,000 boots."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(items: list[str], most: int = 6) -> str:
    """Items with commas; past `most` of them, how many are left out."""
    if len(items) <= most:
        return ", ".join(items)
    return ", ".join(items[:most]) + f" and {len(items) - most:,} more"

"""Errors of one tool at one point, and the tables made of them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

OURS = "campaign.probe"
LIMITS = {1: (1.0, 0.2), 64: (5.0, 1.0)}
"""What is required of ours, by concurrency: TTFT error in ms and decode error in %, as medians."""


@dataclass(frozen=True)
class Setting:
    """One measuring point: so many streams, so many tokens a delta, so long an answer, so many batches."""

    concurrency: int
    tokens_per_delta: int
    max_tokens: int
    batches: int

    @property
    def name(self) -> str:
        """As the tables' columns are headed."""
        return f"c{self.concurrency}, {self.tokens_per_delta} tok"


@dataclass(frozen=True)
class Truth:
    """One answer as the engine gave it: the request's arrival, and its first and last write."""

    key: str
    id: str | None
    arrived: float
    first: float
    n_first: int
    last: float
    n: int

    @property
    def ttft_s(self) -> float:
        """From the arrival of the whole request on the machine to the first write with a token."""
        return self.first - self.arrived

    @property
    def decode_tps(self) -> float:
        """Tokens written after the first write, over the time from then to the last write."""
        return (self.n - self.n_first) / (self.last - self.first)


@dataclass(frozen=True)
class Reading:
    """What a tool says of one answer, beside the truth of the same answer."""

    truth: Truth
    ttft_s: float
    decode_tps: float

    @property
    def ttft_error_ms(self) -> float:
        """Absolute error of the TTFT."""
        return abs(self.ttft_s - self.truth.ttft_s) * 1000

    @property
    def decode_error_percent(self) -> float:
        """Absolute error of the decode rate, relative to the true one."""
        return abs(self.decode_tps / self.truth.decode_tps - 1) * 100


@dataclass(frozen=True)
class Spread:
    """Absolute errors over the answers of one point: their median, 95th percentile and maximum."""

    median: float
    p95: float
    highest: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> Spread:
        """The 95th percentile is that of the nearest rank: an error that was really made."""
        ordered = sorted(errors)
        return cls(statistics.median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1])


Scores = dict[tuple[str, Setting], list[Reading]]


def spreads(readings: Sequence[Reading]) -> tuple[Spread, Spread]:
    """Of the TTFT (ms) and of the decode rate (%)."""
    return (
        Spread.of([r.ttft_error_ms for r in readings]),
        Spread.of([r.decode_error_percent for r in readings]),
    )


def tables(scores: Scores, tools: Sequence[str], settings: Sequence[Setting]) -> str:
    """Two markdown tables: absolute error of TTFT and of decode, each as median / p95 / max."""
    parts = []
    for index, (title, digits) in enumerate((("TTFT error, ms", 3), ("decode error, %", 4))):
        head = [f"**{title}**", *(s.name for s in settings)]
        rows = [head, ["---"] + ["---:"] * len(settings)]
        for tool in tools:
            cells = []
            for setting in settings:
                one = spreads(scores[tool, setting])[index]
                cells.append(" / ".join(f"{v:.{digits}f}" for v in (one.median, one.p95, one.highest)))
            rows.append([tool, *cells])
        rows.append(["answers, each", *(str(len(scores[tools[0], s])) for s in settings)])
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts)


def shortfalls(scores: Scores, tools: Sequence[str], settings: Sequence[Setting]) -> list[str]:
    """Each limit that our median misses, and each column in which a peer's median is lower."""
    found = []
    for setting in settings:
        ours = spreads(scores[OURS, setting])
        limits = LIMITS.get(setting.concurrency, (None, None))
        for index, (what, unit) in enumerate((("TTFT", "ms"), ("decode", "%"))):
            mine, limit = ours[index].median, limits[index]
            if limit is not None and mine > limit:
                found.append(f"{setting.name}: our {what} error {mine:.4f} {unit} is over {limit:g} {unit}")
            for peer in tools:
                other = spreads(scores[peer, setting])[index].median
                if peer != OURS and other < mine:
                    found.append(
                        f"{setting.name}: {peer}'s {what} error {other:.4f} {unit} is below ours, {mine:.4f}"
                    )
    return found

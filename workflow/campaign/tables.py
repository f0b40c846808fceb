"""The tables of measured numbers: results in, Markdown out, and a dash with its reason for every gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from campaign import format
from campaign.cells import CellRecord, Results
from campaign.format import DASH
from campaign.markdown import Notes, code, escaped, inline, table
from campaign.matrix import Boot
from campaign.outcome import Reason
from campaign.settings import BenchyPoint, Point, ProbePoint, ToolEvalPoint

P = TypeVar("P", ProbePoint, BenchyPoint, ToolEvalPoint)
RECORDED = "recorded: typed in or imported from an earlier campaign, not measured here"


@dataclass(frozen=True)
class Table:
    """A table with its heading and its footnotes, all Markdown."""

    title: str
    body: str
    notes: list[str]


@dataclass(frozen=True)
class Rows:
    """Names of rows: the variant's label, and its boot where the variant has several."""

    results: Results

    @cached_property
    def _boots(self) -> Counter[str]:
        return Counter(boot.boot.variant for boot in self.results.boots)

    def label(self, variant: str) -> str:
        """The variant's label."""
        return inline(self.results.matrix.variants[variant].label)

    def name(self, boot: Boot) -> str:
        """The label, with the boot's name if there are others of the variant."""
        label = self.label(boot.variant)
        return f"{label}, {boot.name}" if self._boots[boot.variant] > 1 else label


class Figures:
    """What stands in the cells of one table: a number, or a dash whose note tells why there is none."""

    def __init__(self, records: list[CellRecord]) -> None:
        self.notes = Notes()
        printed = [record for record in records if record.numbers]
        self._mixed = len({record.recorded for record in printed}) > 1
        self._all_recorded = bool(printed) and all(record.recorded for record in printed)

    def of(self, record: CellRecord | None, write: Callable[[CellRecord], str]) -> str:
        """What `write` makes of an ok cell; a marked dash for another; nothing for one not in the plan."""
        if record is None:
            return ""
        if record.state != "ok":
            return DASH + self.notes.mark(why(record))
        return write(record) + (f" {self.notes.mark(RECORDED)}" if self._mixed and record.recorded else "")

    def lines(self) -> list[str]:
        """The notes; one line for the whole table if all of it is recorded."""
        return [
            *([f"All figures of this table are {RECORDED}."] if self._all_recorded else []),
            *self.notes.lines(),
        ]


def why(record: CellRecord) -> str:
    """The state of a cell without numbers, with its reason and the line that shows it, as Markdown."""
    if record.state == "missing":
        return "not yet measured"
    if record.state == "stale" and record.reason is None:
        return "stale: measured with another config, to be measured again"
    word = record.state.replace("_", " ")
    return f"{word}: {told(record.reason)}" if record.reason else word


def told(reason: Reason) -> str:
    """A reason's sentence with the line that shows it, as Markdown on one line."""
    summary = escaped(reason.summary)
    if not reason.evidence or reason.evidence in reason.summary:
        return summary
    return f"{summary.rstrip('.')}: {code(reason.evidence)}"


def llama_benchy(results: Results) -> list[Table]:
    """One table for each prompt size, answer size and setting; a row a boot, a column a point, pp / tg."""
    return [_benchy(results, points, found) for points, found in _grouped(results, BenchyPoint, _benchy_key)]


def probe(results: Results) -> list[Table]:
    """One table for each point of the probe; a row a boot, medians of its passes."""
    return [_probe(results, points[0], found) for points, found in _grouped(results, ProbePoint, _by_name)]


def quality(results: Results) -> list[Table]:
    """One table for each setting of tool-eval-bench: unlike settings or versions don't compare."""
    return [
        _quality(results, points[0], found)
        for points, found in _grouped(results, ToolEvalPoint, _by_settings)
    ]


def _by_name(point: Point) -> Any:
    return point.name


def _by_settings(point: Point) -> Any:
    return tuple(point.model_dump(exclude={"timeout_s"}).values())


def _benchy_key(point: Point) -> Any:
    return tuple(point.model_dump(exclude={"depth", "concurrency", "timeout_s"}).values())


def _grouped(
    results: Results, kind: type[P], key: Callable[[P], Any]
) -> Iterator[tuple[list[P], list[CellRecord]]]:
    """The points that share a table, each once and in the order of the plan, with their cells."""
    points: dict[Any, dict[str, P]] = {}
    found: dict[Any, list[CellRecord]] = {}
    for record in results.cells:
        settings = record.cell.settings
        if isinstance(settings, kind):
            points.setdefault(key(settings), {}).setdefault(settings.name, settings)
            found.setdefault(key(settings), []).append(record)
    for group, named in points.items():
        yield list(named.values()), found[group]


def _by_boot(records: list[CellRecord]) -> dict[Boot, dict[str, CellRecord]]:
    boots: dict[Boot, dict[str, CellRecord]] = {}
    for record in records:
        boots.setdefault(record.cell.boot, {})[record.cell.point] = record
    return boots


def _benchy(results: Results, points: list[BenchyPoint], records: list[CellRecord]) -> Table:
    figures, rows = Figures(records), Rows(results)
    body = [
        [rows.name(boot), *(figures.of(cells.get(point.name), _pp_tg) for point in points)]
        for boot, cells in _by_boot(records).items()
    ]
    headers = ["config", *(f"d{format.depth(p.depth)} c{p.concurrency}" for p in points)]
    first = points[0]
    title = f"llama-benchy {first.version}, pp{first.pp} / tg{first.tg}: pp tok/s / tg tok/s, " + (
        "a single run a point" if first.runs == 1 else f"medians of {first.runs} runs a point"
    )
    return Table(title, table(headers, body, "l" + "r" * len(points)), figures.lines())


def _pp_tg(record: CellRecord) -> str:
    settings, numbers = record.cell.settings, record.numbers
    pp, tg = numbers.get("pp_tps"), numbers.get("tg_tps")
    written = f"{format.median(pp, format.rate)} / {format.median(tg, format.rate)}"
    sizes = {format.size(metric) for metric in (pp, tg)} - {DASH}
    planned = settings.runs if isinstance(settings, BenchyPoint) else None
    return written if sizes <= {str(planned)} else f"{written} (n {', '.join(sorted(sizes))})"


def _probe(results: Results, point: ProbePoint, records: list[CellRecord]) -> Table:
    figures, rows = Figures(records), Rows(results)
    columns: list[tuple[str, Callable[[CellRecord], str]]] = [
        ("n", lambda r: format.size(r.numbers.get("ttft_s"))),
        ("TTFT", lambda r: format.median(r.numbers.get("ttft_s"), format.seconds)),
        ("TTFT range", lambda r: format.spread(r.numbers.get("ttft_s"), format.seconds)),
        ("decode", lambda r: format.median(r.numbers.get("decode_tps"), format.rate)),
        ("decode range", lambda r: format.spread(r.numbers.get("decode_tps"), format.rate)),
        ("prefill", lambda r: format.median(r.numbers.get("prefill_tps"), format.rate)),
        ("prefill range", lambda r: format.spread(r.numbers.get("prefill_tps"), format.rate)),
    ]
    if point.concurrency > 1:
        columns += [
            (
                "all streams decode",
                lambda r: format.median(r.numbers.get("agg_decode_tps"), format.rate),
            ),
            (
                "all streams prefill",
                lambda r: format.median(r.numbers.get("agg_prefill_tps"), format.rate),
            ),
        ]
    body = _body(records, rows, figures, [write for _, write in columns])
    headers = ["config", *(name for name, _ in columns)]
    title = (
        f"Probe, cold {point.prompt_tokens:,}-token prompt, {point.max_tokens:,} tokens asked, "
        f"c{point.concurrency}: medians of n, rates in tok/s"
    )
    return Table(title, table(headers, body, "l" + "r" * len(columns)), figures.lines())


def _quality(results: Results, point: ToolEvalPoint, records: list[CellRecord]) -> Table:
    figures, rows = Figures(records), Rows(results)
    columns: list[tuple[str, Callable[[CellRecord], str]]] = [
        ("score", _score),
        ("completion", lambda r: format.median(r.numbers.get("completion_rate"), format.percent)),
        ("responsiveness", lambda r: format.median(r.numbers.get("responsiveness"), format.count)),
        ("median turn", lambda r: format.median(r.numbers.get("median_turn_s"), format.tenths)),
        ("failed scenarios", _failed),
    ]
    body = _body(records, rows, figures, [write for _, write in columns])
    headers = ["config", *(name for name, _ in columns)]
    title = f"tool-eval-bench {point.version}, `{point.label}`: {tool_settings(point)}"
    return Table(title, table(headers, body, "lrrrrl"), figures.lines())


def _body(
    records: list[CellRecord], rows: Rows, figures: Figures, writers: list[Callable[[CellRecord], str]]
) -> list[list[str]]:
    """A row for each cell; one without numbers has its marked dash first and plain dashes after it."""
    body = []
    for record in records:
        if record.state == "ok":
            first, *rest = writers
            written = [figures.of(record, first), *(write(record) for write in rest)]
        else:
            written = [figures.of(record, lambda _: ""), *[DASH] * (len(writers) - 1)]
        body.append([rows.name(record.cell.boot), *written])
    return body


def tool_settings(point: ToolEvalPoint) -> str:
    """The settings of a tool-eval point in words."""
    chosen = point.scenarios if isinstance(point.scenarios, str) else f"{len(point.scenarios)} chosen"
    parts = [f"{chosen} scenarios", f"seed {point.seed}", f"thinking {'on' if point.thinking else 'off'}"]
    parts += ["hardmode"] if point.hardmode else []
    return ", ".join([*parts, format.plural(point.trials, "trial")])


def _score(record: CellRecord) -> str:
    numbers = record.numbers
    score = format.median(numbers.get("score"), format.count)
    if score == DASH:
        return DASH
    points, most = (format.median(numbers.get(name), format.count) for name in ("points", "max_points"))
    return f"{score}/100" + (f" ({points}/{most})" if DASH not in (points, most) else "")


def _failed(record: CellRecord) -> str:
    failed = record.outcome.details.get("failed") if record.outcome else None
    if not isinstance(failed, list):
        return DASH
    ids = [str(name) for name in failed]
    return "/".join([ids[0], *(i.removeprefix("TC-") for i in ids[1:])]) if ids else "none"

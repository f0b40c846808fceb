"""A small campaign in the current directory, and outcomes for its cells as a run would leave them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from campaign import ledger, matrix
from campaign.matrix import Boot, Cell, Matrix
from campaign.outcome import Fingerprint, Metric, Outcome, Reason
from markdown_it import MarkdownIt

CAMPAIGN: dict[str, Any] = {
    "title": "Toy - performance A/B",
    "question": "Which of these moves our numbers?",
    "lane": "toy",
    "venue": "here",
    "baseline": "base",
    "variants": {
        "base": {"label": "baseline (`-c 512`)"},
        "ngram": {"label": "n-gram", "flags": {"--spec": True}, "env": {"DRAFT": "on"}},
        "huge": {"label": "huge", "flags": {"-c": 4096}},
        "later": {"label": "later one", "flags": {"-c": 256}},
    },
    "order": ["base", "ngram", "huge", "base"],
    "instruments": [
        {"instrument": "probe", "prompt_tokens": [512], "max_tokens": 64},
        {"instrument": "llama_benchy", "pp": [512], "depth": [0, 4096], "concurrency": [1, 2], "runs": 1},
        {"instrument": "tool_eval", "label": "short", "scenarios": "short"},
    ],
    "findings": "Nothing moved *much*.",
    "not_measured": ["A larger model."],
}
LANE: dict[str, Any] = {
    "description": "a toy engine",
    "engine": "other",
    "command": ["toy-server", "--model", "{model}"],
    "model": {"name": "toy-model"},
    "flags": {"-c": 512},
    "constraints": [{"name": "memory", "expression": "c <= 2048", "reason": "4,096 cells don't fit."}],
    "speculates_if": 'value("spec", False) == True',
}


def campaign(**changes: Any) -> Matrix:
    """Write the config files of the toy campaign, with keys changed, and load it."""
    files = {
        "campaigns/toy": {**CAMPAIGN, **changes},
        "lanes/toy": LANE,
        "venues/here": {"description": "this machine"},
    }
    for name, data in files.items():
        path = Path("config") / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(data, sort_keys=False))
    return matrix.load("toy")


def cell(plan: Matrix, variant: str, point: str, boot: str = "b1") -> Cell:
    """The cell of that variant and boot whose point's name ends so."""
    return next(
        c for c in plan.cells if (c.boot.variant, c.boot.name) == (variant, boot) and c.point.endswith(point)
    )


def measure(plan: Matrix, target: Cell, **changes: Any) -> Outcome:
    """Write an ok outcome for a cell, with keys changed."""
    known: dict[str, dict[str, tuple[str, list[float]]]] = {
        "probe": {"ttft_s": ("s", [0.70, 0.75, 0.80]), "decode_tps": ("tok/s", [41.0, 41.7, 43.0])},
        "llama_benchy": {"pp_tps": ("tok/s", [3019.2]), "tg_tps": ("tok/s", [44.94])},
        "tool_eval": {
            "score": ("", [87]),
            "points": ("", [168]),
            "max_points": ("", [194]),
            "completion_rate": ("", [1.0]),
        },
    }
    numbers = known[target.instrument]
    values: dict[str, Any] = {
        "status": "ok",
        "metrics": {name: Metric.of(unit, found) for name, (unit, found) in numbers.items()},
        "fingerprint": Fingerprint(
            variant=plan.variants[target.boot.variant].fingerprint, instrument=target.fingerprint
        ),
        "started": "2026-10-18T10:00:00.000Z",
        "ended": "2026-10-18T10:01:00.000Z",
        "provenance": {"boot_id": f"{target.boot.variant}.{target.boot.name}.1"},
        "details": {"failed": ["TC-68", "TC-74"]} if target.instrument == "tool_eval" else {},
        **changes,
    }
    outcome = Outcome(
        campaign=plan.name,
        variant=target.boot.variant,
        boot=target.boot.name,
        instrument=target.instrument,
        point=target.point,
        **values,
    )
    outcome.write(target.path)
    return outcome


def fail(
    plan: Matrix, target: Cell, summary: str, status: str = "failed", evidence: str | None = None
) -> None:
    """Write an outcome that is not ok."""
    reason = Reason(cls="request_error", summary=summary, evidence=evidence)
    measure(plan, target, status=status, metrics={}, reason=reason, details={})


def boot_up(plan: Matrix, boot: Boot, boot_s: float = 30.0, status: str = "ok") -> None:
    """Write a boot's own record and its warm-up's, and the ledger's events of it."""
    for path, instrument in ((boot.path, "boot"), (boot.warm_up_path, "warm_up")):
        failed = status != "ok"
        metrics = {"boot_s": Metric.of("s", [boot_s])} if instrument == "boot" and not failed else {}
        Outcome(
            campaign=plan.name,
            variant=boot.variant,
            boot=boot.name,
            instrument=instrument,
            status=status if instrument == "boot" or not failed else "not_run",
            reason=Reason(cls="oom", summary="the engine ran out of memory") if failed else None,
            metrics=metrics,
            fingerprint=Fingerprint(variant=plan.variants[boot.variant].fingerprint),
            details={"facts": {"kv_cells": 2048, "ctx": len(boot.variant)}} if not failed else {},
        ).write(path)
    name = f"{boot.variant}.{boot.name}.1"
    ledger.append(
        plan.ledger, "start", name, variant=boot.variant, boot=boot.name, attempt=1, run="r", fingerprint="f"
    )
    if status == "ok":
        ledger.append(plan.ledger, "ready", name, boot_s=boot_s, facts={})
        ledger.append(plan.ledger, "stopped", name, how="to boot the next")
    else:
        ledger.append(plan.ledger, "failed", name, reason={"class": "oom", "summary": "out | of memory"})


def run_all(plan: Matrix) -> None:
    """Leave what a run without any failure leaves."""
    for boot in plan.boots:
        if not boot.blocked:
            boot_up(plan, boot)
    for target in plan.cells:
        if not target.boot.blocked:
            measure(plan, target)


def tables_of(markdown: str) -> dict[str, list[dict[str, str]]]:
    """Every table by the heading above it, as a real Markdown parser sees it: rows of text by column."""
    heading = ""
    tables: dict[str, list[dict[str, str]]] = {}
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    header: list[str] = []
    row: list[str] = []
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[at + 1].content
        elif token.type == "thead_open":
            header = []
        elif token.type == "th_open":
            header.append(text_of(tokens[at + 1]))
        elif token.type == "tr_open":
            row = []
        elif token.type == "td_open":
            row.append(text_of(tokens[at + 1]))
        elif token.type == "tr_close" and row:
            tables.setdefault(heading, []).append(dict(zip(header, row, strict=True)))
    return tables


def text_of(inline: Any) -> str:
    """The text of one inline token as a reader sees it."""
    return "".join(child.content for child in inline.children)


def calls_of(work: Callable[[], object]) -> int:
    """How many functions a piece of work calls: its cost, the same on a busy machine."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
